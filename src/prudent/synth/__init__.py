"""A synthetic table from one private release, without a domain or bounds."""
