"""Columns that are asked at the same time: tasks that take turns, and the pool of all groups.

Tasks take turns so that what they ask can be answered together. The order of the turns is that of
the tasks, and one runs at a time: the same noise gives the same answers. How often is asked depends
on the tasks alone. Each task is a thread, since it may ask from deep inside of code that knows
nothing of others.
"""

import contextvars
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import attrs
import numpy as np
from typing_extensions import override

from prudent.release.columns.column import Column, Contribution, fullest
from prudent.release.columns.scales import Scale
from prudent.release.lattice import FloatArray, IntArray, Lattice, added_up

AT_ONCE = 200
"""The most tasks that take turns, and columns that one query answers."""

Answer = Callable[[Sequence[Any]], list[Any]]
T = TypeVar("T")

_turn: contextvars.ContextVar["_Turn[Any] | None"] = contextvars.ContextVar("turn", default=None)


def ask(asked: Sequence[Any], answer: Answer) -> list[Any]:
    """Answer questions; inside of `together`, when all tasks have asked theirs."""
    turn = _turn.get()
    return answer(asked) if turn is None else turn.wait(asked, answer)


class _Turn(threading.Thread, Generic[T]):
    """A task that runs until it asks, and then again with the answers."""

    def __init__(self, task: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._task, self._context = task, contextvars.copy_context()
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self.asked: Sequence[Any] = ()
        self.answer: Answer = list
        self.answers: list[Any] | BaseException = []
        self.result: T | None = None
        self.error: BaseException | None = None

    @override
    def run(self) -> None:
        try:
            self._await_answers()
            self._context.run(self._run)
        except BaseException as error:
            self.error = error
        self.asked = ()
        self._back.release()

    def _run(self) -> None:
        before = _turn.set(self)
        try:
            self.result = self._task()
        finally:
            _turn.reset(before)  # a turn that its context held would keep a connection open

    def wait(self, asked: Sequence[Any], answer: Answer) -> list[Any]:
        """Hand over, inside the task, until there are answers."""
        self.asked, self.answer = asked, answer
        self._back.release()
        return self._await_answers()

    def _await_answers(self) -> list[Any]:
        self._go.acquire()
        if isinstance(self.answers, BaseException):
            raise self.answers
        return self.answers

    def end(self, error: BaseException) -> None:
        """Let the task end with an error where it waits, or asks next."""
        self.answers = error
        self._go.release()

    def proceed(self) -> bool:
        """Run the task until it asks; returns whether it did."""
        self._go.release()
        self._back.acquire()
        return bool(self.asked)


def together(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """The results of tasks, whose questions are asked together, `AT_ONCE` tasks at a time."""
    if len(tasks) == 1:
        return [tasks[0]()]
    results: list[Any] = []
    for start in range(0, len(tasks), AT_ONCE):
        turns = [_Turn(task) for task in tasks[start : start + AT_ONCE]]
        try:
            _take(turns)
        except BaseException as error:  # an interruption: no thread may wait for ever
            for turn in turns:
                turn.end(error)
            raise
        for turn in turns:
            if turn.error is not None:
                raise turn.error
            results.append(turn.result)
    return results


def _take(turns: Sequence[_Turn[Any]]) -> None:
    """Run tasks in turns until all have ended."""
    for turn in turns:
        turn.start()
    waiting = [turn for turn in turns if turn.proceed()]
    while waiting:
        try:
            asked = [each for turn in waiting for each in turn.asked]
            answers: Any = iter(ask(asked, waiting[0].answer))
        except BaseException as error:  # every task ends with it
            answers = error
        for turn in waiting:
            failed = isinstance(answers, BaseException)
            turn.answers = answers if failed else [next(answers) for _ in turn.asked]
        waiting = [turn for turn in waiting if turn.proceed()]


@attrs.frozen(eq=False, repr=False)  # its text would quote records
class Pool:
    """The columns of all groups as one: each count is the sum of the counts of the groups.

    Guarantee:
        A unit is in at most `groups_per_unit` groups, with at most `contribution.records` records
        of each column: so many times more in the pool, which its own `contribution` says. A release
        from the pool, calibrated to it, and one from each group then cost together what the first
        costs, and so many times what one group costs.
    """

    columns: Sequence[Any]  # of all groups
    groups_per_unit: int = 1  # the largest number of groups that one unit is in

    @property
    def scale(self) -> Scale:
        """See `Column`; all groups have the same."""
        found: Scale = self.columns[0].scale
        return found

    @property
    def contribution(self) -> Contribution:
        """See `Column`."""
        own: Contribution = self.columns[0].contribution
        if self.groups_per_unit == 1:
            return own
        return attrs.evolve(own, per_unit=own.records * self.groups_per_unit)

    def second(self) -> "Pool":
        """The pool of the second columns of pairs."""
        return attrs.evolve(self, columns=[column.second for column in self.columns])

    def count(self) -> int:
        """See `Column`."""
        return sum(self._each(lambda column: column.count()))

    def counts_below(self, edges: FloatArray) -> IntArray:
        """See `Column`."""
        return np.asarray(sum(self._each(lambda column: column.counts_below(edges))))

    def half_octaves(self) -> tuple[IntArray, IntArray]:
        """See `Column`."""
        return self._added_up(lambda column: column.half_octaves())

    def frequencies(self, lattice: Lattice, within: int) -> tuple[IntArray, IntArray]:
        """See `Column`; every point of a group is read, since few records of each may be many."""
        return fullest(*self._added_up(lambda column: column.frequencies(lattice, 2**62)), within)

    def _each(self, read: Callable[[Column], Any]) -> list[Any]:
        """What is read of each group, by one query for all of them."""
        return together([functools.partial(read, column) for column in self.columns])

    def _added_up(
        self, read: Callable[[Column], tuple[IntArray, IntArray]]
    ) -> tuple[IntArray, IntArray]:
        """The places that hold records in any group, ascending, and how many each holds in all."""
        places, counts = zip(*self._each(read), strict=True)
        return added_up(np.concatenate(places), np.concatenate(counts))
