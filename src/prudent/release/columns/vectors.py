"""A column of vectors, such as embeddings, in any engine: read in batches, with public labels.

No engine can tell which of many landmarks a vector is nearest to, so vectors leave it. They do so
in batches, and a record that is no vector of numbers counts as absent where it is read.
"""

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeAlias

import ibis
import ibis.expr.types as ir
import numpy as np
import numpy.typing as npt

from prudent._validate import ArgumentError
from prudent.release.columns.contributions import Contribution
from prudent.release.columns.dialects import backend_name, exact
from prudent.release.columns.table_rows import Asked, Opened, filtered, grouping

Batches: TypeAlias = Iterator[tuple[list[Any], npt.NDArray[np.int64]]]

_ROWS = 4096


def open_vectors(asked: Asked, groups: Sequence[Hashable]) -> Callable[[], Batches] | None:
    """Open a column of vectors and the groups of its rows, without reading any.

    Args:
        asked: Which table, column and group; a unit of several rows is refused.
        groups: The public list of groups; rows of others are left out.

    Returns:
        A function that reads the vectors, and the place of the group of each in the list; None if
        the column does not hold arrays.
    """
    opened, rows = filtered(asked)
    dtype = rows[asked.column].type()
    if not dtype.is_array():
        return None
    if not (dtype.value_type.is_integer() or dtype.value_type.is_floating()):
        raise ArgumentError("column", "an array of numbers", shown=f"{asked.column!r} of {dtype}")
    if asked.unit is not None or asked.per_unit is not None:
        raise ArgumentError("unit", "none with a column of vectors", got=asked.unit)
    member = rows[asked.by]
    chosen = rows.select(
        value=rows[asked.column], member=exact(grouping(member, str(asked.by)), backend_name(rows))
    )
    known = Opened(chosen, dtype, None, Contribution(), member.type(), opened)
    places = [
        (chosen.member == stored, number)
        for number, stored in enumerate(known.members(groups).values())
    ]
    chosen = chosen.filter(ibis.or_(*(same for same, _ in places)) & chosen.value.notnull())
    numbered = chosen.select(value=chosen.value, number=ibis.cases(*places, else_=-1))

    def read() -> Batches:
        assert known.owner  # the source stays open until the last row is read
        rows = _rows(numbered)
        while batch := list(itertools.islice(rows, _ROWS)):
            vectors, numbers = zip(*batch, strict=True)
            yield list(vectors), np.array(numbers, np.int64)

    return read


def _rows(table: ir.Table) -> Iterator[tuple[Any, int]]:
    """The rows of a query, as the engine hands them over: few are in memory at a time."""
    if table.op().find(ibis.expr.operations.InMemoryTable):  # only ibis itself can hand them over
        yield from zip(*table.to_pyarrow().to_pydict().values(), strict=True)
        return
    backend, sql = table.get_backend(), ibis.to_sql(table)
    if backend.name == "pyspark":
        yield from backend.raw_sql(sql).toLocalIterator()
    elif backend.name == "postgres":
        with backend.con.cursor(name="prudent_vectors") as cursor:  # on the server: not all at once
            cursor.itersize = _ROWS
            yield from cursor.execute(sql)
    else:
        answer = backend.raw_sql(sql)
        while rows := answer.fetchmany(_ROWS):
            yield from rows
