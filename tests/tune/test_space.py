"""Search spaces and numbers of candidates."""

from collections import Counter
from decimal import localcontext
from itertools import islice

import numpy as np
import pytest
from scipy import stats

from prudent.tune import Binomial, Geometric, NegativeBinomial, Poisson, Trial, TrialCount
from prudent.tune.candidate import draw_count, draw_setting, probabilities
from tests.accounting.test_repeated_selection import probabilities as exact_probabilities

COUNTS = [
    Geometric(4),
    NegativeBinomial(6, 0.0),
    NegativeBinomial(5, 0.5),
    Poisson(3),
    Binomial(6, 0.7),
    Binomial(5, 1.0),
]


@pytest.mark.parametrize("count", COUNTS)
def test_probabilities_are_those_of_the_laws(count: TrialCount) -> None:
    with localcontext() as context:
        context.prec = 60
        found = [float(mass) for mass in islice(probabilities(count), 30)]
    expected = exact_probabilities(count, 600)[:30]
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-300)


def p_value(draws: list[int], count: TrialCount) -> float:
    """Of the number of draws of each value, with rare values joined."""
    masses = np.array(exact_probabilities(count, 600))
    last = int(np.argmax(np.cumsum(masses) > 1 - 20 / len(draws)))
    expected = np.append(masses[:last], 1 - masses[:last].sum()) * len(draws)
    seen = Counter(min(draw, last) for draw in draws)
    kept = expected > 0
    observed = np.array([seen[k] for k in range(last + 1)])
    if observed[~kept].any():
        return 0.0
    return float(stats.chisquare(observed[kept], expected[kept]).pvalue)


@pytest.mark.usefixtures("same_draws")
@pytest.mark.parametrize("count", [Geometric(3), NegativeBinomial(3, 0.0), Poisson(3)])
def test_drawn_numbers_follow_the_law(count: TrialCount) -> None:
    draws = [draw_count(count) for _ in range(1200)]
    assert p_value(draws, count) > 1e-7
    assert p_value(draws, Geometric(4)) < 1e-7  # and the check rejects another law


def test_a_fixed_number_is_fixed() -> None:
    assert {draw_count(Binomial(5, 1.0)) for _ in range(20)} == {5}
    assert {draw_count(Geometric(1)) for _ in range(20)} == {1}


def space(trial: Trial) -> None:
    if trial.choice("kind", ["sgd", "adam"]) == "sgd":
        trial.float("momentum", 0.0, 0.9)
    trial.float("lr", 1e-3, 1.0, log=True)
    trial.int("layers", -1, 2)


@pytest.mark.usefixtures("same_draws")
def test_settings_lie_in_the_space() -> None:
    settings = [draw_setting(space) for _ in range(600)]
    assert {setting["kind"] for setting in settings} == {"sgd", "adam"}
    assert {setting["layers"] for setting in settings} == {-1, 0, 1, 2}
    assert all(("momentum" in setting) == (setting["kind"] == "sgd") for setting in settings)
    logs = np.log10([setting["lr"] for setting in settings])
    assert stats.kstest(logs, stats.uniform(-3, 3).cdf).pvalue > 1e-7
    assert stats.kstest(logs, stats.uniform(-3.5, 3.5).cdf).pvalue < 1e-7


def test_arguments_are_checked() -> None:
    trial = Trial()
    trial.float("lr", 0, 1)
    for call, name in [
        (lambda: trial.float("lr", 0, 1), "name"),
        (lambda: trial.float("x", 2, 1), "high"),
        (lambda: trial.float("x", 0, 1, log=True), "low"),
        (lambda: trial.int("x", 0.5, 1), "low"),  # type: ignore[arg-type]
        (lambda: trial.int("x", 3, 1), "high"),
        (lambda: trial.choice("x", []), "options"),
    ]:
        with pytest.raises(ValueError, match=name):
            call()
    assert list(trial.setting) == ["lr"]
