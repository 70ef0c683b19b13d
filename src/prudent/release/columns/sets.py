"""Sets of categories, one for each unit: how many can be given to units that have them."""

import ibis
import ibis.expr.types as ir
import numpy as np

from prudent.release.columns.queries import TableColumn


class SetColumn(TableColumn):
    """The different values of each unit: a table with the columns `unit` and `value`."""

    def distinct(self) -> int:
        """See `Column`: the size of a maximum matching of values to units, k values to each.

        Adding a unit adds k vertices to one side of a bipartite graph, and each adds 0 or 1 to the
        size of a maximum matching.
        """
        found = self._ask(numbered)
        return matched(found["holder"], found["kind"], self.contribution.records)


def numbered(rows: ir.Table) -> ir.Expr:
    """The units and values of all pairs, as numbers."""
    return rows.select(
        holder=ibis.dense_rank().over(ibis.window(order_by=rows.unit)),
        kind=ibis.dense_rank().over(ibis.window(order_by=rows.value)),
    )


def matched(units: list[int], values: list[int], most: int) -> int:
    """The largest number of values that can be given to units which have them, `most` to each."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    if not units:
        return 0
    owners, kinds = np.array(units, np.int64), np.array(values, np.int64)
    order = np.argsort(owners, kind="stable")
    owners, kinds = owners[order], kinds[order]
    _, first, sizes = np.unique(owners, return_index=True, return_counts=True)
    copies = np.minimum(sizes, most)  # of a unit: more than its values are of no use
    rows = np.repeat(np.arange(len(sizes)), copies)
    lengths = sizes[rows]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(ends[-1]) - np.repeat(ends[:-1] - first[rows], lengths)
    graph = csr_array(
        (np.ones(ends[-1], np.int8), kinds[places], ends), shape=(len(rows), kinds.max() + 1)
    )
    return int((maximum_bipartite_matching(graph, perm_type="column") >= 0).sum())
