"""What the command line prints, and where.

The result goes to standard output, as text or, with `--json`, as exactly one JSON document; notes
and errors go to standard error. `--quiet` leaves the result and errors.

Control characters of values, labels, names and messages, which whoever wrote the data chose, are
printed as escapes: nothing from outside moves the cursor, hides text or fakes a line.

Progress is one line on standard error, which appears after a second, only if that is a terminal,
and vanishes when anything is printed. It has the time so far and, where the number of repetitions
is known, how many are done and the time left.

Guarantee: the line of a command that reads private data is computed from the clock alone. How fast
a computation advances can depend on the number of records and on their values; under `only_elapsed`
counts are dropped before anything is computed from them.
"""

import codecs
import contextlib
import datetime
import json
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO, cast

import attrs
import typer

from prudent import _progress
from prudent._validate import neutral as neutral

if TYPE_CHECKING:
    from rich.text import Text


@attrs.define
class OutputMode:
    """How a command answers."""

    json: bool = False  # whether its result is one JSON document
    quiet: bool = False  # whether it prints only that, and errors
    answered: bool = False  # whether the document is out

    @classmethod
    def asked(cls, arguments: Sequence[str]) -> "OutputMode":
        """What a command line asks for, also one that has an error in it."""
        return cls("--json" in arguments, bool({"--quiet", "-q"} & set(arguments)))


_mode = OutputMode()

_IN_ASCII = str.maketrans(
    {"ε": "epsilon", "δ": "delta", "σ": "sigma", "τ": "tau", "μ": "mu", "α": "alpha", "²": "^2"}
    | {"≤": "<=", "≥": ">=", "×": "x", "±": "+-", "·": "*", "√": "sqrt", "∞": "inf", "₀": "0"}
    | {"–": "-", "−": "-", "…": "...", "✓": "+", "✗": "x", "█": "#", "½": "1/2", "→": "->"}
)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """What an encoding has no bytes for, in ASCII: a word, a sign, or else an escape."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(_IN_ASCII)
    return text.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error("prudent-in-ascii", _in_ascii)


def write_everywhere() -> None:
    """Let no answer, which is paid for, fail on a terminal or pipe that is not in Unicode."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="prudent-in-ascii")


def output_mode() -> OutputMode:
    """How the command that runs answers."""
    return _mode


@contextlib.contextmanager
def answering(asked: OutputMode) -> Iterator[None]:
    """Answer in this mode inside the block."""
    global _mode
    before, _mode = _mode, asked
    try:
        yield
    finally:
        _mode = before


def as_text(text: object) -> "Text":
    """The text for a console of rich, which would take `[red]` in it for a colour."""
    from rich.text import Text

    return Text(neutral(text))


def echo(text: object, *, err: bool = False) -> None:
    """Prints lines that may hold texts from outside."""
    typer.echo(neutral(text, keep="\n"), err=err)


def note(message: object) -> None:
    """Prints one line on standard error that is no part of the result; nothing if quiet."""
    if not _mode.quiet:
        complain(message)


def remark(text: object) -> None:
    """Prints lines that explain the result below it; nothing if quiet."""
    if not _mode.quiet:
        echo(text)


def show_files(paths: Sequence[object], *, as_json: bool) -> None:
    """Prints the files that a command wrote, where they are its result."""
    if as_json:
        echo_json({"files": [str(path) for path in paths]})
    else:
        for path in paths:
            echo(neutral(path))


def show_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    words: int = 1,
    lines: bool = True,
) -> None:
    """Prints a table; the first columns hold words, the others numbers, which end alike."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, box=box.HEAVY_HEAD if lines else None, pad_edge=lines)
    for place, name in enumerate(header):
        table.add_column(name, justify="left" if place < words or not name else "right")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


def shows_progress() -> bool:
    """Whether a library function with a display of its own may show it."""
    return sys.stderr.isatty() and not (_mode.quiet or _mode.json)


def echo_json(document: Any) -> None:
    """Prints the result as one line of JSON, every number in full.

    JSON has no infinity and no NaN: both are null, and the document says why.
    """
    _mode.answered = True
    typer.echo(json.dumps(_finite(document), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def complain(message: object) -> None:
    """Prints a message on standard error, as one line."""
    typer.echo(neutral(" ".join(str(message).split())), err=True)


_PATIENCE = 1.0  # seconds without a line

_progress_line: "ProgressLine | None" = None


@contextlib.contextmanager
def progress_shown(title: str, *, quiet: bool) -> Iterator[None]:
    """Show the progress of the block; the title stands there until a computation names a part."""
    global _progress_line
    stream = sys.stderr
    plain = os.environ.get("TERM") in ("dumb", "unknown") or os.environ.get("TTY_COMPATIBLE") == "0"
    if quiet or plain or not stream.isatty():
        yield
        return
    line = ProgressLine(title, stream)
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _Clearing(each, line)) for each in (out, err))
    _progress_line = line
    try:
        with line, _progress.shown_to(line):
            yield
    finally:
        sys.stdout, sys.stderr = out, err
        _progress_line = None


@contextlib.contextmanager
def only_elapsed() -> Iterator[None]:
    """Show the time so far and nothing else inside the block: it computes on private data."""
    if _progress_line is None:
        yield
        return
    _progress_line.begin("", None)
    _progress_line.concealed += 1
    try:
        yield
    finally:
        _progress_line.concealed -= 1
        _progress_line.end()


@attrs.define
class _Part:
    """What is being computed."""

    what: str
    total: int | None  # of repetitions, if known
    done: int = 0
    since: float = attrs.Factory(time.monotonic)

    def __str__(self) -> str:
        elapsed = time.monotonic() - self.since
        parts = [neutral(self.what), _clock(elapsed)]
        if self.total is not None:
            parts.insert(1, f"{self.done:,} of {self.total:,}")
            if self.done:
                parts.append(f"{_clock(elapsed * (self.total - self.done) / self.done)} left")
        return "  ".join(parts)


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


class ProgressLine:
    """One line of progress; the innermost part that has begun is shown."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self.concealed = 0
        self._stream = stream
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._parts = [_Part(title, None)]
        self._visible = False
        self._changed = time.monotonic()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def begin(self, what: str, total: int | None) -> None:
        """See `prudent._progress.Audience`; a concealed part has no name and no count."""
        if self.concealed:
            what, total = "", None
        with self._lock:
            self._parts.append(_Part(what or self._parts[-1].what, total))

    def advance(self, count: int) -> None:
        """See `prudent._progress.Audience`."""
        if not self.concealed:
            with self._lock:
                self._parts[-1].done += count

    def end(self) -> None:
        """See `prudent._progress.Audience`."""
        with self._lock:
            self._parts.pop()

    def clear(self) -> None:
        """Take the line away, before something else is printed."""
        with self._lock:
            self._changed = time.monotonic()
            if self._visible:
                self._write("")
                self._visible = False

    def __enter__(self) -> None:
        self._watcher.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._watcher.join()
        self.clear()

    def _watch(self) -> None:
        while not self._over.wait(_PATIENCE / 4):
            with self._lock:
                if time.monotonic() - self._changed >= _PATIENCE:
                    self._write(str(self._parts[-1]))
                    self._visible = True

    def _write(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[2K{text[:width]}")
        self._stream.flush()


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
