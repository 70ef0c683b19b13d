"""What is public before a fit: cells, classes and price; and the files of released classifiers.

Files hold numbers and JSON, no pickle.
"""

import hashlib
import json
import os
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._files import replacing
from prudent._formats import check_format, read_npz, reading
from prudent._validate import ArgumentError
from prudent.certify.counts import Counts, Pricing
from prudent.certify.features import (
    SHIPPED,
    Function,
    Images,
    Partitions,
    Vectors,
    alone,
    named,
    shipped_landmarks,
)
from prudent.certify.landmarks import (
    Codes,
    Crowding,
    Features,
    Landmarks,
    Partition,
    public_ramp,
    random_directions,
    whole,
)
from prudent.records.arrays import Classes, declared_width, numbers_of, parts

FORMAT = 2  # format number of saved classifiers
ROWS = 1024  # records or queries that are mapped at a time, to save memory
_MOST_CLASSES = 10**6
_MOST_LANDMARKS = 1_000_000


class Known:
    """What is public before a fit: the cells, the classes and the price."""

    def __init__(self, partition: Partition, classes: Classes, pricing: Pricing) -> None:
        self.partition, self.classes, self.pricing = partition, classes, pricing
        self.digest = f"{partition.digest} {classes.labels!r}"

    def empty(self) -> Counts:
        """Counts of no records."""
        return Counts.empty(len(self.classes), self.partition.sizes, self.digest)

    def counted(self, records: Any, labels: Any) -> Counts:
        """Exact counts of records."""
        refuse_texts(records, labels, self)
        found, names = self.empty(), self.classes.numbers(labels)
        records = records if hasattr(records, "__len__") else np.asarray(records)
        if len(names) != len(records):
            raise ValueError
        start = 0
        for part in parts(records, ROWS):
            found.insert(self.partition.cells(part), names[start : start + ROWS])
            start += ROWS
        return found


def _features(features: Any, rows: Any) -> Features:
    if features is None:
        return Vectors(np.asarray(next(parts(rows, 1))).size)
    if hasattr(features, "codes"):
        return features  # type: ignore[no-any-return]
    if not callable(features):
        raise ArgumentError("features", "a name, a function or None", shown=name_of(features))
    like = next(parts(rows, 1))
    first = np.asarray(features(alone(like, like)))
    return Function(features, first.size, like, name_of(features))


def _coded(features: Any, rows: Any) -> tuple[Features, Codes]:
    """The features and the codes of landmarks, which are public: what cannot be read is refused."""
    if 0 in getattr(rows, "shape", ()) or (isinstance(rows, Sized) and not len(rows)):
        raise ArgumentError("landmarks", "at least one public record", shown="none")
    try:
        coded = _features(features, rows)
        codes, present = coded.codes(rows)
        if not present.all():
            raise ValueError
    except (ArgumentError, OSError, ImportError):
        raise
    except Exception as error:  # whatever an object raises that is no container of records
        readable = "records that the features can read"
        raise ArgumentError("landmarks", readable, shown=name_of(rows)) from error
    return coded, codes


def partition_of(
    features: Any, landmarks: Any, ramp: tuple[float, float] | None, width: int | None, classes: int
) -> Partition:
    """The public partition that the arguments of a classifier describe, checked.

    `width` is how many numbers each record has, where that is known.
    """
    counted = isinstance(landmarks, int)
    if isinstance(features, str):
        if features in SHIPPED and (counted or landmarks is None):
            shipped = shipped_landmarks(features)
            return shipped if ramp is None else attrs.evolve(shipped, ramp=ramp)
        features = named(features)
    if hasattr(features, "cells"):
        return features  # type: ignore[no-any-return]
    if landmarks is None:
        raise ArgumentError("landmarks", "public records, or a number of directions", got=landmarks)
    if counted:
        _validate.count(1, _MOST_LANDMARKS, landmarks=landmarks)
        coded = Vectors(width) if features is None and width else features
        if not hasattr(coded, "width"):
            allowed = "public records, where X is no array of vectors"
            raise ArgumentError("landmarks", allowed, got=landmarks)
        codes = whole(random_directions(landmarks, coded.width))
    else:
        coded, codes = _coded(features, landmarks)
    return Landmarks(coded, codes, public_ramp(codes, classes) if ramp is None else ramp)


def name_of(features: Any) -> str:
    """What features are called in messages."""
    if isinstance(features, str):
        return repr(features)
    return str(getattr(features, "name", getattr(features, "__name__", type(features).__name__)))


def labels_of(classes: Any) -> Sequence[Any]:
    """The public labels, from a list of them or from their number."""
    if isinstance(classes, int) and not isinstance(classes, bool):
        _validate.between(2, _MOST_CLASSES, classes=classes)
        return range(classes)
    try:
        return np.asarray(_validate.values(classes=classes)).tolist()  # type: ignore[no-any-return]
    except Exception as error:  # whatever objects raise that are no labels
        raise ArgumentError("classes", "a number or labels", shown=name_of(classes)) from error


def checked_width(records: Any) -> int | None:
    """How many numbers the type of the records says that each has; refuses types of other kinds."""
    if hasattr(records, "toarray"):
        raise ArgumentError("X", "a dense array; sparse input is not supported", shown="sparse")
    kind = getattr(getattr(records, "dtype", None), "kind", "f")
    if kind == "c":
        raise ArgumentError("X", "real numbers; Complex data not supported", shown="complex")
    if getattr(records, "ndim", 2) == 1 and kind != "O":
        allowed = "2D array, one row per record. Reshape your data"
        raise ArgumentError("X", allowed, shown="1D array")
    return declared_width(records)


def check_records(records: Any, labels: Any, known: Known) -> None:
    """Refuse arrays whose records have another width than the landmarks: both are public."""
    refuse_texts(records, labels, known)
    width, own = declared_width(records), getattr(known.partition, "features", None)
    if isinstance(own, Vectors) and width is not None and width != own.width:
        raise ArgumentError("X", f"records of {own.width} features", shown=f"{width} features")


def refuse_texts(records: Any, labels: Any, known: Known) -> None:
    """Refuse arrays of texts where numbers are read: one text has made texts of all numbers.

    All records would count as absent. In a list or a frame of pandas the others stay what they are.
    """
    own = getattr(known.partition, "features", known.partition)
    hint = "Give a list, or a frame of pandas."
    numbers = isinstance(own, Vectors | Images | Partitions)
    if isinstance(own, Function):
        numbers = numbers_of(own.like) is not None
    if numbers and _of_texts(records):
        raise ArgumentError("X", "an array of numbers", shown="one of texts", hint=hint)
    if _of_texts(labels) and not all(isinstance(each, str) for each in known.classes.labels):
        raise ArgumentError("y", "labels like the classes", shown="an array of texts", hint=hint)


def _of_texts(array: Any) -> bool:
    of_columns = array.dtypes if hasattr(array, "rows") else ()  # of polars
    kinds = [getattr(array, "dtype", None), *of_columns]
    return any(getattr(each, "kind", "") in ("U", "S") or str(each) == "String" for each in kinds)


def check_queries(queries: Any, width: int | None) -> None:
    """Queries are public: what cannot be read is refused."""
    found = checked_width(queries)
    if width is not None and found is not None and found != width:
        # The words are those that scikit-learn's checks look for.
        shown = f"X has {found} features, but CertifiedClassifier is expecting {width} features"
        raise ArgumentError("X", f"queries of {width} features", shown=f"{shown} as input")


def query_parts(queries: Any) -> list[Any]:
    """Queries in containers of some each; whatever holds no records is refused: they are public."""
    try:
        return list(parts(queries, ROWS))
    except Exception:  # whatever an object raises that is no container
        allowed = "an array, a table or a list of queries"
        raise ArgumentError("X", allowed, shown=type(queries).__name__) from None


def write_classifier(
    path: str | os.PathLike[str],
    features: Any,
    classes: list[Any],
    share: float,
    partition: Partition,
    counts: Counts,
) -> None:
    """Write what is public of a classifier and what it released, with landmarks if it has any."""
    header = {
        "format": FORMAT,
        "features": features if isinstance(features, str) else None,
        "classes": classes,
        "epsilon": counts.epsilon,
        "share": share,
        "ramp": getattr(partition, "ramp", None),
        "partition": counts.partition,
    }
    arrays: dict[str, Any] = {"cells": counts.cells, "totals": counts.totals}
    if isinstance(partition, Landmarks):
        arrays["landmarks"] = partition.codes.astype(np.int16)
        if crowding := partition.crowding:
            arrays["crowding"] = crowding.products
            header["crowding"] = [crowding.records, crowding.landmarks, crowding.queries]
    header["digest"] = _digest(header, arrays)
    with replacing(Path(path), "wb") as file:
        np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)


def _digest(header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> str:
    """Of all that a file holds: damage and edits are noticed. It is no signature."""
    found = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def read_classifier(
    path: str | os.PathLike[str], features: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a classifier and those of its counts, but for what its partition says.

    `features` replace those without a name.
    """
    _validate.path(path=path)
    expected = "a file written by CertifiedClassifier.save"
    with reading(path, expected):
        archive = read_npz(path, expected, "header", "cells", "totals", "landmarks", "crowding")
        header = json.loads(str(archive["header"]))
        check_format(header, FORMAT, f"{path}")
        stored = header.pop("digest")
        if _digest(header, {name: archive[name] for name in archive if name != "header"}) != stored:
            raise ValueError
        cells, totals = (archive[name].astype(np.int64) for name in ("cells", "totals"))
        ramp = None if header["ramp"] is None else tuple(header["ramp"])
        given = header["features"] if features is None else features
        if "landmarks" in archive and (given is None or isinstance(given, str)):
            codes = archive["landmarks"].astype(np.float32)
            shares = header.get("crowding")
            own: Any = Vectors(codes.shape[1]) if given is None else named(given)
            crowding = Crowding(archive["crowding"], *shares) if shares else None
            given = Landmarks(own, codes, ramp, crowding)
        arguments = {name: header[name] for name in ("epsilon", "classes", "share")}
        counts = {name: header[name] for name in ("partition", "epsilon")}
        return {**arguments, "features": given, "ramp": ramp}, counts | {
            "cells": cells,
            "totals": totals,
        }
