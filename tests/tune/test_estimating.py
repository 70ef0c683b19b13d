"""A private search over settings of an estimator: its price, its best, and what it charges."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone

import prudent
from prudent import ArgumentError, DiscreteLaplaceTest
from prudent.accounting.events import WorstOfDpEvent
from prudent.estimators import GaussianNB, GradientBoostingClassifier, GradientBoostingRegressor
from prudent.release.noise import ReproducibleNoise
from prudent.tune import Geometric, Poisson, price, search
from prudent.tune.fitting import event_of
from tests.estimators.models.fitting import data
from tests.release.recording import Book

# The records of these tests are public.
pytestmark = pytest.mark.filterwarnings("ignore::prudent.PrivacyWarning")

FEW = Poisson(2)


def parts(name: str, count: int = 1200) -> dict[str, Any]:
    x, y = data(name, count)
    return {"data": (x[200:], y[200:]), "held_out": (x[:200], y[:200])}


@pytest.mark.thorough
def test_the_best_setting_is_released_with_its_fitted_model(tmp_path: Path) -> None:
    model = GaussianNB(epsilon=3.0, noise=ReproducibleNoise(1), ledger=object())
    with prudent.Ledger(tmp_path / "budget.db", epsilon=50.0, delta=1e-4) as ledger:
        best = search(
            model,
            {"classes": [[0, 1], [5, 6]]},  # no record has the latter
            trials=Geometric(6),
            delta=1e-5,
            score_noise=DiscreteLaplaceTest(2.0),
            ledger=ledger,
            **parts("GaussianNB"),
        )
        assert len(ledger.history()) == 1
    if best.setting == {"classes": [0, 1]}:
        assert best.score > 150
        assert best.value.score(*parts("GaussianNB")["held_out"]) > 0.8
    assert best.epsilon > best.candidate_epsilon > 3.0


@pytest.mark.thorough
def test_a_grid_costs_as_much_as_its_worst_setting() -> None:
    models = [GradientBoostingClassifier(epsilon=1.0, n_estimators=count) for count in (2, 4)]
    data = parts("GradientBoostingClassifier", 300)["data"]
    events = [event_of(each, *data) for each in models]
    best = search(
        models[0],
        {"n_estimators": [2, 4]},
        trials=FEW,
        delta=1e-5,
        score_noise=DiscreteLaplaceTest(5.0),
        disjoint=True,
        **parts("GradientBoostingClassifier", 300),
    )
    whole = WorstOfDpEvent([WorstOfDpEvent(events), DiscreteLaplaceTest(5.0)])
    # The same parts, composed in another order, round otherwise.
    assert best.epsilon == pytest.approx(price(whole, FEW, 1e-5), rel=1e-9)


BOUNDED = GaussianNB(epsilon=1.0, classes=[0, 1], bounds={0: (-3, 3), 2: (2, 4)})


def test_a_search_is_priced_by_the_event_of_its_fits() -> None:
    """Also where bounds replace quantiles."""
    given = parts("GaussianNB", 300)
    best = search(
        BOUNDED,
        {"epsilon": [30.0]},
        trials=FEW,
        delta=1e-5,
        score_noise=None,
        **given,
    )
    fitted = clone(BOUNDED).set_params(epsilon=30.0).fit(*given["data"])
    assert best.event == FEW.event(fitted.event_)


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("score_noise", {"score_noise": 3.0}),
        ("tolerance", {"tolerance": -1.0}),
        ("grid", {"grid": {"n_estimators": []}}),
        ("data", {"data": (None, "y ~ x + C(z)")}),  # the choice of levels would not be paid for
        ("held_out", {"held_out": (np.ones((9, 2)), np.ones(9))}),  # another number of columns
        ("y", {"held_out": (np.ones((9, 3)), np.ones(8))}),
    ],
)
def test_arguments_are_checked(argument: str, given: dict[str, Any]) -> None:
    usual = {"grid": {"n_estimators": [2]}, "trials": FEW, "delta": 1e-5, "score_noise": None}
    with pytest.raises(ArgumentError, match=argument):
        search(GradientBoostingRegressor(), **{**usual, **parts("Regressor", 250), **given})


def test_a_setting_that_no_file_keeps_is_refused_before_a_charge() -> None:
    given = {"trials": FEW, "delta": 1e-5, "score_noise": None, "ledger": Book()}
    with pytest.raises(ArgumentError, match="did you mean 'x0'"):  # 0 is read as "0"
        search(GaussianNB(), {"bounds": [{0: (-1, 1)}]}, **given, **parts("GaussianNB", 300))
    assert not given["ledger"].charges


def test_a_grid_may_be_an_array() -> None:
    model, given = GaussianNB(epsilon=3.0), parts("GaussianNB", 300)
    grid = {"classes": [np.array([0, 1])], "epsilon": np.arange(3, 4)}
    assert search(model, grid, trials=FEW, delta=1e-5, score_noise=None, **given).epsilon > 3


@pytest.mark.parametrize("tolerance", [None, 0.1])
@pytest.mark.parametrize(
    "targets",
    [
        np.array([[1], [0], [1]]),
        pd.DataFrame({"a": [1, 0, 1]}),
        pd.Series([1.0, None, 1.0]),
        pa.chunked_array([[1, 0], [1]]),
    ],
    ids=["column", "frame", "gap", "arrow"],
)
@pytest.mark.filterwarnings("ignore:A column-vector")
def test_targets_are_compared_from_every_container(targets: Any, tolerance: float | None) -> None:
    from prudent.tune.fitting import _Fit

    class Model:
        def predict(self, rows: Any) -> Any:
            return np.ones(1)

    score = _Fit(None, (None, None), (np.ones((3, 1)), targets), None, tolerance)
    assert score._right(Model()) == 2


def test_numbers_are_right_within_a_tolerance() -> None:
    from prudent.tune.fitting import _Fit

    class Model:
        def predict(self, rows: Any) -> Any:
            if rows[0, 0] > 5:
                raise ValueError
            return rows[:, 0]

    x = np.array([[1.0], [2.0], [3.0], [9.0]])
    score = _Fit(None, (None, None), (x, np.array([1.0, 2.4, 4.0, 9.0])), None, 0.5)
    assert score._right(Model()) == 2
