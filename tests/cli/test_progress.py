"""The line of progress: on a terminal only, gone when something is printed, silent of the data."""

import contextlib
import io
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from prudent import _progress
from prudent.cli import display


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "_PATIENCE", 0.02)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


@contextlib.contextmanager
def shown() -> Iterator[Terminal]:
    """A command that runs, and the terminal that is its standard error."""
    stream = Terminal()
    with contextlib.redirect_stderr(stream):
        with display.progress_shown("prudent x", quiet=False):
            yield stream
        assert sys.stderr is stream


def wait_for(stream: Terminal, text: str) -> None:
    end = time.monotonic() + 20
    while text not in stream.getvalue():
        assert time.monotonic() < end, stream.getvalue()
        time.sleep(0.005)


def test_what_is_computed_and_the_time_left_are_shown() -> None:
    with shown() as terminal:
        wait_for(terminal, "prudent x")
        for number in _progress.track(range(3), "trials"):
            wait_for(terminal, f"trials  {number} of 3")
        assert "left" in terminal.getvalue()


def test_what_is_printed_takes_the_line_away_first(capsys: pytest.CaptureFixture[str]) -> None:
    with shown() as terminal:
        wait_for(terminal, "prudent x")
        print("the result")
        assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased
        sys.stderr.write("a note\n")
        wait_for(terminal, "a note\n\r\x1b[2Kprudent x")  # and comes back
    assert "the result" not in terminal.getvalue()
    assert capsys.readouterr().out == "the result\n"


@pytest.mark.parametrize("quiet", [True, False])
def test_nothing_is_shown_in_a_pipe_or_if_quiet(quiet: bool) -> None:
    stream = Terminal() if quiet else io.StringIO()
    with contextlib.redirect_stderr(stream), display.progress_shown("prudent x", quiet=quiet):
        for _ in _progress.track(range(3), "trials"):
            time.sleep(0.05)
        assert sys.stderr is stream
    assert stream.getvalue() == ""


def test_of_private_data_only_the_clock_is_shown() -> None:
    with shown() as terminal, display.only_elapsed():
        for _ in _progress.track(range(3), "records of Oslo"):
            time.sleep(0.05)
        wait_for(terminal, "prudent x")
    assert "Oslo" not in terminal.getvalue()
    assert "left" not in terminal.getvalue()
    assert " of 3" not in terminal.getvalue()


def fail_inside(terminal: Terminal) -> None:
    with _progress.part("outer", 2):
        _progress.advance()
        with _progress.part("inner"):
            wait_for(terminal, "inner")
            raise ValueError("odd")


def test_parts_may_be_nested_and_fail() -> None:
    with shown() as terminal:
        with pytest.raises(ValueError, match="odd"):
            fail_inside(terminal)
        terminal.truncate(0)
        wait_for(terminal, "prudent x")


def test_without_an_audience_nothing_happens() -> None:
    assert list(_progress.track(iter("abc"), "letters", 3)) == ["a", "b", "c"]
    _progress.advance()


def test_a_real_terminal() -> None:
    """Standard error on a terminal, standard output in a pipe: the result is whole."""
    script = (
        "import sys, time, typer, prudent.cli as cli\n"
        "from prudent.cli.commands import checks as module\n"
        "cli.display._PATIENCE = 0.02\n"
        "def doctor(): time.sleep(0.5); typer.echo('done')\n"
        "module.doctor = doctor\n"
        "sys.exit(cli.main(['doctor']))"
    )
    ours, theirs = pty.openpty()
    answer = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert (answer.returncode, answer.stdout) == (0, "done\n")
    assert "prudent doctor" in shown
