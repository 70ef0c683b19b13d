"""Columns of data, and the query engines that compute their counts, sums and order statistics."""
