"""Errors about data sources, with a fixed message when records cannot be read."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np

from prudent._validate import ArgumentError

UNREADABLE = (
    "The records could not be read. Check that the file or table is readable as a whole and does "
    "not change while it is read; details are withheld, since they may quote records."
)

P = ParamSpec("P")
T = TypeVar("T")


class SourceError(ValueError):
    """A table cannot be opened or read; the message says what to do and quotes no record."""


class SourceArgumentError(SourceError, ArgumentError):
    """An argument that names no table that can be opened; it quotes no record either."""


def withheld(act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function that reads records; if it fails, raise an error that reveals no record.

    The message of an unexpected exception, its type and its causes may all reveal a record: the
    size of a failed memory allocation may be a margin, and a value that could not be converted is a
    value. So every failure raises the same error, with the message `UNREADABLE`. It is raised
    outside the handler, so that not even `__context__` refers to the original exception.

    Args:
        act: The function to call.
        *arguments: Its positional arguments.
        **named: Its keyword arguments.

    Raises:
        SourceError: if it raises anything other than a missing module or an interruption; a
            SourceError that it raises itself is passed on.
    """
    try:
        with np.errstate(all="ignore"):  # a warning would reveal that some record is huge
            return act(*arguments, **named)
    except (ImportError, KeyboardInterrupt, SourceError, SystemExit):
        raise
    except BaseException:  # polars raises panics that are not an `Exception`
        pass
    raise SourceError(UNREADABLE)
