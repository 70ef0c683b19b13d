"""A small convolutional network in whole numbers: the same code of a record on every machine.

Weights are 8-bit integers and so are activations, so each sum of products is a whole number below
2²⁴, which float32 holds exactly in any order of summation. The code of a record therefore does not
depend on the records beside it, on the number of threads or on the processor: what the
guarantees call "a function of the record alone" holds bit for bit. This needs numpy only.
"""

import functools
import itertools
import json
import os
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import numpy.typing as npt

from prudent._files import replacing, sha256
from prudent._formats import check_format, read_npz, reading

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1  # format number of weight files
SIDE = 28
TOP = 255  # largest activation
_EXACT = 1 << 24  # float32 holds all whole numbers up to here

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

    def affine(self, values: Floats) -> Floats:
        """What activations are made of, of any sign."""
        sums = self.sums(values)
        sums *= self.gain  # two rounded operations, never a fused one: see the module
        sums += self.bias
        return sums

    def __call__(self, values: Floats) -> Floats:
        """The activations of images."""
        found = self.affine(values)
        return np.rint(np.clip(found, 0, TOP, out=found), out=found)


def _pooled(values: Floats, side: int) -> Floats:
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
        images = records.reshape(len(records), SIDE, SIDE, 1)
        finite = np.isfinite(images).all(axis=(1, 2, 3))
        if images.dtype != np.uint8:
            unit = np.clip(np.where(finite[:, None, None, None], images, 0), 0, 1)
            images = np.rint(TOP * unit.astype(np.float64))
        values = images.astype(np.float32)
        for layer in self.layers[:-1]:
            values = layer(values)
        codes = np.rint(self.layers[-1].affine(values)).astype(np.float64)
        codes[~finite] = np.nan
        return codes


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
    """A network that comes with the package, `letters` or `glyphs`, and the digest of its file."""
    with resources.as_file(resources.files("prudent.records") / f"{name}.npz") as path:
        return read_network(path)[0], sha256(path)


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


def codes_of(network: Network, images: "Tensor") -> "Tensor":
    """The codes of images (n, 1, 28, 28) in [0, 1], computed by torch on their device.

    They are those of the network: every number up to the last layer is whole and exact.
    """
    import torch

    device, last = images.device, len(network.layers) - 1
    finite = images.isfinite().flatten(1).all(1)
    clean = torch.where(finite[:, None, None, None], images, 0.0).clamp(0, 1)
    values = (TOP * clean.double()).round().float()
    values = values.contiguous(memory_format=torch.channels_last)  # twice as fast
    for index, layer in enumerate(network.layers):
        weight = torch.from_numpy(layer.weight).to(device, torch.float32)
        gain, bias = (torch.from_numpy(each).to(device) for each in (layer.gain, layer.bias))
        if layer.size:
            kernel = weight.view(values.shape[1], layer.size, layer.size, -1).permute(3, 0, 1, 2)
            sums = _largest(_convolved(values, kernel, layer.pad), layer.pool)
            gain, bias = gain[:, None, None], bias[:, None, None]
        else:  # whole-number networks flatten images with channels last
            flat = values.permute(0, 2, 3, 1).flatten(1) if values.ndim == 4 else values
            sums = flat @ weight
        values = sums.mul_(gain).add_(bias)  # two rounded operations, never a fused one
        values = values.round_() if index == last else values.clamp_(0, TOP).round_()
    return torch.where(finite[:, None], values, torch.nan)


def _convolved(values: "Tensor", kernel: "Tensor", pad: int) -> "Tensor":
    """A convolution; of one channel as a product, for which libraries have no quick kernel."""
    from torch.nn import functional

    if values.shape[1] > 1:
        return functional.conv2d(values, kernel, padding=pad)
    side = values.shape[2] + 2 * pad - kernel.shape[2] + 1
    windows = functional.unfold(values, kernel.shape[2], padding=pad).transpose(1, 2)
    found = windows.reshape(-1, windows.shape[2]) @ kernel.flatten(1).T
    return found.view(len(values), side, -1, len(kernel)).permute(0, 3, 1, 2)


def _largest(values: "Tensor", side: int) -> "Tensor":
    """Max pooling, quicker than that of torch where channels lie last."""
    import torch

    height, width = (length // side * side for length in values.shape[2:])
    corners = itertools.product(range(side), repeat=2)
    parts = (values[:, :, row:height:side, column:width:side] for row, column in corners)
    return functools.reduce(torch.maximum, parts)


def codes_of_bytes(network: Network, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """The codes of images (n, 28, 28); by torch, which is quicker, where it is loaded already."""
    if "torch" not in sys.modules:
        return network(images)
    import torch

    with torch.no_grad():
        found = codes_of(network, torch.from_numpy(images)[:, None] / TOP)
    codes: npt.NDArray[np.float64] = found.double().numpy()
    return codes
