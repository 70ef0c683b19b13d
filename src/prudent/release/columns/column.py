"""The `Column` protocol: the counts, sums and order statistics that margins are computed from.

Also the errors about data sources: one message where records cannot be read (`redact_errors`).

`columns.opening` opens one of values or of a table in any engine; any other object that implements
it can be released from as well. No method needs more than a window of the sorted column, so a
billion rows are never loaded or sorted in Python.

Columns that are asked at the same time are tasks that take turns, so that what they ask is answered
together. The order of the turns is that of the tasks, and one runs at a time: the same noise gives
the same answers. How often is asked depends on the tasks alone. Each task is a thread, since it may
ask from deep inside of code that knows nothing of others.
"""

import contextvars
import functools
import numbers
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    get_args,
    runtime_checkable,
)

import attrs
import numpy as np
from typing_extensions import override

from prudent import _extras, _validate
from prudent._validate import ArgumentError
from prudent.release.columns.scales import INTEGER, Scale
from prudent.release.lattice import FloatArray, IntArray, Lattice, added_up

UNREADABLE = (
    "The records could not be read. Check that the file or table is readable as a whole and does "
    "not change while it is read; details are withheld, since they may quote records."
)

_PACKAGES = frozenset({"duckdb", "ibis", "opendp", "pandas", "psycopg", "pyarrow"})

P = ParamSpec("P")
T = TypeVar("T")


class SourceError(ValueError):
    """A table cannot be opened or read; the message says what to do and quotes no record."""


class SourceArgumentError(SourceError, ArgumentError):
    """An argument that names no table that can be opened; it quotes no record either."""


def redact_errors(act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function that reads records; if it fails, raise an error that reveals no record.

    The message of an unexpected exception, its type and its causes may all reveal a record: the
    size of a failed memory allocation may be a margin, and a value that could not be converted is a
    value. So every failure raises the same error, with the message `UNREADABLE`. It is raised
    outside the handler, so that not even `__context__` refers to the original exception.

    Interruptions, and the absence of a package that `prudent` needs, say nothing about records and
    are passed on, but as new exceptions: the original ones may carry a text, or refer to the error
    of an engine that they interrupted.
    """
    try:
        with np.errstate(all="ignore"):  # a warning would reveal that some record is huge
            return act(*arguments, **named)
    except BaseException as error:  # polars raises panics that are not an `Exception`
        failure = _passed_on(error)
    raise failure


def _passed_on(error: BaseException) -> BaseException:
    """What an exception becomes outside: a new one, which refers to nothing."""
    if isinstance(error, KeyboardInterrupt):
        return KeyboardInterrupt()
    if isinstance(error, SystemExit):
        return SystemExit(error.code if isinstance(error.code, int) else 1)
    if isinstance(error, SourceError):
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    package = str(getattr(error, "name", "")).partition(".")[0]
    if isinstance(error, ImportError) and package in _PACKAGES:
        return _extras.MissingPackageError("A release", [package], _extras.holding(package)[:1])
    return SourceError(UNREADABLE)


PerUnit: TypeAlias = Literal["mean", "median", "min", "max", "sum", "count"] | int

_MOST_ROWS = 10**6
_WORDS = {
    "mean": "the mean of its values",
    "median": "the lower median of its values",
    "min": "the least of its values",
    "max": "the largest of its values",
    "sum": "the sum of its values",
    "count": "the number of its rows that have a value",
}


@attrs.frozen
class KeptGroups:
    """How many groups a unit counts in, and the secret by which they are chosen among its own."""

    most: int
    key: str = attrs.field(repr=False)


@attrs.frozen
class Contribution:
    """What one privacy unit contributes to a column: one value, or a fixed number of them.

    A person may have several rows. What they become is a function of that person's rows alone, so
    adding or removing a person adds or removes at most `Contribution.records` values. The means of
    dates, times, durations and decimals are whole units. Of a number k, k values are kept, evenly
    spaced in their order; all of them if there are at most k.

    Evenly spaced values represent a unit better than its k least values or its first k rows would,
    and unlike a random choice they are the same on every engine; but a unit with many rows still
    weighs as little as one with k.

    Attributes:
        unit: The column that identifies the unit; None if every row is its own unit.
        per_unit: The value of a unit, or its number of values.
        by: The column or columns with the group of a row; None without groups.
        first: Whether "min" and "max" are the first and the last in order, as for categories.
        once: Whether rows are counted, without a value, and each unit once.
        sets: Whether a unit contributes the set of its values, of which so many count.
        kept: How many groups a unit counts in; None: in the one that holds most of its rows.
    """

    unit: str | None = None
    per_unit: PerUnit = "mean"
    by: str | tuple[str, ...] | None = None
    first: bool = False
    once: bool = False
    sets: bool = False
    kept: KeptGroups | None = None

    @property
    def records(self) -> int:
        """The most values of one unit: a release costs as much as for so many records."""
        return self.per_unit if isinstance(self.per_unit, int) and self.unit is not None else 1

    @property
    def sentence(self) -> str:
        """What was done with the rows of one unit, for the answer."""
        if self.unit is None:
            return "Every row counts as one record of its own."
        if isinstance(self.per_unit, int):
            which = "different values" if self.sets else "values, evenly spaced in their order"
            what = f"at most {self.per_unit} of its {which}"
        elif self.once:
            what = "one record"
        elif self.first:
            what = f"the {'first' if self.per_unit == 'min' else 'last'} of its values in order"
        else:
            what = _WORDS[self.per_unit]
        by = self.by if isinstance(self.by, str) else ", ".join(self.by or ())
        where = f", in the group ({by}) with most of its rows" if by else ""
        if self.kept is not None:
            where = f" in each of at most {self.kept.most:,} groups ({by}), chosen at random"
        return f"Each {self.unit} counts with {what}{where}."

    def scale(self, of_rows: Scale) -> Scale:
        """The scale of the contributed values, from that of the rows."""
        counted = self.per_unit == "count" or (self.per_unit == "sum" and of_rows.truth)
        return INTEGER if counted and self.unit is not None else of_rows


def checked(
    unit: str | None,
    per_unit: PerUnit | None,
    *,
    by: str | tuple[str, ...] | None,
    scale: Scale | None,
) -> Contribution:
    """The contribution of a unit; `scale` is that of the rows, None for categories."""
    if per_unit is not None and unit is None:
        raise _validate.ArgumentError(
            "per_unit", "only with unit", got=per_unit, hint="Name the column of persons as unit."
        )
    categories = scale is None
    how = ("min" if categories else "mean") if per_unit is None else per_unit
    if isinstance(how, int) and not isinstance(how, bool):
        _validate.between(1, _MOST_ROWS, per_unit=how)
        return Contribution(unit, how, by)
    allowed = ("min", "max") if categories else tuple(_WORDS)
    if how not in allowed:
        raise _validate.ArgumentError(
            "per_unit", f"one of {', '.join(allowed)}, or a number of rows", got=how
        )
    if how == "sum" and scale is not None and scale.kind in ("date", "timestamp"):
        raise _validate.ArgumentError(
            "per_unit", "mean, median, min, max or count", got=how, why="dates have no sum"
        )
    return Contribution(unit, how, by, first=categories)


Kind = Literal["numbers", "categories", "truth", "rows", "sets"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""What a statistic needs: numbers (also dates, times, durations and booleans), categories,
booleans alone, rows whatever is in them, or the sets of categories of all units."""


class Leaders(NamedTuple):
    """The counts of the two most frequent categories, without the categories themselves."""

    most: int  # of the most frequent category; of several, the first in order
    runner_up: int  # of the next one; 0 if there is none
    runner_up_first: bool  # whether the runner-up comes before the most frequent one in order


@runtime_checkable
class Column(Protocol):
    """A column of records, one per privacy unit, accessed only through counts and ranks.

    Ranks are 1-based: rank 1 is the least value. Records without a value (NULL, NaN) are not part
    of the column: they are not counted and have no rank. Infinities are values at the ends.

    Values of every type are numbers here, in the unit that `scale` names: days for dates.
    """

    @property
    def scale(self) -> Scale:
        """The unit of the numbers, and how a released number becomes a value of its type."""
        ...

    @property
    def contribution(self) -> Contribution:
        """What one privacy unit contributes: `contribution.records` values at most."""
        ...

    def count(self) -> int:
        """The number of records."""
        ...

    def order_statistics(self, first: int, last: int) -> FloatArray:
        """The values of ranks first..last in ascending order; ranks outside 1..count are omitted.

        There is one entry per rank, so duplicates are repeated.
        """
        ...

    def counts_below(self, edges: FloatArray) -> IntArray:
        """The number of values < edge, for each of the edges, which are in ascending order."""
        ...

    def sum_between(self, first: int, last: int, lattice: Lattice) -> int:
        """The exact sum of the values of ranks first..last, each rounded to the lattice, in steps.

        Each value x is clipped to the ends of the lattice and contributes
        floor(clip(x)/spacing + 1/2). These are integers, so the order of summation does not matter.
        """
        ...

    def clipped_sum(self, low: float, high: float, lattice: Lattice) -> int:
        """The exact sum, in steps, of all values clipped to [low, high] and rounded to the lattice.

        One record changes it by at most max(|a|, |b|), where a and b are the ends in steps.
        """
        ...

    def clipped_squares(self, low: float, high: float, lattice: Lattice, origin: int = 0) -> int:
        """The exact sum of (s - origin)² over the same steps s as in `clipped_sum`."""
        ...

    def frequencies(self, lattice: Lattice, within: int) -> tuple[IntArray, IntArray]:
        """The fullest lattice points, in ascending steps, and the number of records at each.

        Args:
            lattice: The lattice that values are rounded to before they are counted.
            within: Points with at least this many records fewer than the fullest are omitted.
        """
        ...

    def half_octaves(self) -> tuple[IntArray, IntArray]:
        """The half-octaves that hold records, ascending, and how many each holds.

        They are numbered as by `lattice.half_octaves`.
        """
        ...

    def leaders(self) -> Leaders:
        """The counts of the two most frequent values, and which of them comes first in order."""
        ...

    def most_frequent(self) -> Any:
        """The most frequent value, the first in order among ties; None if there is no record.

        It is called only after the test has passed.
        """
        ...

    def counts_of(self, categories: Sequence[Hashable]) -> IntArray:
        """The number of records with each value of a public list."""
        ...

    def distinct(self) -> int:
        """The number of different values; of units, of which each is given at most so many.

        Adding or removing a unit changes it by at most `contribution.records`.
        """
        ...


def ranked(values: FloatArray, first: int, last: int) -> FloatArray:
    """The values of ranks first..last, in no order; ranks that no value has are omitted."""
    first, last = max(first, 1), min(last, len(values))
    if first > last or (first, last) == (1, len(values)):
        return values if first <= last else np.empty(0)
    return np.partition(values, [first - 1, last - 1])[first - 1 : last]


def fullest(points: IntArray, counts: IntArray, within: int) -> tuple[IntArray, IntArray]:
    """The points that hold nearly as many records as the fullest; see `Column.frequencies`."""
    kept = (counts > 0) & (counts > np.max(counts, initial=0) - within)
    return points[kept], counts[kept].astype(np.int64)


def in_order(category: Any) -> tuple[str, Any, str]:
    """Return a sort key for categories of mixed types; within a type it is the order of values.

    Numbers of different types are ordered by value, but True, 1 and 1.0 are distinct categories.
    """
    name = type(category).__name__
    if isinstance(category, tuple):  # of groups by several columns, each perhaps of mixed types
        return name, tuple(map(in_order, category)), ""
    return ("", category, name) if isinstance(category, numbers.Real) else (name, category, "")


AT_ONCE = 200
"""The most tasks that take turns, and columns that one query answers."""

Answer = Callable[[Sequence[Any]], list[Any]]

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
