"""A uniform measure, for values in an interval that is known already."""

import attrs
import numpy as np
from typing_extensions import override

from prudent.release.lattice import IntArray
from prudent.release.selection.measure import LatticeMeasure


@attrs.frozen(slots=False)
class UniformMeasure(LatticeMeasure):
    """Equal mass for every point of a lattice between bounds.

    It suits an interval of which no more is known than its ends. Where the scale of the values is
    unknown too, octaves are far better.
    """

    @property
    @override
    def lightest(self) -> int:
        return 1

    @override
    def below(self, indices: IntArray) -> IntArray:
        return np.asarray(indices, np.int64)
