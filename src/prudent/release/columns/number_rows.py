"""Rows of numbers from a table in any engine: what a model of several columns reads.

A statistic asks the engine for counts and ranks of one column. A model needs the columns of a row
together, and its records are clipped and weighed in ways that no engine knows. So rows leave the
engine, as doubles, a batch at a time. A row that has no value in one of the columns is absent.
"""

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import ibis
import ibis.expr.types as ir
import numpy as np

from prudent import _validate
from prudent.release.columns.dialects import (
    arrow_batches,
    as_double,
    backend_name,
    double,
    doubles_of,
    exact,
    number_of,
    number_of_text,
    present,
    stored_literal,
)
from prudent.release.columns.dialects import scale_of as scale_of_type
from prudent.release.columns.joining import open_source
from prudent.release.columns.row_values.conditions import Predicate, of_one_row
from prudent.release.columns.row_values.expressions import parse_condition
from prudent.release.columns.scales import NUMBER, TRUTH, Scale
from prudent.release.columns.sources import OpenTable
from prudent.release.columns.sql.table_columns import TableColumn
from prudent.release.columns.table_rows import group_key
from prudent.release.lattice import FloatArray

Term = Callable[[ir.Table], ir.Value]
"""What makes a column of doubles from a table: a function of one row."""


class NumberRows:
    """A table of doubles. Nothing that it returns may be published without a mechanism.

    Guarantee: each row is a function of one record alone; a record whose row has a missing number
    is absent.
    """

    def __init__(self, table: ir.Table, owner: OpenTable, gaps: Sequence[str] = ()) -> None:
        """Wrap a table of doubles.

        Args:
            table: The table.
            owner: Stays open as long as this object.
            gaps: Columns in which a row may have no number.
        """
        self._table = table
        self._owner = owner
        self._gaps = gaps

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._table.columns)

    @property
    def complete(self) -> ir.Table:
        """The rows that have a number in every column that needs one."""
        return _without_gaps(self._table, [n for n in self.names if n not in self._gaps])

    def batches(self, *, complete: bool = True) -> Iterator[FloatArray]:
        """Read the rows, few at a time; with `complete` False those with gaps as well, as NaN."""
        rows = self.complete if complete else self._table
        for batch in arrow_batches(rows):
            yield np.stack([doubles_of(batch, name) for name in self.names], axis=1)

    def column(self, place: int) -> TableColumn:
        """One column of the complete rows, to be asked where the data are."""
        rows = self.complete.select(value=self.names[place])
        return TableColumn(_without_gaps(rows, ["value"]), scale=NUMBER, owner=self._owner)


def _without_gaps(rows: ir.Table, names: Sequence[str]) -> ir.Table:
    if not names:
        return rows
    return rows.filter(*(present(rows[name]) for name in names))


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
    ) -> None:
        """Open a table; see `prudent.release.columns.joining.open_source`."""
        self.owner = open_source(
            source, connect=connect, table=table, columns=columns if where is None else None
        )
        weakref.finalize(self.owner, self.owner.close)
        self.table = self.owner.table
        if where is not None:
            rule = parse_condition(where) if isinstance(where, str) else where
            self.table = self.table.filter(of_one_row(rule, self.table))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(self.table.columns)

    def rows(self, terms: Mapping[str, Term], gaps: Sequence[str] = ()) -> NumberRows:
        """The rows of these terms, by name; those in `gaps` need no number."""
        chosen = {name: as_double(term(self.table)) for name, term in terms.items()}
        return NumberRows(self.table.select(**chosen), self.owner, gaps)

    def place(self, name: str, levels: Sequence[Hashable]) -> Term:
        """The place of a record's category in a public list; no value if it is not in there.

        Raises:
            ArgumentError: if there is no such column, it has no categories, or a level is not of
                its type.
        """
        _validate.one_of(self.names, column=name)
        key = group_key(self.table, name, self.owner)
        stored = [stored_literal(key.stored(level), self.table) for level in levels]

        def term(table: ir.Table) -> ir.Value:
            if not stored:
                return ibis.null("float64")
            member = exact(group_key(table, name, self.owner).value, backend_name(table))
            cases = [(member == level, double(float(at))) for at, level in enumerate(stored)]
            return ibis.cases(*cases, else_=ibis.null("float64"))

        return term

    def number(self, name: str) -> Term:
        """The numbers of a column: those of dates in days, of times in microseconds.

        Each text of a column without a type is read by itself: as a number, else as a boolean,
        else as a date, or as a time if it has a colon.

        Raises:
            ArgumentError: if there is no such column, or it has no numbers.
        """
        _validate.one_of(self.names, column=name)
        if name in self.owner.text:
            return lambda table: _number_of_any_text(table[name])
        dtype = self.table[name].type()
        if dtype.is_boolean():
            return lambda table: table[name].cast("int32")
        scale = scale_of_type(dtype, backend_name(self.table), name)
        return lambda table: number_of(table[name], scale)


def _number_of_any_text(text: ir.StringValue) -> ir.Value:
    number, truth, date, time = (
        number_of_text(text, scale) for scale in (NUMBER, TRUTH, Scale("date"), Scale("timestamp"))
    )
    return ibis.coalesce(number, truth, ibis.ifelse(text.contains(":"), time, date))
