"""Errors about data sources, with a fixed message when records cannot be read."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np

from prudent import _extras
from prudent._validate import ArgumentError

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
