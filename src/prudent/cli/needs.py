"""The commands that are built in: where each is defined, and which extras it needs.

A plug-in brings its own lines for these tables. `check` is called for every command before it does
any work, so that nobody waits for minutes to read that something is not installed. `--help` needs
no extra.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from typing import Any

from prudent import _extras

TABLES, TRAIN, PLOTS, TEXTS = "tables", "train", "plots", "huggingface"
ESTIMATORS, RECEIPTS = "estimators", "receipts"

LAB = ("train", "tune", "certify", "demo", "explore", "paper")
"""The commands that prudent-lab adds, to name it where it is not installed."""

_BUILT_IN: dict[str, tuple[str, tuple[str, ...]]] = {
    "epsilon": ("pricing", ()),
    "calibrate": ("pricing", ()),
    "sample": ("tables", ()),
    "doctor": ("checks", ()),
    "release": ("release", (TABLES,)),
    "regress": ("tables", (TABLES, ESTIMATORS)),
    "sql": ("tables", (TABLES,)),
    "synth": ("tables", (TABLES, ESTIMATORS)),
    "budget": ("budget", ()),
    "verify": ("checks", ()),
    "keys": ("checks", (RECEIPTS,)),
    "audit": ("audit", (TRAIN,)),
}

MODULES = {name: module for name, (module, _) in _BUILT_IN.items()}
"""The module in `prudent.cli.commands` of each; one with commands inside it has an `app`."""

NEEDS = {name: extras for name, (_, extras) in _BUILT_IN.items()}
"""The extras of every command; what is not named here needs those of the command that holds it."""


def given(value: Any) -> bool:
    """Whether an option was given at all."""
    return value is not None


def equals(wanted: str) -> Callable[[Any], bool]:
    """Makes a function that says whether an option has this value."""
    return lambda value: bool(value == wanted)


def in_postgres(value: Any) -> bool:
    """Whether an option names a database of PostgreSQL."""
    from prudent.budget.storage import is_postgres

    return isinstance(value, str) and is_postgres(value)


NEEDS_OF_OPTIONS: dict[tuple[str, str], tuple[str, Callable[[Any], bool]]] = {
    ("audit", "plot"): (PLOTS, given),
    ("budget", "location"): (TABLES, in_postgres),
}
"""The extra that a command needs besides, if an option of it has a value like this."""


def of(command: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """The extras that a command needs."""
    names = command.split()
    holders = (" ".join(names[:length]) for length in range(len(names), 0, -1))
    listed = next(holder for holder in holders if holder in NEEDS)
    besides = (
        extra
        for (holder, option), (extra, applies) in NEEDS_OF_OPTIONS.items()
        if holder in (listed, command) and applies(values.get(option))
    )
    return tuple(dict.fromkeys([*NEEDS[listed], *besides]))


def check(command: str, values: Mapping[str, Any]) -> None:
    """Check that what a command needs is installed.

    Raises:
        MissingPackageError: naming what is not, and the extras that hold it.
    """
    _extras.check(f"prudent {command}", of(command, values))


@cache
def plugins(group: str) -> dict[str, metadata.EntryPoint]:
    """The plug-ins of a group, by name: what installed packages add, prudent-lab among them.

    They are found by entry points: nothing of a plug-in is imported before it is used, and a
    built-in command looks for none. Groups:

    - `prudent.commands`: a module with a function of the command's name, or with an `app` that
      holds commands; its `NEEDS` and `NEEDS_OF_OPTIONS`, if any, are added to those here.
    - `prudent.doctor`: a function that yields findings of `prudent doctor`.
    """
    return {found.name: found for found in metadata.entry_points(group=f"prudent.{group}")}


def load_plugin(group: str, name: str) -> Any:
    """Import a plug-in."""
    return plugins(group)[name].load()
