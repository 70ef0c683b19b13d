"""Exact choices, private keys and whole scores: against formulas, and against broken versions."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ibis")
pytest.importorskip("sklearn")

from scipy.stats import norm

from prudent.estimators.engine import Prices, choices, sums
from prudent.release import ReproducibleNoise
from prudent.release.exponential.measure import rate
from prudent.release.exponential.quantile import ExponentialQuantile
from prudent.synth import engine as engines
from prudent.synth.columns import Domain, Field
from prudent.synth.engine import TableEngine
from prudent.synth.structure import SPREAD, Structure

PARTS = {"keys": sums(0.5, 99), "select": choices(0.5, 99)}


def engine_of(records: int = 1, mu: float = 1.0) -> TableEngine:
    prices = Prices(1.0, 1e-6, PARTS, mu, records=records)
    return TableEngine(prices, ReproducibleNoise(1), 1e-9)


@pytest.mark.parametrize("records", [1, 3])
def test_a_key_of_one_unit_is_named_with_the_probability_paid_for(records: int) -> None:
    engine = engine_of(records)
    least, threshold = engine.threshold("keys")
    most = least - 1 + records  # what a key that one unit brought in has at most
    chance = norm.sf((threshold - most) / engine.deviation("keys"))
    assert 1e-10 < chance <= 1e-9
    assert norm.sf((threshold - most - records) / engine.deviation("keys")) > 1e-9 or records == 1


def test_keys_with_few_records_are_not_looked_at() -> None:
    engine = engine_of()
    least, threshold = engine.threshold("keys")
    counts = np.array([least - 1, 10 * threshold, threshold // 2])
    assert list(engine.keys("keys", ["few", "many", "some"], counts)) == ["many"]


def weights_of(monkeypatch: pytest.MonkeyPatch, scores: list[int]) -> np.ndarray:
    seen: list[Any] = []
    monkeypatch.setattr(engines, "choose", lambda weights, noise: seen.append(weights) or 0)
    assert engine_of().best("select", scores, SPREAD) == 0  # what was drawn, whatever the scores
    (weights,) = seen
    total = sum(weights)
    return np.array([each / total for each in weights])


def test_a_choice_is_that_of_the_exponential_mechanism(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = [0, 3, -5, 7]
    epsilon = engine_of().prices.choice_epsilon("select")
    expected = np.exp(np.array(scores) * epsilon / SPREAD)
    assert weights_of(monkeypatch, scores) == pytest.approx(expected / expected.sum())


def test_one_record_changes_a_choice_by_no_more_than_is_paid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = [0, 3, -2]
    before, epsilon = weights_of(monkeypatch, scores), engine_of().prices.choice_epsilon("select")
    for moves in itertools.product((-2, 0, 2), repeat=3):
        moved = [each + move for each, move in zip(scores, moves, strict=True)]
        loss = np.log(weights_of(monkeypatch, moved) / before)
        assert loss.max() - loss.min() <= epsilon * (1 + 1e-12)


def test_edges_follow_from_answers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same noisy answers an outlier moves no edge, and every choice is paid for."""
    parts = {"spans": sums(0.5), "cuts": choices(0.5, 7)}
    release, counts = ExponentialQuantile.release, TableEngine.counts
    told: list[tuple[float, Any]] = []

    def edges(numbers: Any, again: Iterator[Any]) -> Any:
        engine = TableEngine(Prices(1.0, 1e-6, parts, 9.0), ReproducibleNoise(1), 1e-9)

        def released(self: ExponentialQuantile, column: Any, noise: Any) -> Any:
            assert self.epsilon == engine.prices.choice_epsilon("cuts")
            before = next(again, None)
            told.append(before or ((self.p, self.measure), release(self, column, noise)))
            assert told[-1][0] == (self.p, self.measure)
            return told[-1][1]

        def counted(self: TableEngine, name: str, exact: Any) -> Any:
            before = next(again, None)
            told.append(before or (name, counts(self, name, exact)))
            return told[-1][1]

        monkeypatch.setattr(ExponentialQuantile, "release", released)
        monkeypatch.setattr(TableEngine, "counts", counted)
        return engine.edges("spans", "cuts", *np.unique(numbers, return_counts=True), 3, 2)

    numbers = np.random.default_rng(5).normal(100.0, 15.0, 2000)
    one = edges(numbers, iter(()))
    asked = list(told)
    assert len(asked) == 1 + 2 + 7 + 2 * 2
    assert len(one) == 8 + 2 * 2 + 1
    for odd in (-1e18, 0.0, 100.0, 1e18):
        told.clear()
        assert edges(np.append(numbers, odd), iter(asked)).tolist() == one.tolist()
        assert len(told) == len(asked)


@pytest.mark.parametrize("records", [1, 3])
def test_noise_and_choices_are_those_of_all_rows_of_a_unit(
    records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, scales, speeds = engine_of(records), [], []
    honest = ReproducibleNoise.of_value

    def noted(self: Any, distribution: Any, scale: float, size: int) -> list[int]:
        scales.append(scale)
        return honest(self, distribution, scale, size)

    def slowed(epsilon: float, spread: Any) -> Any:
        speeds.append(epsilon)
        return rate(epsilon, spread)

    monkeypatch.setattr(ReproducibleNoise, "of_value", noted)
    monkeypatch.setattr(engines, "rate", slowed)
    engine.counts("keys", np.zeros(3, np.int64))
    engine.keys("keys", ["a"], np.array([10**6]))
    engine.best("select", [0, 1], SPREAD)
    of_one = engine_of().prices
    expected = records * of_one.multiplier("keys")
    assert all(expected <= each < expected * 1.001 for each in scales)
    assert speeds == [of_one.choice_epsilon("select") / records]


def cells_of(codes: Any, one: int, other: int) -> Any:
    """The cells of two columns that occur together, and how many records have them."""
    cells, counts = np.unique(np.stack([codes[one], codes[other]]), axis=1, return_counts=True)
    return *cells, counts


def test_one_record_moves_scores_within_their_spread() -> None:
    """A record in every cell in turn, for columns that are related and columns that are not."""
    draw = np.random.default_rng(3)
    field = Field("x", None, None)
    domains = [Domain(field, tuple("abc")), Domain(field, tuple("de")), Domain(field, ())]
    codes = [draw.integers(0, domain.size, 400) for domain in domains]
    codes[1][:200] = np.minimum(codes[0][:200], domains[1].size - 1)
    one = [np.full(domain.size, 400 / domain.size) for domain in domains]
    prices = Prices(1.0, 1e-6, {"tables": sums(0.5, 99), "select": choices(0.5, 99)}, 1.0)

    def scores(more: list[int]) -> dict[Any, int]:
        engine = TableEngine(prices, ReproducibleNoise(1), 1e-9)
        seen = [np.append(each, more[at : at + 1]).astype(int) for at, each in enumerate(codes)]
        made = Structure(
            domains, lambda asked: {pair: cells_of(seen, *pair) for pair in asked}, engine, one
        )
        return made._scores(made._independent)

    before, widest = scores([]), 0
    for cell in itertools.product(*(range(domain.size) for domain in domains)):
        after = scores(list(cell))
        moves = [after[key] - before[key] for key in before]
        assert min(moves) >= -3
        assert max(moves) <= 1
        widest = max(widest, max(moves) - min(moves))
    assert 2 <= widest <= SPREAD
