"""Two columns of a table, row by row: the exact sums that statistics of pairs follow from."""

from typing import Any

import attrs
import ibis.expr.types as ir

from prudent.release.columns.queries import TableColumn, limbs_of_steps
from prudent.release.columns.scales import Scale
from prudent.release.lattice import FACTOR, Lattice


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

        def parts(kind: str) -> int:
            return _weighted(found, kind, twice=False)

        return ProductSums(
            count=found["records"],
            first=parts("first"),
            second=parts("second"),
            product=parts("product"),
            first_squares=_weighted(found, "ones", twice=True),
            second_squares=_weighted(found, "twos", twice=True),
        )


def _weighted(found: dict[str, int], kind: str, *, twice: bool) -> int:
    """The number of which an answer has the limbs, or the products of limbs, of one kind."""
    total = 0
    for name, value in found.items():
        own, *places = name.split("_")
        if own == kind:
            doubled = twice and len(set(places)) > 1
            total += value << (sum(map(int, places)) * FACTOR + doubled)
    return total


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
    one = limbs_of_steps(rows.value, first, FACTOR)
    two = limbs_of_steps(rows.other, second, FACTOR)

    def total(value: Any) -> ir.Value:
        return value.cast("int64").sum().cast("int64")

    sums = {f"first_{place}": total(part) for place, part in enumerate(one)}
    sums |= {f"second_{place}": total(part) for place, part in enumerate(two)}
    for i, left in enumerate(one):
        sums |= {f"product_{i}_{j}": total(left * right) for j, right in enumerate(two)}
    for name, parts in (("ones", one), ("twos", two)):
        for i, left in enumerate(parts):
            sums |= {f"{name}_{i}_{j}": total(left * parts[j]) for j in range(i, len(parts))}
    return rows.aggregate(records=rows.count(), **sums)
