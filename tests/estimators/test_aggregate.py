"""The median or vote of what a function computes on disjoint parts."""

import itertools
import math
import random
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import prudent
from prudent import ArgumentError, PldAccountant
from prudent.accounting.events import ExponentialMechanismDpEvent
from prudent.estimators import aggregate, answers
from prudent.estimators.answers import needed_votes
from prudent.release.columns.column import ArrayColumn
from prudent.release.exponential.measure import DoubleMeasure
from prudent.release.exponential.quantile import NearTarget
from prudent.release.noise import ReproducibleNoise

NUMBERS = np.random.default_rng(0).normal(5.0, 2.0, 6000)


def noise(seed: int = 0) -> ReproducibleNoise:
    return ReproducibleNoise(seed)


def test_it_is_near_what_the_function_computes_from_all_records() -> None:
    found = prudent.aggregate(np.mean, NUMBERS, 1.0, noise=noise())
    assert abs(found.value - 5.0) < 0.3
    assert found.epsilon == 1.0
    assert found.event == ExponentialMechanismDpEvent(1.0)


def test_numbers_with_an_interval_and_a_certificate() -> None:
    found = aggregate(np.mean, NUMBERS, 2.0, confidence=0.95, certify=0.5, noise=noise())
    low, high = found.interval()
    assert low <= 5.0 <= high
    assert found.withstands > 10


def test_predictions_of_a_model_by_vote() -> None:
    x = np.linspace(-1, 1, 4000)[:, None]
    y = np.where(x[:, 0] > 0, "up", "down")
    asked = [-0.5, 0.5]

    def fit_one(part: Any) -> Any:
        features, label = part
        edge = features[label == "up"].min()
        return np.where(np.array(asked) >= edge, "up", "down")

    found = aggregate(
        fit_one, (x, y), 1.0, delta=1e-6, labels=["down", "up"], size=2, noise=noise()
    )
    assert found.value == ("down", "up")
    assert found.withstands > 5


@pytest.mark.parametrize(("size", "delta"), [(1, None), (8, None), (1, 1e-6), (30, 1e-6)])
@pytest.mark.parametrize("labels", [None, ["a", "b"]])
@pytest.mark.parametrize("more", [{}, {"confidence": 0.9, "certify": 1.0}])
def test_the_event_costs_what_is_asked_for(
    size: int, delta: float | None, labels: list[str] | None, more: dict[str, Any]
) -> None:
    if labels is not None:
        more = {}
    preview = aggregate(
        np.mean, NUMBERS, 0.8, delta=delta, size=size, labels=labels, dry_run=True, **more
    )
    accountant = PldAccountant()
    accountant.compose(preview.event)
    assert accountant.get_epsilon(delta or 0.0) <= 0.8 * (1 + 1e-9)
    assert accountant.get_epsilon(delta or 0.0) >= 0.8 * 0.97


VALUES = (1.0, 2.0, 3.0, None)  # None: a part that is absent


def neighbours(parts: tuple[Any, ...]) -> Any:
    for place, value in itertools.product(range(len(parts)), VALUES):
        yield (*parts[:place], value, *parts[place + 1 :])


def present(parts: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    return np.array([each for each in parts if each is not None])


def law(parts: tuple[Any, ...], quantile: Any) -> Any:
    """The weights of a few answers, up to a normaliser."""
    measure = DoubleMeasure()
    window = NearTarget.read(ArrayColumn(present(parts)), measure, Fraction(1, 2), quantile.reach)
    starts, weights = quantile.value_weights(window)
    answers = measure.indices(np.array([0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 9.0]))
    places = np.searchsorted(starts, answers, side="right") - 1
    return np.array([math.log(weights[place]) for place in places])


def widest(factor: float) -> float:
    """The longest range of log-ratios of two neighbours, relative to the ε that is charged."""
    found = 0.0
    quantile = answers._median(0.5, 0.0, 0.95)
    for parts in itertools.combinations_with_replacement(VALUES, 4):
        here = law(parts, quantile)
        for other in neighbours(parts):
            ratio = here - law(other, quantile)
            found = max(found, float(ratio.max() - ratio.min()))
    return found / (factor * quantile.value_epsilon)


def test_a_replaced_value_changes_the_law_by_the_range_that_is_charged() -> None:
    assert answers._event(answers._median(0.5, 0.0, 0.95), 1).epsilon == 1.0
    charged = widest(2)
    assert charged <= 1 + 1e-12
    assert charged > 0.99  # and by no less: a price without the factor of 2 would be too small


def test_the_distance_of_a_median_is_the_least_number_of_spoiled_parts() -> None:
    low, high = 1.5, 2.5

    def inside(parts: tuple[Any, ...]) -> bool:
        values = np.sort(present(parts))
        return bool(len(values)) and low <= values[-(-len(values) // 2) - 1] <= high

    for parts in itertools.product(VALUES, repeat=4):
        reached, least = {parts}, 0
        while all(map(inside, reached)):
            reached, least = {other for each in reached for other in neighbours(each)}, least + 1
        assert answers.median_distance(present(parts), low, high) == least


def test_the_distance_of_a_vote_is_the_least_number_of_spoiled_parts() -> None:
    labels = (0, 1, 2, None)

    def winner(votes: tuple[Any, ...]) -> int:
        return int(np.argmax([votes.count(label) for label in labels[:3]]))

    for votes in itertools.product(labels, repeat=3):
        first = winner(votes)
        reached, least = {votes}, 0
        while all(winner(each) == first for each in reached):
            reached = {
                (*each[:place], label, *each[place + 1 :])
                for each in reached
                for place, label in itertools.product(range(3), labels)
            }
            least += 1
        counts = np.array([[votes.count(label) for label in labels[:3]]])
        (found,) = needed_votes(counts, np.array([first]), 0)
        assert found == least


SECRET = "secret 918273"


def fails(part: Any) -> Any:
    warnings.warn(SECRET, stacklevel=1)
    raise SystemExit(SECRET)


@pytest.mark.parametrize(
    "fit_one",
    [fails, lambda p: float("nan"), lambda p: [1.0, 2.0], lambda p: "text", lambda p: None],
)
def test_a_part_that_fails_counts_as_absent_and_says_nothing(
    fit_one: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    for data in (NUMBERS, NUMBERS[:0]):
        found = aggregate(fit_one, data, 1.0, confidence=0.95, noise=noise())
        assert found.usual_interval is None
        voted = aggregate(fit_one, data, 1.0, labels=["a", "b"], noise=noise())
        assert voted.value in ("a", "b")
        assert voted.withstands == 0
        assert SECRET not in f"{found}{voted}"
    assert SECRET not in "".join(capfd.readouterr())


def test_random_numbers_of_a_part_are_its_own_and_those_of_others_are_kept() -> None:
    seen: list[Any] = []

    def fit_one(part: Any) -> float:
        np.random.random(len(part))  # noqa: NPY002 - so many that records of a part decide
        seen.append((len(part), np.random.random(), random.random()))  # noqa: NPY002
        return 1.0

    random.seed(3)
    before = random.getstate()
    aggregate(fit_one, list(range(100)), 1.0, parts=9, noise=noise())
    aggregate(fit_one, list(range(99)), 1.0, parts=9, noise=noise())
    assert random.getstate() == before
    assert sum(one != other for one, other in zip(seen[:9], seen[9:], strict=True)) == 1


def test_a_refused_charge_reads_nothing(tmp_path: Any) -> None:
    def fit_one(part: Any) -> float:
        raise AssertionError

    from prudent.release import OverBudgetError

    with prudent.Ledger(tmp_path / "ledger.db", epsilon=1.0, delta=1e-6) as ledger:
        with pytest.raises(OverBudgetError):
            aggregate(fit_one, NUMBERS, 2.0, ledger=ledger)
        aggregate(np.mean, NUMBERS, 0.7, ledger=ledger, noise=noise())
        (charge,) = ledger.history()
        assert charge.label == "aggregate"


def test_from_a_file(tmp_path: Any) -> None:
    import pandas as pd

    pd.DataFrame({"x": NUMBERS}).to_parquet(tmp_path / "x.parquet")
    found = aggregate(lambda part: part.x.mean(), tmp_path / "x.parquet", 1.0, noise=noise())
    assert abs(found.value - 5.0) < 0.3


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("epsilon", {"epsilon": None}),
        ("labels", {"labels": ["a"]}),
        ("labels", {"labels": ["a", "a"]}),
        ("certify", {"labels": ["a", "b"], "certify": 1.0}),
        ("parts", {"parts": 1}),
        ("size", {"size": 0}),
        ("confidence", {"confidence": 1.0}),
    ],
)
def test_arguments_are_checked(argument: str, given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=argument):
        aggregate(np.mean, NUMBERS, **{"epsilon": 1.0, **given})
