"""Progress of commands on a terminal: what is being computed, for how long, and how long it takes.

Every command is shown alike, from here. Where the number of repetitions is known, the line has a
bar and the time left; elsewhere it has the time so far. It appears on standard error after a
second, only if that is a terminal, and vanishes when anything is printed: pipes and files hold
nothing of it.

Guarantee: the line of a command that reads private data is computed from the clock alone. How fast
a computation advances, and so its time left, can depend on the number of records and on their
values; under `only_elapsed` counts are dropped before anything is computed from them. That a run
takes a while is seen by whoever waits for it, with or without this line.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO, cast

from prudent import _progress

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE = 1.0  # seconds without a line

_shown: "ProgressLine | None" = None


@contextlib.contextmanager
def shown(title: str, *, quiet: bool) -> Iterator[None]:
    """Show the progress of the block, if standard error is a terminal.

    The title stands there until a computation names a part.
    """
    global _shown
    stream = sys.stderr
    if quiet or not stream.isatty():
        yield
        return
    line = ProgressLine(title, stream)
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _Clearing(each, line)) for each in (out, err))
    _shown = line
    try:
        with line, _progress.shown_to(line):
            yield
    finally:
        sys.stdout, sys.stderr = out, err
        _shown = None


@contextlib.contextmanager
def only_elapsed() -> Iterator[None]:
    """Show the time so far and nothing else inside the block: it computes on private data."""
    if _shown is None:
        yield
        return
    _shown.begin("", None)
    _shown.concealed += 1
    try:
        yield
    finally:
        _shown.concealed -= 1
        _shown.end()


class ProgressLine:
    """One line of progress; the innermost part that has begun is shown."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self.concealed = 0
        self._stream = stream
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._parts: list[TaskID] = []
        self._bars = _bars(stream)
        self._visible = False
        self._changed = time.monotonic()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._begin(title, None)

    def begin(self, what: str, total: int | None) -> None:
        """See `prudent._progress.Audience`; a concealed part has no name and no count."""
        if self.concealed:
            what, total = "", None
        self._begin(what, total)

    def _begin(self, what: str, total: int | None) -> None:
        with self._lock:
            above = self._bars.tasks[-1].description if self._parts else ""
            if self._parts:
                self._bars.update(self._parts[-1], visible=False)
            self._parts.append(self._bars.add_task(what or above, total=total))

    def advance(self, count: int) -> None:
        """See `prudent._progress.Audience`."""
        if not self.concealed:
            with self._lock:
                self._bars.advance(self._parts[-1], count)

    def end(self) -> None:
        """See `prudent._progress.Audience`."""
        with self._lock:
            self._bars.remove_task(self._parts.pop())
            if self._parts:
                self._bars.update(self._parts[-1], visible=True)

    def clear(self) -> None:
        """Take the line away, before something else is printed."""
        with self._lock:
            self._changed = time.monotonic()
            if self._visible:
                self._bars.stop()
                self._visible = False

    def __enter__(self) -> "ProgressLine":
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._watcher.join()
        self.clear()

    def _watch(self) -> None:
        while not self._over.wait(_PATIENCE / 10):
            with self._lock:
                silent = time.monotonic() - self._changed
                if not self._visible and silent >= _PATIENCE:
                    self._bars.start()
                    self._visible = True


def _bars(stream: TextIO) -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    class Left(TimeRemainingColumn):
        """The time left, where it can be known."""

        def render(self, task: Any) -> Any:
            left = super().render(task)
            return left if task.total is None else left + " left"

    class Bar(BarColumn):
        """A bar, where the number of repetitions is known."""

        def render(self, task: Any) -> Any:
            return "" if task.total is None else super().render(task)

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        Bar(bar_width=20),
        TimeElapsedColumn(),
        Left(),
        console=Console(file=stream),
        transient=True,
        redirect_stdout=False,  # which would send the result where the line is
        redirect_stderr=False,
    )


class _Clearing:
    """A stream that takes the line of progress away before it writes."""

    def __init__(self, stream: TextIO, line: ProgressLine) -> None:
        self._inner = stream
        self._line = line

    def write(self, text: str) -> int:
        self._line.clear()
        return self._inner.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
