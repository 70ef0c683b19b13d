"""The direction of the map `minilm`, between embeddings of made-up blame and made-up praise."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prudent._files import replacing
from prudent.certify.features.sentences import FORMAT, LAYERS, Intervals, MiniLMEmbedding, Real
from prudent.lab.feature_files.reviews import reviews


def direction_of(embeddings: Real, labels: npt.NDArray[np.int64], shrink: float = 0.5) -> Real:
    """Fisher's discriminant of two classes; deviation 1 within classes.

    Args:
        embeddings: One per row.
        labels: 0 or 1.
        shrink: Weight of the mean variance in the covariance within classes.
    """
    means = np.stack([embeddings[labels == label].mean(axis=0) for label in (0, 1)])
    within = embeddings - means[labels]
    covariance = within.T @ within / len(within)
    mean = np.trace(covariance) / len(covariance)
    covariance = (1 - shrink) * covariance + shrink * mean * np.eye(len(covariance))
    found: Real = np.linalg.solve(covariance, means[1] - means[0])
    found /= np.std(within @ found)
    return found


def fitted(
    embeddings: Real, labels: npt.NDArray[np.int64], provenance: dict[str, Any]
) -> Intervals:
    """The map from embeddings of made-up reviews."""
    rows = embeddings / np.sqrt(np.square(embeddings).sum(axis=1, keepdims=True))
    return Intervals("minilm", "", rows.mean(axis=0), direction_of(rows, labels), provenance)


def make(
    path: str | os.PathLike[str], count: int = 6000, embedding: MiniLMEmbedding | None = None
) -> dict[str, Any]:
    """Embed made-up reviews, find the direction and write the map.

    Returns:
        How it was made.
    """
    texts, labels = reviews(count, seed=1)
    network = embedding or MiniLMEmbedding()
    rows = network(texts)
    provenance = {"reviews": count, "seed": 1, "layers": LAYERS}
    write(path, fitted(rows, labels, provenance))
    return provenance


def write(path: str | os.PathLike[str], found: Intervals) -> None:
    """Write a map."""
    header = np.array(json.dumps({"format": FORMAT, "provenance": found.provenance}))
    with replacing(Path(path), "wb") as file:
        np.savez_compressed(
            file,
            header=header,
            centre=found.centre.astype(np.float32),
            direction=found.direction.astype(np.float32),
        )
