import math

import numpy as np
import pytest

from prudent_lab.paper.convergence import CorruptedDescent
from prudent_lab.paper.theorems import ConditionError
from tests.raising import refused

PLAIN = {
    "oracles": 20,
    "corrupted": 3,
    "strong_convexity": 0.5,
    "smoothness": 1.0,
    "gradient_bound": 2.0,
    "gradient_deviation": 0.4,
    "dimension": 3,
    "sum_noise": 0.6,
    "trimmed_noise": 0.3,
    "learning_rate": 0.01,
}


def simulate(rng, start, honest, attack, problem, *, routine, radius, steps, average):
    """Mean squared distance to the optimum 0 of projected descent, over the last steps.

    `start` has shape (repetitions, dimension); `honest(w)` draws the honest gradients and
    `attack(w, honest gradients)` gives one corrupted gradient, repeated by all corrupted oracles.
    `routine(norms)` says which repetitions take the trimmed sum.
    """
    n, f, rate = problem["oracles"], problem["corrupted"], problem["learning_rate"]
    bound = problem["gradient_bound"]
    w, distances = start.copy(), []
    for step in range(steps):
        good = honest(w)
        bad = np.repeat(attack(w, good)[:, None], f, axis=1)
        gradients = np.concatenate([good, bad], axis=1)
        norms = np.linalg.norm(gradients, axis=2)
        gradients = gradients * np.minimum(1, bound / np.maximum(norms, 1e-300))[:, :, None]
        norms = np.minimum(norms, bound)
        keep = np.ones(norms.shape)
        np.put_along_axis(keep, np.argsort(norms, axis=1)[:, n - f :], 0.0, axis=1)
        trimmed = routine(norms)[:, None]
        total = np.where(trimmed, np.einsum("rnd,rn->rd", gradients, keep), gradients.sum(axis=1))
        noise = np.where(trimmed, problem["trimmed_noise"], problem["sum_noise"])
        total = total + noise * rng.standard_normal(w.shape)
        w = w - np.where(trimmed, rate, rate * (n - f) / n) * total
        size = np.linalg.norm(w, axis=1, keepdims=True)
        w = w * np.minimum(1, radius / np.maximum(size, 1e-300))
        if step >= steps - average:
            distances.append(np.sum(w**2, axis=1))
    return float(np.mean(distances))


@pytest.mark.parametrize(("share", "simulated", "printed"), [(0.5, 4.5, 2.8), (0.25, 4.5, 3.45)])
def test_the_counter_example_is_above_the_printed_and_below_the_corrected_bound(
    share, simulated, printed
):
    """Losses a/2 (w - z)², z = 1 or -9; attackers hide just below the large honest gradients."""
    curvature, n, f, lipschitz = 0.1, 200, 20, 1.27
    deviation = curvature * 3
    problem = {
        "oracles": n,
        "corrupted": f,
        "strong_convexity": curvature,
        "smoothness": curvature,
        "gradient_bound": lipschitz,
        "gradient_deviation": deviation,
        "dimension": 1,
        "sum_noise": 0.0,
        "trimmed_noise": math.sqrt(
            (n - f) * (n + 1) / n**2 * ((n - f) * deviation**2 + f * lipschitz)
        ),
        "learning_rate": 1e-9,
    }
    largest = CorruptedDescent(**problem).printed().largest_learning_rate
    problem["learning_rate"] = share * largest
    rng = np.random.default_rng(7)
    radius = lipschitz / curvature - 9

    def honest(w):
        z = np.where(rng.random((len(w), n - f)) < 0.1, -9.0, 1.0)
        return curvature * (w[:, None] - z[:, :, None])

    found = simulate(
        rng,
        np.full((32, 1), 2.0),
        honest,
        lambda w, good: -curvature * (w + 9) * (1 - 1e-9),
        problem,
        routine=lambda norms: np.ones(len(norms), dtype=bool),
        radius=radius,
        steps=900,
        average=400,
    )
    assert found == pytest.approx(simulated, rel=0.1)
    assert CorruptedDescent(**problem).printed().bound == pytest.approx(printed, rel=0.02)
    assert (
        CorruptedDescent(**problem).printed().bound
        < found
        < CorruptedDescent(**problem).corrected().bound
    )


ATTACKS = {"below the cut": 0.999, "median norm": 0.5, "largest norm": None}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("routine", ["sum", "trimmed", "tested"])
@pytest.mark.parametrize("corrupted", [1, 6])
def test_random_quadratics_under_attack_stay_below_the_corrected_bound(attack, routine, corrupted):
    rng = np.random.default_rng([corrupted, len(attack), len(routine)])
    n, radius, deviation, dimension = 20, 3.0, 0.5, 3
    curvature = rng.uniform(0.4, 1.0, dimension)
    problem = {
        "oracles": n,
        "corrupted": corrupted,
        "strong_convexity": curvature.min(),
        "smoothness": curvature.max(),
        "gradient_bound": curvature.max() * radius + deviation,
        "gradient_deviation": deviation,
        "dimension": dimension,
        "sum_noise": 1.0,
        "trimmed_noise": 0.5,
        "learning_rate": 0.5 * curvature.min() / (n * curvature.max() ** 2),
    }

    def honest(w):
        noise = rng.standard_normal((len(w), n - corrupted, dimension))
        noise *= deviation / np.linalg.norm(noise, axis=2, keepdims=True)
        return curvature * w[:, None] + noise

    def against(w, good):
        away = -w / np.maximum(np.linalg.norm(w, axis=1, keepdims=True), 1e-12)
        share = ATTACKS[attack]
        if share is None:
            return problem["gradient_bound"] * away
        return np.quantile(np.linalg.norm(good, axis=2), share, axis=1)[:, None] * away

    def chosen(norms):
        if routine != "tested":
            return np.full(len(norms), routine == "trimmed")
        margin = np.maximum(0, corrupted - np.sum(norms > 1.0, axis=1))
        return margin + rng.laplace(size=len(norms)) > 1.0

    found = simulate(
        rng, rng.normal(size=(60, dimension)), honest, against, problem,
        routine=chosen, radius=radius, steps=250, average=100,
    )  # fmt: skip
    result = CorruptedDescent(**problem).corrected()
    assert 0 < result.contraction < 1
    assert found < result.bound


def test_without_corruption_and_noise_only_the_gradients_remain():
    result = CorruptedDescent(
        **{**PLAIN, "corrupted": 0, "sum_noise": 0, "trimmed_noise": 0}
    ).corrected()
    expected = (0.01 * 20 * 0.4) ** 2 / (1 - result.contraction)
    assert result.bound == pytest.approx(expected, rel=1e-12)


def test_small_learning_rates_reach_the_floor_of_the_theorem():
    quiet = {**PLAIN, "gradient_deviation": 0, "sum_noise": 0, "trimmed_noise": 0}
    result = CorruptedDescent(**{**quiet, "learning_rate": 1e-12}).corrected()
    assert result.bound == pytest.approx((2 * 3 * 2.0 * 20 / (0.5 * 17**2)) ** 2, rel=1e-9)


def test_every_term_of_the_corrected_theorem():
    result = CorruptedDescent(**PLAIN).corrected()
    n, f, eta, radius, sigma = 20, 3, 0.01, 2.0, 0.4
    eta_sum = eta * (n - f) / n
    bias = eta * f * (4 * radius + math.sqrt(n - f) * sigma / n)
    noise = 3 * max(eta_sum**2 * 0.6**2, eta**2 * 0.3**2)
    contraction = 1 - eta_sum * (n - f) * 0.5 + eta**2 * (n - f) ** 2
    residual = (
        bias**2 / (4 * eta_sum * (n - f) * 0.5)
        + eta**2 * (n - f) ** 2 * sigma**2
        + eta_sum**2 * n * f * radius**2
        + noise
    )
    assert result.contraction == pytest.approx(contraction, rel=1e-14)
    assert result.residual == pytest.approx(residual, rel=1e-13)
    assert result.bound == pytest.approx(residual / (1 - contraction), rel=1e-12)
    assert result.largest_learning_rate == pytest.approx(0.5 / 20)
    with pytest.raises(AttributeError):
        result.bound = 0.0


def test_the_learning_rate_must_contract():
    largest = CorruptedDescent(**PLAIN).corrected().largest_learning_rate
    assert (
        CorruptedDescent(**{**PLAIN, "learning_rate": largest * (1 - 1e-9)}).corrected().contraction
        < 1
    )
    with pytest.raises(ConditionError, match=r"learning_rate < 0\.025, got 0\.025.*smaller"):
        CorruptedDescent(**{**PLAIN, "learning_rate": largest}).corrected()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corrupted": 10}, r"2 \* corrupted < oracles"),
        ({"trimmed_noise": 0.1}, r"trimmed_noise >= 1\.707\d*, got 0\.1 \(1\.61 too small\)"),
        ({"learning_rate": 0.5}, r"learning_rate < 0\.0\d+, got 0\.5"),
    ],
)
def test_the_printed_theorem_checks_its_printed_conditions(changes, message):
    with pytest.raises(ConditionError, match=message):
        CorruptedDescent(**{**PLAIN, "trimmed_noise": 9.0, **changes}).printed()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("corrupted", 20), ("smoothness", 0.4), ("gradient_bound", 0), ("dimension", 0)),
        *(("sum_noise", -1), ("learning_rate", 0)),
    ],
)
def test_bad_arguments_are_named(argument, value):
    with refused(argument):
        CorruptedDescent(**{**PLAIN, "trimmed_noise": 9.0, argument: value})
