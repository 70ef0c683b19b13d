"""A map for colour images: ResNet18 up to its third stage, trained on ImageNet.

The network's 256 features are averages of rectified activations: large ones vary most, and all have
a large common part that says little. So their square roots are centred and whitened, by statistics
of images that random processes drew. Some of these are the landmarks: no photograph but those of
ImageNet was ever looked at.
"""

import functools
import hashlib
from importlib import resources
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch

from prudent._files import sha256
from prudent.certify.codes import Codes, whole
from prudent.certify.features.resnet import ResNet18Features, features_of, find_weights, resnet18
from prudent.certify.landmarks import Flags
from prudent.records.arrays import ArrayForm

Real = npt.NDArray[np.float64]

WEIGHTS = "resnet18-to-layer3-bnfolded.safetensors"
SIDE = 64
"""Height and width to which images are resized."""

WIDTH = 256
"""How many features there are."""

FINE = 1 << 12
"""Steps of a square root in a unit."""

_FARTHEST = float(1 << 20)  # with weights below 2¹², sums of 256 products are exact in float64


class ResNet18Embedding:
    """Features of images, bytes or numbers from 0 to 1, each (3, height, width).

    Images are computed one by one; one without a number above 1 is read as numbers from 0 to 1.

    Args:
        network: The network; None reads it from the folder `weights` of the data folders.
        digest: Of its weights.
        width: How many features it has.
    """

    name = "resnet18"

    def __init__(
        self, network: ResNet18Features | None = None, digest: str = "", width: int = WIDTH
    ) -> None:
        self._network, self._digest, self.width = network, digest, width

    @functools.cached_property
    def network(self) -> ResNet18Features:
        """The network, read when first needed."""
        return self._network or resnet18(find_weights(WEIGHTS))

    @property
    def digest(self) -> str:
        """Of the weights and the size of images."""
        weights = self._digest or sha256(find_weights(WEIGHTS))
        return hashlib.sha256(f"{weights} {SIDE}".encode()).hexdigest()

    def __call__(self, records: Any) -> npt.NDArray[np.float64]:
        """The features of images; NaN for what is no image."""
        return np.array([self._row(record) for record in records]).reshape(len(records), self.width)

    def _row(self, record: Any) -> npt.NDArray[np.float64]:
        """The features of one image, computed alone: its row depends on no other."""
        shape = np.shape(record)
        if len(shape) != 3 or shape[0] != 3 or not np.size(record):
            return np.full(self.width, np.nan)
        values, (present,) = ArrayForm(shape, 0, 255).read([record])
        if not present:
            return np.full(self.width, np.nan)
        unit = values if values.max() <= 1 else values / 255
        images = torch.from_numpy(unit.astype(np.float32))
        row: npt.NDArray[np.float64] = features_of(self.network, images, SIDE)[0].double().numpy()
        return row


@attrs.frozen(eq=False)
class Whitened:
    """Codes by whitened square roots of features.

    Every step is of one row alone: roots are rounded to whole numbers, and their products with
    whole numbers, and all sums of these, are exact in float64.

    Attributes:
        centre: Subtracted from the roots, in steps.
        matrix: From roots to directions, whole numbers, (features, directions).
        digest: As for `Features`.
        embedding: From images to features; None: records are features already.
        name: As for `Features`.
    """

    centre: Real
    matrix: Real
    digest: str
    embedding: ResNet18Embedding | None = None
    name: str = "resnet18"

    @property
    def width(self) -> int:
        """How many entries a code has."""
        return int(self.matrix.shape[1])

    def codes(self, records: Any) -> tuple[Codes, Flags]:
        """Codes of images."""
        given = records if self.embedding is None else self.embedding(records)
        rows, present = ArrayForm((len(self.centre),)).read(given)
        return whole((roots(rows) - self.centre) @ self.matrix), present


def roots(rows: Real) -> Real:
    """Square roots of features, in whole steps."""
    found: Real = np.rint(FINE * np.sqrt(rows.clip(min=0.0))).clip(max=_FARTHEST)
    return found


def resnet18_map(embedding: ResNet18Embedding | None = None) -> Whitened:
    """The map `resnet18`, whose statistics come with the package."""
    place = resources.files("prudent.certify.features") / "resnet18-landmarks.npz"
    with resources.as_file(place) as path, np.load(path, allow_pickle=False) as archive:
        centre, matrix = (archive[name].astype(np.float64) for name in ("centre", "matrix"))
        network = embedding or ResNet18Embedding()
        return Whitened(centre, matrix, f"{sha256(path)}", network)
