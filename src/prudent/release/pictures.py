"""A picture of the answers of groups: values with their intervals, dates along a line."""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_MANY = 6  # labels that are written without turning them


def drawn(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], path: str | Path | None
) -> Figure:
    """Draw one value for each row, with its interval; of a category there is none to draw.

    Args:
        rows: The rows of a frame of groups: the columns in `names`, value, low and high.
        names: The columns that the groups are of.
        path: The file to write; None only returns the figure.
    """
    known = [row for row in rows if isinstance(row["value"], int | float)]
    values = [float(row["value"]) for row in known]
    below = [_off(value, row["low"]) for value, row in zip(values, known, strict=True)]
    above = [_off(value, row["high"]) for value, row in zip(values, known, strict=True)]
    moments = [row[names[0]] for row in known]
    in_time = len(names) == 1 and all(isinstance(each, datetime.date) for each in moments)
    places: Sequence[Any] = moments if in_time else range(len(known))
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.errorbar(
        places,
        values,
        yerr=[below, above],
        fmt="o-" if in_time else "o",
        color="#1f6f8b",
        ecolor="#b0b0b0",
    )
    if not in_time:
        titles = [", ".join(str(row[name]) for name in names) for row in known]
        axes.set_xticks(list(places), titles, rotation=30 if len(titles) > _MANY else 0)
    axes.set(xlabel=", ".join(names), ylabel="value (bars: 95 % intervals)")
    if path is not None:
        figure.savefig(path)
    return figure


def _off(value: float, end: Any) -> float:
    return 0.0 if end is None else abs(value - float(end))
