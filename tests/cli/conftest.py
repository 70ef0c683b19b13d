import contextlib
import io
from collections.abc import Callable
from typing import NamedTuple

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


@pytest.fixture(scope="session")
def run() -> Callable[..., Answer]:
    return prudent
