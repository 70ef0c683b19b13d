"""A user's own runs: data sets and corruptions named in a file, with the paper's methods.

    [datasets.wine]
    like = "mnist"
    data = "npz:wine.npz"
    epsilons = [1.0, 3.0]
    corruptions = ["none", "label:0.1", "faults.py:swap:0.2"]

Settings that a data set does not name are those of the one it is `like`: a data set of the paper's
settings, or one above it in the file.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prudent import _formats, _validate
from prudent._validate import ArgumentError
from prudent.lab.paper.corruptions import corruption_of
from prudent.lab.paper.runs.jobs import PAPER_COLUMNS, Job, Settings, resolved, settings

_NEEDED = ("data", "epsilons", "batch", "lr", "clip", "propose", "trim_most", "noise")
_DEFAULTS: Settings = {"curve": [], "corruptions": ["none"], "methods": list(PAPER_COLUMNS)}
_LISTS = ("epsilons", "curve", "corruptions", "methods")
_KNOWN = (*_NEEDED, *_DEFAULTS, "like", "centred", "network", "momentum", "backbone", "size")


def read_settings(path: Path) -> Settings:
    """The data sets of a file, each with all its settings, and the rest of the paper's settings.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If the file is not valid; names the data set and the setting.
    """
    if not path.is_file():
        raise FileNotFoundError(f"Expected a file of settings, got {str(path)!r}.")
    with _formats.reading(path, "a TOML file"):
        found = tomllib.loads(path.read_text("utf-8"))
    named = found.get("datasets")
    if set(found) != {"datasets"} or not isinstance(named, dict) or not named:
        raise ArgumentError("grid", "only tables [datasets.NAME], at least one", got=list(found))
    known = settings()["datasets"]
    for position, (name, mine) in enumerate(named.items()):
        _check_names(name, mine, [*known, *list(named)[:position]])
    datasets = {name: _DEFAULTS | mine for name, mine in resolved(named, known).items()}
    for name, mine in datasets.items():
        _check_values(name, mine)
    return settings() | {"datasets": datasets}


def own_jobs(mine: Settings, seeds: int) -> Iterator[Job]:
    """The runs of every data set under each of its corruptions, by its methods; ordered by seed."""
    for seed in range(seeds):
        for name, one in mine["datasets"].items():
            for corrupt in one["corruptions"]:
                for method in one["methods"]:
                    yield Job(name, corrupt, method, tuple(one["epsilons"]), seed, mine)


def _check_names(name: str, mine: Any, before: list[str]) -> None:
    if not isinstance(mine, dict):
        raise ArgumentError("grid", f"a table [datasets.{name}]", got=mine)
    for key in mine:
        _validate.one_of(_KNOWN, **{f"datasets.{name}": key})
    if "like" in mine:
        _validate.one_of(before, **{f"datasets.{name}.like": mine["like"]})


def _check_values(name: str, mine: Settings) -> None:
    """Raise an error unless a job can be made of every corruption and method of a data set."""
    if missing := [key for key in _NEEDED if key not in mine]:
        raise ArgumentError(
            f"datasets.{name}",
            f"with {', '.join(missing)}",
            got=sorted(mine),
            hint='Take them from another data set: like = "mnist".',
        )
    for key in _LISTS:
        if not isinstance(mine[key], list) or (key != "curve" and not mine[key]):
            raise ArgumentError(f"datasets.{name}.{key}", "a list", got=mine[key])
    for method in mine["methods"]:
        _validate.one_of(PAPER_COLUMNS, **{f"datasets.{name}.methods": method})
        if method not in mine["noise"]:
            raise ArgumentError(f"datasets.{name}.noise", f"with {method}", got=mine["noise"])
    for corrupt in mine["corruptions"]:
        corruption_of(corrupt)
