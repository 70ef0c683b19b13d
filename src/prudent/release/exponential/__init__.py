"""Quantiles chosen by the exponential mechanism from all values of a column's type, exactly."""
