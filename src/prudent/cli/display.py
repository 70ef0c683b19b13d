"""What the command line prints, and where.

The result goes to standard output, as text or, with `--json`, as exactly one JSON document; notes
and errors go to standard error. `--quiet` leaves the result and errors.

Nothing from outside can move the cursor, hide text or fake a line: a value, a label, the name of a
column and the message of an engine come from whoever wrote the data, and terminals obey the control
characters in them, so they are printed as escapes.
"""

import codecs
import contextlib
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import typer

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


def neutral(text: object, *, keep: str = "") -> str:
    r"""The text with every character that is not printable as an escape: ESC becomes `\x1b`.

    That takes in line ends, characters that turn the direction of writing, and halves of
    surrogate pairs, which no stream can write.

    The characters in `keep` are left as they are.
    """
    return "".join(
        each if each.isprintable() or each in keep else repr(each)[1:-1] for each in str(text)
    )


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
