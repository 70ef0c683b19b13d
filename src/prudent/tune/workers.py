"""Processes that run candidates side by side, and survive a candidate that ends its process."""

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import attrs

from prudent.tune.candidate import Run, attempt, fail
from prudent.tune.space import Setting

Job = tuple[int, Setting, Path]
"""The number, the setting and the folder of a candidate."""


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

    Args:
        run: Runs a candidate; picklable.
        jobs: The candidates.
        workers: The number of processes.
        ended: Called with the number of each candidate that has ended.

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
