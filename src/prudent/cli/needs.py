"""The commands: where each is defined, and which extras it needs.

This is the only list of either. `check` is called for every command before it does any work, so
that nobody waits for minutes to read that something is not installed. `--help` needs no extra.
"""

from collections.abc import Callable, Mapping
from typing import Any

from prudent import _extras

TABLES, TRAIN, PLOTS, TEXTS = "tables", "train", "plots", "huggingface"

MODULES = {
    "epsilon": "pricing",
    "calibrate": "pricing",
    "train": "train",
    "tune": "tune",
    "demo": "demo",
    "sample": "sample",
    "suggest": "suggest",
    "explore": "explore",
    "doctor": "doctor",
    "release": "release",
    "budget": "budget",
    "paper": "paper",
    "certify": "certify",
    "audit": "audit",
}
"""The module in `prudent.cli` of every command; one with commands inside it holds them as `app`."""

NEEDS: dict[str, tuple[str, ...]] = {
    "epsilon": (),
    "calibrate": (),
    "train": (TRAIN,),
    "tune": (TRAIN,),
    "demo": (TABLES, TRAIN, PLOTS),
    "sample": (),
    "suggest": (TABLES,),
    "explore": (),
    "doctor": (),
    "release": (TABLES,),
    "budget": (),
    "paper": (TRAIN,),
    "paper all": (TRAIN, PLOTS),
    "paper compare": (),
    "paper convergence": (),
    "paper figure": (PLOTS,),
    "paper report": (TRAIN, PLOTS),
    "certify": (TABLES, TRAIN),
    "certify run": (TRAIN,),
    "certify make-features": (TRAIN,),
    "audit": (TABLES,),
    "audit federated-round": (TABLES, TRAIN),
    "audit train": (TRAIN,),
}
"""The extras of every command; what is not named here needs those of the command that holds it."""


def _given(value: Any) -> bool:
    return value is not None


def _is(wanted: str) -> Callable[[Any], bool]:
    return lambda value: bool(value == wanted)


def _in_postgres(value: Any) -> bool:
    from prudent.budget.storage import is_postgres

    return isinstance(value, str) and is_postgres(value)


NEEDS_OF_OPTIONS: dict[tuple[str, str], tuple[str, Callable[[Any], bool]]] = {
    ("audit", "plot"): (PLOTS, _given),
    ("audit train", "plot"): (PLOTS, _given),
    ("budget", "location"): (TABLES, _in_postgres),
    ("certify", "dataset"): (TEXTS, _is("imdb")),
    ("certify", "features"): (TEXTS, _is("minilm")),
    ("certify", "out"): (PLOTS, _given),
    ("certify make-features", "features"): (TEXTS, _is("minilm")),
    ("epsilon", "plot"): (PLOTS, _given),
    ("paper compare", "out"): (PLOTS, _given),
    ("paper convergence", "out"): (PLOTS, _given),
    ("release histogram", "out"): (PLOTS, _given),
    ("tune", "ledger"): (TABLES, _in_postgres),
}
"""The extra that a command needs besides, if an option of it has a value like this."""


def of(command: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The extras that a command needs.

    Args:
        command: Its name without `prudent`, such as "release median".
        given: Its options.
    """
    names = command.split()
    holders = (" ".join(names[:length]) for length in range(len(names), 0, -1))
    listed = next(holder for holder in holders if holder in NEEDS)
    besides = (
        extra
        for (holder, option), (extra, applies) in NEEDS_OF_OPTIONS.items()
        if holder in (listed, command) and applies(given.get(option))
    )
    return tuple(dict.fromkeys([*NEEDS[listed], *besides]))


def check(command: str, given: Mapping[str, Any]) -> None:
    """Check that what a command needs is installed.

    Raises:
        MissingPackageError: naming what is not, and the extras that hold it.
    """
    _extras.check(f"prudent {command}", of(command, given))
