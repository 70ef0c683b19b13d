"""Privacy losses: pairs of distributions that dominate an event, their sums and their bounds."""
