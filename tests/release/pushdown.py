"""How to tell whether little leaves an engine, and a release that has it all."""

from typing import Any

import numpy as np
import numpy.typing as npt

from prudent.release.dialects import fetched

MOST_ROWS = 1_000
"""Of one answer: more than a window or a sample's quantiles have, far fewer than a table."""


def check_little_leaves(sent: list[tuple[str, int]], dialect: str = "postgres") -> None:
    """Every query is an aggregate, and had few rows for an answer.

    Args:
        sent: Queries, and how many rows the engine gave for each.
        dialect: Of the queries.
    """
    import sqlglot
    from sqlglot import expressions

    assert sent
    for sql, rows in sent:
        query = sqlglot.parse_one(sql, dialect=dialect)
        assert query.find(expressions.AggFunc), f"no aggregate: {sql}"
        assert rows <= MOST_ROWS, f"{rows} rows: {sql}"


def fetch_everything(column: Any, first: int, last: int) -> npt.NDArray[np.float64]:
    """What no column may do: take all rows and sort them here."""
    values = np.sort(fetched(column.rows)["value"].to_numpy())
    return np.asarray(values[max(first, 1) - 1 : last], np.float64)
