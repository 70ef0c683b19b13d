"""Which cases of a test are in the first tier, `make test`, and which in the second.

Of a test with several parameters `make test` runs each value of each of them in some case, and
`make test-thorough` the other combinations. No list says so, so a new test falls on the right side
by itself. So do the tests that ask a server or a browser, which few machines have.

A test of half a second is marked `unhurried`: `make test` runs its first case. One of several
seconds, where a quicker one covers the same promise, is marked `thorough`. `make quick` runs the
first case of what has no mark. Only processor seconds on a quiet machine decide:

    PRUDENT_TEST_TIMES=$PWD/build/times.txt make test; sort -rn build/times.txt | head -50
"""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st

BRIEF = 10
"""Examples of a property test in `make test`."""
OTHER_TIERS = frozenset(("peers", "site", "slow", "thorough", "tutorials"))
SERVERS = frozenset(("browser", "postgres_location", "postgres_url", "spark_session"))
"""Fixtures; what asks for one of them is in the second tier."""
SERVER_NAMES = frozenset(("postgres", "spark"))
"""Parameters of tests, by which a fixture may start one of them."""


def representatives(cases: Sequence[Sequence[str]]) -> set[int]:
    """Returns the positions of a few cases that have every value of every parameter among them.

    A case names its value of each parameter, in the same order as the others. In a full grid as
    many cases are chosen as the longest parameter has values: those on the diagonal, which are
    looked at first.
    """
    sides = [list(dict.fromkeys(values)) for values in zip(*cases, strict=True)]
    longest = max(map(len, sides), default=1)
    diagonal = {tuple(side[k % len(side)] for side in sides) for k in range(longest)}
    chosen: set[int] = set()
    covered: set[tuple[int, str]] = set()
    for position in sorted(range(len(cases)), key=lambda each: tuple(cases[each]) not in diagonal):
        values = set(enumerate(cases[position]))
        if not chosen or not values <= covered:
            chosen.add(position)
            covered |= values
    return chosen


CHARACTERS = st.characters(exclude_categories=["Cs"])
"""The characters of `st.text()`, which takes seconds to find out that these are UTF-8's."""


def examples(number: int, *, brief: int = BRIEF) -> settings:
    """Settings of a property with so many examples in CI, and at most `brief` in `make test`.

    Fewer than usual are for a property that asks an engine or prices a run in each of them.
    """
    usual = settings().max_examples
    return settings(max_examples=min(number, usual, brief) if usual <= BRIEF else number)
