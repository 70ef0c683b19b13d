"""The released share of values that clipping moved, from two noisy counts.

A record is either inside the bounds or outside. So the two counts together change by 1 with a
record, and noise for a sensitivity of 1 on each pays for both.
"""

import math

import attrs
import numpy as np

from prudent._rounding import outward, percent
from prudent.release.columns.column import Column
from prudent.release.noise import Noise
from prudent.release.sums.additive import AdditiveMechanism, NoiseRegion

CONFIDENCE = 0.95
"""Least probability, over the noise, with which a share is in its interval."""


@attrs.frozen
class ClippedShare:
    """Where the fraction of records outside public or released bounds lies.

    Attributes:
        interval: Ends of an interval that holds the fraction with probability `CONFIDENCE`, at
            least; None if there are too few records to tell.
    """

    interval: tuple[float, float] | None

    @classmethod
    def release(
        cls, column: Column, ends: tuple[float, float], mechanism: AdditiveMechanism, noise: Noise
    ) -> "ClippedShare":
        """Release the share; the mechanism must have Laplace noise."""
        low, high = ends
        below, within = column.counts_below(np.array([low, math.nextafter(high, math.inf)]))
        inside = int(within - below)
        counts = [inside, column.count() - inside]
        records = column.contribution.records
        noisy = mechanism.noisy(counts, records, noise)
        region = NoiseRegion(
            tuple(map(float, noisy)), mechanism.distribution, mechanism.scale(records), rounding=1.0
        )
        corners = list(region.vertices(CONFIDENCE))
        if min(map(sum, corners)) <= 0:
            return cls(None)
        shares = [min(1.0, max(0.0, outside / (inside + outside))) for inside, outside in corners]
        return cls((min(shares), max(shares)))

    @staticmethod
    def enough_records(mechanism: AdditiveMechanism, records: int) -> int:
        """A number of records with which the share is released, as good as surely.

        The noise and what is allowed for it may each take away as much as `CONFIDENCE` says.
        """
        region = NoiseRegion(
            (0.0, 0.0), mechanism.distribution, mechanism.scale(records), rounding=1.0
        )
        return math.ceil(2 * max(map(sum, region.vertices(CONFIDENCE))))

    def __str__(self) -> str:
        if self.interval is None:
            return "The bounds are private; how many values lay outside is not known."
        low, high = outward(*(100 * share for share in self.interval))
        return (
            f"The bounds are private; {low}% to {high}% of the values lay outside and were moved "
            f"to the nearer one (confidence {percent(CONFIDENCE)})."
        )
