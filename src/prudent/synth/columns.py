"""The columns of a table, of which only counts leave, and the cells that are found for them.

Which columns there are, and how each is read, follows from declared types alone. A column without
a declared type (of a CSV file, or of a pandas frame whose type pandas infers) is read in every way
at once; a paid count later decides between them. A value that does not fit the form of its column
counts as NULL. All counts are made where the table is, by the same query in every engine.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import ibis
import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import ibis.expr.types as ir
import numpy as np

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.release.columns.dialects import (
    arrow_batches,
    as_double,
    backend_name,
    call,
    double,
    encoding,
    exact,
    fetched,
    floored,
    number_of,
    number_of_text,
    rounded,
    scale_of,
)
from prudent.release.columns.joining import rows_per_unit
from prudent.release.columns.number_rows import NumberTable
from prudent.release.columns.row_values.conditions import of_one_row
from prudent.release.columns.row_values.expressions import names_in, parse_condition
from prudent.release.columns.scales import NUMBER, Scale, text_of
from prudent.release.columns.units import StagedTable
from prudent.release.lattice import FloatArray, IntArray
from prudent.synth.engine import TableEngine

# Values beyond are moved to it: the largest power of two that fits every type of output.
FARTHEST = 2.0**62
# The forms of a text that are no number, by name; a timestamp is a text with a colon.
MOMENTS = {"date": Scale("date"), "timestamp": Scale("timestamp")}
# What a value may look like; a record without a value has none.
FORMS = ("whole", *(f"decimal({digits})" for digits in range(1, 5)), "number", *MOMENTS, "text")
LEVELS = 5  # halvings of a span: at most 2**LEVELS bins
CHOICES = LEVELS + 2  # that the bins of a column cost
OTHER = "(other)"  # stands for all rare texts
# Arrays: values, or the cells of two columns that occur together, and how many records do.
Counts = tuple[Any, ...]

_NUMBERS = FORMS.index("date")  # the forms before it are those of numbers
_MOST_KEYS, _MOST_TEXTS = 512, 1000
_KEY_NOISE = 0.01  # total variation that the noise of rare keys may cost
_NEARLY_ALL = 0.99  # of the numbers have as few decimal places as are shown
_NAMED = 0.25  # of the records have a text that is named, or the column is one of identifiers
_DRAWS = 16  # of a value in a bin, until it is no key
_MOST_TRIALS = 729  # of types of columns without one, for a constraint
_OUTER = 2  # levels at most that halve the outermost bins alone
_RANKS = 6.0  # standard errors of a rank that a bin should be wide, roughly


@attrs.frozen
class Field:
    """A column by what is public of it."""

    name: str
    dtype: dt.DataType | None  # its declared type; None if it has none
    scale: Scale | None  # of numbers, dates and times; None of texts
    place: int = 0

    @property
    def boolean(self) -> bool:
        """Whether it is declared to hold booleans, whose values are public."""
        return self.scale is not None and self.scale.truth

    @property
    def numeric(self) -> bool:
        """Whether it may hold numbers, dates or times, as far as is public."""
        return self.scale is not None and not self.boolean

    @property
    def form_is_private(self) -> bool:
        """Whether a paid count says what form its values have, such as their decimal places."""
        return self.scale is not None and self.scale.kind == "number"


@attrs.frozen(eq=False)
class Domain:
    """The cells of a column; released, and therefore public. A record is in exactly one.

    They are NULL, then the frequent exact values ("keys"), found by a thresholded count; then, of
    numbers, bins on a span found by private quantiles, and of texts one cell for all others.
    """

    field: Field  # with the type and scale that were found, if none was declared
    keys: tuple[Any, ...] = ()
    edges: FloatArray | None = None  # of the bins of numbers
    digits: int | None = None  # decimal places of numbers, 0 of dates; None if they have many
    # The keys as the engine has them: texts as bytes, of which several may look the same.
    stored: tuple[Any, ...] = attrs.field(default=attrs.Factory(lambda self: self.keys, True))

    @property
    def size(self) -> int:
        """The number of cells."""
        rest = 0 if self.field.boolean else 1 if self.edges is None else len(self.edges) - 1
        return 1 + len(self.keys) + rest

    @property
    def order(self) -> IntArray:
        """The cells in the order of their numbers, or of their frequency if they are texts."""
        if self.edges is None:
            return np.arange(self.size)
        middles = (self.edges[1:] + self.edges[:-1]) / 2
        return np.argsort([-math.inf, *self.keys, *middles.tolist()], kind="stable")

    @property
    def labels(self) -> list[str]:
        """A text for each cell, to show."""
        shown = str if self.field.scale is None else self.field.scale.value
        rest = [] if self.edges is None else self.edges[:-1].tolist()
        named = ["NULL", *(str(shown(each)) for each in (*self.keys, *rest))]
        return [*named, OTHER][: self.size]

    def decode(self, code: IntArray, generator: np.random.Generator) -> Any:
        """Values of cells, as an Arrow array of the declared type, or of the one found."""
        import pyarrow
        from pyarrow import types

        field, scale = self.field, self.field.scale
        assert field.dtype is not None
        if scale is None:
            values = np.array([None, *self.keys, OTHER], object)[code]
            return pyarrow.array(values.tolist(), pyarrow.string())
        numbers = np.array([0.0, *self.keys, *np.zeros(self.size)])[code]
        if self.edges is not None:
            inside = np.flatnonzero(code > len(self.keys))
            bins = code[inside] - 1 - len(self.keys)
            unit = 10.0 ** (self.digits or 0)
            edges = self.edges if self.digits is None else np.rint(self.edges * unit)
            # A record whose value is a key is in the key's cell, and not in a bin.
            drawn, left = np.empty(len(bins)), np.arange(len(bins))
            for _ in range(_DRAWS):
                found = generator.uniform(edges[bins[left]], edges[bins[left] + 1])
                drawn[left] = found if self.digits is None else np.floor(found) / unit
                left = left[np.isin(drawn[left], self.keys)]
            numbers[inside] = drawn
        kind, missing, values = field.dtype.to_pyarrow(), code == 0, numbers
        if types.is_decimal(kind) and scale.kind == "number":  # its digits are not declared
            kind = pyarrow.float64()
        if scale.truth:
            values = numbers != 0
        elif types.is_integer(kind):
            ends = np.iinfo(kind.to_pandas_dtype())
            low, high = max(float(ends.min), -FARTHEST), min(float(ends.max), FARTHEST)
            values = np.clip(numbers, low, high).astype(np.int64)
        elif not types.is_floating(kind):
            different, places = np.unique(numbers, return_inverse=True)
            values = np.array([*map(scale.value, different.tolist())], object)[places]
        if types.is_decimal(kind):
            kind = pyarrow.decimal128(38, scale.digits)
        if types.is_timestamp(kind):
            kind = pyarrow.timestamp("us", kind.tz)
        return pyarrow.array(values, mask=missing).cast(kind, safe=False)


class Source:
    """An open table, of which names and types are known, and no record has been read."""

    def __init__(
        self,
        source: Any,
        columns: Sequence[str] | None,
        unit: str | None,
        most_rows: int,
        **options: Any,
    ) -> None:
        """Open a table; see `prudent.synthesize` for the arguments."""
        self._opened = NumberTable(source, **options)
        table, names = self._opened.table, self._opened.names
        if unit is not None:
            _validate.column(names, unit=unit)
        others = [name for name in names if name != unit]
        wanted = others if columns is None else _validate.values(columns=columns)
        if not wanted:
            raise ArgumentError("columns", "one or more (left out: all)", got=columns)
        for name in wanted:
            _validate.column(others, columns=name)
        if len(set(wanted)) < len(wanted):
            raise ArgumentError("columns", "each named once", shown="one of them twice")
        found = {name: each for name in wanted if (each := self._field(name)) is not None}
        if unit is not None:
            table = rows_per_unit(table.select(unit, *found), unit, most_rows)
            found = {name: each for name, each in found.items() if name in table.columns}
        if not found:
            raise ArgumentError("columns", "of text, numbers, dates or booleans", shown="none")
        self.fields = [attrs.evolve(each, place=place) for place, each in enumerate(found.values())]
        self.left_out = [name for name in wanted if name not in found]
        self._table, self._engine = table, backend_name(table)
        terms = {name: term for each in self.fields for name, term in self._terms(each).items()}
        self._rows = self._staged(table.select(**terms))
        self._cells: StagedTable | None = None

    def _staged(self, rows: ir.Table) -> StagedTable:
        return StagedTable(rows, self._opened.owner)

    def _field(self, name: str) -> Field | None:
        """What is public of a column; None if its type has no values to count."""
        table = self._opened.table
        dtype = table[name].type()
        if name in self._opened.owner.text:
            return Field(name, None, NUMBER)
        if dtype.is_string():
            return Field(name, dtype, None)
        try:
            return Field(name, dtype, scale_of(dtype, backend_name(table), name))
        except ArgumentError:
            return None

    def check(self, rule: str) -> None:
        """Check a condition on these columns: of those without a type, that some types fit it."""
        rows = self._table.select(*(each.name for each in self.fields))
        free = sorted({e.name for e in self.fields if e.dtype is None} & {*names_in(rule)})
        failure: ValueError | None = None
        trials = itertools.product((None, "float64", "timestamp"), repeat=len(free))
        for types in itertools.islice(trials, _MOST_TRIALS):
            given = {name: to for name, to in zip(free, types, strict=True) if to is not None}
            try:
                typed = rows.mutate(**{name: rows[name].try_cast(to) for name, to in given.items()})
                of_one_row(parse_condition(rule), typed)
                return
            except ValueError as error:
                failure = failure or error
        assert failure is not None
        failure.argument = "constraints"  # type: ignore[attr-defined]
        raise failure

    def _terms(self, field: Field) -> dict[str, ir.Value]:
        """What is made of each record first: bytes of texts, and else bounded doubles."""
        column, place = self._table[field.name], field.place
        if field.scale is None:
            return {f"t{place}": exact(column, self._engine)}
        if field.dtype is not None:
            return {f"n{place}": _bounded(number_of(column, field.scale))}
        return {
            f"n{place}": _bounded(column.try_cast("float64")),
            f"m{place}": _bounded(number_of_text(column, MOMENTS["timestamp"])),
            f"d{place}": ~column.contains(":"),  # of such a time, whether it is a date
            f"t{place}": exact(column, self._engine),
        }

    # ---- questions, asked inside `redact_errors`

    def read(self) -> int:
        """Read the records, which the engine keeps as doubles and bytes; returns their number."""
        rows = self._rows.kept()
        return int(fetched(rows.aggregate(records=rows.count()))["records"][0])

    def forms(self) -> dict[str, IntArray]:
        """Of columns whose form is private, how many records have each of `FORMS`."""
        rows, parts = self._rows.kept(), {}
        for each in self.fields:
            if each.form_is_private:
                part = rows.select(form=_form(rows, each.place))
                parts[each.name] = part.filter(part.form.notnull())
        return {
            name: np.bincount(forms, records, len(FORMS)).astype(np.int64)
            for name, (forms, records) in _counts(parts).items()
        }

    def values(self, field: Field, least: int = 1) -> tuple[Any, IntArray]:
        """The values that at least so many records have, ascending, and how many have each."""
        rows = self._rows.kept()
        rows = rows.select(value=_value(rows, field))
        return _counts({0: rows.filter(rows.value.notnull())}, least)[0]

    def codec(self) -> str:
        """The encoding of the bytes of texts."""
        return encoding(self._table)

    def assign(self, domains: Sequence[Domain]) -> None:
        """Let the engine put each record into one cell of each of these columns."""
        kept = self._rows.kept()
        values = {f"v{place}": _value(kept, each.field) for place, each in enumerate(domains)}
        rows = kept.select(**values)
        for place, domain in enumerate(domains):
            if domain.keys:
                listed = self._listed(domain).rename({f"k{place}": "key", f"c{place}": "cell"})
                rows = rows.left_join(listed, rows[f"v{place}"] == listed[f"k{place}"])
        cells = {}
        for place, domain in enumerate(domains):
            value, cell = rows[f"v{place}"], ibis.literal(1 + len(domain.keys), "int32")
            for edge in () if domain.edges is None else domain.edges[1:-1].tolist():
                cell = cell + (value >= double(edge)).cast("int32")
            cell = ibis.ifelse(value.isnull(), ibis.literal(0, "int32"), cell)
            known = [rows[f"c{place}"]] if domain.keys else []
            cells[f"cell{place}"] = ibis.coalesce(*known, cell).cast("int32")
        self._cells = self._staged(rows.select(**cells))

    def _listed(self, domain: Domain) -> ir.Table:
        """The keys of a column and their cells, from a single literal: of many, ibis is slow."""
        size, texts = len(domain.stored), domain.field.scale is None
        shown = ("-" + each.hex() if texts else repr(float(each)) for each in domain.stored)
        parts = ibis.literal(",".join(shown)).split(",")
        rows = ibis.range(0, size).unnest().name("place").as_table()
        key = parts[rows.place]
        if texts and self._engine == "postgres":
            key = call("decode", key.substr(1), ibis.literal("hex"), returns=dt.binary)
        else:
            key = call("unhex", key.substr(1), returns=dt.binary) if texts else key.cast("float64")
        # ibis takes a range for its shortest type, and would omit a cast to what it has already.
        cell = ops.Cast(rows.place + 1, dt.int32).to_expr()
        # With a limit PostgreSQL makes these rows once, and not for every row of a join.
        return rows.select(key=key, cell=cell).limit(size)

    def pairs(self, asked: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Counts]:
        """How many records have each two cells, by one query for all these pairs of columns."""
        assert self._cells is not None
        cells = self._cells.kept()
        return _counts(
            {
                (one, other): cells.select(one=f"cell{one}", other=cells[f"cell{other}"])
                for one, other in asked
            }
        )


def _value(rows: ir.Table, field: Field) -> ir.Value:
    """The values of a column whose form is known."""
    place = field.place
    if field.scale is None:
        return rows[f"t{place}"]
    if f"m{place}" not in rows.columns or field.scale not in MOMENTS.values():
        return rows[f"n{place}"]
    moment = rows[f"m{place}"]
    if field.scale == MOMENTS["timestamp"]:
        return moment
    days = floored(moment / double(86_400e6))
    return ibis.ifelse(rows[f"d{place}"], days, ibis.null("float64"))


def _counts(parts: Mapping[Any, ir.Table], least: int = 1) -> dict[Any, Counts]:
    """The rows of each part that at least so many rows are equal to, ascending, and how many are.

    One query for all parts; none of their values is NULL.
    """
    if not parts:
        return {}
    groups = []
    for place, rows in enumerate(parts.values()):
        found = rows.group_by(rows.columns).aggregate(records=lambda t: t.count())
        found = found.filter(found.records >= least)
        groups.append(found.mutate(place=ibis.literal(place, "int64")))
    whole = ibis.union(*groups)
    batches = list(arrow_batches(whole.order_by("place", *rows.columns)))
    *columns, records, places = (
        np.concatenate(
            [np.empty(0, np.int64)]
            + [batch.column(name).to_numpy(zero_copy_only=False) for batch in batches]
        )
        for name in whole.columns
    )
    owns = (places == place for place in range(len(groups)))
    return {
        key: (*(column[own] for column in columns), records[own])
        for key, own in zip(parts, owns, strict=True)
    }


def _bounded(value: ir.Value) -> ir.Value:
    """A number as a double within `FARTHEST`, with one zero; NULL for NaN."""
    number = as_double(value)
    return ibis.cases(
        (number.between(double(-FARTHEST), double(FARTHEST)) & (number != double(0.0)), number),
        (number == double(0.0), double(0.0)),
        (number < double(0.0), double(-FARTHEST)),
        (number <= double(float("inf")), double(FARTHEST)),  # NaN is above in every engine
        else_=ibis.null("float64"),
    )


def _form(rows: ir.Table, place: int) -> ir.Value:
    """The place in `FORMS` of what a record looks like, NULL if it has no value."""
    number, other = rows[f"n{place}"], ibis.null("int64")
    form = {name: ibis.literal(at, "int64") for at, name in enumerate(FORMS)}
    if f"t{place}" in rows.columns:
        other = ibis.cases(
            (rows[f"t{place}"].isnull(), other),
            (rows[f"m{place}"].isnull(), form["text"]),
            (rows[f"d{place}"], form["date"]),
            else_=form["timestamp"],
        )
    whole = [
        (rounded(number * double(10.0**digits)) / double(10.0**digits) == number, form[name])
        for digits, name in enumerate(FORMS[:5])
    ]
    return ibis.cases((number.isnull(), other), *whole, else_=form["number"])


def _found(field: Field, noisy: IntArray) -> tuple[Field, int | None]:
    """The type that most records have, and their decimal places, by noisy counts of forms."""
    counts = np.maximum(noisy, 0)
    numbers = counts[:_NUMBERS]
    upto = np.cumsum(numbers) >= _NEARLY_ALL * max(int(numbers.sum()), 1)
    digits = int(np.argmax(upto)) if upto[:-1].any() else None
    if field.dtype is not None:
        return field, digits
    most = int(np.argmax([numbers.sum(), *counts[_NUMBERS:]]))
    if most == 0:
        return attrs.evolve(field, dtype=dt.int64 if digits == 0 else dt.float64), digits
    dtype = (dt.date, dt.Timestamp(scale=6), dt.string)[most - 1]
    return attrs.evolve(field, dtype=dtype, scale=(*MOMENTS.values(), None)[most - 1]), None


def discover(
    field: Field, source: Source, forms: IntArray | None, size: float, engine: TableEngine
) -> Domain | None:
    """Find the cells of a column privately; None if its texts hardly repeat.

    `forms` says how many records have each form, if that is private; `size` is the noisy number.
    """
    if field.boolean:
        return Domain(field, (0.0, 1.0))
    digits: int | None = 0 if field.scale is not None and field.scale.whole else None
    if forms is not None:
        field, digits = _found(field, engine.counts("forms", forms))
    if field.scale is None:
        texts, counts = source.values(field, engine.threshold("keys")[0])
        named = engine.keys("keys", texts.tolist(), counts)
        if sum(named.values()) < _NAMED * size:
            return None
        stored, codec = (*named,)[:_MOST_TEXTS], source.codec()
        return Domain(field, tuple(text_of(each, codec) for each in stored), stored=stored)
    values, counts = source.values(field)
    values = values.astype(np.float64)
    named = engine.keys("keys", values.tolist(), counts)
    # Rare keys as long as the noise of their counts is small; else a bin holds them as well.
    room = _KEY_NOISE * size / (0.4 * engine.deviation("oneway"))
    kept = {
        key: many
        for place, (key, many) in enumerate([*named.items()][:_MOST_KEYS])
        if place < room or many > size / 2 ** (LEVELS + 2)
    }
    keys, rest = np.sort(np.array([*kept])), ~np.isin(values, [*kept])
    # As many bins as the records that are left allow; else one between the keys.
    error = _RANKS / engine.prices.choice_epsilon("cuts")
    left = max(size - sum(kept.values()), 0.0)
    levels = sum(left > error * 2**each for each in range(LEVELS + 1)) - 1
    edges = None
    if levels >= 0:
        outer = min(_OUTER, LEVELS - levels) if levels else 0  # of the choices that are left over
        edges = engine.edges("spans", "cuts", values[rest], counts[rest], levels, outer)
    if edges is None:
        edges = np.array([keys[0], keys[-1]] if len(keys) else [0.0, 1.0])
    edges = np.unique(edges)
    digits = 0 if field.scale.whole else digits
    if digits is not None:
        whole = np.floor(edges * 10**digits) + np.array([*np.zeros(len(edges) - 1), 1.0])
        edges = np.unique(whole / 10**digits)
    if len(edges) < 2:
        edges = np.array([edges[0], np.nextafter(edges[0] + 1, math.inf)])
    return Domain(field, tuple(keys.tolist()), edges, digits)


def coarse(domain: Domain, shares: FloatArray, most: int) -> IntArray:
    """A map from cells to at most `most` groups: neighbours of a number, the rare ones of a text.

    NULL is a group of its own if it is not rare. Groups are numbered from 0, none is empty.
    """
    if domain.size <= most:
        return np.arange(domain.size)
    if domain.edges is None:
        found = np.full(domain.size, most - 1)
        found[np.argsort(-shares, kind="stable")[: most - 1]] = np.arange(most - 1)
        return found
    order = domain.order
    alone = bool(shares[0] > 0.5 / most) and most > 2
    weights = shares[order] + 1e-9
    if alone:
        weights[0] = 0.0
    room = most - alone
    group, mass, left, closed = np.zeros(domain.size, np.int64), 0.0, float(weights.sum()), 0
    for place, weight in enumerate(weights.tolist()):
        if mass > 0 and mass + weight / 2 > left / (room - closed) and closed < room - 1:
            left, mass, closed = left - mass, 0.0, closed + 1
        group[place], mass = closed, mass + weight
    if alone:
        group[0] = closed + 1
    found = np.empty(domain.size, np.int64)
    found[order] = group
    return found
