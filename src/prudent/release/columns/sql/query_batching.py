"""Tasks that take turns, so that what they ask can be answered together.

The order of the turns is that of the tasks, and one runs at a time: the same noise gives the same
answers. How often is asked depends on the tasks alone. Each task is a thread, since it may ask from
deep inside of code that knows nothing of others.
"""

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from typing_extensions import override

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
