"""A small convolutional network in whole numbers: the same code of a record on every machine.

Weights are 8-bit integers and so are activations, so each sum of products is a whole number below
2²⁴, which float32 holds exactly in any order of summation. The code of a record therefore does not
depend on the records beside it, on the number of threads or on the processor: what the
guarantees call "a function of the record alone" holds bit for bit.

This rests on products that multiply and add, and on nothing else. Convolutions of a library are not
such: several choose, by the size of the batch, an algorithm (Winograd's, or one with shorter
mantissas) that divides. So there is one implementation, by numpy's matrix product, on every device,
and a network that comes with the package is first compared with sums of 64-bit integers.
"""

import functools
import itertools
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from prudent._files import replacing, sha256
from prudent._formats import check_format, read_npz, reading

FORMAT = 1  # format number of weight files
SIDE = 28
TOP = 255  # largest activation
_EXACT = 1 << 24  # float32 holds all whole numbers up to here

_ROWS = 32  # images at a time, whose activations stay in the cache of a processor

Floats = npt.NDArray[np.float32]


@attrs.frozen(eq=False)
class Layer:
    """A convolution (or, last, a dense layer), max pooling, and rounding to whole activations."""

    weight: npt.NDArray[np.int8]  # int8; (inputs · size², outputs), inputs slowest
    gain: Floats  # factor from sums to activations, positive, per output
    bias: Floats  # added after the gain
    size: int  # side of the filter; 0 for a dense layer
    pad: int = 0  # zeros around the image
    pool: int = 1  # side of the pooled squares

    def __attrs_post_init__(self) -> None:
        if TOP * np.abs(self.weight.astype(np.int64)).sum(axis=0).max() >= _EXACT:
            raise ValueError("Expected weights whose sums float32 holds exactly.")
        if not (self.gain > 0).all():
            raise ValueError("Expected positive gains: pooling before them assumes it.")

    def sums(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sums of products, pooled; of images (n, height, width, inputs), in their type."""
        if not self.size:
            return _product(values.reshape(len(values), -1), self.weight)
        pad, size, inputs = self.pad, self.size, values.shape[3]
        padded = np.pad(values, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(1, 2))
        count, height, width = windows.shape[:3]
        # Inputs go last, where they lie side by side in memory: copying windows takes most time.
        flat = windows.transpose(0, 1, 2, 4, 5, 3).reshape(count * height * width, -1)
        weight = self.weight.reshape(inputs, size * size, -1).transpose(1, 0, 2)
        sums = _product(flat, weight.reshape(flat.shape[1], -1))
        return _pooled(sums.reshape(count, height, width, -1), self.pool)

    def affine(self, values: npt.NDArray[Any]) -> Floats:
        """What activations are made of, of any sign."""
        sums: Floats = self.sums(values).astype(np.float32, copy=False)
        sums *= self.gain  # two rounded operations, never a fused one: see the module
        sums += self.bias
        return sums

    def __call__(self, values: npt.NDArray[Any]) -> Floats:
        """The activations of images."""
        found = self.affine(values)
        return np.rint(np.clip(found, 0, TOP, out=found), out=found)


def _product(rows: npt.NDArray[Any], weight: npt.NDArray[np.int8]) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = rows @ weight.astype(rows.dtype)
    return found


def _pooled(values: npt.NDArray[Any], side: int) -> npt.NDArray[Any]:
    height, width = (length // side * side for length in values.shape[1:3])
    corners = itertools.product(range(side), repeat=2)
    parts = (values[:, row:height:side, column:width:side] for row, column in corners)
    return functools.reduce(np.maximum, parts)


@attrs.frozen(eq=False)
class Network:
    """A code of grey images of 28 × 28 pixels: vectors of whole numbers of any sign.

    Records are bytes 0 to 255 or numbers in [0, 1], as (n, 28, 28), (n, 1, 28, 28) or (n, 784).
    Numbers outside [0, 1] are clipped; the code of an image with a pixel that is not finite is NaN.
    """

    layers: tuple[Layer, ...]

    @property
    def entries(self) -> int:
        """The number of entries of a code."""
        return int(self.layers[-1].weight.shape[1])

    def __call__(self, records: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
        """The codes of images, one per row."""
        # In C order whatever the order of the container: numpy adds and copies by memory order.
        images = np.ascontiguousarray(records).reshape(len(records), SIDE, SIDE, 1)
        codes = np.empty((len(images), self.entries))
        for start in range(0, len(images), _ROWS):
            codes[start : start + _ROWS] = self._codes(images[start : start + _ROWS], np.float32)
        return codes

    def _codes(self, images: npt.NDArray[Any], kind: Any) -> npt.NDArray[np.float64]:
        finite = np.isfinite(images).all(axis=(1, 2, 3))
        if images.dtype != np.uint8:
            unit = np.clip(np.where(finite[:, None, None, None], images, 0), 0, 1)
            images = np.rint(TOP * unit.astype(np.float64))
        values = images.astype(kind)
        for layer in self.layers[:-1]:
            values = layer(values).astype(kind, copy=False)
        codes = np.rint(self.layers[-1].affine(values)).astype(np.float64)
        codes[~finite] = np.nan
        return codes

    def check(self) -> None:
        """Compare codes by the processor's matrix products with codes by 64-bit integers.

        Raises:
            RuntimeError: If they differ: then a code might depend on the records beside it.
        """
        images = np.random.RandomState(1).randint(0, TOP + 1, (_ROWS, SIDE, SIDE, 1))
        wanted = self._codes(images[-1:].astype(np.uint8), np.int64)
        if not np.array_equal(self(images.astype(np.uint8))[-1:], wanted):
            raise RuntimeError(
                "Expected matrix products of whole numbers below 2²⁴ to be exact in float32. Those "
                "of this installation of numpy are not; install one with another BLAS."
            )


def read_network(path: Path) -> tuple[Network, dict[str, Any]]:
    """The network of a weight file, and the header of the file."""
    expected = "a file of a feature map"
    with reading(path, expected):
        archive = read_npz(path, expected)
        header = json.loads(str(archive["header"]))
        check_format(header, FORMAT, f"{path}")
        layers = tuple(
            Layer(archive[f"weight{i}"], archive[f"gain{i}"], archive[f"bias{i}"], **shape)
            for i, shape in enumerate(header["layers"])
        )
        return Network(layers), header


@functools.cache
def shipped_network(name: str) -> tuple[Network, str]:
    """A network that comes with the package, `letters` or `glyphs`, and the digest of its file.

    Its products are compared with sums of integers first: see `Network.check`.
    """
    with resources.as_file(resources.files("prudent.records") / f"{name}.npz") as path:
        network, digest = read_network(path)[0], sha256(path)
    network.check()
    return network, digest


def write_network(
    path: "str | os.PathLike[str]", layers: tuple[Layer, ...], provenance: dict[str, Any]
) -> None:
    """Write a weight file; `provenance` says how the weights were made."""
    shapes = [{"size": each.size, "pad": each.pad, "pool": each.pool} for each in layers]
    header = {"format": FORMAT, "layers": shapes, "provenance": provenance}
    arrays: dict[str, npt.NDArray[Any]] = {"header": np.array(json.dumps(header))}
    for i, layer in enumerate(layers):
        arrays |= {f"weight{i}": layer.weight, f"gain{i}": layer.gain, f"bias{i}": layer.bias}
    with replacing(Path(path), "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
