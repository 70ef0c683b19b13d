"""Columns in a query engine: their queries, and how these are batched and answered."""
