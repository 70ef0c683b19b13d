"""The release of n records told again for n + 1: every answer the same, every question as close as
is paid for.

What a synthetic table asks of its records passes through five methods of `TableEngine`. The first
run answers with zero noise and notes what was asked; the second gets the same answers, whatever its
records are. Then the table must be the same, so must the number and the order of questions, and the
exact values behind them may differ by what one record, or the rows of one unit, can change.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from prudent.release import ReproducibleNoise
from prudent.release.columns.column import SourceError
from prudent.synth import synthesize
from prudent.synth.engine import TableEngine


class Told:
    """Notes what is asked in one run, and compares in another."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any, Any]] = []
        self.problems: list[str] = []
        self._again: Iterator[Any] | None = None
        self._inside = False  # a question that another one asks is part of it

    def again(self) -> None:
        self._again = iter(self.asked)

    def answer(self, method: str, name: str, exact: Any, act: Any, most: Any) -> Any:
        if self._inside:
            return act()
        if self._again is None:
            self._inside = True
            found = act()
            self._inside = False
            self.asked.append((method, name, exact, found))
            return found
        before = next(self._again, None)
        if before is None or before[:2] != (method, name):
            self.problems.append(f"{method} of {name} was not asked before")
            return act()
        if (far := _distance(method, before[2], exact)) > most:
            self.problems.append(f"{method} of {name} moved by {far}, paid for {most}")
        return before[3]

    def rest(self) -> list[Any]:
        return [] if self._again is None else list(self._again)


def _distance(method: str, one: Any, other: Any) -> float:
    if method == "counts":
        return np.inf if one.shape != other.shape else float(np.abs(one - other).sum())
    if method == "keys":
        return sum(abs(one.get(key, 0) - other.get(key, 0)) for key in {*one, *other})
    if method == "edges":
        return ((one - other) + (other - one)).total()
    if len(one) != len(other):
        return np.inf
    moves = [new - old for old, new in zip(one, other, strict=True)]
    return max(moves) - min(moves)  # the range of changes is what a choice costs


@contextmanager
def watched(told: Told, rows: int) -> Iterator[None]:
    """Let every question of an engine pass through `told`."""
    counts, keys, best, edges = (
        TableEngine.counts,
        TableEngine.keys,
        TableEngine.best,
        TableEngine.edges,
    )

    def on_counts(self: Any, name: str, exact: Any) -> Any:
        return told.answer("counts", name, exact, lambda: counts(self, name, exact), rows)

    def on_keys(self: Any, name: str, named: Any, exact: Any) -> Any:
        unseen = self.threshold(name)[0] - 1  # fewer are not looked at
        pairs = zip(named, exact.tolist(), strict=True)
        known = {key: many - unseen for key, many in pairs if many > unseen}
        return told.answer("keys", name, known, lambda: keys(self, name, named, exact), rows)

    def on_best(self: Any, name: str, scores: Any, spread: int) -> Any:
        most = rows * spread
        return told.answer("best", name, scores, lambda: best(self, name, scores, spread), most)

    def on_edges(self: Any, span: str, cuts: str, values: Any, counts: Any, *levels: int) -> Any:
        exact = Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        act = lambda: edges(self, span, cuts, values, counts, *levels)  # noqa: E731
        return told.answer("edges", f"{cuts} {levels}", exact, act, rows)

    with mock.patch.multiple(
        TableEngine,
        counts=on_counts,
        keys=on_keys,
        best=on_best,
        edges=on_edges,
        generator=lambda self: np.random.default_rng(1),
    ):
        yield


def problems(first: Any, second: Any, rows: int = 1, **options: Any) -> list[str]:
    """What tells two neighbouring tables apart although all noisy answers are the same."""
    told, made = Told(), []
    for source in (first, second):
        with watched(told, rows):
            try:
                made.append(synthesize(source, noise=ReproducibleNoise(1), **options))
            except SourceError:
                return [*told.problems, "an error after a charge"]
        if source is first:
            told.again()
    found = list(told.problems)
    if told.rest():
        found.append("fewer questions were asked")
    if made[0].data != made[1].data or made[0].report != made[1].report:
        found.append("the tables differ")
    return found
