"""Every answer that a test run reads from rows is also asked of the engine, and must be the same.

DuckDB hands rows over, and numpy answers (`queries.Reader`); PostgreSQL and Spark answer in
SQL. What no test compares would drift apart. To compile a query takes longer than to read few
rows, so `make test` compares the first answers of each kind of question in each test function.
"""

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np

MODULE = "prudent.release.columns.queries"
BRIEF = 2
"""Answers of a kind that are compared in each test function, if not all are."""


class AnsweredTwiceError(AssertionError):
    """Rows and SQL gave two answers."""


def begin(function: str | None = None) -> None:
    """Wrap the function that reads rows, once it is imported; again after a patch was undone.

    All answers are compared if no test function is named.
    """
    global _function
    _function = function
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
            places = [place for place, each in enumerate(asked) if _is_new(each, len(asked))]
            queries = [attrs.evolve(asked[place], reader=None) for place in places]
            for place, other in zip(places, module.answer(queries), strict=True):
                each, one = asked[place], found[place]
                if not same(one, other):
                    FAILED.append(f"{each.question.__name__}: rows {one}, SQL {other}")
                    raise AnsweredTwiceError(FAILED[-1])
        return found

    answered.answers_twice = True  # type: ignore[attr-defined]
    return answered


def _is_new(asked: Any, together: int) -> bool:
    """Whether few questions like this one were compared in this test function."""
    if _function is None:
        return True
    types = tuple(asked.column.rows.schema().items())
    kind = _function, asked.question, tuple(asked.given), types, min(together, 2)
    _COMPARED[kind] += 1
    return _COMPARED[kind] <= _most


@contextlib.contextmanager
def counted() -> Iterator[None]:
    """Compare all answers or none, for a test that counts what an engine is asked."""
    global _most
    _most = 0
    yield
    _most = BRIEF


_function: str | None = None
_most = BRIEF
_COMPARED: Counter[Any] = Counter()
FAILED: list[str] = []
"""What differed: a release withholds the error that says so, so that a test would not fail."""


def same(one: Any, other: Any) -> bool:
    """Whether two answers are the same, bit for bit."""
    if isinstance(one, tuple):
        return all(map(same, one, other)) and len(one) == len(other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tolist() == other.tolist()
    return bool(one == other)
