"""A map for texts: where an embedding lies between blame and praise, as made-up reviews show it.

A text is embedded by the first four layers of MiniLM. One direction, which separates embeddings of
made-up praise from made-up blame (Fisher's discriminant), gives each text a number. A record is in
the cell of the interval of its number; a query gives weight 1 to intervals near its own number.
Where praise ends and blame begins is not taken from the made-up reviews but decided by the private
counts.
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
from torch import Tensor, nn
from torch.nn import functional

from prudent import _extras
from prudent._files import sha256
from prudent._formats import check_format, read_npz, reading
from prudent.certify.counts import STEPS, Weights, Whole
from prudent.records.arrays import NONE, ArrayForm, numbers_of
from prudent_lab.features.resnet import find_weights, read_weights

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FORMAT = 1  # format number of the files
TOKENS = 256  # tokens of a text that are read, as in training; the rest is cut off
_EPSILON = 1e-12
_HEADS = 12

FOLDER = "all-MiniLM-L6-v2"
LAYERS = 4
_REACH, _STEP = 8.0, 0.1
_NEAR, _FAR = 1.0, 2.0

Real = npt.NDArray[np.float64]


class SentenceEncoder(nn.Module):
    """A frozen BERT encoder: MiniLM (Wang et al., 2020), tuned by sentence-transformers.

    The mean over the tokens of a text of the last hidden states is its embedding. Weights and
    vocabulary are read from the published files of all-MiniLM-L6-v2; none are shipped or
    downloaded.
    """

    def __init__(self, weights: dict[str, Tensor], layers: int | None = None) -> None:
        super().__init__()
        kept = {name: value for name, value in weights.items() if value.is_floating_point()}
        self.weights = {name: value.float() for name, value in kept.items()}
        self.width = self.weights["embeddings.word_embeddings.weight"].shape[1]
        found = sum(name.endswith("attention.self.query.weight") for name in weights)
        self.layers = found if layers is None else min(layers, found)

    def to(self, device: torch.device | str) -> "SentenceEncoder":  # type: ignore[override]
        """Move the weights."""
        self.weights = {name: tensor.to(device) for name, tensor in self.weights.items()}
        return self

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings (n, width) of token numbers (n, length), 0 being no token."""
        present = tokens > 0
        words, places, kinds = (
            self.weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        values = words[tokens] + places[: tokens.shape[1]] + kinds[0]
        values = self._normalised(values, "embeddings.")
        for layer in range(self.layers):
            values = self._layer(values, present, f"encoder.layer.{layer}.")
        counts = present.sum(1, keepdim=True).clamp_min(1)
        return (values * present[:, :, None]).sum(1) / counts

    def _layer(self, values: Tensor, present: Tensor, name: str) -> Tensor:
        count, length, width = values.shape

        def heads(part: str) -> Tensor:
            flat = self._dense(values, f"{name}attention.self.{part}")
            return flat.view(count, length, _HEADS, width // _HEADS).transpose(1, 2)

        mixed = functional.scaled_dot_product_attention(
            heads("query"), heads("key"), heads("value"), attn_mask=present[:, None, None]
        )
        mixed = mixed.transpose(1, 2).reshape(count, length, width)
        mixed = self._dense(mixed, f"{name}attention.output.dense")
        values = self._normalised(values + mixed, f"{name}attention.output.")
        inner = functional.gelu(self._dense(values, f"{name}intermediate.dense"))
        return self._normalised(
            values + self._dense(inner, f"{name}output.dense"), f"{name}output."
        )

    def _dense(self, values: Tensor, name: str) -> Tensor:
        return functional.linear(
            values, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        )

    def _normalised(self, values: Tensor, name: str) -> Tensor:
        weight, bias = (self.weights[f"{name}LayerNorm.{part}"] for part in ("weight", "bias"))
        return functional.layer_norm(values, weight.shape, weight, bias, _EPSILON)


class MiniLMEmbedding:
    """Embeddings of texts.

    Texts, or rows of UTF-8 bytes that zeros follow, are computed one by one. `model.safetensors`
    and `tokenizer.json` are read from the folder `weights/all-MiniLM-L6-v2` of the data folders.
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

    def __call__(self, records: Any) -> npt.NDArray[np.float64]:
        """The embeddings of texts; NaN for what is no text."""
        return np.array([self._row(record) for record in records]).reshape(len(records), -1)

    def _row(self, record: Any) -> npt.NDArray[np.float64]:
        """The embedding of one text, computed alone: its row depends on no other."""
        tokenizer, encoder = self.tokenizer, self.encoder  # whose absence is no record's fault
        try:
            text = record if isinstance(record, str) else unpacked_texts(_bytes(record))[0]
            tokens = torch.zeros(1, TOKENS, dtype=torch.long)
            ids = tokenizer.encode(text).ids
            tokens[0, : len(ids)] = torch.tensor(ids)
            with torch.no_grad():
                row: npt.NDArray[np.float64] = encoder(tokens)[0].double().numpy()
            return row
        except Exception:  # whatever it raises, about this record alone
            return np.full(encoder.width, np.nan)


def unpacked_texts(rows: npt.NDArray[np.uint8]) -> list[str]:
    """The texts of rows of bytes; a character that was cut in two is left out."""
    return [bytes(row).rstrip(b"\0").decode("utf-8", "ignore") for row in rows]


def _bytes(record: Any) -> npt.NDArray[np.uint8]:
    """A row of bytes, or of bytes divided by 255, as an array of one row."""
    values = numbers_of(record)
    if values is None or values.ndim != 1 or not ((values >= 0) & (values <= 255)).all():
        raise ValueError
    return np.rint(values if values.max(initial=0) > 1 else 255 * values).astype(np.uint8)[None]


@attrs.frozen(eq=False)
class Intervals:
    """A partition by one number per record and the interval it is in."""

    name: str  # as for `Partition`
    digest: str  # as for `Partition`
    centre: Real  # subtracted from embeddings of length 1
    direction: Real  # its inner product with what remains is the number
    provenance: dict[str, Any] = attrs.field(factory=dict)  # how both were made
    # From records to embeddings; None: records are embeddings already.
    embedding: MiniLMEmbedding | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of intervals; the outermost have no ends."""
        return (round(2 * _REACH / _STEP),)

    def numbers(self, records: Any) -> Real:
        """The number of each record, summed row by row: no row depends on another."""
        given = records if self.embedding is None else self.embedding(records)
        rows, present = ArrayForm((len(self.centre),)).read(given)
        norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
        found: Real = ((rows / np.maximum(norms, 1e-12) - self.centre) * self.direction).sum(axis=1)
        return np.where(present, found, np.nan)

    def cells(self, records: Any) -> Whole:
        """The interval of each record."""
        numbers = self.numbers(records)
        known = np.isfinite(numbers)
        place = (np.where(known, numbers, 0.0).clip(-_REACH, _REACH) + _REACH) // _STEP
        cells = place.clip(max=self.sizes[0] - 1).astype(np.int64)
        return np.where(known, cells, NONE)[:, None]

    def weights(self, queries: Any) -> Weights:
        """The weights of intervals: 1 near the number of the query, 0 far from it."""
        middles = _STEP * (np.arange(self.sizes[0]) + 0.5) - _REACH
        far = np.abs(self.numbers(queries)[:, None] - middles)
        weights = np.nan_to_num(np.clip((_FAR - far) / (_FAR - _NEAR), 0.0, 1.0))
        return np.floor(STEPS * weights).astype(np.float32)


def read(path: str | os.PathLike[str]) -> Intervals:
    """A map from its file."""
    expected = "a file of a feature map"
    with reading(path, expected):
        archive = read_npz(path, expected)
        header = json.loads(str(archive["header"]))
        check_format(header, FORMAT, f"{path}")
        centre, direction = (archive[n].astype(np.float64) for n in ("centre", "direction"))
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        return Intervals("minilm", digest, centre, direction, header["provenance"])


def minilm_map() -> Intervals:
    """The partition `minilm`, whose direction comes with the package."""
    with resources.as_file(resources.files("prudent_lab.features") / "minilm.npz") as path:
        return attrs.evolve(read(path), embedding=MiniLMEmbedding())
