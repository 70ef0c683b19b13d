"""Values of one row that are computed: conditions, expressions, periods, groups."""
