"""A map for colour images: ResNet18 up to its third stage, trained on ImageNet.

The network's 256 features are averages of rectified activations, so they have a large common part
that says little. Of the features of length 1, what exceeds a public threshold is kept.
"""

import functools
import hashlib

import numpy as np
import numpy.typing as npt
import torch

from prudent._files import sha256
from prudent.certify.features import Vectors
from prudent.certify.features.embedded import Embedded
from prudent.experiments.backbones import ResNet18Features, features_of, find_weights, resnet18

WEIGHTS = "resnet18-to-layer3-bnfolded.safetensors"
SIDE = 64
"""Height and width to which images are resized."""

THRESHOLD = 0.05


class ResNet18Embedding:
    """Features of images, bytes or numbers in [0, 1], as (n, 3, height, width).

    Images are computed in batches of one shape, those of the caller. An image with a pixel that is
    not finite gets NaN.

    Args:
        network: The network; None reads it from the folder `weights` of the data folders.
        digest: Of its weights.
    """

    name = "resnet18"

    def __init__(self, network: ResNet18Features | None = None, digest: str = "") -> None:
        self._network, self._digest = network, digest

    @functools.cached_property
    def network(self) -> ResNet18Features:
        """The network, read when first needed."""
        return self._network or resnet18(find_weights(WEIGHTS))

    @property
    def digest(self) -> str:
        """Of the weights and the size of images."""
        weights = self._digest or sha256(find_weights(WEIGHTS))
        return hashlib.sha256(f"{weights} {SIDE}".encode()).hexdigest()

    def __call__(self, records: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        """The features of images."""
        unit = np.float32(255 if records.dtype == np.uint8 else 1)
        finite = np.isfinite(records).reshape(len(records), -1).all(axis=1)
        clean = np.where(finite[:, None, None, None], records, 0).astype(np.float32)
        images = torch.from_numpy(np.clip(clean / unit, 0, 1))
        rows = features_of(self.network, images, SIDE, batch_size=len(images))
        found: npt.NDArray[np.float32] = rows.numpy()
        found[~finite] = np.nan
        return found


def thresholded(features: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """What exceeds the threshold of features of length 1, made as long as 1 again."""
    rows = _unit(features.astype(np.float64)) - THRESHOLD
    return _unit(rows.clip(min=0.0))


def _unit(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    found: npt.NDArray[np.float64] = rows / np.maximum(norms, 1e-12)
    return found


def resnet18_map(embedding: ResNet18Embedding | None = None) -> Embedded:
    """The feature map `resnet18`."""
    width, digest = 256, f"threshold {THRESHOLD}"
    return Embedded(
        embedding or ResNet18Embedding(), Vectors(width, thresholded, "resnet18", digest)
    )
