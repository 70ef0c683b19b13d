"""Weighted first and second moments of standardised columns, by group, in one noisy sum.

The vector of a record is (1, z, z²/s) for its standardised columns z, clipped, in the block of its
group. Where it is longer than the radius it is shortened as a whole: the record then has a weight
below 1 in all moments alike, so that means stay means.
"""

import math

import attrs
import numpy as np

from prudent.estimators.engine import Map, SumEngine
from prudent.estimators.features import StandardFeatures
from prudent.estimators.models.start import one_hot
from prudent.release.lattice import FloatArray

_CLIP = 4.0  # of a standardised column
_SQUARES = 2.0  # squares are divided by this, so that they weigh as much as the columns
_REACH = 1.25  # the radius, in root mean squares of a normal vector
_LEAST_VARIANCE = 1e-2  # of a standardised column


@attrs.frozen(eq=False)
class ClassMoments:
    """Released moments of standardised columns, one row for each group.

    Attributes:
        counts: The weight of each group, at least 1.
        means: The mean of each column.
        variances: The variance of each column, positive.
    """

    counts: FloatArray
    means: FloatArray
    variances: FloatArray

    @classmethod
    def release(
        cls, engine: SumEngine, part: str, features: StandardFeatures, groups: Map, kinds: int
    ) -> "ClassMoments":
        """Release the moments; `groups` returns the place of the group of each row."""
        width = features.width - 1
        radius = _REACH * math.sqrt(1 + width * (1 + 3 / _SQUARES**2))

        def pairs(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
            numbers = np.clip(features.vectors(rows)[:, 1:], -_CLIP, _CLIP)
            ones = np.ones((len(rows), 1))
            return (
                one_hot(groups(rows), kinds),
                np.concatenate([ones, numbers, numbers * numbers / _SQUARES], axis=1),
            )

        sums = engine.cross(part, pairs, (1.0, radius))
        counts = np.maximum(sums[:, :1], 1.0)
        # A group with fewer records than the noise of a sum says nothing about its mean.
        noise = engine.deviation(part) * radius
        kept = counts**2 / (counts**2 + noise**2)
        means = np.clip(kept * sums[:, 1 : width + 1] / counts, -_CLIP, _CLIP)
        squares = kept * sums[:, width + 1 :] / counts * _SQUARES + (1 - kept)
        return cls(counts[:, 0], means, np.maximum(squares - means**2, _LEAST_VARIANCE))
