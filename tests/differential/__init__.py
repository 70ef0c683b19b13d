"""With and without one record: the exact sums of every entry, and what they may differ by."""
