"""The questions that a column asks its engine, each as one query over rows with a `value`.

The first line of each docstring is shown to users by `prudent.release.explain`.
"""

import math
from collections.abc import Sequence
from typing import Any

import ibis
import ibis.expr.types as ir

from prudent.release.columns.dialects import backend_name, double, exact, legible, literal
from prudent.release.columns.exact_sums import FACTOR, LIMB, limbs
from prudent.release.lattice import FloatArray, Lattice


def how_many(rows: ir.Table) -> ir.Expr:
    """How many records there are."""
    return rows.count()


def how_many_below(rows: ir.Table, *, edges: FloatArray) -> ir.Expr:
    """How many records lie below each of a few values."""
    rows = rows.filter(rows.value < double(max(edges)))  # an index on the column can serve this
    return rows.aggregate(
        **{
            f"below_{index}": rows.count(where=rows.value < double(edge))
            for index, edge in enumerate(edges)
        }
    )


def near_ranks(rows: ir.Table, *, low: float, high: float, first: int, last: int) -> ir.Expr:
    """The values of a few ranks, each once, with its number of records, out of a bracket."""
    inside = rows.filter(rows.value >= double(low), rows.value <= double(high))
    groups = inside.group_by("value").aggregate(records=lambda t: t.count())
    upto = groups.records.sum().over(ibis.window(order_by=groups.value, rows=(None, 0)))
    ranked = groups.mutate(upto=upto.cast("int64"))
    return ranked.filter(ranked.upto >= first, ranked.upto - ranked.records < last)


def sums_between(
    rows: ir.Table, *, low: float, high: float, lattice: Lattice, origin: int
) -> ir.Expr:
    """The sum of all values between two, moved to the lattice, and how many there are."""
    rows = rows.filter(rows.value < double(high))
    between = rows.value > double(low)
    rest = steps_of(rows.value, lattice) - double(origin)
    parts = _limbs_of(rest, limbs(lattice.high - lattice.low, LIMB), LIMB)
    sums = {
        f"part_{place}": part.sum(where=between).cast("int64") for place, part in enumerate(parts)
    }
    return rows.aggregate(
        at_most_low=rows.count(where=rows.value <= double(low)),
        inside=rows.count(where=between),
        **sums,
    )


def clipped_sums(rows: ir.Table, *, lattice: Lattice, first: int, last: int) -> ir.Expr:
    """How many records there are, and the sum of all values, clipped and moved to the lattice."""
    parts = _limbs(rows, lattice, first, last, LIMB)
    return rows.aggregate(
        records=rows.count(),
        **{f"part_{place}": part.sum().cast("int64") for place, part in enumerate(parts)},
    )


def clipped_squares(rows: ir.Table, *, lattice: Lattice, first: int, last: int) -> ir.Expr:
    """The sum of all values, clipped and moved to the lattice, and the sum of their squares."""
    parts = _limbs(rows, lattice, first, last, FACTOR)
    sums = {f"part_{place}": part.sum().cast("int64") for place, part in enumerate(parts)}
    for place, one in enumerate(parts):
        for other in range(place, len(parts)):
            product = (one * parts[other]).cast("int64")
            sums[f"product_{place}_{other}"] = product.sum().cast("int64")
    return rows.aggregate(records=rows.count(), **sums)


def _limbs(rows: ir.Table, lattice: Lattice, first: int, last: int, bits: int) -> list[ir.Value]:
    """The distance of each value from the step `first`, in limbs of so many bits, least first."""
    steps = steps_of(rows.value, lattice)
    steps = ibis.ifelse(steps < double(first), double(first), steps)
    rest = ibis.ifelse(steps > double(last), double(last), steps) - double(first)
    return _limbs_of(rest, limbs(last - first, bits), bits)


def _limbs_of(rest: ir.Value, count: int, bits: int) -> list[ir.Value]:
    """A whole number in limbs of so many bits, least first; the last has what is left."""
    found = []
    for _ in range(count - 1):
        upper = (rest / double(2.0**bits)).floor().cast("float64")
        found.append((rest - upper * double(2.0**bits)).cast("int64"))
        rest = upper
    return [*found, rest.cast("int64")]


def sizes_of_groups(rows: ir.Table, *, at_least: int) -> ir.Expr:
    """How many records each group has, if it has at least so many."""
    groups = rows.group_by("member").aggregate(records=lambda t: t.count())
    return groups.filter(groups.records >= at_least)


def fullest_points(rows: ir.Table, *, lattice: Lattice, within: int) -> ir.Expr:
    """The points of the lattice that hold nearly as many records as the fullest."""
    steps = rows.select(step=steps_of(rows.value, lattice).cast("int64"))
    groups = steps.group_by("step").aggregate(records=lambda t: t.count())
    fullest = groups.mutate(most=groups.records.max().over(ibis.window()))
    near = fullest.filter(fullest.records > fullest.most - within)
    return near.select("step", "records")


def two_largest_groups(rows: ir.Table) -> ir.Expr:
    """How many records the two most frequent values have, and their order, but not the values."""
    groups = _by_size(rows)
    top = groups.order_by([ibis.desc(groups.records), groups.value]).limit(2)
    sizes = ibis.window(order_by=[ibis.desc(top.records), top.value])
    return top.select(
        records=top.records,
        place=ibis.row_number().over(sizes),
        position=ibis.row_number().over(ibis.window(order_by=top.value)),
    )


def largest_group(rows: ir.Table) -> ir.Expr:
    """The most frequent value."""
    groups = _by_size(rows)
    top = groups.order_by([ibis.desc(groups.records), groups.value]).limit(1)
    return top.select(value=legible(top.value, backend_name(rows)))


def how_many_of_each(rows: ir.Table, *, categories: Sequence[Any]) -> ir.Expr:
    """How many records have each of a few public values."""
    engine = backend_name(rows)
    values = [exact(literal(each), engine) for each in categories]
    rows = rows.filter(rows.value.isin(values))
    return rows.aggregate(
        **{
            f"of_{index}": rows.count(where=rows.value == value)
            for index, value in enumerate(values)
        }
    )


def _by_size(rows: ir.Table) -> ir.Table:
    return rows.group_by("value").aggregate(records=lambda t: t.count())


def steps_of(value: ir.Value, lattice: Lattice) -> ir.Value:
    """Round a value to the lattice, in steps, as a double: bit for bit as `Lattice.steps` does."""
    least, largest = lattice.value(lattice.low), lattice.value(lattice.high)
    value = ibis.ifelse(value > double(largest), double(largest), value)
    value = ibis.ifelse(value < double(least), double(least), value)
    scaled = value * double(math.ldexp(1.0, -lattice.exponent))
    if lattice.exponent > 0:
        # PostgreSQL raises an error when a product underflows; values this small are in step 0.
        tiny = value.abs() < double(math.ldexp(1.0, max(lattice.exponent - 60, -1070)))
        scaled = ibis.ifelse(tiny, double(0.0), scaled)
    return (scaled + double(0.5)).floor().cast("float64")
