"""What one privacy unit contributes to a column: one value, or a fixed number of them.

A person may have several rows. What they become is a function of that person's rows alone, so
adding or removing a person adds or removes at most `Contribution.records` values:

| per_unit | the value of a unit |
| --- | --- |
| "mean" | the mean of its values; whole units for dates, times, durations and decimals |
| "median" | its lower median |
| "min", "max" | its least or largest value |
| "sum" | the sum of its values |
| "count" | the number of its rows that have a value |
| a number k | k of its values, evenly spaced in their order; all of them if it has at most k |

Evenly spaced values represent a unit better than its k least values or its first k rows would, and
unlike a random choice they are the same on every engine; but a unit with many rows still weighs as
little as one with k.
"""

from typing import Literal, TypeAlias

import attrs

from prudent import _validate
from prudent.release.columns.scales import INTEGER, Scale

PerUnit: TypeAlias = Literal["mean", "median", "min", "max", "sum", "count"] | int

_MOST_ROWS = 10**6
_WORDS = {
    "mean": "the mean of its values",
    "median": "the lower median of its values",
    "min": "the least of its values",
    "max": "the largest of its values",
    "sum": "the sum of its values",
    "count": "the number of its rows that have a value",
}


@attrs.frozen
class Contribution:
    """What one unit contributes to a column.

    Attributes:
        unit: The column that identifies the unit; None if every row is its own unit.
        per_unit: The value of a unit, or its number of values.
        by: The column with the group of a row; None without groups.
        first: Whether "min" and "max" are the first and the last in order, as for categories.
    """

    unit: str | None = None
    per_unit: PerUnit = "mean"
    by: str | None = None
    first: bool = False

    @property
    def records(self) -> int:
        """The most values of one unit: a release costs as much as for so many records."""
        return self.per_unit if isinstance(self.per_unit, int) and self.unit is not None else 1

    @property
    def sentence(self) -> str:
        """What was done with the rows of one unit, for the answer."""
        if self.unit is None:
            return "Every row counts as one record of its own."
        if isinstance(self.per_unit, int):
            what = f"at most {self.per_unit} of its values, evenly spaced in their order"
        elif self.first:
            what = f"the {'first' if self.per_unit == 'min' else 'last'} of its values in order"
        else:
            what = _WORDS[self.per_unit]
        where = f", in the group ({self.by}) with most of its rows" if self.by is not None else ""
        return f"Each {self.unit} counts with {what}{where}."

    def scale(self, of_rows: Scale) -> Scale:
        """The scale of the contributed values, from that of the rows."""
        if self.unit is None or self.per_unit != "count":
            return of_rows
        return INTEGER


def checked(
    unit: str | None,
    per_unit: PerUnit | None,
    *,
    by: str | None,
    scale: Scale | None,
) -> Contribution:
    """Return the contribution of a unit, from public arguments and the public type of the column.

    Args:
        unit: The column that identifies the unit, or None.
        per_unit: See the table above; None means the mean of numbers, and the first in order of
            categories.
        by: The column with the group of a row, or None.
        scale: The scale of the rows; None for categories.

    Raises:
        ArgumentError: if `per_unit` is not in the table, or has no meaning for this column.
    """
    if per_unit is not None and unit is None:
        raise _validate.ArgumentError(
            "per_unit", "only with unit", got=per_unit, hint="Name the column of persons as unit."
        )
    categories = scale is None
    how = ("min" if categories else "mean") if per_unit is None else per_unit
    if isinstance(how, int) and not isinstance(how, bool):
        _validate.between(1, _MOST_ROWS, per_unit=how)
        return Contribution(unit, how, by)
    allowed = ("min", "max") if categories else tuple(_WORDS)
    if how not in allowed:
        raise _validate.ArgumentError(
            "per_unit", f"one of {', '.join(allowed)}, or a number of rows", got=how
        )
    if how == "sum" and scale is not None and scale.kind in ("date", "timestamp"):
        raise _validate.ArgumentError(
            "per_unit", "mean, median, min, max or count", got=how, why="dates have no sum"
        )
    return Contribution(unit, how, by, first=categories)
