"""The paper's own bounds, as printed or as the errata correct them; none prices a release."""
