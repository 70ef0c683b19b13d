"""How many releases a budget holds, by four ways of counting.

    python -m benchmarks.budgets

`--write` puts the table into benchmarks/README.md. It takes a few minutes, most of them for the
exact compositions, and its numbers do not depend on the machine.
"""

import argparse
import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import dp_accounting as dp
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent.accounting import PldAccountant
from prudent.budget.filters import AdaptiveFilter
from prudent.budget.prices import pure_epsilon
from prudent.release.exponential.quantile import ExponentialQuantile
from prudent.release.ptr import ProposeTestReleaseMechanism

EPSILON, DELTA = 1.0, 1e-6
MOST = 4096
PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- budgets: begin -->", "<!-- budgets: end -->"

Release = tuple[dp.DpEvent, float | None]


def pure(epsilon: float) -> Release:
    return DiscreteLaplaceDpEvent(epsilon, 1), 0.0


def selected(epsilon: float) -> Release:
    return ExponentialQuantile("1/2", epsilon).event, 0.0


def median(epsilon: float, delta: float) -> Release:
    return ProposeTestReleaseMechanism.calibrate(
        propose=1.0, epsilon=epsilon, delta=delta
    ).event, delta


def careless(epsilon: float, delta: float) -> Release:
    """May reveal everything with (nearly) all of its δ rather than half of it."""
    failure = delta * (1 - 2**-19)
    return ProposeTestReleaseMechanism.calibrate(
        propose=1.0, epsilon=epsilon, delta=delta, failure=failure
    ).event, delta


ROWS: list[tuple[str, list[Release]]] = [
    ("Gaussian noise, multiplier 50", [(dp.GaussianDpEvent(50.0), None)]),
    ("Gaussian noise, multiplier 100", [(dp.GaussianDpEvent(100.0), None)]),
    ("Laplace noise, multiplier 20", [(dp.LaplaceDpEvent(20.0), None)]),
    ("Laplace noise, multiplier 100", [(dp.LaplaceDpEvent(100.0), None)]),
    ("any pure release, (0.1, 0)", [pure(0.1)]),
    ("any pure release, (0.02, 0)", [pure(0.02)]),
    ("median without a proposal, (0.1, 0)", [selected(0.1)]),
    ("median without a proposal, (0.02, 0)", [selected(0.02)]),
    ("median with a proposal, (0.2, 2·10⁻⁷)", [median(0.2, 2e-7)]),
    ("median with a proposal, (0.1, 10⁻⁷)", [median(0.1, 1e-7)]),
    ("median with a proposal, (0.02, 5·10⁻⁹)", [median(0.02, 5e-9)]),
    ("a release that may fail with all of its δ, (0.1, 10⁻⁷)", [careless(0.1, 1e-7)]),
    ("in turns: pure (0.1, 0), median (0.1, 10⁻⁷)", [pure(0.1), median(0.1, 1e-7)]),
    (
        "in turns: pure (0.02, 0), Gaussian noise 100 at δ = 10⁻⁸",
        [pure(0.02), (dp.GaussianDpEvent(100.0), 1e-8)],
    ),
    (
        "in turns: median (0.02, 5·10⁻⁹), Gaussian noise 100 at δ = 10⁻⁸",
        [median(0.02, 5e-9), (dp.GaussianDpEvent(100.0), 1e-8)],
    ),
    (
        "in turns: pure (0.02, 0), may fail with all of its δ (0.02, 10⁻⁷)",
        [pure(0.02), careless(0.02, 1e-7)],
    ),
]


def by_addition(releases: list[Release]) -> int:
    """As many as have ε and δ that add up to the budget, in decimal numbers."""
    if releases[0][1] is None and pure_epsilon(releases[0][0]) == float("inf"):
        return by_addition_of_equals(releases[0][0])
    prices = [decimal_price(*release) for release in releases]
    epsilon = delta = Fraction(0)
    for number, (more, beside) in enumerate(itertools.cycle(prices)):
        epsilon, delta = epsilon + more, delta + beside
        if epsilon > Fraction(str(EPSILON)) or delta > Fraction(str(DELTA)):
            return number
    raise AssertionError


def decimal_price(event: dp.DpEvent, delta: float | None) -> tuple[Fraction, Fraction]:
    """(ε, δ), ε rounded to six digits: what a release was calibrated for."""
    alone, beside = AdaptiveFilter(EPSILON, DELTA).alone(event, delta)
    return Fraction(f"{alone:.6g}"), Fraction(repr(beside))


def by_addition_of_equals(event: dp.DpEvent) -> int:
    """As many as fit if each takes an equal part of δ."""
    accountant = PldAccountant().compose(event)
    return most(lambda count: count * accountant.get_epsilon(DELTA / count) <= EPSILON)


def by_filter(filter_: AdaptiveFilter) -> Callable[[list[Release]], int]:
    def count(releases: list[Release]) -> int:
        state = filter_.opening()
        for number, release in enumerate(itertools.cycle(releases)):
            state = filter_.charged(state, *release)
            if not filter_.admits(state):
                return number
        raise AssertionError

    return count


def exactly(releases: list[Release]) -> int:
    """As many as fit if their list is fixed in advance."""

    def fits(count: int) -> bool:
        accountant = PldAccountant()
        for event, _ in itertools.islice(itertools.cycle(releases), count):
            accountant.compose(event)
        return accountant.get_epsilon(DELTA) <= EPSILON

    return most(fits)


def most(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, if all smaller ones do."""
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
        assert high <= MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


COLUMNS: dict[str, Callable[[list[Release]], int]] = {
    "addition": by_addition,
    "this filter": by_filter(AdaptiveFilter(EPSILON, DELTA)),
    "exact, fixed list": exactly,
}


def table() -> str:
    lines = [
        f"| releases | {' | '.join(COLUMNS)} |",
        f"|---|{'---|' * len(COLUMNS)}",
    ]
    for name, releases in ROWS:
        counts = [str(count(releases)) for count in COLUMNS.values()]
        lines.append(f"| {name} | {' | '.join(counts)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put it into benchmarks/README.md")
    arguments = parser.parse_args()
    found = table()
    if arguments.write:
        before, rest = PAGE.read_text().split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{found}\n{END}{after}")
