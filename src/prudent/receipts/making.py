"""The one door through which receipts are made: by releases, models, training runs and searches."""

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import warnings
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Self, TypeAlias

import attrs

from prudent import __version__, _files, _validate
from prudent.accounting import serialisation
from prudent.accounting.relations import ADD_REMOVE, Relation
from prudent.receipts import keys
from prudent.receipts.receipt import Receipt, digest_of, theorems_of

DECLARED = frozenset({"schema", "snapshot", "digest"})
_LONGEST = 10_000  # characters of what is declared
_PROGRAMS = ("dp-accounting", "numpy", "opendp", "torch")


def _path(given: str | os.PathLike[str]) -> Path:
    return _validate.path(receipt=given)


@attrs.frozen
class ReceiptFile:
    """Where to write a receipt, and whose key signs it.

    Attributes:
        path: The file.
        sign: The name or the file of a key of `prudent keys`; None: it is not signed.
        declared: What the owner of the data says about them, for auditors: any of `schema`,
            `snapshot` (a date) and `digest` (of `receipts.keys.data_digest`, whose key keeps others
            from guessing the data). It goes into the receipt as it is.
    """

    path: Path = attrs.field(converter=_path)
    sign: str | os.PathLike[str] | None = None
    declared: Mapping[str, str] | None = attrs.field(default=None, kw_only=True)

    @declared.validator
    def _check_declared(self, _: Any, value: Any) -> None:
        if value is not None and not (
            isinstance(value, Mapping)
            and set(value) <= DECLARED
            and all(isinstance(each, str) and len(each) <= _LONGEST for each in value.values())
        ):
            raise _validate.ArgumentError(
                "declared", f"texts by the names {', '.join(sorted(DECLARED))}", got=value
            )

    @classmethod
    def at(cls, target: "ReceiptTarget | None") -> Self | None:
        """The file of a target, found to be writable, and its key to be there."""
        if target is None:
            return None
        found = target if isinstance(target, cls) else cls(target)  # type: ignore[arg-type]
        if found.path.exists() and not _is_receipt(found.path):  # the data, or a ledger
            wanted = "a new file, or a receipt to replace"
            raise _validate.ArgumentError("receipt", wanted, got=str(found.path))
        _files.check_writable(found.path.parent)
        if found.sign is not None:
            keys.secret_key(found.sign)
        return found

    def write(self, make: Callable[[], Receipt]) -> None:
        """Make a receipt and write it; if that fails, say so: the answer is paid for and stays.

        Only what the file system says is told: another error could quote what it worked on.
        """
        try:
            receipt = make()
            if self.declared:
                receipt = attrs.evolve(receipt, context={**receipt.context, "data": self.declared})
            (receipt if self.sign is None else keys.signed(receipt, self.sign)).write(self.path)
        except Exception as error:
            reason = (isinstance(error, OSError) and error.strerror) or "an error of the program"
            warnings.warn(
                f"The receipt could not be written: {reason}. What was released and charged stays.",
                stacklevel=2,
            )


def _is_receipt(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        Receipt.read(path)
    except ValueError:
        return False
    return True


ReceiptTarget: TypeAlias = str | os.PathLike[str] | ReceiptFile
"""Where a receipt goes: a path, or a `ReceiptFile` that also says who signs it."""


def receipt_of(
    kind: str,
    *,
    asked: Mapping[str, Any],
    event: Any,
    epsilon: float,
    delta: float,
    relation: Relation = ADD_REMOVE,
    unit: str | None = None,
    released: Any = None,
    files: Mapping[str, str] | None = None,
    features: str | None = None,
    ledger: Any = None,
    charge: Any = None,
    predictable: bool = False,
) -> Receipt:
    """The receipt of an answer. Everything it takes must be public or released.

    Args:
        kind: One of `receipt.KINDS`.
        asked: What was asked.
        event: The privacy event.
        epsilon: The ε that is claimed for it.
        delta: The δ beside it.
        relation: Which data sets are neighbours.
        unit: The column of privacy units; None: every record by itself.
        released: The values that were released.
        files: SHA-256 of the files that were released, by name.
        features: A digest of public feature maps.
        ledger: The ledger that was charged.
        charge: What it noted.
        predictable: Whether the noise was seeded.
    """
    plain = serialisation.to_plain(event)
    values, facts = plain_value(released), plain_value(asked)
    noted = None if charge is None or not hasattr(ledger, "proof") else ledger.proof(charge)
    versions = {"prudent": __version__, "python": platform.python_version()}
    for name in _PROGRAMS:
        with_version = _version(name)
        versions |= {} if with_version is None else {name: with_version}
    receipt = Receipt(
        kind=kind,
        asked=facts,
        event=plain,
        relation=serialisation.to_plain(relation),
        unit=unit or "record",
        epsilon=float(epsilon),
        delta=float(delta),
        released=values,
        files=files or {},
        ledger=noted,
        versions=versions,
        predictable=predictable,
        context=_context(ledger if noted else None, predictable=predictable),
    )
    digests = receipt.expected_digests() | ({} if features is None else {"features": features})
    theorems = theorems_of(plain, receipt)
    return attrs.evolve(receipt, digests=digests, theorems=theorems)


def _context(ledger: Any, *, predictable: bool) -> dict[str, Any]:
    """The program, its randomness and the limits of the ledger; none of it depends on records."""
    found: dict[str, Any] = {"randomness": "a seed" if predictable else "the operating system"}
    try:
        files = importlib.metadata.distribution("prudent")
        origin = json.loads(files.read_text("direct_url.json") or "{}")
        record = (files.read_text("RECORD") or "").encode()
        commit = origin.get("vcs_info", {}).get("commit_id")
        program = {"record": hashlib.sha256(record).hexdigest(), "commit": commit}
        found["program"] = {name: each for name, each in program.items() if each}
    except importlib.metadata.PackageNotFoundError:  # run from a folder
        pass
    if ledger is not None:
        epsilon, delta = ledger.limits
        relation = serialisation.to_plain(ledger.relation)
        found["budget"] = {"epsilon": epsilon, "delta": delta, "relation": relation}
    return found


def request_digest(
    kind: str, asked: Mapping[str, Any], unit: str | None, relation: Relation
) -> str | None:
    """The digest of a request, under which a ledger is charged; None by a bug, which costs only it.

    It binds what was asked, for which unit and for which neighbours: see `receipt_of`.
    """
    try:
        facts = {"kind": kind, "asked": plain_value(asked), "unit": unit or "record"}
        return digest_of(facts | {"relation": serialisation.to_plain(relation)})
    except Exception:
        return None


def answer_digest(released: Any) -> str | None:
    """The digest of what was released, for the ledger; None by a bug: the answer is paid for."""
    try:
        return digest_of(plain_value(released))
    except Exception:
        return None


def _version(program: str) -> str | None:
    try:
        return importlib.metadata.version(program)
    except importlib.metadata.PackageNotFoundError:
        return None


def plain_value(value: Any) -> Any:
    """A public value as JSON holds it: dates as ISO 8601, durations in seconds."""
    if isinstance(value, Mapping):
        return {name_of(name): plain_value(each) for name, each in value.items()}
    if hasattr(value, "plain"):
        return plain_value(value.plain())
    if isinstance(value, Enum):
        return plain_value(value.value)
    if attrs.has(type(value)):
        fields = {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
        return {"kind": type(value).__name__} | {
            name: plain_value(each) for name, each in fields.items() if not name.startswith("_")
        }
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    if hasattr(value, "tolist"):  # arrays and scalars of numpy
        return plain_value(value.tolist())
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    plain = serialisation.to_plain(value)
    return plain if plain is None or isinstance(plain, bool | str | int | float) else str(plain)


def name_of(name: Any) -> str:
    """The name of a group in words, the key of documents; of several columns, with commas between.

    A value with a comma or quotes in it is in quotes, so that no two groups have the same name.
    """
    if not isinstance(name, tuple):
        return str(name)
    each = (json.dumps(s, ensure_ascii=False) if {*s} & {*',"'} else s for s in map(str, name))
    return ", ".join(each)
