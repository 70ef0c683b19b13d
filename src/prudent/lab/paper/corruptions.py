"""Corruptions of the runs: those of the package by name, and a user's own from a file or module."""

import functools
import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any, NamedTuple

from prudent._validate import ArgumentError
from prudent.lab.corruption import DataCorruption, GradientCorruption, parse
from prudent.lab.corruption.records import valid_ratio

AIMED = "aimed"
"""The attack on certified classifiers alone, by records chosen for their counts."""
_OWN = re.compile(r"(?P<place>[^:]+):(?P<name>[A-Za-z_]\w*):(?P<ratio>[^:]+)")


class Written(NamedTuple):
    """A corruption as it is written."""

    kind: str  # its name, or the place and name of the function that makes it
    ratio: float | None  # the fraction of bad records; None for no corruption
    settings: str  # its settings as text; empty for the defaults
    own: bool  # whether it is a user's own


def written(text: str) -> Written:
    """The parts of `none`, `name:ratio`, `name:ratio:settings` or `place:function:ratio`.

    Nothing is imported, so that a file of results never runs code.

    Raises:
        ValueError: If the text is none of these, or the ratio is not in [0, 0.5].
    """
    if match := _OWN.fullmatch(text):
        return Written(f"{match['place']}:{match['name']}", _ratio(match["ratio"]), "", True)
    kind, _, rest = text.partition(":")
    ratio, _, settings = rest.partition(":")
    if kind != AIMED:
        parse(text)
    return Written(kind, _ratio(ratio) if rest else None, settings, False)


def corruption_of(text: str) -> DataCorruption | GradientCorruption | None:
    """The corruption that a text names; None for `none`.

    `faults.py:swap:0.2` calls the function `swap` of the file `faults.py` with the ratio 0.2, and
    `my.faults:swap:0.2` that of an installed module. It returns a corruption, as those of
    `prudent.lab.corruption` are.
    """
    if not (match := _OWN.fullmatch(text)):
        return parse(text)
    made = _function(match["place"], match["name"])(_ratio(match["ratio"]))
    if not isinstance(made, DataCorruption | GradientCorruption):
        raise ArgumentError(
            "corrupt",
            f"a function that returns a DataCorruption or a GradientCorruption in {text}",
            got=type(made).__name__,
        )
    return made


@functools.cache
def _function(place: str, name: str) -> Any:
    module = _from_file(Path(place)) if place.endswith(".py") else _installed(place)
    found = getattr(module, name, None)
    if not callable(found):
        raise ArgumentError("corrupt", f"a function of {place}", got=name)
    return found


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"Expected a file of corruptions, got {str(path)!r}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ArgumentError(
            "corrupt",
            "a module that can be imported, or a file",
            got=name,
            hint="Name the file with its ending .py.",
        ) from error


def _ratio(text: str) -> float:
    try:
        return valid_ratio(float(text))
    except ValueError:
        raise ArgumentError("corrupt", "with a ratio in [0, 0.5]", got=text) from None
