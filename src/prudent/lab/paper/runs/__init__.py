"""The runs that fill the paper's tables."""
