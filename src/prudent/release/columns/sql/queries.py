"""Questions to a query engine about a column: each makes a query of a table and a few numbers."""

import math
from collections.abc import Sequence
from typing import Any

import ibis
import ibis.expr.types as ir

from prudent.release.columns.dialects import (
    backend_name,
    double,
    floored,
    legible,
    limb_bits,
    materialize,
    stored_literal,
)
from prudent.release.columns.sql.column_queries import Given, keys_of, number, whole
from prudent.release.columns.units import members_of
from prudent.release.lattice import HALVES_PER_LOG, RAISED_SHIFT, TINY, Lattice, limbs

QUANTILES = 2**9
"""Quantiles of the sample that are fetched; they widen a bracket by at most 0.4 %."""


def how_many(rows: ir.Table) -> ir.Table:
    """How many records there are."""
    return aggregated(rows, records=rows.count())


def how_many_different(rows: ir.Table) -> ir.Table:
    """How many different values there are."""
    return aggregated(rows, records=rows.value.nunique())


def how_many_below(rows: ir.Table, **edges: Given) -> ir.Table:
    """How many records lie below the first of a few values, and between each and the next."""
    *_, last = ascending = list(edges.values())
    rows = rows.filter(rows.value < number(last))  # an index on the column can serve this

    def place(first: int, last: int) -> ir.Value:  # a binary search: few comparisons for each row
        if first == last:
            return ibis.literal(first, "int64")
        middle = (first + last) // 2
        below = rows.value < number(ascending[middle])
        return ibis.ifelse(below, place(first, middle), place(middle + 1, last))

    keys = keys_of(rows)
    places = rows.select(*keys, edge=place(0, len(edges) - 1)).group_by([*keys, "edge"])
    return places.aggregate(records=lambda t: t.count())


def near_ranks(rows: ir.Table, *, low: Given, high: Given, first: Given, last: Given) -> ir.Table:
    """The values of a few ranks, each once, with its number of records, out of a bracket."""
    keys = keys_of(rows)
    inside = rows.filter(rows.value >= number(low), rows.value <= number(high))
    own = ["first", "last"] if keys else []  # the same in all rows of a column
    groups = inside.group_by([*keys, *own, "value"]).aggregate(records=lambda t: t.count())
    order = ibis.window(group_by=keys, order_by=groups.value, rows=(None, 0))
    ranked = groups.mutate(upto=groups.records.sum().over(order).cast("int64"))
    if keys:
        first, last = ranked["first"], ranked["last"]
    before = ranked.upto - ranked.records
    found = ranked.filter(ranked.upto >= number(first), before < number(last))
    return found.select(*keys, "value", "records", "upto")


def clipped_sums(
    rows: ir.Table, *, low: Given, high: Given, factor: Given, tiny: Given, farthest: int
) -> ir.Table:
    """The sum of the values between two ends, on a lattice, and how many are below and inside."""
    rows = _inside(rows, low, high, factor, tiny)
    parts = limbs_of(rows.step, farthest, limb_bits(rows))
    sums = {f"part_{place}": part.sum() for place, part in enumerate(parts)}
    return aggregated(rows, **_counts_around(rows), **sums)


def clipped_squares(
    rows: ir.Table,
    *,
    low: Given,
    high: Given,
    factor: Given,
    tiny: Given,
    middle: Given,
    farthest: int,
) -> ir.Table:
    """The same with the sum of squares, both of distances from the middle step."""
    rows = _inside(rows, low, high, factor, tiny, middle)
    parts = limbs_of(rows.step, farthest, limb_bits(rows, factors=2))
    sums = {f"part_{place}": part.sum() for place, part in enumerate(parts)}
    for place, one in enumerate(parts):
        for other in range(place, len(parts)):
            sums[f"product_{place}_{other}"] = (one * parts[other]).sum()
    return aggregated(rows, **_counts_around(rows), **sums)


def _inside(
    rows: ir.Table, low: Given, high: Given, factor: Given, tiny: Given, middle: Given = 0.0
) -> ir.Table:
    """The steps of the values between two ends, NULL of others, and which values are below.

    Those beyond an end are at its step: one condition for each row is faster than three.
    """
    step = _rounded(rows.value, factor, tiny)
    if not (isinstance(middle, float) and middle == 0):
        step = step - whole(middle)
    steps = rows.select(
        *keys_of(rows),
        step=ibis.cases((rows.value.between(number(low), number(high)), step)),
        below=rows.value < number(low),
    )
    return materialize(steps)


def _counts_around(rows: ir.Table) -> dict[str, ir.Value]:
    below = rows.count(where=rows.below)
    return {"records": rows.count(), "inside": rows.step.count(), "below": below}


def aggregated(rows: ir.Table, **sums: ir.Value) -> ir.Table:
    """Sums over all rows, of each column that asks."""
    keys = keys_of(rows)
    return rows.group_by(keys).aggregate(**sums) if keys else rows.aggregate(**sums)


def limbs_of(whole: ir.Value, farthest: int, bits: int) -> list[ir.Value]:
    """A 64-bit integer of at most this size in limbs of so many bits, least first.

    The last has the rest and the sign; its size is at most 2**bits.
    """
    found = []
    for _ in range(limbs(farthest - 1, bits) - 1):
        found.append(whole & ibis.literal(2**bits - 1, "int64"))
        whole = whole >> ibis.literal(bits, "int32")
    return [*found, whole]


def sizes_of_groups(rows: ir.Table, *, at_least: int) -> ir.Table:
    """How many records each group has, if it has at least so many."""
    groups = rows.group_by(members_of(rows)).aggregate(records=lambda t: t.count())
    return groups.filter(groups.records >= at_least)


def fullest_points(rows: ir.Table, *, within: int, **lattice: Given) -> ir.Table:
    """The points of the lattice that hold nearly as many records as the fullest."""
    keys = keys_of(rows)
    steps = materialize(rows.select(*keys, step=steps_of(rows.value, **lattice)))
    groups = steps.group_by([*keys, "step"]).aggregate(records=lambda t: t.count())
    most = groups.records.max().over(ibis.window(group_by=keys))
    fullest = groups.mutate(most=most)
    near = fullest.filter(fullest.records > fullest.most - within)
    return near.select(*keys, "step", "records")


def sizes_of_half_octaves(rows: ir.Table) -> ir.Table:
    """How many records lie in each half-octave, raised as `lattice.lowered` expects them."""
    logs = (rows.value.abs() + double(TINY)).ln()
    size = logs * double(HALVES_PER_LOG) + double(RAISED_SHIFT)
    finite = rows.value.abs() < double(math.inf)
    raised = rows.value.sign() * ibis.ifelse(finite, floored(size), size)
    keys = keys_of(rows)
    found = materialize(rows.select(*keys, raised=raised))
    return found.group_by([*keys, "raised"]).aggregate(records=lambda t: t.count())


def two_largest_groups(rows: ir.Table) -> ir.Table:
    """How many records the two most frequent values have, and their order, but not the values."""
    keys, top = keys_of(rows), _largest_groups(rows, 2)
    sizes = ibis.window(group_by=keys, order_by=[ibis.desc(top.records), top.value])
    values = ibis.window(group_by=keys, order_by=top.value)
    return top.select(
        *keys,
        "records",
        size=ibis.row_number().over(sizes),
        position=ibis.row_number().over(values),
    )


def largest_group(rows: ir.Table) -> ir.Table:
    """The most frequent value."""
    top = _largest_groups(rows, 1)
    return top.select(*keys_of(rows), value=legible(top.value, backend_name(rows)))


def _largest_groups(rows: ir.Table, most: int) -> ir.Table:
    keys = keys_of(rows)
    groups = rows.group_by([*keys, "value"]).aggregate(records=lambda t: t.count())
    order = [ibis.desc(groups.records), groups.value]
    if not keys:
        return groups.order_by(order).limit(most)
    size = ibis.row_number().over(ibis.window(group_by=keys, order_by=order))
    placed = groups.mutate(size=size)
    return placed.filter(placed["size"] < most)


def how_many_of_each(rows: ir.Table, *, categories: Sequence[Any]) -> ir.Table:
    """How many records have each of a few public values."""
    values = [stored_literal(each, rows) for each in categories]
    rows = rows.filter(rows.value.isin(values))
    counts = {f"of_{i}": rows.count(where=rows.value == value) for i, value in enumerate(values)}
    return aggregated(rows, **counts)


def steps_of(
    value: ir.Value,
    *,
    least: Given,
    largest: Given,
    first: Given,
    last: Given,
    factor: Given,
    tiny: Given,
) -> ir.Value:
    """Round a value to a lattice, given by `numbers_of`: bit for bit as `Lattice.steps` does."""
    inside = value.between(number(least), number(largest))  # most, so that it is first
    return ibis.cases(
        (inside, _rounded(value, factor, tiny)),
        (value > number(largest), whole(last)),
        else_=whole(first),
    )


def _rounded(value: ir.Value, factor: Given, tiny: Given) -> ir.Value:
    """The nearest step of a value inside of the lattice."""
    # As `rounded`, of a value that its caller found to be inside, so that an integer can hold it.
    step = floored(value * number(factor) + double(0.5)).cast("int64")
    if backend_name(value) != "postgres" or (isinstance(tiny, float) and tiny == 0):
        return step
    # It raises an error when a product underflows.
    return ibis.ifelse(value.abs() < number(tiny), ibis.literal(0, "int64"), step)


def numbers_of(lattice: Lattice) -> dict[str, float]:
    """The numbers of a lattice that a question takes."""
    ends = {"first": float(lattice.low), "last": float(lattice.high)}
    values = {"least": lattice.value(lattice.low), "largest": lattice.value(lattice.high)}
    return ends | values | scaling(lattice)


def scaling(lattice: Lattice) -> dict[str, float]:
    """What a value is multiplied with, and the size below which that might underflow."""
    tiny = math.ldexp(1.0, max(lattice.exponent - 60, -1070)) if lattice.exponent > 0 else 0.0
    return {"factor": math.ldexp(1.0, -lattice.exponent), "tiny": tiny}


def sample_quantiles(rows: ir.Table, *, share: Given) -> ir.Table:
    """Evenly spaced quantiles of a random sample, which suggest where ranks are."""
    keys = keys_of(rows)
    # Drawn in a column, for each row: DuckDB would compare one number with the share of a group
    # before it joins the rows with their group, and take all of the group or none.
    drawn = rows.select(*keys, "value", share=number(share), draw=ibis.random())
    sample = drawn.filter(drawn.draw < drawn.share)
    part = ibis.ntile(QUANTILES).over(ibis.window(group_by=keys, order_by=sample.value))
    parts = sample.mutate(part=part).group_by([*keys, "part"])
    return parts.aggregate(value=lambda t: t.value.max()).select(*keys, "value")


def product_sums(rows: ir.Table, *, wide: int, high: int, **given: Given) -> ir.Table:
    """The sums of two columns, clipped and moved to lattices, of their squares and products."""

    def lattice(which: str) -> dict[str, Given]:
        return {name.removesuffix(which): given[name] for name in given if name.endswith(which)}

    one, two = lattice("_one"), lattice("_two")
    steps = rows.select(
        *keys_of(rows),
        one=steps_of(rows.value, **one) - whole(one["first"]),
        two=steps_of(rows.other, **two) - whole(two["first"]),
    )
    rows = materialize(steps)
    bits = limb_bits(rows, factors=2)
    first = limbs_of(rows.one, wide, bits)
    second = limbs_of(rows.two, high, bits)
    sums = {f"first_{place}": part.sum() for place, part in enumerate(first)}
    sums |= {f"second_{place}": part.sum() for place, part in enumerate(second)}
    for i, left in enumerate(first):
        sums |= {f"product_{i}_{j}": (left * right).sum() for j, right in enumerate(second)}
    for name, parts in (("ones", first), ("twos", second)):
        for i, left in enumerate(parts):
            sums |= {f"{name}_{i}_{j}": (left * parts[j]).sum() for j in range(i, len(parts))}
    return aggregated(rows, records=rows.count(), **sums)
