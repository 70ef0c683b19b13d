"""Propose-Test-Release of a trimmed sum of numbers, as it is run: sampled, sorted, tested, noised.

Gradients are numbers of size at most R = 1. F is how many may be trimmed, τ the proposal, σ the
noise of the plain sum and τσ that of the trimmed one.
"""

import math
from dataclasses import dataclass

import numpy as np

from prudent.accounting import LaplaceTest, ProposeTestReleaseDpEvent


@dataclass(frozen=True)
class TrimmedSum:
    """The mechanism of one event on samples of a rate."""

    event: ProposeTestReleaseDpEvent
    allowed: int  # F
    rate: float

    @property
    def threshold(self):
        return self.event.test.threshold(self.event.failure)

    def batches(self, gradients):
        """Every batch: its probability, margin, plain sum and trimmed sum."""
        count = len(gradients)
        for bits in range(2**count):
            batch = [gradients[i] for i in range(count) if bits >> i & 1]
            probability = self.rate ** len(batch) * (1 - self.rate) ** (count - len(batch))
            kept = sorted(batch, key=abs)[: max(0, len(batch) - self.allowed)]
            large = sum(abs(value) > self.event.propose for value in batch)
            yield probability, max(0, self.allowed - large), sum(batch), sum(kept)

    def density(self, gradients, noisy, passed, output):
        """The joint density of the noisy margin and the output."""
        sigma, scale = self.event.noise_multiplier, self.event.test.scale
        total = np.zeros(np.broadcast(noisy, output).shape)
        for probability, margin, plain, trimmed in self.batches(gradients):
            law = np.exp(-np.abs(noisy - margin) / scale) / (2 * scale)
            spread = np.where(passed, self.event.propose, 1.0) * sigma
            distance = (output - np.where(passed, trimmed, plain)) / spread
            normal = np.exp(-0.5 * distance**2) / (spread * math.sqrt(2 * math.pi))
            total += probability * law * normal
        return total

    def grid(self):
        """Nodes and weights over margins (breaking at whole numbers and the threshold), outputs."""
        assert isinstance(self.event.test, LaplaceTest)
        top = self.allowed + 1
        far = 25 * self.event.test.scale
        above = max(top, self.threshold)
        tails = {-far, -far / 4, -far / 20, above + far / 6, above + far}
        breaks = sorted({*map(float, range(top + 1)), self.threshold, *tails})
        points, weights = np.polynomial.legendre.leggauss(10)
        halves = np.diff(breaks)[:, None] / 2
        middles = (np.array(breaks[:-1]) + np.array(breaks[1:]))[:, None] / 2
        margins = (middles + halves * points).ravel()
        reach = 9 * self.event.noise_multiplier + 6
        outputs = np.linspace(-reach, reach, 1500)
        step = outputs[1] - outputs[0]
        return margins, (halves * weights).ravel() * step, outputs
