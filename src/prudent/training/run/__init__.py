"""The training loop, from a plan, a model and data to a private model."""
