"""A ledger and a source of noise that remember what was asked of them."""

import contextlib
from typing import Any

from prudent.release.noise import Distribution

with contextlib.suppress(ImportError):  # now, before a test changes the sizes that it knows
    import prudent.release.questions.rehearsal  # noqa: F401


class Book:
    """A ledger that remembers every charge."""

    def __init__(self) -> None:
        self.charges: list[tuple[object, str, float | None]] = []

    def charge(self, event: object, label: str = "", *, delta: float | None = None) -> None:
        self.charges.append((event, label, delta))


class Silence:
    """Noise that is always zero, and remembers its laws and scales."""

    def __init__(self) -> None:
        self.drawn: list[tuple[Distribution, float, int]] = []

    def of_test(self, test: object) -> int:
        return 0

    def of_value(self, distribution: Distribution, scale: float, size: int) -> list[int]:
        self.drawn.append((distribution, scale, size))
        return [0] * size

    def integer(self, bound: int) -> int:
        return bound // 2


def queries_of(statistic: str, data: Any = None, column: Any = None, **given: Any) -> list[Any]:
    """What a dry run says that the engine will be asked: pairs of words and SQL."""
    from prudent.release import Ask, table

    whole = {
        name: given.pop(name)
        for name in ("epsilon", "delta", "unit", "by", "groups", "connect", "table", "ledger")
        if name in given
    }
    preview: Any = table(data, [Ask(statistic, column, **given)], **whole, dry_run=True)
    return [query.removeprefix("-- ").split("\n", 1) for query in preview.queries]
