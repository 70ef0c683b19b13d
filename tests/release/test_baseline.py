"""The exponential mechanism: its law against its promise, and its place beside the others."""

import math
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.accounting import PldAccountant
from prudent.release.baseline import exponential_quantile, pure_event
from prudent.release.columns.column import ArrayColumn
from prudent.release.outcome import Branch

SAMPLE = np.random.default_rng(6).normal(100.0, 10.0, 5_000)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_it_is_near_the_truth(p: float) -> None:
    released = exponential_quantile(SAMPLE, p=p, epsilon=1.0, bounds=(0, 200))
    assert released.branch is Branch.SELECTED
    assert abs(released.value - np.quantile(SAMPLE, p)) < 5.0


def test_only_candidates_are_released() -> None:
    for _ in range(20):
        released = exponential_quantile([1.0, 2.0, 3.0], epsilon=0.1, candidates=[7, 8, 9, 7])
        assert released.value in (7.0, 8.0, 9.0)


def test_it_is_as_private_as_it_says_and_not_much_more() -> None:
    # Two data sets one record apart, two candidates: frequencies show the loss.
    draws = 600

    def share(data: list[float]) -> float:
        found = Counter(
            exponential_quantile(data, epsilon=2.0, candidates=[1.0, 2.0]).value
            for _ in range(draws)
        )
        return found[2.0] / draws

    one, other = share([1.0]), share([1.0, 2.0])  # a clear choice, and a tie
    error = 2.5 / math.sqrt(draws)  # five deviations at most
    assert other < math.exp(2.0) * one + error
    assert other > one + 0.05  # a record does show: the data are looked at


def test_its_event_dominates_pure_privacy() -> None:
    accountant = PldAccountant().compose(pure_event(0.7))
    assert accountant.get_epsilon(0.0) == pytest.approx(0.7, abs=2e-4)
    # Randomised response is the worst ε-DP mechanism: its δ at ε' < ε is known.
    likely = math.exp(0.7) / (1 + math.exp(0.7))
    expected = likely - math.exp(0.3) * (1 - likely)
    assert accountant.get_delta(0.3) == pytest.approx(expected, rel=1e-3)


def test_it_is_charged_before_data_are_read() -> None:
    class Spent:
        def charge(self, event: object, label: str = "", *, delta: float | None = None) -> None:
            raise OverflowError

    class Unreadable(ArrayColumn):
        def count(self) -> int:
            raise AssertionError("data were read before the ledger was charged")

    with pytest.raises(OverflowError):
        exponential_quantile(Unreadable(SAMPLE), epsilon=1.0, bounds=(0, 1), ledger=Spent())


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"bounds": (0, math.inf)},
        {"candidates": []},
        {"candidates": [math.nan]},
        {"candidates": [1.0], "p": 0},
        {"candidates": [1.0], "epsilon": 0},
    ],
)
def test_bad_input(wrong: dict) -> None:
    with pytest.raises(ValueError, match="Expected"):
        exponential_quantile([1.0], **{"epsilon": 1.0, **wrong})
