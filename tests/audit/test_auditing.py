"""Auditing a mechanism of one's own: outputs of any kind, a claim, and what comes back."""

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prudent
from prudent.audit import AuditResult, audit
from prudent.audit.auditing import MeasuredCurve, claimed_curve, fair_coins, judge
from prudent.audit.lower_bounds import described
from prudent.release import median
from prudent.release.noise import ReproducibleNoise
from prudent.release.outcome import Branch


class NoisyCount:
    """A count with Laplace noise of scale 1."""

    def __init__(self) -> None:
        self.draw = np.random.default_rng(7)

    def __call__(self, data: list[int]) -> float:
        return len(data) + float(self.draw.laplace(scale=1.0))


def test_an_exact_claim_stands_and_a_smaller_one_does_not() -> None:
    kept = audit(NoisyCount(), [1, 1, 1], [1, 1], seed=2, epsilon=1.0, runs=3000, confidence=0.999)
    assert 0.7 < kept.lower <= 1.0
    assert not kept.refuted
    broken = audit(
        NoisyCount(), [1, 1, 1], [1, 1], seed=2, epsilon=0.5, runs=3000, confidence=0.999
    )
    assert broken.refuted
    assert "is refuted" in broken.sentence
    assert "NoisyCount" in broken.lines()[0]


def test_a_refusal_is_an_output_too() -> None:
    """The branch alone gives the record away; the numbers say nothing."""
    draw = np.random.default_rng(1)

    def mechanism(data: list[int]) -> Any:
        if draw.random() < (0.9 if len(data) == 3 else 0.1):
            return prudent.Released(float(draw.normal()), Branch.ROBUST, 1.0, 0.0, None)
        return prudent.Refused("no", None)

    found = audit(mechanism, [1, 1, 1], [1, 1], seed=2, epsilon=1.0, runs=400)
    assert found.refuted
    assert 1.5 < found.lower < math.log(9)


@pytest.mark.unhurried
def test_an_outcome_of_a_release_is_an_output() -> None:
    noise = ReproducibleNoise(3)

    def mechanism(data: Any) -> Any:
        return median(data, propose=1.0, epsilon=1.0, delta=1e-6, noise=noise)

    more, fewer = np.array([0.0] * 15 + [1.0] * 15), np.array([0.0] * 14 + [1.0] * 15)
    found = audit(mechanism, more, fewer, seed=2, epsilon=1.0, delta=1e-6, runs=40)
    assert not found.refuted


def test_a_vector_is_looked_at_from_several_sides() -> None:
    draw = np.random.default_rng(1)

    def mechanism(data: list[int]) -> Any:
        shift = 2.0 if len(data) == 3 else 0.0
        return {"a": draw.normal(size=3), "b": (float(draw.normal()) + shift, "text")}

    found = audit(mechanism, [1, 1, 1], [1, 1], seed=2, epsilon=0.5, delta=1e-5, runs=1000)
    assert found.refuted


def test_a_score_of_ones_own_is_used_as_it_is() -> None:
    found = audit(NoisyCount(), [1, 1, 1], [1, 1], seed=2, epsilon=1.0, runs=500, score=lambda x: x)
    assert found.runs == 750  # a quarter chose the thresholds
    assert 0.3 < found.lower < 1.2


@pytest.mark.parametrize(
    ("argument", "value"),
    [("epsilon", 0.0), ("delta", 1.0), ("runs", 3), ("confidence", 1.0)],
)
def test_wrong_arguments_are_named_before_any_run(argument: str, value: float) -> None:
    options: dict[str, Any] = {"epsilon": 1.0, "runs": 10, argument: value}
    with pytest.raises(prudent.ArgumentError) as error:
        audit(lambda _: pytest.fail("a run was made"), [1], [], **options)
    assert error.value.argument == argument


@pytest.mark.parametrize(
    ("output", "kind", "numbers"),
    [
        (True, ("truth", True), ()),
        (None, ("NoneType", None), ()),
        ("a", ("str", "a"), ()),
        (3, "number", (3.0,)),
        (Decimal("0.5"), "number", (0.5,)),
        (-(10**400), ("number", "-inf"), ()),
        (math.nan, ("number", "nan"), ()),
        (dt.date(1970, 1, 2), "date", (719164.0,)),
        (dt.timedelta(minutes=1), "duration", (60.0,)),
        (np.arange(4).reshape(2, 2), ("array", (2, 2)), (0.0, 1.0, 2.0, 3.0)),
        ((1, "x"), ("number", ("str", "x")), (1.0,)),
        ([], (), ()),
    ],
    ids=lambda each: type(each).__name__,
)
def test_outputs_are_categories_and_numbers(output: Any, kind: Any, numbers: Any) -> None:
    assert described(output) == (kind, numbers)


def test_an_output_that_cannot_be_read_asks_for_a_score() -> None:
    with pytest.raises(prudent.ArgumentError, match="score="):
        described(object())


def result(**changes: Any) -> AuditResult:
    fields: dict[str, Any] = {
        "name": "count",
        "claimed": 1.0,
        "delta": 1e-6,
        "lower": 0.9,
        "confidence": 0.95,
        "runs": 100,
        "guesses": 80,
        "right": 58,
    }
    return AuditResult(**(fields | changes))


def test_a_result_says_what_it_found() -> None:
    found = json.loads(result().to_json())
    assert found["share"] == pytest.approx(0.9)
    assert {"claimed", "lower", "confidence", "share", "refuted"} <= set(found)
    assert "80 of 100 cases" in found["sentence"]
    assert "72.5%" in found["sentence"]  # 58 of 80
    assert "73.2%" in found["sentence"]  # e/(1 + e), rounded up
    assert not found["refuted"]
    assert "never learned enough" in result(guesses=0, right=0).sentence
    assert result(lower=1.01).refuted
    assert json.loads(result(lower=math.inf).to_json())["lower"] is None


@pytest.mark.unhurried
def test_the_curve_of_an_audit_is_drawn_beside_that_of_the_claim(tmp_path: Path) -> None:
    coins = fair_coins(500, seed=1)
    outputs = (coins + np.random.default_rng(1).laplace(size=1000)).tolist()
    found = judge(outputs, coins, name="mine", epsilon=1.0, delta=0.0, confidence=0.95)
    found.plot(tmp_path / "curve.svg")
    assert "claimed" in (tmp_path / "curve.svg").read_text()
    with pytest.raises(ValueError, match="trade-off curve"):
        result().plot(tmp_path / "none.png")


def test_the_curve_of_a_claim_is_that_of_its_two_inequalities() -> None:
    curve = claimed_curve([0.0, 0.25, 1.0], 1.0, 0.1)
    assert curve == pytest.approx([0.9, max(0.9 - math.e / 4, (0.9 - 0.25) / math.e), 0.0])


def test_the_measured_curve_covers_the_true_one() -> None:
    """Uniform scores that the record moves by half of their width: errors add up to 1/2."""
    missed = 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        present = draw.random(400) < 0.5
        curve = MeasuredCurve.of(present + draw.random(400) * 2, present, 0.9)
        alarms, misses = curve.false_positives, curve.false_negatives
        wide, high = curve.half_widths
        least = np.maximum(0.0, 0.5 - (alarms + wide)) - high
        # At a false-positive rate of 0 the curve is vertical.
        most = np.where(alarms <= wide, 1.0, np.maximum(0.0, 0.5 - (alarms - wide)) + high)
        assert np.all(np.diff(alarms) >= 0)
        missed += not bool(np.all((least <= misses) & (misses <= most)))
    assert missed <= 4
