"""What to ask for is found on made-up data, and is what real data of that shape then give."""

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
import scipy.stats

from prudent.release import statistics, suggest
from prudent.release.suggestion import Believed


def test_a_median_without_a_proposal_is_expected_to_be_best() -> None:
    found = suggest("median", count=5_000, spread=100.0, epsilon=0.5, trials=10)
    assert found.best == "exponential"
    exponential = found.expected["exponential"]
    assert exponential.refused == 0
    tested = found.expected["propose-test-release"]
    assert tested.options["propose"] == found.proposal
    assert exponential.error < tested.error
    assert found.lines()[0] == "median at ε = 0.5: use exponential."


@pytest.mark.unhurried
def test_what_is_expected_is_what_happens() -> None:
    found = suggest("median", count=5_000, spread=100.0, centre=0.0, epsilon=0.5, trials=20)
    values = np.random.default_rng(9).normal(0.0, 100.0, 5_000)
    truth = np.sort(values)[2_499]
    errors = [abs(statistics.median(values, epsilon=0.5).value - truth) for _ in range(20)]
    assert 0.1 < np.median(errors) / found.expected["exponential"].error < 10


@pytest.mark.parametrize(
    "belief",
    [
        {"spread": 10.0},
        {"quantiles": {0.1: 3.0, 0.5: 10.0, 0.9: 40.0}},
        {"shape": scipy.stats.lognorm(1.0)},
    ],
)
@pytest.mark.parametrize("statistic", ["quantile", "mean", "iqr"])
def test_every_belief_will_do(statistic: str, belief: dict) -> None:
    found = suggest(statistic, p=0.25, count=2_000, epsilon=2.0, trials=4, **belief)
    assert found.best in ("exponential", "laplace")
    assert found.expected[found.best].error is not None


def test_too_few_records_for_any_proposal() -> None:
    found = suggest("median", count=20, spread=1.0, epsilon=0.1, trials=4)
    assert found.proposal is None
    assert list(found.expected) == ["exponential"]


def test_a_distribution_of_quantiles_has_those_quantiles() -> None:
    believed = Believed({0.1: 3.0, 0.5: 10.0, 0.9: 40.0})
    drawn = np.asarray(believed.rvs(20_000, np.random.default_rng(1)))
    np.testing.assert_allclose(np.quantile(drawn, [0.1, 0.5, 0.9]), [3, 10, 40], rtol=0.05)
    assert drawn.min() < 3
    assert drawn.max() > 40


@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        ({"statistic": "range"}, "statistic"),
        ({"count": 0}, "count"),
        ({"trials": 0}, "trials"),
        ({"spread": None}, "spread"),
        ({"quantiles": {0.1: 2.0, 0.9: 1.0}, "spread": None}, "quantiles"),
        ({"quantiles": {0.5: 2.0}, "spread": None}, "quantiles"),
        ({"quantiles": {0.1: 1.0, 0.9: 2.0}}, "spread"),
        ({"spread": -1.0}, "spread"),
    ],
)
def test_bad_input(wrong: dict, argument: str) -> None:
    given = {"statistic": "median", "count": 100, "spread": 1.0, "epsilon": 1.0, **wrong}
    with pytest.raises(ValueError, match=f"Expected {argument}"):
        suggest(**given)
