"""The engine of noisy sums: exact, of the stated sensitivity, and never asked more than was paid.

Sums are compared with exact ones in integers; sensitivities with all neighbours of small tables.
"""

import itertools
import math
from fractions import Fraction

import dp_accounting as dp
import numpy as np
import pytest

from prudent.accounting import ApproximateDpEvent, PldAccountant
from prudent.accounting.events import ExponentialMechanismDpEvent
from prudent.estimators import engine as engines
from prudent.estimators.engine import (
    LADDER,
    LONGEST,
    BudgetPart,
    Prices,
    SumEngine,
    calibrate,
    choices,
    on_grid,
    product,
    sums,
)
from prudent.estimators.rows import ArrayRows
from prudent.release.noise import Distribution, Noise, ReproducibleNoise


class Silent(ReproducibleNoise):
    """No noise on sums; notes the scale that was asked for."""

    def __init__(self) -> None:
        super().__init__(0)
        self.scales: list[float] = []

    def of_value(self, distribution: Distribution, scale: float, size: int) -> list[int]:
        assert distribution is Distribution.GAUSSIAN
        self.scales.append(scale)
        return [0] * size


PRICES = Prices(1.0, 1e-6, {"sum": sums(0.5, 100), "choice": choices(0.5, 100)}, 2.0)
ODD = [0.0, -0.0, 1.0, -1e-300, 1e300, -np.inf, np.inf, 3.7, 1e17]


def engine_of(rows: np.ndarray, noise: Noise | None = None) -> SumEngine:
    names = [f"x{place}" for place in range(rows.shape[1])]
    return SumEngine(ArrayRows.of(names, rows), PRICES, Silent() if noise is None else noise)


def clipped(rows: np.ndarray) -> np.ndarray:
    return np.clip(rows, -3.0, 3.0)


def test_sums_are_those_of_integers_whatever_the_order_and_the_batches(monkeypatch) -> None:
    rows = np.random.default_rng(0).normal(size=(1000, 3))
    whole = on_grid(clipped(rows), 2.0).astype(np.int64).astype(object)
    total = [float(Fraction(sum(column) * 2, LONGEST)) for column in whole.T]
    moment = [[float(Fraction(int(a @ b) * 4, LONGEST**2)) for b in whole.T] for a in whole.T]
    for size, order in itertools.product((1000, 7), (1, -1)):
        monkeypatch.setattr("prudent.estimators.rows._BATCH", size)
        asked = engine_of(rows[::order])
        assert asked.total("sum", clipped, 2.0).tolist() == total
        assert asked.second_moment("sum", clipped, 2.0).tolist() == moment
        both = asked.cross("sum", lambda part: (clipped(part), clipped(part)), (2.0, 2.0))
        assert both.tolist() == moment


def longest_change(ask, rows: np.ndarray, scales: np.ndarray | float = 1.0) -> float:
    """The largest change, over all neighbours, of an answer in units of its own noise."""
    whole = np.asarray(ask(engine_of(rows)))
    found = 0.0
    for place in range(len(rows)):
        fewer = np.asarray(ask(engine_of(np.delete(rows, place, axis=0))))
        found = max(found, float(np.linalg.norm((whole - fewer) / scales)))
    return found


def triangle(matrix: np.ndarray) -> np.ndarray:
    upper = np.triu(matrix)
    return np.where(np.eye(len(matrix), dtype=bool), upper, upper * math.sqrt(2))


def test_one_record_changes_a_sum_by_its_radius_at_most() -> None:
    rows = np.array(list(itertools.product(ODD, repeat=2)))
    kinds = {
        "total": lambda e: e.total("sum", lambda r: np.clip(r, -1e9, 1e9), 2.0) / 2,
        "moment": lambda e: triangle(e.second_moment("sum", clipped, 2.0)) / 4,
        "cross": lambda e: (
            e.cross("sum", lambda r: (clipped(r), clipped(r[:, :1])), (2.0, 1.0)) / 2
        ),
    }
    for ask in kinds.values():
        assert 0.99 < longest_change(ask, rows) <= 1 + 1e-12


def test_a_wrong_length_is_caught_by_the_neighbours(monkeypatch) -> None:
    """A fault that clips to twice the radius: the check of lengths and the test both notice."""
    rows = np.array([[3.0, 4.0], [0.5, 0.1]])

    def ask(asked: SumEngine) -> np.ndarray:
        return asked.total("sum", lambda part: part, 1.0)

    monkeypatch.setattr(engines, "lengths", lambda vectors: np.full(len(vectors), 0.5))
    assert longest_change(ask, rows) <= 1  # vectors that are too long count as zero
    monkeypatch.setattr(engines, "lengths_within", lambda whole, bound: np.full(len(whole), True))
    assert longest_change(ask, rows) > 1


def test_the_noise_is_the_multiplier_times_the_longest_vector() -> None:
    noise = Silent()
    asked = engine_of(np.ones((5, 2)), noise)
    asked.count("sum")
    asked.total("sum", clipped, 1.0)
    asked.second_moment("sum", clipped, 1.0)
    multiplier = PRICES.multiplier("sum")
    expected = [1, LONGEST, LONGEST**2, LONGEST**2 / math.sqrt(2)]
    assert noise.scales == pytest.approx([multiplier * each for each in expected], rel=1e-12)
    assert all(
        scale >= multiplier * each for scale, each in zip(noise.scales, expected, strict=True)
    )


def test_products_are_alike_wherever_a_row_lies() -> None:
    generator = np.random.default_rng(1)
    whole = on_grid(generator.normal(size=(101, 7)), 1.0)
    matrix = generator.normal(size=(7, 5)) * 1e-3
    found = product(whole, matrix, LONGEST)
    one_by_one = np.concatenate([product(row[None], matrix, LONGEST) for row in whole])
    assert (found == one_by_one).all()
    assert found == pytest.approx(whole @ matrix, rel=1e-6, abs=1e-6)
    assert (product(whole, np.zeros(7), LONGEST) == 0).all()


def ladder_weights(monkeypatch, rows: np.ndarray, p: float) -> list[int]:
    """The exact weights of the ladder, as the mechanism hands them to its draw."""
    seen: list[list[int]] = []

    def choose(weights: list[int], noise: Noise) -> int:
        seen.append(weights)
        return 0

    monkeypatch.setattr(engines, "choose", choose)
    engine_of(rows).length("choice", lambda part: np.abs(part[:, 0]), p)
    return seen[0]


@pytest.mark.parametrize("p", [0.5, 0.9, 0.123456])
def test_a_choice_on_the_ladder_has_its_bounded_range(monkeypatch, p: float) -> None:
    rows = np.array([[0.0], [1e-30], [1.0], [1.0], [5.0], [np.inf], [np.nan], [2.0**64]])
    epsilon = PRICES.choice_epsilon("choice")
    whole = np.array([math.log(w) for w in ladder_weights(monkeypatch, rows, p)])
    widest = 0.0
    for place in range(len(rows)):
        fewer = np.delete(rows, place, axis=0)
        other = np.array([math.log(w) for w in ladder_weights(monkeypatch, fewer, p)])
        ratios = whole - other
        widest = max(widest, float(ratios.max() - ratios.min()))
    assert 0.4 * epsilon < widest <= epsilon * (1 + 1e-9)


def test_a_choice_on_the_ladder_is_near_the_quantile() -> None:
    rows = np.random.default_rng(2).exponential(size=(20_000, 1))
    found = engine_of(rows, ReproducibleNoise(3)).length("choice", lambda part: part[:, 0], 0.9)
    assert found in LADDER
    assert found == pytest.approx(math.log(10), rel=0.12)


def test_nothing_is_answered_that_was_not_paid_for() -> None:
    asked = engine_of(np.ones((3, 1)))
    for _ in range(100):
        asked.count("sum")
    with pytest.raises(RuntimeError, match="not paid"):
        asked.count("sum")
    with pytest.raises(RuntimeError, match="not paid"):
        asked.count("choice")


PARTS = {"a": choices(0.3, 4), "b": sums(0.2, 3), "c": sums(0.5), "unused": sums(0.1, 0)}


def test_the_price_is_what_the_accountant_composes(exact_prices: None) -> None:
    prices = calibrate(1.0, 1e-6, PARTS)
    accountant = PldAccountant()
    accountant.compose(
        dp.ComposedDpEvent(
            [
                dp.SelfComposedDpEvent(ExponentialMechanismDpEvent(prices.choice_epsilon("a")), 4),
                dp.SelfComposedDpEvent(dp.GaussianDpEvent(prices.multiplier("b")), 3),
                dp.GaussianDpEvent(prices.multiplier("c")),
            ]
        )
    )
    spent = accountant.get_epsilon(1e-6)
    assert 0.999 < spent <= 1.0
    squares = 4 * (prices.choice_epsilon("a") / 2) ** 2 + 3 / prices.multiplier("b") ** 2
    assert squares + prices.multiplier("c") ** -2 == pytest.approx(prices.mu**2)
    assert "unused" not in prices.parts


@pytest.mark.thorough
def test_what_else_is_released_is_part_of_the_price(exact_prices: None) -> None:
    prices = calibrate(1.0, 1e-6, PARTS, (ApproximateDpEvent(0.1, 1e-7),))
    accountant = PldAccountant()
    accountant.compose(prices.event)
    assert 0.99 < accountant.get_epsilon(1e-6) <= 1.0
    assert prices.mu < calibrate(1.0, 1e-6, PARTS).mu


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-6), (1e-3, 1e-6), (51.0, 1e-6), (1.0, 0.0), (1.0, 0.6)]
)
def test_prices_have_limits(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="Expected"):
        calibrate(epsilon, delta, {"a": BudgetPart(1.0)})
