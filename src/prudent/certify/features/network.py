"""A small convolutional network in whole numbers: the same features on every machine.

Weights are 8-bit integers and so are activations, so each sum of products is a whole number below
2²⁴, which float32 holds exactly in any order of summation. The features of a record therefore do
not depend on the records beside it, on the number of threads or on the processor: what the
guarantees call "a function of the record alone" holds bit for bit. This needs numpy only.
"""

import functools
import hashlib
import itertools
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from prudent._formats import check_format
from prudent.certify.vectors import Euclidean

FORMAT = 1
"""Format number of weight files."""

SIDE = 28
TOP = 255
"""Largest activation."""

_EXACT = 1 << 24  # float32 holds all whole numbers up to here
_LARGEST_FEATURE = 4095

Floats = npt.NDArray[np.float32]


@attrs.frozen(eq=False)
class Layer:
    """A convolution (or, last, a dense layer), max pooling, and rounding to whole activations.

    Attributes:
        weight: int8; (inputs · size², outputs), inputs slowest.
        gain: Factor from sums to activations, positive, per output.
        bias: Added after the gain.
        size: Side of the filter; 0 for a dense layer.
        pad: Zeros around the image.
        pool: Side of the pooled squares.
    """

    weight: npt.NDArray[np.int8]
    gain: Floats
    bias: Floats
    size: int
    pad: int = 0
    pool: int = 1

    def __attrs_post_init__(self) -> None:
        if TOP * np.abs(self.weight.astype(np.int64)).sum(axis=0).max() >= _EXACT:
            raise ValueError("Expected weights whose sums float32 holds exactly.")
        if not (self.gain > 0).all():
            raise ValueError("Expected positive gains: pooling before them assumes it.")

    def sums(self, values: Floats) -> Floats:
        """Sums of products, pooled; of images (n, height, width, inputs)."""
        if not self.size:
            return values.reshape(len(values), -1) @ self.weight.astype(np.float32)
        pad, size, inputs = self.pad, self.size, values.shape[3]
        padded = np.pad(values, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(1, 2))
        count, height, width = windows.shape[:3]
        # Inputs go last, where they lie side by side in memory: copying windows takes most time.
        flat = windows.transpose(0, 1, 2, 4, 5, 3).reshape(count * height * width, -1)
        weight = self.weight.reshape(inputs, size * size, -1).transpose(1, 0, 2)
        sums = flat @ weight.reshape(flat.shape[1], -1).astype(np.float32)
        return _pooled(sums.reshape(count, height, width, -1), self.pool)

    def __call__(self, values: Floats, largest: int = TOP) -> Floats:
        """The activations of images."""
        sums = self.sums(values)
        sums *= self.gain  # two rounded operations, never a fused one: see the module
        sums += self.bias
        return np.rint(np.clip(sums, 0, largest, out=sums), out=sums)


def _pooled(values: Floats, side: int) -> Floats:
    height, width = (length // side * side for length in values.shape[1:3])
    corners = itertools.product(range(side), repeat=2)
    parts = (values[:, row:height:side, column:width:side] for row, column in corners)
    return functools.reduce(np.maximum, parts)


@attrs.frozen(eq=False)
class Network:
    """A feature map for grey images of 28 × 28 pixels: unit vectors with non-negative entries.

    Records are bytes 0 to 255 or numbers in [0, 1], as (n, 28, 28), (n, 1, 28, 28) or (n, 784).
    Numbers outside [0, 1] are clipped; an image with a pixel that is not finite gets no features.
    """

    name: str
    digest: str
    layers: tuple[Layer, ...]
    story: dict[str, Any]

    @property
    def width(self) -> int:
        """The number of features."""
        return int(self.layers[-1].weight.shape[1])

    @property
    def pairing(self) -> Euclidean:
        """Vectors are non-negative and of length at most 1."""
        return Euclidean()

    def records(self, records: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
        """The vector of each image; NaN for an image that is not finite."""
        images = records.reshape(len(records), SIDE, SIDE, 1)
        finite = np.isfinite(images).all(axis=(1, 2, 3))
        if images.dtype != np.uint8:
            unit = np.clip(np.where(finite[:, None, None, None], images, 0), 0, 1)
            images = np.rint(TOP * unit.astype(np.float64))
        values = images.astype(np.float32)
        for layer in self.layers[:-1]:
            values = layer(values)
        features = self.layers[-1](values, _LARGEST_FEATURE).astype(np.float64)
        norms = np.sqrt(np.square(features).sum(axis=1))  # of an exact sum of whole numbers
        features /= np.maximum(norms, 1.0)[:, None]
        features[~finite] = np.nan
        return features

    def queries(self, queries: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
        """The vectors of queries: zero for an image that is not finite."""
        return np.nan_to_num(self.records(queries))


def read(path: str | os.PathLike[str], name: str) -> Network:
    """A network of a weight file."""
    content = Path(path).read_bytes()
    with np.load(path, allow_pickle=False) as archive:
        header = json.loads(str(archive["header"]))
        check_format(header, FORMAT, f"{path}")
        layers = tuple(
            Layer(archive[f"weight{i}"], archive[f"gain{i}"], archive[f"bias{i}"], **shape)
            for i, shape in enumerate(header["layers"])
        )
    return Network(name, hashlib.sha256(content).hexdigest(), layers, header["story"])


def write(path: str | os.PathLike[str], layers: tuple[Layer, ...], story: dict[str, Any]) -> None:
    """Write a weight file; `story` says how the weights were made."""
    shapes = [attrs.asdict(layer, filter=_is_shape) for layer in layers]
    header = {"format": FORMAT, "layers": shapes, "story": story}
    arrays: dict[str, npt.NDArray[Any]] = {"header": np.array(json.dumps(header))}
    for i, layer in enumerate(layers):
        arrays |= {f"weight{i}": layer.weight, f"gain{i}": layer.gain, f"bias{i}": layer.bias}
    with Path(path).open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _is_shape(attribute: "attrs.Attribute[Any]", value: Any) -> bool:
    return attribute.name in ("size", "pad", "pool")


def shipped(name: str) -> Network:
    """A network whose weights come with the package."""
    with resources.as_file(resources.files("prudent.certify.features") / f"{name}.npz") as path:
        return read(path, name)
