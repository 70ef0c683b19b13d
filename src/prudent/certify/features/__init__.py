"""Public maps from records to codes, and public partitions: nothing in them is from the records.

| name | records | what it is |
| --- | --- | --- |
| `letters` | images 28 × 28 | a network in whole numbers, trained on public letters |
| `glyphs` | images 28 × 28 | a network in whole numbers, trained on synthetic glyphs |
| `resnet18` | colour images | ResNet18 up to its third stage, trained on ImageNet |
| `minilm` | texts | MiniLM sentence embeddings, with a direction from made-up reviews |
| `census` | rows of Census-Income | cells of public partitions |

`letters` and `glyphs` come with landmarks of their own.
"""

import functools
from collections.abc import Callable
from importlib import resources
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from prudent._validate import ArgumentError
from prudent.certify.codes import Codes, whole
from prudent.certify.landmarks import Features, Landmarks, Partition
from prudent.records.arrays import Form, parts
from prudent.records.whole_network import TOP, Network, shipped_network

NAMES = ("census", "glyphs", "letters", "minilm", "resnet18")
"""The names that `named` accepts."""

Flags = npt.NDArray[np.bool_]

_AT_ONCE = 512


@attrs.frozen(eq=False)
class Vectors:
    """Records that are vectors already; only their direction counts.

    Attributes:
        width: How many numbers each holds.
    """

    width: int

    @property
    def name(self) -> str:
        """For messages."""
        return f"vectors of {self.width}"

    @property
    def digest(self) -> str:
        """Of the width."""
        return self.name

    def codes(self, records: Any) -> tuple[Codes, Flags]:
        """The vectors, rounded to whole numbers."""
        values, present = Form((self.width,)).read(records)
        return whole(values), present


@attrs.frozen(eq=False)
class Function:
    """Vectors by a function of your own, such as a frozen network.

    It is called with one record at a time, as a container of one record, and returns one row:
    libraries choose how to round by the shape of an array and by the place of a row in it, so a
    function of many records gives each of them numbers that depend on the others.

    Attributes:
        function: From a container of one record to one row.
        width: How many numbers a row holds; a record with more or fewer counts as absent.
        name: As for `Features`.
        digest: As for `Features`.
    """

    function: Callable[[Any], Any]
    width: int
    name: str = "a function"
    digest: str = ""

    def codes(self, records: Any) -> tuple[Codes, Flags]:
        """The rows of records; one for which the function fails counts as absent."""
        rows = [self._row(part) for part in parts(records, 1)]
        values, present = Form((self.width,)).read(rows)
        return whole(values), present

    def _row(self, record: Any) -> Any:
        try:
            return np.asarray(self.function(record), dtype=np.float64)
        except Exception:  # whatever it raises, about this record alone
            return None


@attrs.frozen(eq=False)
class Images:
    """Grey images of 28 × 28 pixels, coded by a network in whole numbers.

    Pixels are bytes from 0 to 255, or numbers from 0 to 1: an image without a number above 1 is
    read as the latter. So the code depends on the numbers, not on the type that holds them.

    Attributes:
        name: As for `Features`.
        digest: As for `Features`.
        network: The network.
    """

    name: str
    digest: str
    network: Network

    def codes(self, records: Any) -> tuple[Codes, Flags]:
        """Codes of images."""
        codes, flags = [np.zeros((0, self.network.entries), np.float32)], [np.zeros(0, bool)]
        for values, present in Form((28, 28), 0, TOP).chunks(records, _AT_ONCE):
            unit = values.max(axis=(1, 2)) <= 1
            images = np.rint(np.where(unit[:, None, None], TOP * values, values))
            codes.append(whole(self.network(images.astype(np.uint8))))
            flags.append(present)
        return np.concatenate(codes), np.concatenate(flags)


def named(name: str) -> "Features | Partition":
    """The map or the partition of a name."""
    if name in _MADE:
        return _MADE[name]()
    raise ArgumentError("features", f"one of {', '.join(NAMES)}", got=name)


@functools.cache
def images(name: str) -> Images:
    """A map for grey images that comes with the package."""
    network, digest = shipped_network(name)
    return Images(name, digest, network)


@functools.cache
def shipped_landmarks(name: str) -> Landmarks:
    """The landmarks of a map that come with the package, with the ramp chosen for them."""
    place = resources.files("prudent.certify.features") / f"{name}-landmarks.npz"
    with resources.as_file(place) as path, np.load(path) as archive:
        rows = archive["rows"].astype(np.float64)
        low, high = archive["ramp"].tolist()
        tables = int(archive["tables"])
    return Landmarks(images(name), whole(rows), (low, high), tables)


def _census() -> Partition:
    from prudent.certify.features.table import CENSUS

    return CENSUS


@functools.cache
def _resnet18() -> Features:
    from prudent.certify.features.backbone import resnet18_map

    return resnet18_map()


@functools.cache
def _minilm() -> Partition:
    from prudent.certify.features.sentences import minilm_map

    return minilm_map()


_MADE: dict[str, Callable[[], Features | Partition]] = {
    "census": _census,
    "glyphs": functools.partial(images, "glyphs"),
    "letters": functools.partial(images, "letters"),
    "minilm": _minilm,
    "resnet18": _resnet18,
}
