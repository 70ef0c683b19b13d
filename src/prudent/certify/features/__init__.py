"""Public maps from records to vectors: nothing in them comes from the records of a release.

| name | records | what the map is |
| --- | --- | --- |
| `scattering` | images 28 × 28 | scattering coefficients, with statistics of synthetic glyphs |
| `glyphs` | images 28 × 28 | a network in whole numbers, trained on synthetic glyphs |
| `letters` | images 28 × 28 | a network in whole numbers, trained on public letters |
| `resnet18` | colour images | ResNet18 up to its third stage, trained on ImageNet |
| `minilm` | texts | MiniLM sentence embeddings, with directions from made-up reviews |
| `census` | rows of Census-Income | votes for the cells of public partitions |
| `vectors:D` | D numbers | the numbers themselves, if the records already are features |

A map of your own is a `Vectors` with a function from an array of records to an array with one row
per record; row i must be a function of record i alone. Entries below 0 count as 0 and rows longer
than 1 are shortened; `voting.rectified` makes signed features non-negative.
"""

import functools
from collections.abc import Callable
from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.certify.vectors import Euclidean, Pairing

NAMES = ("census", "glyphs", "letters", "minilm", "resnet18", "scattering", "vectors:D")
"""The names that `feature_map` accepts."""


class FeatureMap(Protocol):
    """A public map from records and queries to vectors.

    Attributes:
        name: A name for messages and saved files.
        width: The number of entries of a vector.
        digest: Changes whenever the map does; saved files are checked against it.
        pairing: How the vectors are rounded, and why their inner products are in [0, 1].
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def width(self) -> int: ...  # noqa: D102

    @property
    def digest(self) -> str: ...  # noqa: D102

    @property
    def pairing(self) -> Pairing: ...  # noqa: D102

    def records(self, records: npt.NDArray[np.generic], /) -> npt.ArrayLike:
        """The vectors of records, one per row."""
        ...

    def queries(self, queries: npt.NDArray[np.generic], /) -> npt.ArrayLike:
        """The vectors of queries, one per row."""
        ...


def _flat(records: npt.NDArray[np.generic]) -> npt.ArrayLike:
    return records.reshape(len(records), -1)


@attrs.frozen(eq=False)
class Vectors:
    """Non-negative vectors of Euclidean length at most 1, for records and queries alike.

    Attributes:
        width: The number of entries.
        function: From records to vectors, one per row; by default records are vectors already.
        name: As for `FeatureMap`.
        digest: As for `FeatureMap`.
    """

    width: int
    function: Callable[[npt.NDArray[np.generic]], npt.ArrayLike] = _flat
    name: str = attrs.field(default=attrs.Factory(lambda own: f"vectors:{own.width}", True))
    digest: str = ""
    pairing: Pairing = attrs.field(factory=Euclidean)

    def __attrs_post_init__(self) -> None:
        _validate.count(1, width=self.width)

    def records(self, records: npt.NDArray[np.generic]) -> npt.ArrayLike:
        """The vectors of records."""
        return self.function(records)

    def queries(self, queries: npt.NDArray[np.generic]) -> npt.ArrayLike:
        """The vectors of queries."""
        return self.function(queries)


def feature_map(features: str | FeatureMap) -> FeatureMap:
    """The feature map of a name; a map is returned as it is."""
    allowed = f"one of {', '.join(NAMES)} or a FeatureMap"
    if not isinstance(features, str):
        if not all(hasattr(features, each) for each in ("name", "width", "records", "queries")):
            raise ArgumentError("features", allowed, shown=type(features).__name__)
        return features
    kind, _, width = features.partition(":")
    if kind == "vectors" and width.isdecimal() and int(width) > 0:
        return Vectors(int(width))
    if features in _MADE:
        return _MADE[features]()
    raise ArgumentError("features", allowed, got=features)


@functools.cache
def _scattering() -> FeatureMap:
    from prudent.certify.features.codes import shipped

    return shipped("scattering")


@functools.cache
def _network(name: str) -> FeatureMap:
    from prudent.certify.features.network import shipped

    return shipped(name)


def _census() -> FeatureMap:
    from prudent.certify.features.table import CENSUS

    return CENSUS


@functools.cache
def _resnet18() -> FeatureMap:
    from prudent.certify.features.backbone import resnet18_map

    return resnet18_map()


@functools.cache
def _minilm() -> FeatureMap:
    from prudent.certify.features.sentences import minilm_map

    return minilm_map()


_MADE: dict[str, Callable[[], FeatureMap]] = {
    "census": _census,
    "glyphs": functools.partial(_network, "glyphs"),
    "letters": functools.partial(_network, "letters"),
    "minilm": _minilm,
    "resnet18": _resnet18,
    "scattering": _scattering,
}
