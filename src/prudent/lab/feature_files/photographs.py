"""The statistics and landmarks of the map `resnet18`, from images that random processes drew."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from prudent.certify.features.backbone import FINE, Real, ResNet18Embedding, Whitened, roots
from prudent.lab.feature_files.landmarks import write
from prudent.lab.recipes.random_images import draw

_IMAGES, _LANDMARKS, _SEED = 12_000, 8000, 5
_DIRECTIONS, _SHRINK = 128, 0.1
_RAMP = (0.09, 0.15)
_SAW = (
    "photographs 46,000 to 50,000 of the training part of CIFAR10, with counts of the others; "
    "results of an earlier classifier on the test part were known"
)


def whitened(features: Real) -> Whitened:
    """The map by statistics of features of public images."""
    rows = roots(features)
    centre = np.rint(rows.mean(axis=0))
    values, vectors = np.linalg.eigh(np.cov((rows - centre).T))
    scales = np.sqrt(values + _SHRINK * values.mean())
    matrix = (vectors / scales)[:, ::-1][:, :_DIRECTIONS]
    return Whitened(centre, np.rint(matrix / np.abs(matrix).max() * (FINE - 1)), "")


def make(path: Path, embedding: ResNet18Embedding | None = None) -> dict[str, Any]:
    """Draw random images, and write the statistics and the landmarks of the map.

    Returns:
        How they were made.
    """
    network, generator = embedding or ResNet18Embedding(), torch.Generator().manual_seed(_SEED)
    features = network(draw(_IMAGES, 32, generator).numpy())
    found = whitened(features)
    provenance = {
        "images": _IMAGES,
        "landmarks": _LANDMARKS,
        "seed": _SEED,
        "ramp": _RAMP,
        "saw": _SAW,
    }
    centre, matrix = found.centre.astype(np.int32), found.matrix.astype(np.int16)
    codes, _ = found.codes(features[:_LANDMARKS])
    write(path, codes, _RAMP, provenance, centre=centre, matrix=matrix)
    return provenance
