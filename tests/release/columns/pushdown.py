"""How to tell whether little leaves an engine, and a release that has it all."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prudent.release.columns.dialects import fetched

MOST_ROWS = 1_000
"""Of one answer: more than a window or a sample's quantiles have, far fewer than a table."""


def check_little_leaves(sent: list[tuple[str, int]], dialect: str = "postgres") -> None:
    """Every query is an aggregate or asks for types alone, and had few rows for an answer.

    Args:
        sent: Queries, and how many rows the engine gave for each.
        dialect: Of the queries.
    """
    import sqlglot
    from sqlglot import expressions

    assert sent
    for sql, rows in sent:
        query = sqlglot.parse_one(sql, dialect=dialect)
        of_types = sql.endswith(" LIMIT 0") and rows == 0
        assert of_types or query.find(expressions.AggFunc), f"no aggregate: {sql}"
        assert rows <= MOST_ROWS, f"{rows} rows: {sql}"


def peak_memory() -> float:
    """The most memory this program has had so far, in MB.

    Not `ru_maxrss`, which begins at what the process had that started this one.
    """
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


def growth(script: str, *arguments: str) -> float:
    """The number that a script prints, run in a process of its own."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # what is found here
    command = [sys.executable, "-c", script, *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=found)
    return float(answer.stdout)


def fetch_everything(column: Any, first: int, last: int) -> npt.NDArray[np.float64]:
    """What no column may do: take all rows and sort them here."""
    values = np.sort(np.array(fetched(column.rows)["value"]))
    return np.asarray(values[max(first, 1) - 1 : last], np.float64)
