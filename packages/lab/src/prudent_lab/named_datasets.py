"""The named data sets: readers of their file formats, and where they can be had."""

import csv
import functools
import gzip
import json
import lzma
import math
import struct
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt

from prudent._files import sha256
from prudent._formats import reading
from prudent_lab import declared
from prudent_lab.data_files import cached_array

Bytes = npt.NDArray[np.uint8]
_CIFAR_RECORD = 1 + 3 * 32 * 32

TEXT_BYTES = 2048
"""Bytes of a text that are kept, in UTF-8; shorter ones are followed by zeros."""

CENSUS_COLUMNS = 42
_CENSUS_NUMBERS = frozenset((0, 2, 3, 5, 16, 17, 18, 30, 39))
_CENSUS_WEIGHT = 24  # how many people a record stands for; the publishers ask to leave it out


def read_idx(path: Path) -> Bytes:
    """The array in an idx file of unsigned bytes, gzipped or not."""
    opened = gzip.open if path.suffix == ".gz" else Path.open
    with reading(path, "an idx file of unsigned bytes"), opened(path, "rb") as file:
        kind, dimensions = struct.unpack(">3sB", file.read(4))
        shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
        size = math.prod(shape)
        # One byte more than wanted shows that there are too many, however many there are.
        values = np.frombuffer(file.read(size + 1), np.uint8)
        if kind != b"\x00\x00\x08" or values.size != size:
            raise ValueError
        return values.reshape(shape)


def read_cifar_binary(paths: list[Path]) -> tuple[Bytes, Bytes]:
    """CIFAR-10's official binary batches: a label byte and 3 × 32 × 32 pixels per record."""
    content = np.concatenate([np.frombuffer(path.read_bytes(), np.uint8) for path in paths])
    if content.size % _CIFAR_RECORD:
        raise ValueError(f"Expected {paths[0].parent} to hold records of {_CIFAR_RECORD} bytes.")
    records = content.reshape(-1, _CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def read_cifar_packed(path: Path) -> tuple[Bytes, Bytes]:
    """CIFAR-10 packed without loss: labels, then zig-zag residuals of a median predictor.

    The planes are G, R − G and B − G, the differences wrapped into −128..127. A pixel is predicted
    from its left, upper and upper-left neighbours as left + up − corner, clamped between left and
    up; on the first row and column the existing neighbour replaces the missing ones. All images are
    decoded together, one pixel position at a time.
    """
    with reading(path, "an xz file"):
        content = np.frombuffer(lzma.decompress(path.read_bytes()), np.uint8)
    count, rest = divmod(content.size, _CIFAR_RECORD)
    if rest:
        raise ValueError(f"Expected {path} to unpack to records of {_CIFAR_RECORD} bytes.")
    zigzag = content[count:].reshape(count, 3, 32, 32).transpose(2, 3, 1, 0).astype(np.int16)
    residual = (zigzag >> 1) ^ -(zigzag & 1)
    planes = np.zeros((32, 32, 3, count), np.int16)
    nothing = np.zeros((3, count), np.int16)
    for row, column in np.ndindex(32, 32):
        if row and column:
            left, up = planes[row, column - 1], planes[row - 1, column]
            corner = planes[row - 1, column - 1]
        elif row:
            left = up = corner = planes[row - 1, column]
        elif column:
            left = up = corner = planes[row, column - 1]
        else:
            left = up = corner = nothing
        guess = np.clip(left + up - corner, np.minimum(left, up), np.maximum(left, up))
        value = guess + residual[row, column]
        planes[row, column, 0] = value[0] & 255
        planes[row, column, 1:] = ((value[1:] + 128) & 255) - 128
    green, red, blue = planes.transpose(2, 3, 0, 1)
    images = np.stack([(red + green) & 255, green, (blue + green) & 255], axis=1)
    return images.astype(np.uint8), content[:count].copy()


def read_reviews(path: Path) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Texts and labels of a JSON list of objects with `t`, the text, and `s`, 0 or 1.

    An entry of another form is an empty text with the label −1, which is no class.
    """
    with reading(path, "a JSON list of reviews"):
        content = json.loads(path.read_bytes())
        found = [each if isinstance(each, dict) else {} for each in list(content)]
    labels = [each.get("s") if each.get("s") in (0, 1) else -1 for each in found]
    return packed_texts([str(each.get("t", "")) for each in found]), np.array(labels, np.int64)


def packed_texts(texts: list[str]) -> Bytes:
    """One row of `TEXT_BYTES` bytes per text: the start of its UTF-8, then zeros."""
    rows = np.zeros((len(texts), TEXT_BYTES), np.uint8)
    for row, text in zip(rows, texts, strict=True):
        start = np.frombuffer(text.encode("utf-8", "replace")[:TEXT_BYTES], np.uint8)
        row[: len(start)] = start
    return rows


def read_census(path: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Census-Income (KDD): 40 numbers per record, and 1 for an income above 50,000, else 0.

    A category is a number below 2²⁴, a checksum of its column and its text, so that no list of
    categories is made from the records. A line of another form is a record of NaN, which has no
    vector, and the label −1, which is no class.
    """
    opened = gzip.open if path.suffix == ".gz" else Path.open
    with reading(path, "a text file, gzipped if its name ends in .gz"), opened(path, "rb") as file:
        lines = [_fields(line.decode("utf-8", "replace")) for line in file]
    rows = np.full((len(lines), CENSUS_COLUMNS - 2), np.nan, np.float32)
    labels = np.full(len(lines), -1, np.int64)

    @functools.cache
    def number(column: int, text: str) -> float:
        if column not in _CENSUS_NUMBERS:
            return zlib.crc32(f"{column}:{text}".encode()) & 0xFFFFFF
        try:
            return float(text)
        except ValueError:
            return np.nan

    kept = [column for column in range(CENSUS_COLUMNS - 1) if column != _CENSUS_WEIGHT]
    for index, fields in enumerate(lines):
        if len(fields) != CENSUS_COLUMNS:
            continue
        rows[index] = [number(column, fields[column].strip()) for column in kept]
        labels[index] = {"- 50000.": 0, "50000+.": 1}.get(fields[-1].strip(), -1)
    return rows, labels


def _fields(line: str) -> list[str]:
    """The fields of one line; none of a line that is not CSV, whatever the lines around it are."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


Arrays = tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]


@attrs.frozen
class FileForm:
    """One file format of a data set: the files in a folder and their reader.

    Where one file holds both parts, `read_test` reads the test part of it.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    read: Callable[[list[Path]], Arrays]
    read_test: Callable[[list[Path]], Arrays] | None = None

    def paths(self, folder: Path) -> tuple[list[Path], list[Path]] | None:
        """The files in `folder`, gzipped or not; None if one is missing."""

        def stored(name: str) -> Path:
            path, plain = folder / name, (folder / name).with_suffix("")
            return (
                plain if name.endswith(".gz") and not path.is_file() and plain.is_file() else path
            )

        train, test = ([*map(stored, part)] for part in (self.train, self.test))
        return (train, test) if all(path.is_file() for path in train + test) else None


@attrs.frozen
class NamedDataset:
    """A named data set: its possible file formats and where they can be had.

    `trainable` says whether records are numbers that a network can be trained on as they are.
    """

    classes: int
    note: str
    forms: tuple[FileForm, ...]
    origin: str = ""  # where its files can be had; empty: nowhere known
    trainable: bool = True

    def stored(self, folders: Iterable[Path]) -> tuple[Arrays, Arrays] | None:
        """The records and labels of both parts, from the first folder that has their files."""
        for folder in folders:
            for form in self.forms:
                if (paths := form.paths(folder)) is not None:
                    return form.read(paths[0]), (form.read_test or form.read)(paths[1])
        return None


def _read_images(paths: list[Path], *, first_label: int, transposed: bool) -> Arrays:
    images, labels = (read_idx(path) for path in paths)
    if transposed:
        images = images.transpose(0, 2, 1)
    return images[:, None], labels.astype(np.int64) - first_label


def _read_cifar_packed(paths: list[Path]) -> Arrays:
    """The decoded images, cached because decoding takes a quarter of a minute."""
    (path,) = paths

    def unpack() -> npt.NDArray[np.uint8]:
        images, labels = read_cifar_packed(path)
        return np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)

    records = cached_array(f"cifar10-{sha256(path)}", unpack)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _read_half(paths: list[Path], *, part: int) -> Arrays:
    """One part of the 50,000 reviews in a file: blame, then praise; in each, test before train."""
    texts, labels = read_reviews(paths[0])
    each = len(labels) // 4
    rows = np.r_[part * each : (part + 1) * each, (part + 2) * each : (part + 3) * each]
    return texts[rows], labels[rows]


_READERS: dict[str, Callable[[list[Path]], Arrays]] = {
    "idx": partial(_read_images, first_label=0, transposed=False),
    "idx-letters": partial(_read_images, first_label=1, transposed=True),
    "cifar-binary": read_cifar_binary,
    "cifar-packed": _read_cifar_packed,
    "reviews-train": partial(_read_half, part=1),
    "reviews-test": partial(_read_half, part=0),
    "census": lambda paths: read_census(paths[0]),
}


def _form(read: str, read_test: str = "", **files: list[str]) -> FileForm:
    """A file format as the declarations name it."""
    names = {part: tuple(each) for part, each in files.items()}
    return FileForm(**names, read=_READERS[read], read_test=_READERS.get(read_test))


NAMED_DATASETS: dict[str, NamedDataset] = {
    name: NamedDataset(**told | {"forms": tuple(_form(**form) for form in told["forms"])})
    for name, told in declared("prudent_lab", "named_datasets.toml").items()
}
