"""Models of mixed columns: what each column of a table becomes, as a formula says.

`log(salary) ~ age * C(sex, f, m) + I(hours ** 2) + C(region)`

| term | features |
| --- | --- |
| `age` | the number: days for a date, microseconds for a time, 0 or 1 for a boolean |
| `log(age)`, `sqrt(age)`, … | a function of one row, in the grammar of `row_values.expressions` |
| `I(age ** 2)`, `I(hours > 40)` | an expression of one row, in the same grammar |
| `missing(hours)` | the number, and 1 where there is none; other gaps make a row absent |
| `C(sex, f, m)` | 1 for each of these public levels but the first; a row of another is absent |
| `C(region)` | levels with enough records, found privately: 1 for each but the first, and "other" |
| `a:b` | the products of the features of both |
| `a * b`, `(a + b) * c` | `a + b + a:b` |
| `.` | all columns but the target, the unit, and those of categories |
| `- a` | without this term |

There is always an intercept. Names with other characters than letters, digits, points and
underscores are put in backquotes.
What has no value for a row, such as the logarithm of 0, makes the row absent; nothing fails.
The features of categories are 0 and 1, which is public, so that no budget is spent on their scale.
"""

import functools
import itertools
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from typing_extensions import override

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.estimators.rows import (
    Rows,
    matrix_of,
    named_labels,
    number_table,
    private_groups,
    rows_of,
)
from prudent.release.lattice import FloatArray
from prudent.release.noise import Noise, PartitionSelection

OTHER = "other"
"""The name of all levels that were not found."""

INDICATOR = 0.0, 0.5
"""Location and scale of a feature that is 0 or 1."""

_TOKEN = re.compile(
    r"\s*(?:(?P<name>`[^`]+`|[^\W\d][\w.]*)|(?P<number>\d+)|(?P<sign>[-+*:()])|(?P<all>\.(?!\w)))\s*"
)
_KINDS = {"C": "category", "missing": "missing"}
_CALLED = {"I": "", "log": "ln"}  # whose names in SQL are others


@attrs.frozen
class Factor:
    """What one column, or an expression, becomes."""

    name: str  # the column of the table, or the expression
    kind: str = "number"  # "number", "missing" if it may be missing, or "category"
    # The levels of a category; None if they are to be found privately.
    levels: tuple[Any, ...] | None = None
    other: bool = False  # whether a category has a further level, for all that are not listed
    text: str = ""  # of an expression, as it was written

    @property
    def private(self) -> bool:
        """Whether it has levels that are to be found."""
        return self.kind == "category" and self.levels is None

    @property
    def features(self) -> list[str]:
        """The names of the features that it becomes."""
        if self.kind == "number":
            return [self.text or self.name]
        if self.kind == "missing":
            return [self.name, f"missing({self.name})"]
        levels = list(self.levels or ())
        other = f"any {OTHER}" if OTHER in levels else OTHER
        named = levels[1:] + [other] * (self.other and bool(levels))
        return [f"{self.name}[{each}]" for each in named]

    def terms(self, table: Any) -> list[Any]:
        """What makes the features, for a `NumberTable`."""
        if self.kind == "category":
            if not self.levels:
                return []
            place, last = table.place(self.name, self.levels), len(self.levels)
            return [
                functools.partial(_indicator, place, at, last if self.other else None)
                for at in range(1, last + self.other)
            ]
        number = table.number(_expression(self.name) if self.text else self.name)
        if self.kind == "missing":
            return [number, lambda rows: _flag(number(rows))]
        return [number]


def _expression(text: str) -> Any:
    from prudent.release.columns.row_values.expressions import parsed

    return parsed(text, "formula")


def _flag(number: Any) -> Any:
    missing = number.isnull() | number.isnan().fill_null(True)
    return missing.cast("int32").cast("float64")


def _indicator(place: Any, at: int, other: int | None, rows: Any) -> Any:
    found = place(rows)
    found = found if other is None else found.fill_null(float(other))
    return (found == float(at)).cast("int32").cast("float64")


Term = tuple[Factor, ...]
"""Factors whose features are multiplied."""


@attrs.define
class _Reader:
    """Reads the right side of a formula: its tokens, one after the other."""

    text: str
    others: Sequence[str] | None  # what a point stands for; None if that is not known
    whole: str  # the formula
    at: int = 0
    crossings: dict[frozenset[Factor], Term] = attrs.Factory(dict)  # as each was first written

    def refuse(self, why: str, hint: str = "") -> ArgumentError:
        return ArgumentError(
            "formula",
            "such as 'salary ~ age + C(region) + hours'",
            got=self.whole,
            why=why,
            hint=hint,
        )

    def peek(self, *signs: str) -> bool:
        found = _TOKEN.match(self.text, self.at)
        return found is not None and found["sign"] in signs

    def next(self) -> "re.Match[str]":
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            rest = self.text[self.at :].strip()
            raise self.refuse(f"{rest!r} is not a term" if rest else "a term is empty")
        self.at = found.end()
        return found

    def sum(self) -> dict[Term, None]:
        """Terms in their order."""
        found: dict[Term, None] = {}
        minus = self.peek("-") and bool(self.next())
        while True:
            for each in self.product():
                if minus:
                    found.pop(each, None)
                else:
                    found[each] = None
            if not self.peek("+", "-"):
                return found
            minus = self.next()["sign"] == "-"

    def product(self) -> dict[Term, None]:
        found = self.interaction()
        while self.peek("*"):
            self.next()
            if self.peek("*"):
                raise self.refuse("powers are no terms", "Write I(a ** 2), or a * b.")
            right = self.interaction()
            found |= right | self.crossed(found, right)
        return found

    def interaction(self) -> dict[Term, None]:
        found = self.atom()
        while self.peek(":"):
            self.next()
            found = self.crossed(found, self.atom())
        return found

    def crossed(self, left: dict[Term, None], right: dict[Term, None]) -> dict[Term, None]:
        found: dict[Term, None] = {}
        for one, other in itertools.product(left, right):
            factors = tuple(dict.fromkeys((*one, *other)))
            factors = self.crossings.setdefault(frozenset(factors), factors)
            kinds = {each.kind for each in factors}
            if "missing" in kinds:
                raise self.refuse("only numbers and categories are multiplied")
            if any(each.private for each in factors) and kinds != {"category"}:
                raise self.refuse(
                    "a number is multiplied by a category whose levels are not given",
                    "Name its levels, as in C(region, north, south).",
                )
            found[factors] = None
        return found

    def atom(self) -> dict[Term, None]:
        token = self.next()
        if token["number"]:
            why = f"{token['number']} is not a term"
            raise self.refuse(why, "Write I(…) for expressions. There is always an intercept.")
        if token["all"]:
            if self.others is None:
                raise self.refuse("'.' stands for columns of a table, and there is none")
            return {(Factor(name),): None for name in self.others}
        if token["sign"] == "(":
            found = self.sum()
            if self.next()["sign"] == ")":
                return found
        if not token["name"]:
            raise self.refuse("a term is empty")
        if self.peek("(") and token["name"][0] != "`":
            return {(self.call(token["name"]),): None}
        return {(Factor(token["name"].strip("`")),): None}

    def call(self, name: str) -> Factor:
        """A function of one row, or a kind of columns."""
        start, parts = self.at, _arguments(self.text, self.at)
        if not parts:
            raise self.refuse("a parenthesis is not closed")
        self.at += sum(map(len, parts)) + len(parts) + 1
        written = re.sub(r"\s+", " ", f"{name}{self.text[start : self.at].strip()}")
        inner, *levels = (each.strip() for each in parts)
        kind = _KINDS.get(name)
        if kind is None:
            inside = re.sub("`([^`]+)`", r'"\1"', ",".join(parts))
            inside = re.sub(r"\blog\(", "ln(", inside)
            return Factor(f"{_CALLED.get(name, name)}({inside})", text=written)
        if not inner:
            raise self.refuse(f"{name}() names no column")
        plain = re.fullmatch(r"`[^`]+`|[\w.]+", inner)
        inner = inner.strip("`") if plain else re.sub("`([^`]+)`", r'"\1"', inner)
        public = tuple(re.sub("^(['\"])(.*)\\1$", r"\2", each) for each in levels)
        if levels and (kind != "category" or not len(set(public)) == len(levels) > 1):
            raise self.refuse("C(…) has two or more distinct levels, missing(…) none")
        if "" in levels:
            raise self.refuse("a level is empty")
        return Factor(
            inner, kind, public or None, text="" if plain or kind == "category" else inner
        )


def _arguments(text: str, at: int) -> list[str]:
    """The arguments of a call, from its parenthesis on; none if that is not closed."""
    depth, start, quote, found = 0, at + 1, "", []
    for place in range(at, len(text)):
        each = text[place]
        if quote or each in "'\"`":
            quote = ("" if each == quote else quote) if quote else each
            continue
        depth += (each == "(") - (each == ")")
        if depth == 0 or (depth == 1 and each == ","):
            found.append(text[start:place])
            start = place + 1
        if depth == 0:
            return found
    return []


@attrs.frozen
class Formula:
    """A target and what explains it."""

    target: Factor  # the target: a column or an expression
    terms: tuple[Term, ...]  # the terms

    @classmethod
    def parse(
        cls, text: str, names: Sequence[str] | None = None, unit: str | None = None
    ) -> "Formula":
        """Read a formula.

        Raises:
            ArgumentError: if it is none.
        """
        left, _, right = text.partition("~")
        (target,) = _read(text, left, None, target=True)
        if len(target) != 1 or target[0].kind != "number":
            raise ArgumentError("formula", "of one target, a number", got=text)
        others = None
        if names is not None:
            taken = {unit, *_columns(target[0])}
            marked = _read(text, right, [])
            taken |= {each.name for term in marked for each in term if each.kind != "number"}
            others = [name for name in names if name not in taken]
        terms = _read(text, right, others)
        if not terms:
            raise ArgumentError("formula", "with terms", got=text)
        found = cls(target[0], tuple(terms))
        if {*_columns(target[0])} & {*found.columns}:
            raise ArgumentError("formula", "without its target among the terms", got=text)
        return found

    @property
    def factors(self) -> list[Factor]:
        """The factors of all terms, each once."""
        return list(dict.fromkeys(each for term in self.terms for each in term))

    @property
    def private(self) -> list[str]:
        """The columns whose levels are to be found privately."""
        return list(dict.fromkeys(each.name for each in self.factors if each.private))

    @property
    def known(self) -> list[bool]:
        """Of each feature whether it is 0 or 1, which is public."""
        return [
            all(each.kind == "category" for each in term) or (term[0].kind == "missing" and at > 0)
            for term in self.terms
            for at in range(len(_features(term)))
        ]

    def with_levels(self, levels: Mapping[str, Sequence[Hashable]]) -> "Formula":
        """The formula with the levels that were found."""

        def found(each: Factor) -> Factor:
            if not each.private:
                return each
            return attrs.evolve(each, levels=tuple(levels[each.name]), other=True)

        return attrs.evolve(self, terms=tuple(tuple(map(found, term)) for term in self.terms))

    @property
    def features(self) -> list[str]:
        """The names of all features."""
        return [name for term in self.terms for name in _features(term)]

    @property
    def columns(self) -> list[str]:
        """The columns that the terms use."""
        return list(dict.fromkeys(name for each in self.factors for name in _columns(each)))

    def rows(self, table: Any, target: Any = None, **units: Any) -> Any:
        """The `NumberRows` of all features and, if one is given, of a term for the target."""
        terms: list[Any] = []
        gaps = []
        for term in self.terms:
            if term[0].kind == "missing":
                gaps.append(f"x{len(terms)}")
            for each in itertools.product(*(factor.terms(table) for factor in term)):
                terms.append(each[0] if len(each) == 1 else table.product(*each))
        terms += [] if target is None else [target]
        # By place: a level may make a feature of the name of a column.
        return table.rows({f"x{at}": term for at, term in enumerate(terms)}, gaps=gaps, **units)

    def queries(self, data: Any) -> FloatArray:
        """The features of rows that a model is asked about, in their order; NaN in gaps."""
        opened = number_table(data)
        if not self.features:  # no level of any category was found
            return np.empty((int(opened.table.count().execute()), 0))
        return matrix_of(self.rows(opened), complete=False)


def _read(whole: str, part: str, others: Sequence[str] | None, target: bool = False) -> list[Term]:
    """The terms of one side of a formula."""
    reader = _Reader(part.strip(), others, whole)
    found = reader.atom() if target else reader.sum()
    if reader.at < len(reader.text):
        raise reader.refuse(f"{reader.text[reader.at :]!r} is not a term")
    return list(found)


def _features(term: Term) -> list[str]:
    return [":".join(each) for each in itertools.product(*(factor.features for factor in term))]


def _columns(factor: Factor) -> list[str]:
    if not factor.text:
        return [factor.name]
    from sqlglot import expressions as sql

    return list(
        dict.fromkeys(node.name for node in _expression(factor.name).tree.find_all(sql.Column))
    )


class FormulaRows(Rows):
    """Rows of a table as a formula says, once the levels of its categories are known."""

    def __init__(
        self,
        text: str,
        source: Any,
        classes: Sequence[Hashable] | None = None,
        unit: str | None = None,
        most: int = 1,
        **options: Any,
    ) -> None:
        """Open the table; reads names and types. The arguments are those of `ModelData`."""
        self._source, self._options, self._units = source, options, {"unit": unit, "most": most}
        self._table = table = number_table(source, **options)
        self.formula = formula = Formula.parse(text, table.names, unit)
        self._classes = classes
        for each in (formula.target, *formula.factors):
            if not each.text and (each.kind != "category" or not re.search(r"[^\w.]", each.name)):
                _validate.column(table.names, formula=each.name)
        for each in (factor for factor in formula.factors if not factor.private):
            self._checked(each)
        if classes is None:
            self._checked(formula.target)
        elif classes:
            table.place(formula.target.name, classes)
        if unit is not None:
            table.unit(unit)
        self.private = [*formula.private, *([formula.target.name] if classes == [] else [])]
        self._groups = {
            name: private_groups(source, name, unit=unit, **options) for name in self.private
        }
        self._rows: Any = None

    def _checked(self, factor: Factor) -> None:
        try:
            factor.terms(self._table)
        except ArgumentError:
            if factor.text or factor.kind == "category":
                raise
            raise ArgumentError(
                "formula",
                f"with a number for {factor.name!r}",
                shown=f"a column of type {self._table.table[factor.name].type()}",
                hint=f"Write C({factor.name}) if it holds categories.",
            ) from None

    def choose(
        self, selection: PartitionSelection | None, noise: Noise
    ) -> Sequence[Hashable] | None:
        """Release the levels of each private category, at the price of one selection each.

        Returns:
            The labels of the target; None if it is a number.
        """
        levels = {}
        for name, groups in self._groups.items():
            assert selection is not None
            levels[name] = selection.select(groups.counts(), noise)
        labels = self._classes
        if labels == []:
            labels = named_labels(levels.pop(self.formula.target.name), self._source)
        self.formula = self.formula.with_levels(levels)
        target = self.formula.target
        last = (
            target.terms(self._table)[0]
            if labels is None
            else self._table.place(target.name, labels)
        )
        self._rows = rows_of(self.formula.rows(self._table, last, **self._units), self._source)
        return labels

    @property
    @override
    def names(self) -> Sequence[str]:
        return [*self.formula.features, self.formula.target.features[0]]

    @property
    def known(self) -> Mapping[int, tuple[float, float]]:
        """The location and the scale of the features of categories, by place: both are public."""
        return {place: INDICATOR for place, known in enumerate(self.formula.known) if known}

    @override
    def batches(self) -> Iterator[FloatArray]:
        return self._rows.batches()  # type: ignore[no-any-return]

    @override
    def column(self, place: int) -> Any:
        return self._rows.column(place)
