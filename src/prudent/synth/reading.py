"""The rows of a table in memory, each cell by itself: as a number, a text, or neither.

Which columns there are, and how each is read, follows from declared types alone. A column without
a declared type (of a CSV file, or of a pandas frame whose type pandas infers) is read in every way
at once; a paid count later decides between them. A cell that does not fit the form of its column
counts as NULL. Rows leave the engine: tables of counts over several columns are made here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import ibis.expr.datatypes as dt
import ibis.expr.types as ir
import numpy as np

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.release.columns.conversions import text_of
from prudent.release.columns.dialects import (
    arrow_batches,
    as_double,
    backend_name,
    doubles_of,
    encoding,
    exact,
    number_of,
    number_of_text,
    scale_of,
)
from prudent.release.columns.joining import rows_per_unit
from prudent.release.columns.number_rows import NumberTable
from prudent.release.columns.row_values.conditions import of_one_row
from prudent.release.columns.row_values.expressions import parse_condition
from prudent.release.columns.scales import NUMBER, Scale
from prudent.release.lattice import FloatArray, IntArray

FARTHEST = 2.0**62
"""Values beyond are moved to it: the largest power of two that fits every type of output."""

MOMENTS = {"date": Scale("date"), "timestamp": Scale("timestamp")}
"""The forms of a text that are no number, by name; a timestamp is a text with a colon."""


@attrs.frozen
class Field:
    """A column by what is public of it."""

    name: str
    dtype: dt.DataType | None  # its declared type; None if it has none
    scale: Scale | None  # of numbers, dates and times; None of texts

    @property
    def untyped(self) -> bool:
        """Whether a paid count decides how it is read."""
        return self.dtype is None

    @property
    def boolean(self) -> bool:
        """Whether it is declared to hold booleans, whose values are public."""
        return self.scale is not None and self.scale.truth

    @property
    def numeric(self) -> bool:
        """Whether it may hold numbers, dates or times, as far as is public."""
        return self.untyped or (self.scale is not None and not self.boolean)

    @property
    def form_is_private(self) -> bool:
        """Whether a paid count says what form its values have, such as their decimal places."""
        return self.untyped or (self.scale is not None and self.scale.kind == "number")


@attrs.frozen(eq=False, repr=False)  # its text would quote records
class Cells:
    """The cells of one column, in the order of rows. Private."""

    numbers: FloatArray | None = None  # NaN where there is none
    moments: FloatArray | None = None  # of untyped texts: times in microseconds
    dates: IntArray | None = None  # of untyped texts: whether such a time is a date
    codes: IntArray | None = None  # the place of a text in `texts`; -1 where there is none
    texts: Sequence[str] = ()


class Source:
    """An open table, of which names and types are known, and no record has been read."""

    def __init__(
        self,
        source: Any,
        columns: Sequence[str] | Mapping[str, str | None] | None,
        unit: str | None,
        most_rows: int,
        **options: Any,
    ) -> None:
        """Open a table; see `prudent.synthesize` for the arguments."""
        self._opened = NumberTable(source, **options)
        table, names = self._opened.table, self._opened.names
        if unit is not None:
            _validate.column(names, unit=unit)
        wanted = [name for name in names if name != unit] if columns is None else list(columns)
        for name in wanted:
            _validate.column([name for name in names if name != unit], columns=name)
        if len(set(wanted)) < len(wanted):
            raise ArgumentError("columns", "each named once", shown="one of them twice")
        declared = columns if isinstance(columns, Mapping) else {}
        found = [self._field(name, declared.get(name)) for name in wanted]
        self.fields = [each for each in found if each is not None]
        if unit is not None:
            kept = table.select(unit, *(each.name for each in self.fields))
            table = rows_per_unit(kept, unit, most_rows)  # without types that have no order
            self.fields = [each for each in self.fields if each.name in table.columns]
        if not self.fields:
            raise ArgumentError("columns", "of text, numbers, dates or booleans", shown="none")
        self._table = table
        self.left_out = [name for name in wanted if name not in {each.name for each in self.fields}]

    def _field(self, name: str, declared: str | None) -> Field | None:
        """What is public of a column; None if its type has no values to count."""
        table = self._opened.table
        dtype, untyped = table[name].type(), name in self._opened.owner.text
        if declared is not None:
            if not untyped:
                raise ArgumentError("columns", "types only of columns without one", got=declared)
            if declared == "text":
                return Field(name, dt.string, None)
            scale = Scale.named(declared)
            kinds = {"number": dt.float64, "integer": dt.int64, "date": dt.date}
            kinds |= {"timestamp": dt.Timestamp(scale=6), "duration": dt.Interval("us")}
            kinds["decimal"] = dt.Decimal(38, scale.digits)
            return Field(name, dt.boolean if scale.truth else kinds[scale.kind], scale)
        if untyped:
            return Field(name, None, NUMBER)
        if dtype.is_string():
            return Field(name, dtype, None)
        try:
            return Field(name, dtype, scale_of(dtype, backend_name(table), name))
        except ArgumentError:
            return None

    def check(self, rule: str) -> None:
        """Check a condition on these columns; only its grammar where a type is not declared."""
        condition = parse_condition(rule)
        if not any(each.untyped for each in self.fields):
            of_one_row(condition, self._table.select(*(each.name for each in self.fields)))

    def _terms(self, place: int, field: Field) -> dict[str, ir.Value]:
        """What to ask the engine for: texts as bytes, all else as doubles."""
        column, engine = self._table[field.name], backend_name(self._table)
        if field.untyped:
            moment = number_of_text(column, MOMENTS["timestamp"])
            return {
                f"n{place}": as_double(column.try_cast("float64")),
                f"m{place}": as_double(moment),
                f"d{place}": as_double((~column.contains(":")).cast("int32")),
                f"t{place}": exact(column, engine),
            }
        if field.scale is None:
            return {f"t{place}": exact(column, engine)}
        is_text = field.name in self._opened.owner.text
        read = number_of_text if is_text else number_of
        return {f"n{place}": as_double(read(column, field.scale))}

    def read(self) -> list[Cells]:
        """Read all rows; call it inside `redact_errors`."""
        terms = [self._terms(place, each) for place, each in enumerate(self.fields)]
        asked = {name: term for each in terms for name, term in each.items()}
        rows, codec = self._table.select(**asked), encoding(self._table)
        found: dict[str, list[Any]] = {name: [] for name in asked}
        known: dict[str, dict[str, int]] = {name: {} for name in asked}
        for batch in arrow_batches(rows):
            for name in asked:
                if name.startswith("t"):
                    found[name].append(_codes(batch.column(name), known[name], codec))
                else:
                    found[name].append(doubles_of(batch, name).astype(np.float64))
        joined = {name: np.concatenate(each or [np.empty(0)]) for name, each in found.items()}

        def cells(place: int) -> Cells:
            get = joined.get
            numbers, moments = (
                None if (each := get(f"{kind}{place}")) is None else _bounded(each) for kind in "nm"
            )
            dates = None if (told := get(f"d{place}")) is None else (told == 1).astype(np.int64)
            codes = None if (text := get(f"t{place}")) is None else text.astype(np.int64)
            return Cells(numbers, moments, dates, codes, list(known.get(f"t{place}", ())))

        return [cells(place) for place in range(len(self.fields))]


def _bounded(numbers: FloatArray) -> FloatArray:
    """Numbers within `FARTHEST`, with one zero; NaN stays."""
    return np.clip(numbers, -FARTHEST, FARTHEST) + 0.0


def _codes(column: Any, known: dict[str, int], codec: str) -> IntArray:
    """The number of each text, by a list that grows; the order in it means nothing."""
    column = column.cast("large_binary") if str(column.type) != "large_binary" else column
    coded = column.dictionary_encode()
    texts = [text_of(each, codec) for each in coded.dictionary.to_pylist()]
    places = np.array([known.setdefault(each, len(known)) for each in texts] + [-1], np.int64)
    at = coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    return np.asarray(places[at], np.int64)
