"""Several questions of one table."""
