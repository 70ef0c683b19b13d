"""Sets of categories, one for each unit: how many can be given to units that have them."""

import ibis
import ibis.expr.types as ir
import numpy as np

from prudent.release.columns.sql.column_queries import keys_of
from prudent.release.columns.sql.table_columns import TableColumn


class SetColumn(TableColumn):
    """The different values of each unit: a table with the columns `unit` and `value`."""

    def distinct(self) -> int:
        """See `Column`: the size of a maximum matching of values to units, k values to each.

        Adding a unit adds k vertices to one side of a bipartite graph, and each adds 0 or 1 to the
        size of a maximum matching.
        """
        found = self._ask(numbered, dict)
        return matched(found["holder"], found["kind"], self.contribution.records)


def numbered(rows: ir.Table) -> ir.Table:
    """The units and values of all pairs, as numbers."""
    keys = keys_of(rows)
    return rows.select(
        *keys,
        holder=ibis.dense_rank().over(ibis.window(group_by=keys, order_by=rows.unit)),
        kind=ibis.dense_rank().over(ibis.window(group_by=keys, order_by=rows.value)),
    )


def matched(units: list[int], values: list[int], most: int) -> int:
    """The largest number of values that can be given to units which have them, `most` to each.

    It is the largest flow from a source, through units of capacity `most` and values of capacity 1.
    Its size is that of the pairs: a unit of very many values takes no more memory than many units.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    if not units:
        return 0
    holders, owners = np.unique(np.array(units, np.int64), return_inverse=True)
    distinct, kinds = np.unique(np.array(values, np.int64), return_inverse=True)
    first, last = 1 + len(holders), 1 + len(holders) + len(distinct)  # the first value, the sink
    begins = np.concatenate([np.zeros(len(holders), int), 1 + owners, np.arange(first, last)])
    ends = np.concatenate([np.arange(1, first), first + kinds, np.full(len(distinct), last)])
    room = np.where(begins == 0, most, 1).astype(np.int32)
    graph = csr_array((room, (begins, ends)), shape=(last + 1, last + 1))
    return int(maximum_flow(graph, 0, last).flow_value)
