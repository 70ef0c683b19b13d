"""Which data a budget is for, so that a second ledger for the same data is noticed.

A ledger can be bound to data by name: a path, the address of a table, or any name that is agreed
on. Names are public. There is no fingerprint of the content: a hash in a public ledger would let
anyone who guesses the records check the guess, and no noise would stand in between.

A list of bound ledgers is kept for each user, in the file that `PRUDENT_LEDGERS` names or else in
the user's data folder; a team shares one by setting `PRUDENT_LEDGERS`. It is a help against
mistakes: whoever wants a second budget can have one, by asking for it or without this list.
"""

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from prudent import _validate
from prudent._redaction import without_password
from prudent.budget.storage import LedgerError, is_postgres

_LIST = "PRUDENT_LEDGERS"


class SecondLedgerError(LedgerError):
    """The data already have a budget elsewhere.

    Attributes:
        data: The name of the data.
        location: Where their ledger is.
        dataset: Under which name it keeps their budget.
    """

    def __init__(self, data: str, location: str, dataset: str) -> None:
        self.data, self.location, self.dataset = data, location, dataset
        super().__init__(
            f"{data} already has a budget: data set {dataset!r} in {location}. Two budgets for the "
            "same data add up, and neither knows of the other. Charge that one; or, to allow both, "
            "create this one with another=True."
        )

    def __reduce__(self) -> tuple[type["SecondLedgerError"], tuple[str, str, str]]:
        return SecondLedgerError, (self.data, self.location, self.dataset)


Data: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_BETWEEN = " + "


def data_name(data: Data) -> str:
    """The public name of data: a file by its full path, an address without its password.

    Several, such as tables that are joined, have their names with " + " between.
    """
    if not isinstance(data, str | os.PathLike):
        found = {data_name(each) for each in _validate.values(data=data)}
        return _BETWEEN.join(sorted(found))
    text = str(_validate.instance((str, os.PathLike), "a path, an address or a name", data=data))
    if _BETWEEN in text and not Path(text).exists():
        return data_name(text.split(_BETWEEN))
    if "://" in text or is_postgres(text):
        return without_password(text)
    path = Path(text)
    return str(path.resolve()) if path.exists() else text


def place(location: str | os.PathLike[str]) -> str:
    """The name of a ledger's place in the list: a full path, or an address without password."""
    _validate.path(location=location)
    text = os.fspath(location)
    if "://" in text or is_postgres(text):
        return without_password(text)
    return str(Path(text).resolve())


def names_in(name: str) -> set[str]:
    """The names of the single data in a name that `data_name` returned."""
    return set(name.split(_BETWEEN))


def check_only(data: str, location: str | os.PathLike[str], dataset: str) -> None:
    """Refuses data for which the list knows another ledger that is still there.

    Raises:
        SecondLedgerError: If there is one.
    """
    here = place(location), dataset
    for each in sorted(names_in(data)):
        known = _listed(each)
        for where, name in known if here not in known else ():
            if is_postgres(where) or Path(where).exists():
                raise SecondLedgerError(each, where, name)


def remember(data: str, location: str | os.PathLike[str], dataset: str) -> None:
    """Puts a ledger on the list. Does nothing if the list cannot be written."""
    line = "".join(
        json.dumps({"data": each, "ledger": place(location), "dataset": dataset}) + "\n"
        for each in sorted(names_in(data))
    )
    path = _list_path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            ended = file.read(1) in (b"", b"\n")  # a crash may have cut off the last line
            file.write((line if ended else "\n" + line).encode())


def _listed(data: str) -> list[tuple[str, str]]:
    try:
        lines = _list_path().read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        # A line cut off by a crash, or not one of ours.
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            entry = json.loads(line)
            if entry["data"] == data:
                found.append((str(entry["ledger"]), str(entry["dataset"])))
    return found


def _list_path() -> Path:
    if given := os.environ.get(_LIST):
        return Path(given)
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "prudent" / "ledgers.jsonl"
