"""What an entry may do with hostile input: answer, or raise an error that the house chose to raise.

An error counts as chosen if a `raise` statement in prudent raised it, as a `ValueError` (of which
`ArgumentError` and most of our errors are), an `OSError` or one of the documented others. A
`TypeError` from inside numpy, an `int("x")` that nobody caught, a `RecursionError`, a run without
end: all of these are findings.
"""

import contextlib
import dis
import importlib.util
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType

import attrs

# Not imported here: a fuzzer instruments imports.
_FOUND = map(importlib.util.find_spec, ("prudent", "prudent_lab", "prudent_verify"))
HOMES = tuple(str(Path(str(each.origin)).parent) for each in _FOUND if each is not None)
SECONDS = 60
"""Longest time that one input may take; the longest honest one takes a fraction of it."""

_RAISE = dis.opmap["RAISE_VARARGS"]


class Hang(BaseException):
    """An input that did not come to an end; no `except Exception` swallows it."""


@attrs.frozen
class FindingError(AssertionError):
    """An input that an entry met with an error of its own, or with none at all."""

    target: str
    shown: str
    error: str

    def __str__(self) -> str:
        return f"{self.target} with {self.shown}:\n{self.error}"


@contextlib.contextmanager
def deadline(seconds: float = SECONDS) -> Iterator[None]:
    """Raise `Hang` in this thread when the time is over."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def is_chosen(error: BaseException) -> bool:
    """Whether a `raise` statement of prudent raised the error, of a kind that is documented."""
    if isinstance(error, OSError) and error.filename is not None:
        return True  # a file that cannot be opened, by its name
    return isinstance(error, _documented()) and _raised_here(error.__traceback__)


def _documented() -> tuple[type[BaseException], ...]:
    from dp_accounting import UnsupportedEventError

    from prudent.training.gradients.unsupported import UnsupportedLayerError

    return (ValueError, TypeError, OSError, UnsupportedEventError, UnsupportedLayerError)


def _raised_here(place: TracebackType | None) -> bool:
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:
        return False
    code = place.tb_frame.f_code
    return code.co_filename.startswith(HOMES) and code.co_code[place.tb_lasti] == _RAISE


def judge(target: str, shown: object, act: Callable[[], object]) -> BaseException | None:
    """Run one input and return the error it was refused with, if any.

    Raises:
        FindingError: If it neither answered nor was refused as it should be.
    """
    try:
        with deadline():
            act()
    except (KeyboardInterrupt, FindingError):
        raise
    except BaseException as error:
        if is_chosen(error):
            return error
        text = "".join(traceback.format_exception(error)[-12:])
    else:
        return None
    raise FindingError(target, repr(shown)[:2000], text)
