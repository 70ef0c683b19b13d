"""Margins: how many records stand between a data set and a larger local sensitivity."""
