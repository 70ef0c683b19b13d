"""How a model learns under a test: per-example gradients, weights from their norms, noise."""
