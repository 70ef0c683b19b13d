"""The paper's own bounds, as printed or corrected by the errata; no release is priced by them."""
