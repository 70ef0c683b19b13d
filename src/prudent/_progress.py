"""Progress of a long computation: the library reports it, and a command line may show it.

Without an audience every call here is free and silent, so a library function reports what it does
without deciding whether, where or how that is shown.

A report holds the name of a part and counts of repetitions that the caller chose. An audience must
drop all counts while a command computes on private data (`prudent.cli.display.only_elapsed`).
"""

import contextlib
from collections.abc import Iterable, Iterator, Sized
from typing import Protocol, TypeVar

T = TypeVar("T")


class Audience(Protocol):
    """Whoever shows progress."""

    def begin(self, what: str, total: int | None) -> None:
        """A part begins; `total` repetitions of it follow, or an unknown number."""

    def advance(self, count: int) -> None:
        """That many repetitions of the last part that began are done."""

    def end(self) -> None:
        """The last part that began and has not ended is over."""


_audience: Audience | None = None


@contextlib.contextmanager
def shown_to(audience: Audience) -> Iterator[None]:
    """Report to an audience inside the block."""
    global _audience
    before, _audience = _audience, audience
    try:
        yield
    finally:
        _audience = before


@contextlib.contextmanager
def part(what: str, total: int | None = None) -> Iterator[None]:
    """Report that the block computes `what`."""
    audience = _audience
    if audience is None:
        yield
        return
    audience.begin(what, total)
    try:
        yield
    finally:
        audience.end()


def advance(count: int = 1) -> None:
    """Report that `count` repetitions of the innermost part are done."""
    if _audience is not None:
        _audience.advance(count)


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The items, one by one, with a report after each."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with part(what, total):
        for item in items:
            yield item
            advance()
