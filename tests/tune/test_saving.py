"""Files of what fits found: the same model again, and nothing that a file could smuggle in."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from prudent._formats import DamagedFileError
from prudent.estimators import (
    GaussianNB,
    GradientBoostingRegressor,
    KMeans,
    LinearRegression,
)
from prudent.release.noise import ReproducibleNoise
from prudent.tune import saving

DRAW = np.random.default_rng(3)
FEATURES = DRAW.normal(size=(3_000, 2))
TARGETS = FEATURES @ [2.0, -1.0] + DRAW.normal(size=3_000)


@pytest.mark.unhurried
@pytest.mark.parametrize(
    ("model", "targets"),
    [
        (LinearRegression(epsilon=3.0), TARGETS),
        (GradientBoostingRegressor(epsilon=3.0), TARGETS),
        (GaussianNB(epsilon=3.0, classes=["low", "high"]), np.where(TARGETS > 0, "high", "low")),
        (GaussianNB(epsilon=3.0), pd.to_datetime((TARGETS > 0).astype(int), unit="D").to_series()),
        (GaussianNB(epsilon=3.0), [1 if each else "a" for each in TARGETS > 0]),
        (KMeans(2, epsilon=3.0), None),
    ],
    ids=["regression", "trees", "classes", "times", "mixed", "clusters"],
)
def test_a_fit_that_is_read_predicts_the_same(model: Any, targets: Any, tmp_path: Path) -> None:
    model = model.set_params(noise=ReproducibleNoise(1)).fit(FEATURES, targets)
    saving.write(tmp_path / "fit.json", model)
    again = type(model)(**model.get_params(deep=False))
    saving.read(tmp_path / "fit.json", again)
    assert np.array_equal(again.predict(FEATURES[:50]), model.predict(FEATURES[:50]))
    assert again.event_ == model.event_


@pytest.mark.parametrize("name", ["ledger", "noise", "predict"])
def test_a_file_sets_neither_arguments_nor_methods(name: str, tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    path.write_text(json.dumps({"format": saving.FORMAT, "found": {name: 1}}))
    with pytest.raises(DamagedFileError):
        saving.read(path, LinearRegression(epsilon=1.0))
