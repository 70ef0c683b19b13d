"""Rows of numbers from a table in any engine: what a model of several columns reads.

A statistic asks the engine for counts and ranks of one column. A model needs the columns of a row
together, and its records are clipped and weighed in ways that no engine knows. So rows leave the
engine, as doubles, a batch at a time. A row that has no value in one of the columns is absent.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import ibis
import ibis.expr.operations as ops
import ibis.expr.types as ir
import numpy as np

from prudent import _validate
from prudent.release.columns import dialects
from prudent.release.columns.joining import open_source
from prudent.release.columns.opening import group_key, identifying, named_value
from prudent.release.columns.row_values.conditions import FORMS, Predicate, finished, of_one_row
from prudent.release.columns.row_values.expressions import Expression, is_name, parse_condition
from prudent.release.columns.scales import NUMBER, TRUTH, Scale
from prudent.release.columns.sources import OpenTable
from prudent.release.columns.table_columns import TableColumn
from prudent.release.columns.units import StagedTable, evenly_spaced
from prudent.release.lattice import FloatArray

Term = Callable[[ir.Table], ir.Value]
"""What makes a column of doubles from a table: a function of one row."""


class NumberRows:
    """A table of doubles. Nothing that it returns may be published without a mechanism.

    Guarantee: each row is a function of one record alone; a record whose row has a missing number
    is absent. With units, the rows that are kept of a unit are a function of its rows alone.
    """

    def __init__(
        self,
        table: ir.Table,
        names: Sequence[str],
        owner: OpenTable,
        gaps: Sequence[str] = (),
        most: int | None = None,
    ) -> None:
        self.names = tuple(names)
        self._table, self._owner = table, owner
        self._own = [f"x{place}" for place in range(len(self.names))]
        needed = [own for own, name in zip(self._own, names, strict=True) if name not in gaps]
        rows = table if most is None else table.filter(table.unit.notnull())
        rows = rows.filter(*(dialects.present(rows[own]) for own in needed)) if needed else rows
        self._complete: Callable[[], ir.Table] = lambda: rows
        if most is not None:
            # Engines differ in where NULL and NaN come in an order; a column that may have gaps is
            # followed by one that tells them. Zeros of both signs are alike here, and to models.
            own = ((rows[own], dialects.present(rows[own])) for own in self._own)
            order = [ibis.ifelse(there, value, dialects.double(-math.inf)) for value, there in own]
            kept = evenly_spaced(rows, ["unit"], most, order).select(*self._own)
            self._complete = StagedTable(kept, owner).kept

    @property
    def complete(self) -> ir.Table:
        """The rows that have a number in every column that needs one."""
        return self._complete()

    def batches(self, *, complete: bool = True) -> Iterator[FloatArray]:
        """Read the rows, few at a time; with `complete` False those with gaps as well, as NaN."""
        rows = self.complete if complete else self._table
        for batch in dialects.arrow_batches(rows):
            yield np.stack([dialects.doubles_of(batch, own) for own in self._own], axis=1)

    def column(self, place: int) -> TableColumn:
        """One column of the complete rows, to be asked where the data are."""
        rows = self.complete.select(value=self._own[place])
        return TableColumn(
            rows.filter(dialects.present(rows.value)), scale=NUMBER, owner=self._owner
        )


class NumberTable:
    """An open table from whose columns rows of numbers can be made. No record has been read."""

    def __init__(
        self,
        source: Any = None,
        *,
        connect: str | None = None,
        table: str | None = None,
        where: Predicate | str | None = None,
        columns: Sequence[str] | None = None,
        texts: Sequence[str] = (),
    ) -> None:
        """Open a table; see `prudent.release.columns.joining.open_source`.

        Columns in `texts` are refused as numbers, also where the source does not declare types.
        """
        self._texts = texts
        self.owner = open_source(
            source, connect=connect, table=table, columns=columns if where is None else None
        )
        self.table = self.owner.table
        if where is not None:
            rule = parse_condition(where) if isinstance(where, str) else where
            self.table = self.table.filter(of_one_row(rule, self.table))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(self.table.columns)

    def rows(
        self,
        terms: Mapping[str, Term],
        gaps: Sequence[str] = (),
        unit: str | None = None,
        most: int = 1,
    ) -> NumberRows:
        """The rows of these terms, by name; those in `gaps` need no number.

        With the name of a column of privacy units, at most so many rows of each unit.
        """
        chosen = {
            f"x{place}": dialects.as_double(term(self.table))
            for place, term in enumerate(terms.values())
        }
        if unit is not None:
            chosen["unit"] = self.unit(unit)
        rows = self.table.select(**chosen)
        return NumberRows(rows, list(terms), self.owner, gaps, None if unit is None else most)

    def unit(self, name: str) -> ir.Value:
        """The privacy units of the rows."""
        _validate.column(self.names, unit=name)
        return dialects.exact(
            identifying(self.table[name], name), dialects.backend_name(self.table)
        )

    def product(self, *terms: Term) -> Term:
        """The product of terms; no value where it is none, in every engine."""

        def term(table: ir.Table) -> ir.Value:
            engine = dialects.backend_name(table)
            found, *others = (dialects.as_double(each(table)) for each in terms)
            for each in others:
                found = FORMS[ops.Multiply](ops.Multiply(found, each), engine)
            found = finished(found, found.type())
            return dialects.tried(found) if engine == "duckdb" else found

        return term

    def place(self, name: str, levels: Sequence[Hashable]) -> Term:
        """The place of a record's category in a public list; no value if it is not in there."""
        if is_name(name):
            _validate.column(self.names, column=name)
        key = group_key(self.table, name, self.owner)
        stored = [dialects.stored_literal(key.stored(level), self.table) for level in levels]

        def term(table: ir.Table) -> ir.Value:
            if not stored:
                return ibis.null("float64")
            member = dialects.exact(
                group_key(table, name, self.owner).value, dialects.backend_name(table)
            )
            cases = [
                (member == level, dialects.double(float(at))) for at, level in enumerate(stored)
            ]
            return ibis.cases(*cases, else_=ibis.null("float64"))

        return term

    def number(self, name: str) -> Term:
        """The numbers of a column or expression: dates in days, times in microseconds.

        Each text of a column without a type is read by itself: as a number, else as a boolean,
        else as a date, or as a time if it has a colon.
        """
        if not isinstance(name, Expression) or is_name(name):
            _validate.column(self.names, column=name)
        if name in self._texts:
            raise _validate.ArgumentError(
                "column",
                "of numbers",
                shown=f"{name!r}, of texts or categories",
                hint=f"Leave it out, or write C({name}) in a formula.",
            )
        if name in self.owner.text:
            return lambda table: _number_of_any_text(table[name])
        dtype = named_value(self.table, name, "formula").type()
        if dtype.is_boolean():
            return lambda table: named_value(table, name, "formula").cast("int32")
        scale = dialects.scale_of(dtype, dialects.backend_name(self.table), name)

        def term(table: ir.Table) -> ir.Value:
            found = dialects.number_of(named_value(table, name, "formula"), scale)
            # Of a decimal, its last digits.
            return found / dialects.double(10.0**scale.digits) if scale.digits else found

        return term


def _number_of_any_text(text: ir.StringValue) -> ir.Value:
    number, truth, date, time = (
        dialects.number_of_text(text, scale)
        for scale in (NUMBER, TRUTH, Scale("date"), Scale("timestamp"))
    )
    return ibis.coalesce(number, truth, ibis.ifelse(text.contains(":"), time, date))
