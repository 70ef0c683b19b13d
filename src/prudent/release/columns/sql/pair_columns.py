"""Two columns of a table, row by row: the exact sums that statistics of pairs follow from."""

from typing import Any

import attrs
import ibis.expr.types as ir
import numpy as np
import numpy.typing as npt

from prudent.release.columns.dialects import limb_bits, materialize
from prudent.release.columns.scales import Scale
from prudent.release.columns.sql.column_queries import Given, Reader, keys_of, whole
from prudent.release.columns.sql.queries import aggregated, limbs_of, numbers_of, steps_of
from prudent.release.columns.sql.table_columns import TableColumn, joined, only
from prudent.release.lattice import FloatArray, Lattice, sum_of, sum_of_products


@attrs.frozen
class ProductSums:
    """Exact sums over pairs (a, b) of whole numbers, each counted from the end of its lattice."""

    count: int  # the number of pairs
    first: int  # the sum of a
    second: int  # the sum of b
    product: int  # the sum of a b
    first_squares: int  # the sum of a²
    second_squares: int  # the sum of b²


class PairColumn(TableColumn):
    """Pairs of numbers, one per row that has both; as a column, the first of each.

    Attributes:
        second: The column of the second numbers, of the same records.
    """

    def __init__(self, rows: ir.Table, *, other: Scale, **options: Any) -> None:
        """Wrap a table with the columns `value` and `other`; `other` is the scale of the latter."""
        super().__init__(rows, **options)
        share = attrs.evolve(self.share, second=True)
        self.second = TableColumn(
            rows.select(value=rows.other),
            scale=other,
            contribution=self.contribution,
            share=share,
            owner=options.get("owner"),
        )

    def sums(self, first: Lattice, second: Lattice) -> ProductSums:
        """The exact sums of the pairs, clipped to the ends of two lattices and rounded to them."""
        given: dict[str, Any] = {f"{name}_one": value for name, value in numbers_of(first).items()}
        given |= {f"{name}_two": value for name, value in numbers_of(second).items()}

        wide, high = first.diameter, second.diameter
        bits = limb_bits(self.rows, factors=2)

        def block(values: FloatArray, others: FloatArray) -> npt.NDArray[np.object_]:
            one, two = first.whole(values) - first.low, second.whole(others) - second.low
            products = (one, two, wide, high), (one, one, wide, wide), (two, two, high, high)
            sums = [len(one), sum_of(one, wide), sum_of(two, high)]
            return np.array([*sums, *(sum_of_products(*each) for each in products)], object)

        def decode(found: dict[str, list[Any]]) -> ProductSums:
            row = only(found)
            sums = [joined(row, name, bits) for name in ("first", "second", "product")]
            squares = [joined(row, name, bits, squares=True) for name in ("ones", "twos")]
            return ProductSums(row["records"], *sums, *squares)

        reader = Reader(block, lambda sums: ProductSums(*sums.tolist()))
        found: ProductSums = self._ask(product_sums, decode, reader, wide=wide, high=high, **given)
        return found


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
