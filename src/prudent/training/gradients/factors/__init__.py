"""The factors of per-example gradients: what each layer keeps, their norms and sums."""
