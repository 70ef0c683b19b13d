"""Engines that compute the norms of per-example gradients and one weighted sum of them.

A clipped, trimmed sum of gradients is Σ wᵢ gᵢ with weights that depend on the norms alone:

    engine = BookKeeping(model, loss)
    gradients = engine(model, inputs, targets)       # one forward, one backward
    weights = (clip / gradients.norms).clamp(max=1)  # any function of the norms
    gradients.weighted_sum(weights)                  # {name: Σᵢ wᵢ gᵢ}
"""

from prudent.training.gradients.engine import BookKeeping, Engine, Formed, Gradients, Materialised

__all__ = ["BookKeeping", "Engine", "Formed", "Gradients", "Materialised"]
