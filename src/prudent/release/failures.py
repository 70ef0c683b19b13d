"""What is said when records cannot be read: one fixed sentence, whatever went wrong."""

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
    """A table that cannot be opened or read; the message says what to do and quotes no record."""


class SourceArgumentError(SourceError, ArgumentError):
    """An argument that names no table that can be opened; it quotes no record either."""


def withheld(act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Calls a function that reads records, and says no more than `UNREADABLE` if it fails.

    The words of an unexpected exception, its type, and the exceptions that it came from may all
    tell of a record: the memory that was asked for is a margin, the value that could not be
    converted is a value. So every failure looks the same. It is raised outside of the handler:
    not even `__context__` leads back to the first exception.

    Args:
        act: What to call.
        *arguments: Its arguments.
        **named: Its arguments by name.

    Raises:
        SourceError: if it raises anything but that, a missing module or an interruption.
    """
    try:
        with np.errstate(all="ignore"):  # a warning would tell that some record is huge
            return act(*arguments, **named)
    except (ImportError, KeyboardInterrupt, SourceError, SystemExit):
        raise
    except BaseException:  # the panics of polars are no `Exception`
        pass
    raise SourceError(UNREADABLE)
