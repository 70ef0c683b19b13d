"""Several questions of one table at once: as values, as texts, as SQL."""
