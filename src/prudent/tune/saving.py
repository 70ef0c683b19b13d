"""Files of what a fit found: numbers and texts as JSON, no pickle."""

import datetime
import json
import re
from pathlib import Path
from typing import Any

import attrs
import dp_accounting as dp
import numpy as np

from prudent._files import replacing
from prudent._formats import check_format, reading
from prudent.accounting.serialisation import from_plain, to_plain
from prudent.estimators.base import PrivateEstimator
from prudent.estimators.certificate import SlopeBasis, SlopeCertificate
from prudent.estimators.features import ClassMoments, StandardFeatures
from prudent.estimators.trees import Forest, Tree

FORMAT = 1
"""Format number of files of fits."""

_PARTS = {
    each.__name__: each
    for each in (StandardFeatures, ClassMoments, Forest, Tree, SlopeCertificate, SlopeBasis)
}
_DATES = {each.__name__: each for each in (datetime.datetime, datetime.date)}
_DTYPE = re.compile(r"[<>|]([biuf]\d+|M8\[\w+\])")  # of a fixed, small size


def write(path: Path, model: PrivateEstimator) -> None:
    """Write what a fit found, for the owner only; the arguments of the estimator are left out."""
    given = model.get_params(deep=False)
    found = {name: each for name, each in vars(model).items() if name not in given}
    with replacing(path, "w", owner_only=True) as file:
        json.dump({"format": FORMAT, "found": found}, file, default=_plain)


def read(path: Path, model: PrivateEstimator) -> None:
    """Give an estimator what a fit found.

    Raises:
        DamagedFileError: If the file is none that `write` wrote.
    """
    with reading(path, "what a fit found, as a search keeps it"):
        content = json.loads(path.read_text("utf-8"), object_hook=_value)
        check_format(content, FORMAT, f"{path}")
        # Arguments, among them the ledger, and methods are not the file's to say.
        for name in content["found"]:
            if name in model.get_params(deep=False) or hasattr(type(model), name):
                raise ValueError("a name that no fit sets")
    for name, value in content["found"].items():
        setattr(model, name, value)


def _plain(value: Any) -> dict[str, Any]:
    """What JSON has no kind for, as a mapping that says what it is of."""
    match value:
        case np.ndarray(dtype=dtype) if dtype.kind in "OU":
            return {"of": "texts" if dtype.kind == "U" else "objects", "values": value.tolist()}
        case np.ndarray(dtype=dtype) | np.generic(dtype=dtype) if _DTYPE.fullmatch(dtype.str):
            numbers = value.astype(np.int64) if dtype.kind == "M" else value
            flat = {"shape": list(value.shape), "values": numbers.ravel().tolist()}
            return {"of": "array", "dtype": dtype.str, **flat}
        case datetime.date():
            kind = "datetime" if isinstance(value, datetime.datetime) else "date"
            return {"of": kind, "value": value.isoformat()}  # a Timestamp is a datetime, too
        case dp.DpEvent():
            return {"of": "event", "value": to_plain(value)}
        case _ if type(value) in _PARTS.values():
            return {"of": type(value).__name__, **attrs.asdict(value, recurse=False)}
    raise TypeError(f"Expected what a fit finds, got a {type(value).__name__}.")


def _value(plain: dict[str, Any]) -> Any:
    """The value that `_plain` made this of."""
    match plain.pop("of", None):
        case None:
            return plain
        case "texts":
            return np.array([str(each) for each in plain["values"]], dtype=str)
        case "objects":
            found = np.empty(len(plain["values"]), dtype=object)
            found[:] = plain["values"]
            return found
        case "array":
            if not _DTYPE.fullmatch(plain["dtype"]):
                raise ValueError("an array of another kind")
            return np.array(plain["values"], plain["dtype"]).reshape(plain["shape"])[()]
        case "event":
            return from_plain(plain["value"])
        case kind if kind in _DATES:
            return _DATES[kind].fromisoformat(plain["value"])
        case kind:
            return _PARTS[kind](**plain)
