"""Public maps from records to codes, and public partitions: nothing in them is from the records.

| name | records | what it is |
| --- | --- | --- |
| `letters` | images 28 × 28 | networks in whole numbers, trained on public letters and on glyphs |
| `glyphs` | images 28 × 28 | a network in whole numbers, trained on synthetic glyphs |
| `resnet18` | colour images | ResNet18 up to its third stage, trained on ImageNet, whitened |
| `minilm` | texts | MiniLM sentence embeddings, with a direction from made-up reviews |
| `census` | rows of Census-Income | cells of public partitions |
| `vectors:D` | D numbers | the numbers themselves, if the records already are features |

`resnet18` and `minilm` are in the package prudent-lab, found by its entry points.

`letters`, `glyphs` and `resnet18` come with landmarks of their own. Those of the first two include
digits that were put down by hand as strokes: no data, but they show what digits look like.

`Network` is a small convolutional network in whole numbers: a record has the same code everywhere.

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
import hashlib
import itertools
import json
import math
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _extras, _validate
from prudent._files import replacing, sha256
from prudent._formats import check_format, read_npz, reading
from prudent._validate import ArgumentError
from prudent.certify.counts import (
    STEPS,
    Codes,
    Crowding,
    Features,
    Landmarks,
    Partition,
    Weights,
    Whole,
    whole,
)
from prudent.records.arrays import NONE, ArrayForm, numbers_of, parts

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


NAMES = ("census", "glyphs", "letters", "minilm", "resnet18", "vectors:D")
"""The names that `named` accepts."""

SHIPPED = ("letters", "glyphs", "resnet18")  # the maps that come with landmarks
Flags = npt.NDArray[np.bool_]

_AT_ONCE = 128  # whose activations stay in the cache of a processor
_CHUNKS = 32  # that are in memory at a time
_MOST = sys.float_info.max


@attrs.frozen(eq=False)
class Vectors:
    """Records that are vectors already; only their direction counts."""

    width: int  # how many numbers each holds

    @property
    def name(self) -> str:
        """For messages."""
        return f"vectors of {self.width}"

    @property
    def digest(self) -> str:
        """Of the width."""
        return self.name

    def codes(self, records: Any) -> tuple[Codes, Flags]:
        """The vectors, rounded to whole numbers."""
        values, present = ArrayForm((self.width,)).read(records)
        return whole(values), present


@attrs.frozen(eq=False)
class Function:
    """Vectors by a function of your own, such as a frozen network.

    It is called with one record at a time, as a container of one record, and returns one row:
    libraries choose how to round by the shape of an array and by the place of a row in it, so a
    function of many records gives each of them numbers that depend on the others. So may the type
    of an array or a frame, which one record may decide: see `alone`.
    """

    function: Callable[[Any], Any]  # from a container of one record to one row
    width: int  # how many numbers a row holds; a record with more or fewer counts as absent
    like: Any  # a container of one public record
    name: str = "a function"  # as for `Features`
    digest: str = ""  # as for `Features`

    def codes(self, records: Any) -> tuple[Codes, Flags]:
        """The rows of records; one for which the function fails counts as absent."""
        rows = [self._row(part) for part in parts(records, 1)]
        values, present = ArrayForm((self.width,)).read(rows)
        return whole(values), present

    def _row(self, record: Any) -> Any:
        try:
            return np.asarray(self.function(alone(record, self.like)), dtype=np.float64)
        except Exception:  # whatever it raises, about this record alone
            return None


def alone(record: Any, like: Any) -> Any:
    """A container of one record, of a type that no other record has decided.

    A fraction or a gap in one record makes floats of the whole numbers of all. So numbers are
    handed over in the type of a public record if it holds them, else as float64; lists stay, and
    whatever else becomes one.
    """
    if isinstance(record, list | tuple):
        return record
    values = numbers_of(record)
    if values is None:
        return np.asarray(record).tolist()
    if numbers_of(like) is None:
        return values.tolist()
    if hasattr(like, "new_tensor"):
        exact = like.new_tensor(values, dtype=like.double().dtype)
        found = exact.to(like.dtype)
        return found if found.is_floating_point() or (found == exact).all() else exact
    kind = np.asarray(like).dtype
    held = values.astype(kind if kind.kind in "biuf" else values.dtype)
    return held if held.dtype.kind == "f" or np.array_equal(held, values) else values


@attrs.frozen(eq=False)
class Images:
    """Grey images of 28 × 28 pixels, coded by networks in whole numbers.

    Pixels are bytes from 0 to 255, or numbers from 0 to 1: an image without a number above 1 is
    read as the latter. So the code depends on the numbers, not on the type that holds them.
    """

    name: str  # as for `Features`
    digest: str  # as for `Features`
    # The networks, with the length of the code of each in the code of an image.
    networks: tuple[tuple[Network, float], ...]

    @property
    def width(self) -> int:
        """How many entries a code has."""
        return sum(network.entries for network, _ in self.networks)

    def codes(self, records: Any) -> tuple[Codes, Flags]:
        """Codes of images, several threads at a time: each is that of its image, whoever counts."""
        codes, flags = [np.zeros((0, self.width), np.float32)], [np.zeros(0, bool)]
        chunks = ArrayForm((28, 28), 0, TOP).chunks(records, _AT_ONCE)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            while some := list(itertools.islice(chunks, _CHUNKS)):
                for own, present in pool.map(self._codes, some):
                    codes.append(own)
                    flags.append(present)
        return np.concatenate(codes), np.concatenate(flags)

    def _codes(self, chunk: tuple[npt.NDArray[np.float64], Flags]) -> tuple[Codes, Flags]:
        values, present = chunk
        unit = values.max(axis=(1, 2)) <= 1
        pixels = np.rint(np.where(unit[:, None, None], TOP * values, values)).astype(np.uint8)
        each = [long * whole(network(pixels)).astype(np.float64) for network, long in self.networks]
        return whole(np.concatenate(each, axis=1)) if len(each) > 1 else whole(each[0]), present


@attrs.frozen
class BinnedColumn:
    """A column of a record."""

    index: int = attrs.field(validator=_validate.by(_validate.count))  # its place in the record
    # Numbers that separate its intervals, in rising order; none for a category, which is a whole
    # number.
    edges: tuple[float, ...] = ()
    # How many cells it has: one more than edges. Categories are counted modulo this: two may share
    # a cell, whatever categories there are, and none is known from the records.
    cells: int = attrs.field(
        default=attrs.Factory(lambda own: len(own.edges) + 1, True),
        validator=_validate.by(_validate.count, 1),
    )

    def __attrs_post_init__(self) -> None:
        given = _validate.values(edges=self.edges)
        edges = [_validate.between(-_MOST, _MOST, edges=each) for each in given]
        if any(one >= two for one, two in itertools.pairwise(edges)):
            raise ArgumentError("edges", "in rising order, no two the same", got=self.edges)
        if edges and self.cells != len(edges) + 1:
            raise ArgumentError("cells", f"{len(edges) + 1}, one more than edges", got=self.cells)

    def cell(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The number of the interval, from 0 on, or of the category, of each value."""
        found: npt.NDArray[np.int64] = (
            np.searchsorted(self.edges, values, side="right")
            if self.edges
            else np.rint(values.clip(0, 1 << 53)).astype(np.int64) % self.cells
        )
        return found


@attrs.frozen
class Partitions:
    """A partition of records of a table, by public edges of columns.

    Each table of cells is by a few columns: numbers fall between public edges, categories are what
    they are. A query gives weight 1 to its own cells, so the similarity of two records is the
    fraction of tables in which they share a cell.
    """

    name: str  # as for `Partition`
    partitions: tuple[tuple[BinnedColumn, ...], ...]  # the columns of each table
    columns: int  # how many numbers a record has

    def __attrs_post_init__(self) -> None:
        places = [column.index for columns in self.partitions for column in columns]
        if not self.partitions or not all(self.partitions) or max(places) >= self.columns:
            allowed = "one or more, of columns that records have"
            raise ArgumentError("partitions", allowed, got=self.partitions)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The cells of each table."""
        return tuple(math.prod(column.cells for column in each) for each in self.partitions)

    @property
    def digest(self) -> str:
        """Of the edges and everything else."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def cells(self, records: Any) -> Whole:
        """The cells of records."""
        values, present = ArrayForm((self.columns,)).read(records)
        found, start = [], 0
        for columns, size in zip(self.partitions, self.sizes, strict=True):
            cell = np.zeros(len(values), dtype=np.int64)
            for column in columns:
                cell = column.cells * cell + column.cell(values[:, column.index])
            found.append(start + cell)
            start += size
        return np.where(present[:, None], np.stack(found, axis=1), NONE)

    def weights(self, queries: Any) -> Weights:
        """The weight 1 for the cells of a query itself."""
        cells = self.cells(queries)
        found = np.zeros((len(cells), sum(self.sizes)), np.float32)
        rows = np.flatnonzero((cells != NONE).all(axis=1))
        found[rows[:, None], cells[rows]] = STEPS
        return found


_AGE = BinnedColumn(0, (18, 28, 35, 50, 65))
_GAINS = BinnedColumn(16, (1, 3000, 7000))
_LOSSES = BinnedColumn(17, (1, 1500))
_DIVIDENDS = BinnedColumn(18, (1, 300, 2000))
_WEEKS = BinnedColumn(38, (1, 26, 50))

CENSUS = Partitions(
    "census",
    (
        (_AGE,),
        (BinnedColumn(3, cells=47),),  # occupation
        (BinnedColumn(4, cells=61),),  # education
        (BinnedColumn(12, cells=7),),  # sex
        (_GAINS,),
        (_DIVIDENDS,),
        (_WEEKS,),
        (_GAINS, _LOSSES),
    ),
    40,
)
"""For Census-Income (KDD): what is commonly said to decide an income, one partition each."""


def named(name: str) -> "Features | Partition":
    """The map or the partition of a name."""
    kind, _, width = name.partition(":")
    if kind == "vectors" and width.isdecimal() and int(width) > 0:
        return Vectors(int(width))
    if name == CENSUS.name:
        return CENSUS
    if name in _NETWORKS:
        return images(name)
    if name in NAMES:
        found: Features | Partition = _added(name).load()()
        return found
    raise ArgumentError("features", f"one of {', '.join(NAMES)}", got=name)


_NETWORKS = {"glyphs": {"glyphs": 1.0}, "letters": {"letters": 1.0, "glyphs": 0.6}}


@functools.cache
def images(name: str) -> Images:
    """A map for grey images that comes with the package."""
    found = {each: shipped_network(each) for each in _NETWORKS[name]}
    networks = tuple((found[each][0], length) for each, length in _NETWORKS[name].items())
    digest = " ".join(own for _, own in found.values())
    return Images(name, f"{digest} {_NETWORKS[name]}", networks)


@functools.cache
def shipped_landmarks(name: str) -> Landmarks:
    """The landmarks of a map that come with the package, with the ramp chosen for them."""
    home = __name__ if name in _NETWORKS else _added(name).module.rpartition(".")[0]
    place = resources.files(home) / f"{name}-landmarks.npz"
    with resources.as_file(place) as path, np.load(path, allow_pickle=False) as archive:
        rows = archive["rows"].astype(np.float64)
        low, high = archive["ramp"].tolist()
        shares = archive["crowding_shares"].tolist() if "crowding" in archive else None
        crowding = Crowding(archive["crowding"].astype(np.float32), *shares) if shares else None
    features: Any = named(name)
    return Landmarks(features, whole(rows), (low, high), crowding)


@functools.cache
def _added(name: str) -> metadata.EntryPoint:
    """A map or a partition that another package brings: a function of no arguments."""
    found = metadata.entry_points(group="prudent.features", name=name)
    if not found:
        raise _extras.MissingPackageError(f"The map {name}", ["prudent-lab"], [])
    return next(iter(found))
