import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from prudent.cli import main


class Answer(NamedTuple):
    status: int
    out: str
    err: str


def prudent(*arguments: str) -> Answer:
    """Runs the command line in this process, as a shell would see it."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    return Answer(status, out.getvalue(), err.getvalue())


def leaves(command: Any, *before: str) -> Iterator[tuple[str, ...]]:
    """The words of every command that does something, but for the front door itself."""
    inner = getattr(command, "commands", {})
    if before and (not inner or command.invoke_without_command):
        yield before
    for name, each in inner.items():
        yield from leaves(each, *before, name)


@pytest.fixture(scope="session")
def run() -> Callable[..., Answer]:
    return prudent
