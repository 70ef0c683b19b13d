"""Safety margins: the distance, in records, from a data set to one of high local sensitivity."""
