"""The direction of the map `minilm`, between embeddings of made-up blame and made-up praise.

Made-up film reviews: public text from which directions of praise and blame are learned.

Sentences are drawn from the templates and word lists of `reviews.toml`; no review of any data set
was used. What a review says about the film (genre, plot, length) is drawn independently of
whether it praises it, so the first is variation that a map should ignore.
"""

import json
import os
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prudent._files import replacing
from prudent_lab.features.sentences import FORMAT, LAYERS, Intervals, MiniLMEmbedding, Real


def direction_of(embeddings: Real, labels: npt.NDArray[np.int64], shrink: float = 0.5) -> Real:
    """Fisher's discriminant of two classes; deviation 1 within classes.

    `shrink` is the weight of the mean variance in the covariance within classes.
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
    """Embed made-up reviews, find the direction, write the map, and return how it was made."""
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


def reviews(count: int, seed: int) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Reviews and their labels: 1 for praise, 0 for blame, in turn."""
    draw = np.random.RandomState(seed)  # frozen across versions of numpy
    place = resources.files("tools.feature_files") / "reviews.toml"
    known: dict[str, list[str]] = tomllib.loads(place.read_text("utf-8"))

    def one(options: list[str]) -> str:
        return options[draw.randint(len(options))]

    def filled(template: str, words: list[str]) -> str:
        text = template.format(
            genre=one(known["genres"]),
            person=one(known["people"]),
            event=one(known["events"]),
            aspect=one(known["aspects"]),
            aspect2=one(known["aspects"]),
            word=one(words),
            other=one(words),
            when=one(known["times"]),
            friend=one(known["friends"]),
            minutes=80 + draw.randint(80),
            year=1930 + draw.randint(75),
        )
        return text[0].upper() + text[1:]

    texts = []
    for index in range(count):
        kind = "praise" if index % 2 else "blame"
        words = known[kind]
        parts = [filled(one(known["neutral"]), words) for _ in range(draw.randint(1, 7))]
        parts += [filled(one(known["judged"]), words) for _ in range(draw.randint(1, 5))]
        parts += [one(known[f"verdicts_of_{kind}"]) for _ in range(draw.randint(0, 3))]
        draw.shuffle(parts)
        texts.append(" ".join(parts))
    return texts, np.arange(count, dtype=np.int64) % 2
