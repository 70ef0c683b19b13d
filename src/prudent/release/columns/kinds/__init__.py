"""Columns in a query engine: one value per record, pairs of numbers, sets of categories."""
