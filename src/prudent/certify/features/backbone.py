"""A map for colour images: ResNet18 up to its third stage, trained on ImageNet.

The network's 256 features are averages of rectified activations, so they have a large common part
that says little. Of the features of length 1, what exceeds a public threshold is kept.
"""

import functools
import hashlib
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch

from prudent._files import sha256
from prudent.certify.codes import Codes, whole
from prudent.certify.landmarks import Flags
from prudent.experiments.backbones import ResNet18Features, features_of, find_weights, resnet18
from prudent.records.arrays import Form

WEIGHTS = "resnet18-to-layer3-bnfolded.safetensors"
SIDE = 64
"""Height and width to which images are resized."""

THRESHOLD = 0.05
WIDTH = 256
"""How many features there are."""


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
        values, (present,) = Form(shape, 0, 255).read([record])
        if not present:
            return np.full(self.width, np.nan)
        unit = values if values.max() <= 1 else values / 255
        images = torch.from_numpy(unit.astype(np.float32))
        row: npt.NDArray[np.float64] = features_of(self.network, images, SIDE)[0].double().numpy()
        return row


@attrs.frozen(eq=False)
class Thresholded:
    """Codes by what exceeds a threshold of features of length 1.

    Attributes:
        embedding: From images to features; None: records are features already.
        name: As for `Features`.
    """

    embedding: ResNet18Embedding | None = attrs.field(factory=ResNet18Embedding)
    name: str = "resnet18"

    width = WIDTH

    @property
    def digest(self) -> str:
        """Of the network and the threshold."""
        return f"{getattr(self.embedding, 'digest', '')} threshold {THRESHOLD}"

    def codes(self, records: Any) -> tuple[Codes, Flags]:
        """Codes of images."""
        given = records if self.embedding is None else self.embedding(records)
        rows, present = Form((WIDTH,)).read(given)
        norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
        return whole((rows / np.maximum(norms, 1e-12) - THRESHOLD).clip(min=0.0)), present


def resnet18_map(embedding: ResNet18Embedding | None = None) -> Thresholded:
    """The map `resnet18`."""
    return Thresholded(embedding or ResNet18Embedding())
