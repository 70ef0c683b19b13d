"""Any source as one open table; a join of two is computed by the engine that has both.

Every step is a function of the rows of one unit and of public rows (see `prudent.release.joins`):

| step | first table | private second table | public second table |
| --- | --- | --- | --- |
| keys | converted alone to a type in which equal means the same | the same | the same |
| a row without a unit | left out, if both tables are private | left out | |
| rows of one unit | at most `most_rows`, evenly spaced, if both are private | the same | |
| rows of one key | all | all | one; a key that has several is refused, and matches none |
| joined | rows with equal keys; with how="left" also those that match none | | |

What equal means is that of the grouping of units: bytes for texts, one zero and no NaN for floating
numbers. A join that called two units equal would pair rows of two persons.
"""

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.release.columns.column import redact_errors
from prudent.release.columns.dialects import IDENTIFYING, backend_name, double, exact, fetched
from prudent.release.columns.queries import values_table
from prudent.release.columns.sources import OpenTable, open_table
from prudent.release.columns.units import evenly_spaced
from prudent.release.joins import Join

_SENT = 1_000  # rows of a public table that a query may hold
_WRITTEN = (dt.String, dt.Boolean, dt.Integer, dt.Floating, dt.Date)
_READ = {"integer": "int64", "number": "float64", "date": "date"}  # from the texts of a file


def open_source(
    source: Any = None,
    *,
    connect: str | None = None,
    table: str | None = None,
    columns: Sequence[str] | None = None,
    unit: str | None = None,
    beside: OpenTable | None = None,
) -> OpenTable:
    """Open a table, or both of a join, without reading its records; its last use closes it."""
    join = source.join if isinstance(source, OpenTable) else source
    if isinstance(join, Join) and join.unit not in (None, unit):
        raise ArgumentError(
            "unit",
            f"{join.unit!r}, as of the join",
            got=unit,
            why="a unit may have many rows there",
        )
    if isinstance(source, OpenTable):
        return source
    if isinstance(join, Join):
        opened = _both(join)
    else:
        opened = open_table(source, connect=connect, table=table, columns=columns, beside=beside)
    weakref.finalize(opened, opened.close)
    return opened


def _both(join: Join) -> OpenTable:
    """Open both tables of a join, which are open as long as it is."""
    with contextlib.ExitStack() as opened:
        left = opened.enter_context(contextlib.closing(_opened(join, join.left, join.unit)))
        unit = None if join.public else join.keys[str(join.unit)]
        right = opened.enter_context(contextlib.closing(_opened(join, join.right, unit, left)))
        apart = left.table.get_backend() is not right.table.get_backend()
        if apart and join.public and backend_name(right.table) == "duckdb":
            right, apart = _sent(right, left), False
        if apart:
            raise ArgumentError(
                "right",
                "a table in the engine of the first",
                shown="one in another",
                hint="Give two files or frames, two tables of one database with connect, two ibis "
                "tables of one connection, or two data frames of one Spark session. A public "
                f"table of up to {_SENT:,} rows may be a file or a frame.",
            )
        joined = _joined(join, left, right)
        own_connection = left.own_connection and right.own_connection
        return attrs.evolve(joined, close=opened.pop_all().close, own_connection=own_connection)


def _sent(public: OpenTable, left: OpenTable) -> OpenTable:
    """A small public table of a file or a frame, written into the queries of another engine."""
    schema, backend = public.table.schema(), left.table.get_backend()
    odd = [name for name, dtype in schema.items() if not isinstance(dtype, _WRITTEN)]
    rows = public.table.limit(_SENT + 1).to_pyarrow().to_pydict()
    count = len(next(iter(rows.values())))
    if odd or not 0 < count <= _SENT:
        raise ArgumentError(
            "right",
            f"a public table of 1 to {_SENT:,} rows of texts, numbers, dates and booleans, "
            "beside one of another engine",
            shown=f"{odd[0]!r} of type {schema[odd[0]]}" if odd else "none, or more",
            hint="Load it into that engine.",
        )
    # Plain names inside: one of the columns may be called as the place of a row is.
    names = {f"c{place}": name for place, name in enumerate(schema)}
    values = values_table(
        {
            short: [
                double(each) if isinstance(each, float) else ibis.literal(each, schema[name])
                for each in rows[name]
            ]
            for short, name in names.items()
        }
    )
    values = values.select(**{name: values[short] for short, name in names.items()})
    table = backend.sql(backend.compile(values), schema=values.schema())
    return OpenTable(table, own_connection=left.own_connection)


def _opened(
    join: Join, source: Any, unit: str | None, beside: OpenTable | None = None
) -> OpenTable:
    if join.connect is None or not isinstance(source, str):
        return open_source(source, unit=unit, beside=beside)
    return open_source(connect=join.connect, table=source, unit=unit, beside=beside)


def _joined(join: Join, left: OpenTable, right: OpenTable) -> OpenTable:
    """The joined table."""
    one, other = left.table, right.table
    for name, its in join.keys.items():
        _validate.column(one.columns, on=name)
        _validate.column(other.columns, on=its)
    pairs = {name: _comparable(left, name, right, its) for name, its in join.keys.items()}
    engine = backend_name(one)
    # Plain names inside, so that no column of one table can be taken for one of the other.
    own = {f"l{place}": name for place, name in enumerate(one.columns)}
    their = {f"r{place}": name for place, name in enumerate(other.columns)}
    keys = {name: f"k{place}" for place, name in enumerate(join.keys)}
    first = one.select(
        **{short: pairs[name][0] if name in pairs else one[name] for short, name in own.items()},
        **{key: exact(pairs[name][0], engine) for name, key in keys.items()},
    )
    second = other.select(
        **{short: other[name] for short, name in their.items()},
        **{f"o{key}": exact(pairs[name][1], engine) for name, key in keys.items()},
    )
    if join.public:
        second = _one_for_each(second, [f"o{key}" for key in keys.values()])
    else:
        unit = keys[str(join.unit)]
        first = rows_per_unit(first, unit, join.most_rows)
        second = rows_per_unit(second, f"o{unit}", join.most_rows)
    equal = [first[key] == second[f"o{key}"] for key in keys.values()]
    both = first.join(second, equal, how=join.how)
    names = {
        short: name for short, name in _names(join, own, their).items() if short in both.columns
    }
    texts = {short for short, name in own.items() if name in left.text}
    texts |= {short for short, name in their.items() if name in right.text}
    read = {
        name for short, name in names.items() if short in texts and both[short].type().is_string()
    }
    origins = _origins(left, join.names[0], {name: names.get(short) for short, name in own.items()})
    merged = {its: name for name, its in join.keys.items()}
    theirs = {name: names.get(short, merged.get(name)) for short, name in their.items()}
    origins |= _origins(right, join.names[1], theirs)
    table = both.select(**{name: both[short] for short, name in names.items()})
    return OpenTable(table, text=frozenset(read), join=join, origins=origins)


def _origins(
    part: OpenTable, called: str, names: Mapping[str, str | None]
) -> dict[tuple[str, str], str]:
    """The joined names of the columns of one side, which may be a join itself."""
    whose = dict(part.origins)
    if called not in {table for table, _ in whose}:
        whose |= {(called, name): name for name in names}
    return {each: found for each, name in whose.items() if (found := names.get(name)) is not None}


def _names(join: Join, own: dict[str, str], their: dict[str, str]) -> dict[str, str]:
    """The names of the joined columns: of two alike, each with the name of its table before it.

    Also of two that differ in case alone: DuckDB would read one of them for the other.
    """
    same = {n.lower() for n in own.values()} & {n.lower() for n in their.values()}
    one, other = join.names
    kept = {*join.keys, join.unit}  # also beside a public column of that name
    names = {
        short: f"{one}.{name}" if name.lower() in same and name not in kept else name
        for short, name in own.items()
    }
    for short, name in their.items():
        if join.how == "left" or join.keys.get(name) != name:  # else it is that of the first
            names[short] = f"{other}.{name}" if name.lower() in same else name
    if len({name.lower() for name in names.values()}) < len(names):
        raise ArgumentError(
            "names", "that no column has already", got=join.names, hint="Give names=('a', 'b')."
        )
    return names


def rows_per_unit(rows: ir.Table, unit: str, most: int) -> ir.Table:
    """Of the rows of each unit so many, chosen by the order of their own values.

    Rows that are equal in all columns that are kept are the same row, whichever is chosen: which of
    several that are not would depend on the rows of others. So numbers and times that compare as
    equal and are not, such as both zeros, or a month and 30 days, are ordered by their texts.
    """
    engine = backend_name(rows)
    schema = rows.schema().items()
    kinds = IDENTIFYING if engine == "pyspark" else (*IDENTIFYING, dt.Interval)
    sortable = [name for name, dtype in schema if isinstance(dtype, kinds)]
    rows = rows.select(*sortable)
    rows = rows.filter(rows[unit].notnull())
    order = [exact(rows[name], engine) for name in sortable if name != unit]
    # Values of these that are not the same may compare as equal.
    inexact = (dt.Floating, dt.Decimal, dt.Interval)
    alike = [name for name in sortable if isinstance(rows[name].type(), inexact)]
    order += [exact(rows[name].cast("string"), engine) for name in alike]
    return evenly_spaced(rows, [unit], most, order).select(*sortable)


def _one_for_each(rows: ir.Table, keys: Sequence[str]) -> ir.Table:
    """The rows of a public table; refused if two have the same key.

    One that got a second row in the meantime matches nothing: no row becomes two.
    """
    rows = rows.filter(*(rows[key].notnull() for key in keys))
    alone = rows.count().over(ibis.window(group_by=keys))
    several = rows.group_by(keys).aggregate(times=lambda t: t.count())
    several = several.filter(several.times > 1).limit(1).select("times")
    if redact_errors(fetched, several)["times"]:
        raise ArgumentError(
            "right",
            "a public table with one row for each key",
            shown="one with several",
            why="a record would be counted once for each",
            hint="Choose one row for each key, in a view or an ibis table.",
        )
    rows = rows.mutate(times=alone)
    return rows.filter(rows.times == 1).drop("times")


def _comparable(
    left: OpenTable, name: str, right: OpenTable, other: str
) -> tuple[ir.Value, ir.Value]:
    """The two columns of a key, as values that are equal only if they are the same unit."""
    one, two = left.table[name], right.table[other]
    kinds = _kind(one.type()), _kind(two.type())
    engine = backend_name(one)
    if kinds[0] == kinds[1] and kinds[0] is not None:
        return _of_kind(one, kinds[0]), _of_kind(two, kinds[0])
    if name in left.text and kinds[1] in _READ:
        return _of_kind(one.try_cast(_READ[kinds[1]]), kinds[1]), _of_kind(two, kinds[1])
    if other in right.text and kinds[0] in _READ:
        return _of_kind(one, kinds[0]), _of_kind(two.try_cast(_READ[kinds[0]]), kinds[0])
    if engine == "duckdb" and set(kinds) == {"integer", "number"}:  # numbers of pandas, with gaps
        return (_whole(one), two) if kinds[0] == "number" else (one, _whole(two))
    raise ArgumentError(
        "on",
        "columns of one type, whose values can be compared",
        shown=f"{name!r} of type {one.type()} and {other!r} of type {two.type()}",
        hint="Convert one of them, in a view or an ibis table.",
    )


def _kind(dtype: dt.DataType) -> str | None:
    """Types whose values can be compared with each other, without a conversion that may fail."""
    for name in ("string", "integer", "boolean", "date", "binary", "uuid"):
        if getattr(dtype, f"is_{name}")():
            return name
    if dtype.is_floating():
        return "number"
    # Times of two zones, and decimals of two widths, would be converted.
    plain = dtype.is_timestamp() or dtype.is_decimal() or dtype.is_inet() or dtype.is_macaddr()
    return str(dtype.copy(nullable=True)) if plain else None


def _of_kind(column: ir.Value, kind: str) -> ir.Value:
    """The values of a key; of floating numbers there is one zero, and NaN is missing."""
    if kind != "number":
        return column
    number = column.cast("float64")
    number = ibis.ifelse(number == double(0.0), double(0.0), number)
    return ibis.ifelse(number.isnan(), ibis.null("float64"), number)


def _whole(column: ir.Value) -> ir.Value:
    """The integer that a floating number is; missing if it is none."""
    whole = column.try_cast("int64")
    return ibis.ifelse(whole.cast("float64") == column, whole, ibis.null("int64"))
