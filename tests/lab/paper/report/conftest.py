"""Results that are made up, so that every number on a page is known."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prudent_lab.paper.results import COLUMNS, Results, read

Row = dict[str, Any]


def row(**changes: Any) -> Row:
    """A row of a run with the paper's settings."""
    plain = {
        "dataset": "mnist",
        "corrupt": "none",
        "column": "ptr",
        "target": "",
        "seed": 0,
        "epsilon": 3.0,
        "accountant": "pld",
        "steps": 100,
        "noise_multiplier": 1.1,
        "accuracy": 90.0,
        "pass_rate": 0.5,
        "trim": 64,
        "success": "",
    }
    assert set(changes) <= set(plain)
    return plain | changes


def cells(accuracies: dict[str, list[float]], **common: Any) -> list[Row]:
    """Rows of several columns, an accuracy for each seed; ours are solved for their ε."""
    epsilon = common.get("epsilon", 3.0)
    return [
        row(
            column=column,
            target=epsilon if column.startswith("ours") else "",
            seed=seed,
            accuracy=accuracy,
            **common,
        )
        for column, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    ]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(rows: list[Row], name: str = "results.csv") -> Path:
        path = tmp_path / name
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return path

    return write


@pytest.fixture
def results(write: Callable[..., Path]) -> Callable[[list[Row]], Results]:
    return lambda rows: read(write(rows))
