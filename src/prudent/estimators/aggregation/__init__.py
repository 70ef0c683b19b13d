"""Any statistic of a table, from its values on disjoint parts: see `aggregate`."""
