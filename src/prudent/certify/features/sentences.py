"""A map for texts: where an embedding lies between blame and praise, as made-up reviews show it.

A text is embedded by the first four layers of MiniLM. One direction, which separates embeddings of
made-up praise from made-up blame (Fisher's discriminant), gives each text a number. A record votes
for the interval that its number is in; a query gives weight 1 to intervals near its own number. So
a class sum is a histogram of that number: where praise ends and blame begins is not taken from the
made-up reviews but decided by the private histograms.
"""

import functools
import hashlib
import json
import os
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import numpy.typing as npt
import torch

from prudent import _extras
from prudent._files import replacing, sha256
from prudent._formats import check_format, read_npz, reading
from prudent.certify.features.embedded import Embedded
from prudent.certify.features.reviews import reviews
from prudent.certify.vectors import Votes, in_chunks
from prudent.experiments.backbones import find_weights, read_weights
from prudent.experiments.formats import packed_texts, unpacked_texts
from prudent.experiments.sentence_encoder import TOKENS, SentenceEncoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FORMAT = 1
"""Format number of the files."""

FOLDER = "all-MiniLM-L6-v2"
LAYERS = 4
_BATCH = 32
_REACH, _STEP = 8.0, 0.1
_NEAR, _FAR = 1.0, 2.0

Real = npt.NDArray[np.float64]


class MiniLMEmbedding:
    """Embeddings of texts, given as rows of UTF-8 bytes that zeros follow (`packed_texts`).

    Texts are computed in batches of one shape. The files `model.safetensors` and `tokenizer.json`
    are read from the folder `weights/all-MiniLM-L6-v2` of the data folders.

    Args:
        encoder: The network; None reads it.
        tokenizer: Its tokenizer; None reads it.
        digest: Of both.
    """

    name = "minilm"

    def __init__(
        self,
        encoder: SentenceEncoder | None = None,
        tokenizer: "Tokenizer | None" = None,
        digest: str = "",
    ) -> None:
        self._encoder, self._tokenizer, self._digest = encoder, tokenizer, digest

    @functools.cached_property
    def encoder(self) -> SentenceEncoder:
        """The network, read when first needed."""
        path = f"{FOLDER}/model.safetensors"
        return self._encoder or SentenceEncoder(read_weights(find_weights(path)), LAYERS)

    @functools.cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer, read when first needed."""
        if self._tokenizer is not None:
            return self._tokenizer
        with _extras.needed("The map minilm"):
            from tokenizers import Tokenizer
        found = Tokenizer.from_file(str(find_weights(f"{FOLDER}/tokenizer.json")))
        found.no_padding()
        found.enable_truncation(TOKENS)
        return found

    @property
    def digest(self) -> str:
        """Of the weights, the vocabulary and the number of layers."""
        files = ("model.safetensors", "tokenizer.json")
        own = self._digest or " ".join(sha256(find_weights(f"{FOLDER}/{name}")) for name in files)
        return hashlib.sha256(f"{own} {LAYERS} {TOKENS}".encode()).hexdigest()

    def __call__(self, records: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        """The embeddings of texts; bytes, or bytes divided by 255."""
        raw = records if records.dtype == np.uint8 else np.rint(255 * records.astype(np.float64))
        texts = unpacked_texts(raw.astype(np.uint8))
        tokens = torch.zeros(-(-len(texts) // _BATCH) * _BATCH, TOKENS, dtype=torch.long)
        for row, encoded in zip(tokens, self.tokenizer.encode_batch(texts), strict=False):
            row[: len(encoded.ids)] = torch.tensor(encoded.ids)
        with torch.no_grad():
            rows = torch.cat([self.encoder(part) for part in torch.split(tokens, _BATCH)])
        found: npt.NDArray[np.float32] = rows[: len(texts)].numpy()
        return found


@attrs.frozen(eq=False)
class Histogram:
    """A feature map by one number per record and the interval it is in.

    Attributes:
        name: As for `FeatureMap`.
        digest: As for `FeatureMap`.
        centre: Subtracted from embeddings of length 1.
        direction: Its inner product with what remains is the number.
        story: How both were made.
    """

    name: str
    digest: str
    centre: Real
    direction: Real
    story: dict[str, Any] = attrs.field(factory=dict)

    @property
    def width(self) -> int:
        """The number of intervals; the outermost have no ends."""
        return round(2 * _REACH / _STEP)

    @property
    def pairing(self) -> Votes:
        """One vote."""
        return Votes(1)

    def numbers(self, embeddings: npt.NDArray[np.generic]) -> Real:
        """The number of each embedding, summed row by row: no row depends on another."""
        rows = embeddings.astype(np.float64)
        norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
        found: Real = ((rows / np.maximum(norms, 1e-12) - self.centre) * self.direction).sum(axis=1)
        return found

    def records(self, records: npt.NDArray[np.generic]) -> Real:
        """A vote for the interval of each record; NaN for one that is not finite."""
        numbers = self.numbers(records)
        finite = np.isfinite(numbers)
        place = (np.where(finite, numbers, 0.0).clip(-_REACH, _REACH) + _REACH) // _STEP
        votes = np.zeros((len(numbers), self.width))
        votes[np.arange(len(numbers)), place.clip(max=self.width - 1).astype(np.int64)] = 1.0
        votes[~finite] = np.nan
        return votes

    def queries(self, queries: npt.NDArray[np.generic]) -> Real:
        """The weights of intervals: 1 near the number of the query, 0 far from it."""
        middles = _STEP * (np.arange(self.width) + 0.5) - _REACH
        far = np.abs(self.numbers(queries)[:, None] - middles)
        return np.nan_to_num(np.clip((_FAR - far) / (_FAR - _NEAR), 0.0, 1.0))


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


def fitted(embeddings: Real, labels: npt.NDArray[np.int64], story: dict[str, Any]) -> Histogram:
    """The map from embeddings of made-up reviews."""
    rows = embeddings / np.sqrt(np.square(embeddings).sum(axis=1, keepdims=True))
    return Histogram("minilm", "", rows.mean(axis=0), direction_of(rows, labels), story)


def make(
    path: str | os.PathLike[str], count: int = 6000, embedding: MiniLMEmbedding | None = None
) -> dict[str, Any]:
    """Embed made-up reviews, find the direction and write the map.

    Returns:
        How it was made.
    """
    texts, labels = reviews(count, seed=1)
    network = embedding or MiniLMEmbedding()
    rows = np.concatenate([values for _, values in in_chunks(network, packed_texts(texts))])
    story = {"reviews": count, "seed": 1, "layers": LAYERS}
    write(path, fitted(rows, labels, story))
    return story


def write(path: str | os.PathLike[str], found: Histogram) -> None:
    """Write a map."""
    header = np.array(json.dumps({"format": FORMAT, "story": found.story}))
    with replacing(Path(path), "wb") as file:
        np.savez_compressed(
            file,
            header=header,
            centre=found.centre.astype(np.float32),
            direction=found.direction.astype(np.float32),
        )


def read(path: str | os.PathLike[str]) -> Histogram:
    """A map that `write` wrote."""
    expected = "a file of a feature map"
    with reading(path, expected):
        archive = read_npz(path, expected)
        header = json.loads(str(archive["header"]))
        check_format(header, FORMAT, f"{path}")
        centre, direction = (archive[n].astype(np.float64) for n in ("centre", "direction"))
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        return Histogram("minilm", digest, centre, direction, header["story"])


def minilm_map(embedding: MiniLMEmbedding | None = None) -> Embedded:
    """The feature map `minilm`, whose direction comes with the package."""
    with resources.as_file(resources.files("prudent.certify.features") / "minilm.npz") as path:
        return Embedded(embedding or MiniLMEmbedding(), read(path))
