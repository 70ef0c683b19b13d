"""Exact noise on sums: counts, moments and bins of clipped values, and where to clip."""
