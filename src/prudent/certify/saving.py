"""Files of released classifiers: numbers and JSON, no pickle."""

import json
import os
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from prudent import _validate
from prudent._files import replacing
from prudent._formats import check_format, read_npz, reading
from prudent.certify.counts import Counts
from prudent.certify.features import Vectors, named
from prudent.certify.landmarks import Crowding, Landmarks

FORMAT = 1
"""Format number of saved classifiers."""


@attrs.frozen(eq=False)
class Saved:
    """What is public of a classifier, and what it released."""

    features: Any  # the name of the features, the features, or None for vectors
    classes: list[Any]  # the labels
    share: float  # fraction of ε for the class totals
    ramp: tuple[float, float] | None  # that of the landmarks; None for another partition
    counts: Counts  # what was released


def write(path: str | os.PathLike[str], saved: Saved, partition: Any) -> None:
    """Write a classifier, with the landmarks of its partition, if it has any."""
    counts = saved.counts
    header = {
        "format": FORMAT,
        "features": saved.features if isinstance(saved.features, str) else None,
        "classes": saved.classes,
        "epsilon": counts.epsilon,
        "share": saved.share,
        "ramp": saved.ramp,
        "tables": counts.tables,
        "partition": counts.partition,
    }
    arrays: dict[str, Any] = {"cells": counts.cells, "totals": counts.totals}
    if isinstance(partition, Landmarks):
        arrays["landmarks"] = partition.codes.astype(np.int16)
        if partition.crowding:
            crowding = partition.crowding
            arrays["crowding"] = crowding.products
            header["crowding"] = [crowding.records, crowding.landmarks, crowding.queries]
    with replacing(Path(path), "wb") as file:
        np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)


def read(path: str | os.PathLike[str], features: Any) -> Saved:
    """Read a classifier; `features` replace those in the file, where they have no name."""
    _validate.path(path=path)
    expected = "a file written by CertifiedClassifier.save"
    with reading(path, expected):
        archive = read_npz(path, expected, "header", "cells", "totals", "landmarks", "crowding")
        header = json.loads(str(archive["header"]))
        check_format(header, FORMAT, f"{path}")
        cells, totals = (archive[name].astype(np.int64) for name in ("cells", "totals"))
        ramp = None if header["ramp"] is None else tuple(header["ramp"])
        given = header["features"] if features is None else features
        if "landmarks" in archive and (given is None or isinstance(given, str)):
            codes = archive["landmarks"].astype(np.float32)
            shares = header.get("crowding")
            own: Any = Vectors(codes.shape[1]) if given is None else named(given)
            crowding = Crowding(archive["crowding"], *shares) if shares else None
            given = Landmarks(own, codes, ramp, crowding)
        counts = Counts(cells, totals, header["tables"], header["partition"], header["epsilon"])
        return Saved(given, header["classes"], header["share"], ramp, counts)
