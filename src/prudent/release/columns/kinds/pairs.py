"""Two columns of a table, row by row: the exact sums that statistics of pairs follow from."""

from typing import Any

import attrs
import ibis
import ibis.expr.types as ir

from prudent.release.columns.dialects import limb_bits
from prudent.release.columns.queries import TableColumn, joined, limbs_of, steps_of
from prudent.release.columns.scales import Scale
from prudent.release.lattice import Lattice


@attrs.frozen
class ProductSums:
    """Exact sums over pairs (a, b) of whole numbers, each counted from the end of its lattice.

    Attributes:
        count: The number of pairs.
        first: The sum of a.
        second: The sum of b.
        product: The sum of a b.
        first_squares: The sum of a².
        second_squares: The sum of b².
    """

    count: int
    first: int
    second: int
    product: int
    first_squares: int
    second_squares: int


class PairColumn(TableColumn):
    """Pairs of numbers, one per row that has both; as a column, the first of each.

    Attributes:
        second: The column of the second numbers, of the same records.
    """

    def __init__(self, rows: ir.Table, *, other: Scale, **options: Any) -> None:
        """Wrap a table with the columns `value` and `other`; `other` is the scale of the latter."""
        super().__init__(rows, **options)
        self.second = _Second(self, other)

    def sums(self, first: Lattice, second: Lattice) -> ProductSums:
        """The exact sums of the pairs, clipped to the ends of two lattices and rounded to them."""
        row = self._ask(product_sums, first=first, second=second)
        found = {name: int(value or 0) for name, (value,) in row.items()}

        bits = limb_bits(self.rows, factors=2)
        return ProductSums(
            count=found["records"],
            first=joined(found, "first", bits),
            second=joined(found, "second", bits),
            product=joined(found, "product", bits),
            first_squares=joined(found, "ones", bits, squares=True),
            second_squares=joined(found, "twos", bits, squares=True),
        )


class _Second(TableColumn):
    """The second numbers of pairs: the same records, asked by another name."""

    def __init__(self, pairs: PairColumn, scale: Scale) -> None:
        super().__init__(_renamed(pairs.rows), scale=scale, contribution=pairs.contribution)
        self._pairs = pairs

    def _source(self) -> ir.Table:
        return _renamed(self._pairs._source())


def _renamed(rows: ir.Table) -> ir.Table:
    return rows.select(value=rows.other)


def product_sums(rows: ir.Table, *, first: Lattice, second: Lattice) -> ir.Expr:
    """The sums of two columns, clipped and moved to lattices, of their squares and products."""
    rows = rows.select(
        one=steps_of(rows.value, first) - ibis.literal(first.low, "int64"),
        two=steps_of(rows.other, second) - ibis.literal(second.low, "int64"),
    )
    bits = limb_bits(rows, factors=2)
    one = limbs_of(rows.one, first.diameter, bits)
    two = limbs_of(rows.two, second.diameter, bits)
    sums = {f"first_{place}": part.sum() for place, part in enumerate(one)}
    sums |= {f"second_{place}": part.sum() for place, part in enumerate(two)}
    for i, left in enumerate(one):
        sums |= {f"product_{i}_{j}": (left * right).sum() for j, right in enumerate(two)}
    for name, parts in (("ones", one), ("twos", two)):
        for i, left in enumerate(parts):
            sums |= {f"{name}_{i}_{j}": (left * parts[j]).sum() for j in range(i, len(parts))}
    return rows.aggregate(records=rows.count(), **sums)
