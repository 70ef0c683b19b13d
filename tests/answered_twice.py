"""Every answer that a test run reads from rows is also asked of the engine, and must be the same.

DuckDB hands rows over, and numpy answers (`queries.Reader`); PostgreSQL and Spark answer in
SQL. What no test compares would drift apart.
"""

import functools
import sys
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

MODULE = "prudent.release.columns.queries"


class AnsweredTwiceError(AssertionError):
    """Rows and SQL gave two answers."""


def begin() -> None:
    """Wrap the function that reads rows, once it is imported; again after a patch was undone."""
    module = sys.modules.get(MODULE)
    read = getattr(module, "_read", None)  # it may be half imported
    if module is not None and read is not None and not hasattr(read, "answers_twice"):
        module._read = _both(module, read, module.fetched)  # type: ignore[attr-defined]


def _both(module: Any, read: Any, fetched: Any) -> Any:
    @functools.wraps(read)
    def answered(asked: Sequence[Any], whole: Any) -> list[Any]:
        found = read(asked, whole)
        if module.fetched is fetched:  # else a test counts queries
            # Without the reader the question goes to the engine, as in PostgreSQL.
            queries = [attrs.evolve(each, reader=None) for each in asked]
            for each, one, other in zip(asked, found, module.answer(queries), strict=True):
                if not same(one, other):
                    FAILED.append(f"{each.question.__name__}: rows {one}, SQL {other}")
                    raise AnsweredTwiceError(FAILED[-1])
        return found

    answered.answers_twice = True  # type: ignore[attr-defined]
    return answered


FAILED: list[str] = []
"""What differed: a release withholds the error that says so, so that a test would not fail."""


def same(one: Any, other: Any) -> bool:
    """Whether two answers are the same, bit for bit."""
    if isinstance(one, tuple):
        return all(map(same, one, other)) and len(one) == len(other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tolist() == other.tolist()
    return bool(one == other)
