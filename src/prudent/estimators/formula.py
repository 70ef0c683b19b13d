"""Models of mixed columns: what each column of a table becomes, as a formula says.

`salary ~ age + hired + C(region) + C(sex, f, m) + missing(hours)`

| term | features |
| --- | --- |
| `age` | the number: days for a date, microseconds for a time, 0 or 1 for a boolean |
| `missing(hours)` | the number, and 1 where there is none; other gaps make a row absent |
| `C(sex, f, m)` | 1 for each of these public levels but the first; a row of another is absent |
| `C(region)` | levels with enough records, found privately: 1 for each but the first, and "other" |

Names with other characters than letters, digits, points and underscores are put in backquotes.
The features of categories are 0 and 1, which is public, so that no budget is spent on their scale.
"""

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from typing_extensions import override

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.estimators.rows import Rows, matrix_of, number_table, rows_of
from prudent.release.lattice import FloatArray
from prudent.release.noise import Noise
from prudent.release.partitions import PartitionSelection

OTHER = "other"
"""The name of all levels that were not found."""

INDICATOR = 0.0, 0.5
"""Location and scale of a feature that is 0 or 1."""

_NAME = r"`[^`]+`|[\w.]+"
_TERM = re.compile(
    rf"\s*(?:(?P<kind>C|missing)\(\s*(?P<inner>{_NAME})\s*(?:,(?P<levels>[^()]*))?\)|(?P<name>{_NAME}))\s*"
)


@attrs.frozen
class FormulaColumn:
    """A term of a formula."""

    name: str  # the column of the table
    kind: str = "number"  # "number", "missing" for a number that may be missing, or "category"
    # The levels of a category; None if they are to be found privately.
    levels: tuple[Hashable, ...] | None = None
    other: bool = False  # whether a category has a further level, for all that are not listed

    def features(self) -> list[str]:
        """The names of the features that it becomes."""
        if self.kind == "number":
            return [self.name]
        if self.kind == "missing":
            return [self.name, f"missing({self.name})"]
        levels = list(self.levels or ())
        other = f"any {OTHER}" if OTHER in levels else OTHER
        return [
            f"{self.name}[{each}]" for each in levels[1:] + [other] * (self.other and bool(levels))
        ]

    def terms(self, table: Any) -> list[Any]:
        """What makes the features, for a `NumberTable`."""
        if self.kind == "number":
            return [table.number(self.name)]
        if self.kind == "missing":
            number = table.number(self.name)
            return [number, lambda rows: _flag(number(rows))]
        if not self.levels:
            return []
        place, last = table.place(self.name, self.levels), len(self.levels)
        return [
            _indicator(place, at, last if self.other else None)
            for at in range(1, last + self.other)
        ]


def _flag(number: Any) -> Any:
    missing = number.isnull() | number.isnan().fill_null(True)
    return missing.cast("int32").cast("float64")


def _indicator(place: Any, at: int, other: int | None) -> Any:
    def term(rows: Any) -> Any:
        found = place(rows)
        found = found if other is None else found.fill_null(float(other))
        return (found == float(at)).cast("int32").cast("float64")

    return term


@attrs.frozen
class Formula:
    """A target and what explains it."""

    target: str  # the column of the target
    columns: tuple[FormulaColumn, ...]  # the terms

    @classmethod
    def parse(cls, text: str) -> "Formula":
        """Read a formula.

        Raises:
            ArgumentError: if it is none.
        """
        target, _, right = text.partition("~")
        found = []
        for part in right.split("+"):
            read = _TERM.fullmatch(part)
            if read is None:
                raise ArgumentError(
                    "formula",
                    "such as 'salary ~ age + C(region) + hours'",
                    got=text,
                    why=f"{part.strip()!r} is no term" if part.strip() else "a term is empty",
                )
            name = (read["inner"] or read["name"]).strip("`")
            kind = {None: "number", "C": "category", "missing": "missing"}[read["kind"]]
            levels = None
            if read["levels"] is not None:
                levels = tuple(each.strip() for each in read["levels"].split(","))
                if kind != "category" or not len(set(levels)) == len(levels) > 1 or "" in levels:
                    raise ArgumentError(
                        "formula", "with two or more distinct levels, in C(…) only", got=text
                    )
            found.append(FormulaColumn(name, kind, levels))
        names = [each.name for each in found]
        if re.fullmatch(rf"\s*(?:{_NAME})\s*", target) is None or len(set(names)) < len(names):
            raise ArgumentError("formula", "of one target and distinct columns", got=text)
        return cls(target.strip().strip("`"), tuple(found))

    @property
    def private(self) -> list[str]:
        """The columns whose levels are to be found privately."""
        return [each.name for each in self.columns if each.kind == "category" and not each.levels]

    @property
    def numbers(self) -> int:
        """The number of features of unknown scale."""
        return sum(each.kind != "category" for each in self.columns)

    def with_levels(self, levels: Mapping[str, Sequence[Hashable]]) -> "Formula":
        """The formula with the levels that were found."""
        return attrs.evolve(
            self,
            columns=tuple(
                attrs.evolve(each, levels=tuple(levels[each.name]), other=True)
                if each.name in levels
                else each
                for each in self.columns
            ),
        )

    @property
    def features(self) -> list[str]:
        """The names of all features."""
        return [name for each in self.columns for name in each.features()]

    def rows(self, table: Any, *, target: bool = True) -> Any:
        """The `NumberRows` of all features and, if there is one, of the target."""
        terms: list[Any] = []
        gaps = []
        for each in self.columns:
            if each.kind == "missing":
                gaps.append(f"x{len(terms)}")
            terms += each.terms(table)
        if target:
            terms.append(table.number(self.target))
        # By place: a level may make a feature of the name of a column.
        return table.rows({f"x{place}": term for place, term in enumerate(terms)}, gaps=gaps)

    def queries(self, data: Any) -> FloatArray:
        """The features of rows that a model is asked about, in their order; NaN in gaps."""
        opened = number_table(data)
        if not self.features:  # no level of any category was found
            return np.empty((int(opened.table.count().execute()), 0))
        return matrix_of(self.rows(opened, target=False), complete=False)


class FormulaRows(Rows):
    """Rows of a table as a formula says, once the levels of its categories are known."""

    def __init__(self, formula: Formula, source: Any, **options: Any) -> None:
        """Open the table; reads names and types."""
        self._source, self._options = source, options
        self._table = number_table(source, **options)
        self.formula = formula
        _validate.one_of(self._table.names, target=formula.target)
        for each in formula.columns:
            _validate.one_of(
                [n for n in self._table.names if n != formula.target], column=each.name
            )
            if each.kind != "category":
                self._check_number(each.name)
            elif each.levels:
                self._table.place(each.name, each.levels)
        self._check_number(formula.target)
        self._groups = {name: self._groups_of(name) for name in formula.private}
        self._rows: Any = None

    def _check_number(self, name: str) -> None:
        try:
            self._table.number(name)
        except ArgumentError:
            raise ArgumentError(
                "formula",
                f"with a number for {name!r}",
                shown=f"a column of type {self._table.table[name].type()}",
                hint=f"Write C({name}) if it holds categories.",
            ) from None

    def _groups_of(self, name: str) -> Any:
        from prudent.release.columns.opening import open_private_groups

        return open_private_groups(self._source, by=name, **self._options)

    def choose(self, selection: PartitionSelection | None, noise: Noise) -> None:
        """Release the levels of each private category, at the price of one selection each.

        Args:
            selection: Finds levels; None if there is no private category.
            noise: Source of randomness.
        """
        levels = {}
        for name, groups in self._groups.items():
            assert selection is not None
            levels[name] = selection.select(groups.counts(), noise)
        self.formula = self.formula.with_levels(levels)
        self._rows = rows_of(self.formula.rows(self._table), self._source)

    @property
    @override
    def names(self) -> Sequence[str]:
        return [*self.formula.features, self.formula.target]

    @property
    def known(self) -> Mapping[int, tuple[float, float]]:
        """The location and the scale of the features of categories, by place: both are public."""
        indicators = [
            each.kind == "category" or at > 0
            for each in self.formula.columns
            for at in range(len(each.features()))
        ]
        return {place: INDICATOR for place, known in enumerate(indicators) if known}

    @override
    def batches(self) -> Iterator[FloatArray]:
        return self._rows.batches()  # type: ignore[no-any-return]

    @override
    def column(self, place: int) -> Any:
        return self._rows.column(place)
