"""Public maps from records to vectors: nothing in them comes from the records of a release.

| name | records | what the map is |
| --- | --- | --- |
| `letters` | images 28 × 28 | a network trained on public letters and on synthetic glyphs |
| `glyphs` | images 28 × 28 | the same network, trained on synthetic glyphs only |
| `vectors:D` | D numbers | the numbers themselves, if the records already are features |

A `FeatureMap` of your own is any callable from an array of records to an array with one row per
record. Row i must be a function of record i alone. Entries below 0 count as 0 and rows longer than
1 are shortened, so split a signed feature into its positive and its negative part: `rectified`.
"""

import functools
from typing import Protocol

import numpy as np
import numpy.typing as npt

from prudent._validate import ArgumentError

NETWORKS = ("letters", "glyphs")
NAMES = (*NETWORKS, "vectors:D")
"""The names that `feature_map` accepts."""


class FeatureMap(Protocol):
    """A public map from records to vectors.

    Attributes:
        name: A name for messages and saved files.
        width: The number of entries of a vector.
        digest: Changes whenever the map does; saved files are checked against it.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def width(self) -> int: ...  # noqa: D102

    @property
    def digest(self) -> str: ...  # noqa: D102

    def __call__(self, records: npt.NDArray[np.generic], /) -> npt.ArrayLike:
        """The vectors of the records, one per row."""
        ...


class Vectors:
    """Records that already are vectors: the map that changes nothing."""

    def __init__(self, width: int) -> None:
        self.width, self.name, self.digest = width, f"vectors:{width}", ""

    def __call__(self, records: npt.NDArray[np.generic]) -> npt.ArrayLike:
        """The records, one per row."""
        return records.reshape(len(records), self.width)


def feature_map(features: str | FeatureMap) -> FeatureMap:
    """The feature map of a name; a map is returned as it is."""
    if not isinstance(features, str):
        return features
    kind, _, width = features.partition(":")
    if kind == "vectors" and width.isdecimal() and int(width) > 0:
        return Vectors(int(width))
    if features in NETWORKS:
        return _network(features)
    raise ArgumentError("features", f"one of {', '.join(NAMES)} or a FeatureMap", got=features)


@functools.cache
def _network(name: str) -> FeatureMap:
    from prudent.certify.features.network import shipped

    return shipped(name)


def rectified(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Signed features as non-negative ones: the positive parts, then the negative parts."""
    rows = np.asarray(values, dtype=np.float64)
    return np.concatenate([rows.clip(min=0), (-rows).clip(min=0)], axis=1)
