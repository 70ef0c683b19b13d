"""What one candidate does, what is kept of it, and processes that run several side by side."""

import contextlib
import json
import math
import multiprocessing
import shutil
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent._files import replacing
from prudent._formats import reading
from prudent.accounting.events import DiscreteGaussianTest, DiscreteLaplaceTest, WorstOfDpEvent
from prudent.accounting.relations import ADD_REMOVE, Relation, check_relation
from prudent.tune.space import Setting

SCORE = "score.json"
"""The file with the score and the value of a candidate."""
Job = tuple[int, Setting, Path]
"""The number, the setting and the folder of a candidate."""


@attrs.frozen
class Scored:
    """The output of one candidate.

    Attributes:
        score: The larger, the better. NaN counts as the worst.
        value: Anything else that is released with it, made of numbers, strings, lists and
            dictionaries. Files belong into the candidate's folder.
    """

    score: float
    value: Any = None


Run: TypeAlias = Callable[[Setting, Path], Scored | float]
"""Runs one candidate, with its setting and a folder of its own; returns its score."""


@attrs.frozen
class Candidate:
    """A mechanism with a setting to choose.

    Attributes:
        run: Runs it. What it returns and what it writes to the folder is released if it is the
            best. After a kill it is called again with the same setting and folder.
        event: The privacy event of one run, **including its score**: a score computed from private
            records must be private itself, and its event is composed with that of the mechanism. A
            score computed from public records is post-processing and costs nothing. If settings
            change the event, this is a `WorstOfDpEvent` of all events that occur.
        relation: The neighbouring relation that the event is priced for.
        load: Makes the released value of the best candidate's setting and folder; None: the value
            that `run` returned.
        check: Raises an error for a setting whose run would not have the event. Called for all
            settings before anything is charged.
    """

    run: Run
    event: dp.DpEvent
    relation: Relation = ADD_REMOVE
    load: Callable[[Setting, Path], Any] | None = None
    check: Callable[[Setting], object] | None = None

    def __attrs_post_init__(self) -> None:
        _validate.function(run=self.run)
        _validate.instance(dp.DpEvent, "a DpEvent", event=self.event)
        check_relation(relation=self.relation)


ScoreNoise: TypeAlias = DiscreteLaplaceTest | DiscreteGaussianTest
"""The noise of a score, in records."""


def check_score_noise(**argument: Any) -> None:
    """Raise an error unless the noise of a score is drawn exactly; None is for public records."""
    ((name, noise),) = argument.items()
    if not isinstance(noise, ScoreNoise | None):
        raise _validate.ArgumentError(
            name,
            "DiscreteLaplaceTest(scale), DiscreteGaussianTest(scale), or None for public data",
            got=noise,
        )


def scored_event(
    events: Sequence[dp.DpEvent], noise: ScoreNoise | None, *, disjoint: bool
) -> dp.DpEvent:
    """The event of a candidate, the worst of some, and of its score; people may be in one alone."""
    made = events[0] if len(events) == 1 else WorstOfDpEvent(events)
    if noise is None:
        return made
    return WorstOfDpEvent([made, noise]) if disjoint else dp.ComposedDpEvent([made, noise])


def attempt(run: Run, setting: Setting, folder: Path) -> None:
    """Run a candidate and keep its score and value in its folder.

    A candidate that fails has the worst score, whatever the reason: one odd record must not end
    the search. An error may quote records, so nothing is kept of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    value = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they may tell of a candidate that is not released
            scored = run(setting, folder)
        score = float(scored.score if isinstance(scored, Scored) else scored)
        value = scored.value if isinstance(scored, Scored) else None
        json.dumps(value, allow_nan=True)
    except KeyboardInterrupt:  # whoever runs the search wants to stop it
        raise
    except BaseException:  # SystemExit, too
        fail(folder)
        return
    if math.isnan(score):
        score = -math.inf
    _keep(folder, score, value, failed=False)


def fail(folder: Path) -> None:
    """Give a candidate the worst score, and delete what it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    forget_files(folder)
    _keep(folder, -math.inf, None, failed=True)


def _keep(folder: Path, score: float, value: Any, *, failed: bool) -> None:
    with replacing(folder / SCORE, owner_only=True) as file:
        json.dump({"score": score, "value": value, "failed": failed}, file)


def outcome(folder: Path) -> dict[str, Any] | None:
    """The score, value and failure of a candidate; None if it has not ended."""
    return parsed(folder / SCORE, {"score": (int, float), "failed": bool})


def parsed(path: Path, kinds: Mapping[str, Any]) -> dict[str, Any] | None:
    """The entries of a file of a search, some of which have known kinds; None without the file."""
    try:
        with reading(path, "a file of a search"):
            entries = json.loads(path.read_text(encoding="utf-8"))
            if not all(isinstance(entries[name], kind) for name, kind in kinds.items()):
                raise TypeError
    except FileNotFoundError:
        return None
    return {"value": None, **entries}


def forget_files(folder: Path) -> None:
    """Delete what a candidate wrote, except its score: it will not be released."""
    for path in folder.iterdir():
        if path.name != SCORE:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@attrs.define
class _Worker:
    """A process, the parent's end of its pipe, and what it works on."""

    process: Any
    pipe: Connection
    job: Job | None = None


def side_by_side(
    run: Run, jobs: Iterable[Job], workers: int, ended: Callable[[int], object]
) -> None:
    """Run candidates in several processes; one whose process dies has the worst score.

    `run` is picklable; `ended` is called with the number of each candidate that has ended.

    Raises:
        RuntimeError: If a process dies before it has a candidate.
    """
    waiting, busy = deque(jobs), dict[Connection, _Worker]()
    with contextlib.ExitStack() as stack:

        def take(worker: _Worker | None) -> None:
            if waiting:
                worker = worker or stack.enter_context(_started(run))
                worker.job = waiting.popleft()
                worker.pipe.send(worker.job[1:])
                busy[worker.pipe] = worker

        for _ in range(min(workers, len(waiting))):
            take(None)
        while busy:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                worker: _Worker | None = busy.pop(pipe)
                assert worker is not None
                assert worker.job is not None
                number, _, folder = worker.job
                if not _answered(pipe):
                    fail(folder)
                    worker = None
                ended(number)
                take(worker)


@contextlib.contextmanager
def _started(run: Run) -> Iterator[_Worker]:
    context = multiprocessing.get_context("spawn")
    own, other = context.Pipe()
    process = context.Process(target=_serve, args=(run, other))
    process.start()
    other.close()  # else the death of the process would not end the pipe
    try:
        if not _answered(own):
            raise RuntimeError(
                "A process for candidates ended before it began. Check that the module that "
                "defines the candidate can be imported, or use one worker."
            )
        yield _Worker(process, own)
    finally:
        own.close()
        process.terminate()
        process.join()


def _answered(pipe: Connection) -> bool:
    """Wait for a word from a process; whether there was one before it died."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        return False
    return True


def _serve(run: Run, pipe: Connection) -> None:
    """Run candidates until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    with contextlib.suppress(EOFError, OSError):
        pipe.send(None)
        while True:
            setting, folder = pipe.recv()
            attempt(run, setting, folder)
            pipe.send(None)
