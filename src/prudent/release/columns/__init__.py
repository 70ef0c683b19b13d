"""Columns: what a statistic asks of an engine, and how each engine answers."""
