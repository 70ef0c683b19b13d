"""One value, or k values, per privacy unit, computed inside an engine; see `column.Contribution`.

Guarantee: what is kept of a unit is a function of the rows of that unit alone, the same on every
engine and in any order of the rows. Sums of doubles depend on their order, so none is rounded on
the way: every value is first rounded to a multiple of a public power of two and split into whole
numbers that are so small that doubles add them exactly.

With groups, a unit counts only in the group that holds most of its rows (the first in order among
ties), and only with its rows there. With `kept`, it counts in so many of its groups: the first in
the order of a keyed hash of unit and group, which is a function of that unit's rows as well.
"""

import contextlib
import functools
import math
import operator
import uuid
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import ibis
import ibis.expr.types as ir

from prudent.release.columns.column import Contribution, KeptGroups
from prudent.release.columns.dialects import (
    backend_name,
    connection_lock,
    digest,
    double,
    floored,
    rounded,
    sql_of,
)
from prudent.release.columns.scales import Scale

_LIMB = 2.0**26


def members_of(rows: ir.Table) -> list[str]:
    """The columns that say which group a row is in."""
    return [name for name in rows.columns if name.startswith("member")]


def per_unit(rows: ir.Table, contribution: Contribution, *scales: Scale | None) -> ir.Table:
    """Return the contributed values, with their group if there is one."""
    groups = members_of(rows)
    first = rows.select("unit", *groups, "value")
    values = _in_its_groups(_reduced(first, contribution, scales[0]), contribution.kept)
    if len(scales) == 1:
        return values.select("value", *groups)
    second = rows.select("unit", *groups, value=rows.other)
    others = _in_its_groups(_reduced(second, contribution, scales[1]), contribution.kept)
    others = others.rename(other="value")
    return values.join(others, ["unit", *groups]).select("value", "other", *groups)


def different(rows: ir.Table, kept: KeptGroups | None) -> ir.Table:
    """The different values of each unit, in the groups that it counts in."""
    groups = members_of(rows)
    found = rows.group_by(["unit", *groups, "value"]).aggregate(times=lambda t: t.count())
    own = found.times.sum().over(ibis.window(group_by=["unit", *groups]))
    return _in_its_groups(found.mutate(rows=own), kept)


def at_most(rows: ir.Table, most: int) -> ir.Table:
    """Of the different values of each unit, so many: what a count may hold of it."""
    own = ibis.window(group_by=["unit", *members_of(rows)], order_by="value")
    placed = rows.mutate(place=ibis.row_number().over(own))
    return placed.filter(placed.place < most)


def _reduced(rows: ir.Table, contribution: Contribution, scale: Scale | None) -> ir.Table:
    """The values of each unit in each group, with the number of its rows there."""
    keys = ["unit", *members_of(rows)]
    how = contribution.per_unit
    if isinstance(how, int):
        return evenly_spaced(rows, keys, how)
    placed = _placed(rows, keys)
    if how == "median":  # of rank ceil(n/2): of place (n - 1) / 2, rounded down, from 0 on
        return placed.filter((placed.place * 2).isin([placed.rows - 1, placed.rows - 2]))
    if how in ("min", "max") and scale is None:  # not every engine has a least string of bytes
        return placed.filter(placed.place == (placed.rows - 1 if how == "max" else 0))
    if how in ("min", "max"):
        end = rows.value.max() if how == "max" else rows.value.min()
        return rows.group_by(keys).aggregate(rows=rows.count(), value=end)
    if how == "count":
        found = rows.group_by(keys).aggregate(rows=lambda t: t.count())
        return found.mutate(value=found.rows.cast("float64"))
    whole = scale is not None and scale.whole
    sums = _exact_sums(rows, keys, whole=whole)
    value, alone = sums.total, sums.rows == 1
    if how == "mean":
        value, alone = value / sums.rows.cast("float64"), sums.low == sums.high
    value = ibis.ifelse(alone, sums.low, _with_infinities(sums, value * sums.quantum))
    if whole and scale is not None and scale.kind != "integer":
        value = ibis.ifelse(sums.low == sums.high, value, rounded(value))
    found = sums.mutate(value=value)
    return found.filter(found.value.notnull())


def _in_its_groups(found: ir.Table, kept: KeptGroups | None) -> ir.Table:
    """Keep of each unit only the group with most of its rows, the first in order among ties.

    Or so many groups, in the order of a keyed hash. Their own order makes ranks of different groups
    different, also where hashes are equal: a unit is never in more groups than are paid for.
    """
    groups = members_of(found)
    if groups:
        first = ibis.desc(found.rows)
        if kept is not None:
            parts = [digest(found[name]) for name in ("unit", *groups)]
            first = digest(functools.reduce(operator.add, parts, ibis.literal(kept.key)))
        order = [first, *(found[name] for name in groups)]
        place = ibis.dense_rank().over(ibis.window(group_by="unit", order_by=order))
        found = found.mutate(place=place)
        found = found.filter(found.place < (1 if kept is None else kept.most))
    return found.select("unit", "value", *groups)


def evenly_spaced(
    rows: ir.Table, keys: Sequence[str], most: int, order: Sequence[Any] = ("value",)
) -> ir.Table:
    """The rows of places floor((2i - 1) n / 2k), i = 1..k, or all n rows if n <= k.

    The number of i with a place before p is floor((2kp + n - 1) / 2n); it grows where there is one.
    The quotients are exact enough: both numbers are below 2**52.
    """
    placed = _placed(rows, keys, order)
    count, place = placed.rows.cast("float64"), placed.place.cast("float64")

    def before(places: ir.Value) -> ir.Value:
        whole = places * double(2.0 * most) + count - double(1.0)
        return floored(whole / (count * double(2.0)))

    chosen = before(place + double(1.0)) > before(place)
    return placed.filter((placed.rows <= most) | chosen)


def _placed(rows: ir.Table, keys: Sequence[str], order: Sequence[Any] = ("value",)) -> ir.Table:
    """The rows with their place in the order of their unit's values, and the unit's row count."""
    own = ibis.window(group_by=keys)
    ordered = ibis.window(group_by=keys, order_by=list(order))
    return rows.mutate(place=ibis.row_number().over(ordered), rows=rows.count().over(own))


def _exact_sums(rows: ir.Table, keys: Sequence[str], *, whole: bool) -> ir.Table:
    """Sums of doubles, each clipped to ±2**64 and rounded to a multiple of 2**-40.

    Each is split into limbs of 26 bits, which doubles add exactly in any order, for up to 2**27
    rows of a unit. One grouping does it all. Whole numbers are clipped to ±2**52, and have two.
    """
    quantum, farthest, limbs = (1.0, 2.0**52, 2) if whole else (2.0**-40, 2.0**64, 4)
    tiny = rows.value.abs() < double(quantum / 4)  # a quotient might underflow: an error
    high, low = double(farthest), double(-farthest)
    beyond = (tiny, double(0.0)), (rows.value > high, high), (rows.value < low, low)
    rest = ibis.cases(*beyond, else_=rows.value) * double(1 / quantum)
    split = {}
    for place in range(limbs - 1, 0, -1):
        size = double(_LIMB**place)
        split[f"limb{place}"] = floored(rest / size)
        rest = rest - split[f"limb{place}"] * size
    rows = rows.mutate(**split, limb0=rounded(rest))
    sums = rows.group_by(keys).aggregate(
        rows=lambda t: t.count(),
        low=lambda t: t.value.min(),
        high=lambda t: t.value.max(),
        **{name: rows[name].sum() for name in (*split, "limb0")},
    )
    total: ir.Value = sums[f"limb{limbs - 1}"]
    for place in range(limbs - 2, -1, -1):
        total = total * double(_LIMB) + sums[f"limb{place}"]
    return sums.mutate(total=total, quantum=double(quantum))


def _with_infinities(sums: ir.Table, finite: ir.Value) -> ir.Value:
    """An infinite value makes a sum infinite; with both infinities there is no value."""
    high, low = sums.high == double(math.inf), sums.low == double(-math.inf)
    return ibis.cases(
        (high & low, ibis.null("float64")),
        (high, double(math.inf)),
        (low, double(-math.inf)),
        else_=finite,
    )


class StagedTable:
    """A table that an engine computes once, at the first query, and drops with the column.

    Grouping the rows of every unit takes longer than any question about the result, so it is kept
    in the engine: as a temporary table in DuckDB and PostgreSQL, as a cached frame in Spark. Where
    that is not possible, the grouping is repeated in every query. Which of the two happens depends
    on the engine and on permissions, never on the data, and neither reads a record before.
    """

    def __init__(self, rows: ir.Table, owner: Any) -> None:
        """Prepare the table; the transaction of a connection of the caller's is left alone."""
        self.rows = rows  # as an expression of its source
        self._owner = owner  # stays open
        self._kept: ir.Table | None = None
        self._fill: Callable[[ir.Table, Any, str], ir.Table] = lambda rows, *_: rows
        self._name = name = f"prudent_{uuid.uuid4().hex}"
        engine, backend = backend_name(rows), rows.get_backend()
        if engine == "duckdb" and not rows.op().find(ibis.expr.operations.InMemoryTable):
            self._fill = _in_duckdb
            weakref.finalize(self, _drop_in_duckdb, backend, name)
        elif engine == "pyspark":
            self._fill = _in_spark
            weakref.finalize(self, _drop_in_spark, backend._session, name)
        elif engine == "postgres" and owner.own_connection and _created(rows, backend.con, name):
            self._fill = _in_postgres  # the table ends with the connection

    def kept(self) -> ir.Table:
        """The table as the engine keeps it; computed by the first call."""
        if self._kept is None:
            self._kept = self._fill(self.rows, self.rows.get_backend(), self._name)
        return self._kept


def _in_duckdb(rows: ir.Table, backend: Any, name: str) -> ir.Table:
    with connection_lock(backend):
        backend.raw_sql(f"CREATE TEMP TABLE {name} AS {sql_of(rows)}")
        return backend.table(name, database=("temp", "main"))


def _drop_in_duckdb(backend: Any, name: str) -> None:
    with contextlib.suppress(Exception), connection_lock(backend):  # it may be closed already
        backend.con.execute(f"DROP TABLE IF EXISTS temp.{name}")


def _in_spark(rows: ir.Table, backend: Any, name: str) -> ir.Table:
    backend._session.sql(sql_of(rows)).cache().createTempView(name)
    return backend.table(name)


def _drop_in_spark(session: Any, name: str) -> None:
    with contextlib.suppress(Exception):  # the session may be stopped already
        session.table(name).unpersist()
        session.catalog.dropTempView(name)


def _created(rows: ir.Table, connection: Any, name: str) -> bool:
    """Create an empty temporary table in PostgreSQL; False if the user has no permission.

    A read-only transaction may fill a temporary table but not create one. So the table is created
    in a transaction of its own, before the one that reads. Its types are those of the query, as
    PostgreSQL names them: ibis names some that do not hold every value, such as `money`.
    """
    connection.commit()
    connection.read_only = False
    try:
        connection.execute(f"CREATE TEMP TABLE {name} AS {sql_of(rows)} WITH NO DATA")
        connection.commit()
        return True
    except Exception:
        connection.rollback()
        return False
    finally:
        connection.read_only = True


def _in_postgres(rows: ir.Table, backend: Any, name: str) -> ir.Table:
    backend.con.execute(f"INSERT INTO {name} ({', '.join(rows.columns)}) {sql_of(rows)}")
    return backend.table(name)
