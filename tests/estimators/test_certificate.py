"""Certificates of a regression: no table within the distance has its minimum farther away.

The theorem is tested without noise against minima that are found by brute force, with records
added and removed where they do the most harm.
"""

import numpy as np
import pytest
from scipy.optimize import minimize

from prudent.estimators import LinearRegression, QuantileRegressor
from prudent.estimators.certificate import Pull, rounding, withstood
from prudent.estimators.engine import LONGEST, on_grid
from prudent.estimators.features import StandardFeatures, Whitening
from prudent.release.noise import ReproducibleNoise


def minimum(rows: np.ndarray, targets: np.ndarray, weights: np.ndarray, limit: float) -> np.ndarray:
    """The minimum of weighted losses of Huber, by a general optimiser."""

    def loss(found: np.ndarray) -> tuple[float, np.ndarray]:
        errors = targets - rows @ found
        small = np.clip(errors, -limit, limit)
        return float(weights @ (small * errors - small**2 / 2)), -rows.T @ (weights * small)

    return minimize(loss, np.zeros(rows.shape[1]), jac=True, method="BFGS", tol=1e-12).x


def scene(seed: int) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Whitened rows and targets, with the reach and the limit."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(300, 2)) / np.sqrt(300)
    targets = rows @ [3.0, -2.0] + generator.normal(size=300) * 0.3
    return rows, targets, 0.08, 1.2


def theorem(
    rows: np.ndarray, targets: np.ndarray, reach: float, limit: float, radius: float
) -> tuple[int, np.ndarray]:
    """k of the theorem at the minimum itself, and that minimum."""
    weights = np.minimum(1, reach / np.linalg.norm(rows, axis=1))
    at = minimum(rows, targets, weights, limit)
    clipped = rows * weights[:, None]
    errors = targets - rows @ at
    safe = np.abs(errors) + radius * np.linalg.norm(rows, axis=1) <= limit
    least = np.linalg.eigvalsh(clipped[safe].T @ clipped[safe])[0]
    size = np.linalg.norm(clipped.T @ np.clip(errors, -limit, limit))
    pull = Pull(limit, limit, 1.0, lambda each: each)
    return withstood(least, size, radius, reach, pull), at


@pytest.mark.parametrize("seed", range(3))
def test_no_table_within_the_distance_moves_farther(seed: int) -> None:
    rows, targets, reach, limit = scene(seed)
    radius = 2.0
    records, at = theorem(rows, targets, reach, limit, radius)
    assert records >= 5
    for direction in np.array([[1.0, 0.0], [0.0, -1.0], [0.7, 0.7]]):
        # The longest row that still counts in full, with a target that is as far off as it likes.
        bad = np.tile(direction * reach, (records, 1))
        pulled = np.argsort(-(rows @ direction) * np.sign(targets - rows @ at))
        for kept, added in ((slice(None), bad), (pulled[records:], bad[:0])):
            new = np.concatenate([rows[kept], added])
            wild = np.concatenate([targets[kept], np.full(len(added), 1e6)])
            weights = np.minimum(1, reach / np.linalg.norm(new, axis=1))
            moved = minimum(new, wild, weights, limit)
            assert np.linalg.norm(moved - at) <= radius


def test_a_certificate_that_is_too_large_is_caught() -> None:
    """The test above would notice a number of records that is three times too large."""
    rows, targets, reach, limit = scene(0)
    records, at = theorem(rows, targets, reach, limit, 2.0)
    bad = np.tile([reach, 0.0], (3 * records, 1))
    new = np.concatenate([rows, bad])
    wild = np.concatenate([targets, np.full(len(bad), 1e6)])
    weights = np.minimum(1, reach / np.linalg.norm(new, axis=1))
    assert np.linalg.norm(minimum(new, wild, weights, limit) - at) > 2.0


@pytest.mark.unhurried
@pytest.mark.parametrize("model", [LinearRegression, QuantileRegressor])
def test_a_model_that_bad_records_spoiled_is_not_certified_against_them(model: type) -> None:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(4000, 1))
    targets = features[:, 0] + generator.normal(size=4000) * 0.1
    fitted = model(epsilon=20.0, certify=0.2, noise=ReproducibleNoise(1)).fit(features, targets)
    assert 100 < fitted.certificate_.records < 2000
    assert f"{fitted.certificate_.records:,} records" in str(fitted.certificate_)
    bad = 300
    features[:bad], targets[:bad] = 10.0, -1e9
    spoiled = model(epsilon=20.0, certify=0.2, noise=ReproducibleNoise(2)).fit(features, targets)
    far = abs(spoiled.coef_[0] - 1) > 0.2
    assert far == (model is LinearRegression)  # a median withstands what a mean does not
    assert not far or spoiled.certificate_.records < bad


def test_a_hopeless_certificate_is_zero() -> None:
    generator = np.random.default_rng(0)
    features = np.repeat(generator.normal(size=(500, 1)), 2, axis=1)  # no slope is determined
    targets = features[:, 0] + generator.normal(size=500)
    fitted = LinearRegression(epsilon=5.0, certify=0.1, noise=ReproducibleNoise(1))
    assert fitted.fit(features, targets).certificate_.records == 0


def test_rounding_hides_no_more_than_is_allowed_for() -> None:
    """Columns that are nearly alike: whitening lengthens what rounding has done to their rows."""
    generator = np.random.default_rng(0)
    rows = np.repeat(generator.normal(size=(20_000, 1)), 2, axis=1)
    rows[:, 1] += generator.normal(size=20_000) / 200
    features = StandardFeatures(np.zeros(2), np.ones(2))
    steps = features.steps(rows)
    exact = features.vectors(rows)
    values, vectors = np.linalg.eigh(exact.T @ exact)
    root, reach = vectors / np.sqrt(values + 0.5), 1.5 * np.sqrt(3 / 20_000)
    none = np.zeros(3)
    moment = exact.T @ exact
    whitening = Whitening(features, np.sqrt(3), moment, values, 0.5, 0.0, none, root, reach)
    weights = whitening.weights(steps)[:, None]
    true = exact * weights @ root
    released = on_grid(whitening.rows(steps), reach) * (reach / LONGEST)
    size = np.maximum(1, np.linalg.norm(true, axis=1, keepdims=True) / reach)
    hidden = released - true / size
    pulls = np.sign(hidden[:, 0])  # the targets that agree with what rounding did
    error = np.linalg.norm(hidden.T @ pulls) / reach
    assert error <= 20_000 * rounding(whitening)
    assert error > 20_000 * 5 * np.sqrt(3) / LONGEST  # half a step of clipped rows explains less
