"""Columns of another kind than one value per record: pairs of numbers, sets of categories."""
