"""Checks of a model and a loss before private training."""
