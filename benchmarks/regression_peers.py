"""Private linear regressions of others, for comparison.

diffprivlib and OpenDP as they are; TukeyEM (Amin, Joseph, Ribero and Vassilvitskii, ICLR 2023) and
boosted AdaSSP (Tang, Aydore, Kearns, Rho, Roth, Wang, Wang and Wu, 2023) from their papers, with
the settings of Dick, Gillenwater and Joseph (NeurIPS 2023) and floating-point noise: to compare
accuracy, not to protect anyone. A method is a function of features, target, ε and δ that returns a
function of features, or None where it has no answer.
"""

import math
import sys
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from benchmarks.public_tables import FloatArray

Predict = Callable[[FloatArray], FloatArray]
Method = Callable[[FloatArray, FloatArray, float, float], Predict | None]
Bounds = tuple[FloatArray, FloatArray]

_GENERATOR = np.random.default_rng()


def perfect(columns: FloatArray) -> Bounds:
    """The least and the greatest value of each column, which no analyst can type."""
    return columns.min(0), columns.max(0)


def typed(columns: FloatArray) -> Bounds:
    """What is typed by one who has the magnitude of each column: 0 or minus it, to it.

    A magnitude is the next of 1, 2 and 5 times a power of ten.
    """
    largest = np.maximum(np.abs(columns).max(0), 1e-12)
    power = 10.0 ** np.floor(np.log10(largest))
    steps = np.array([1.0, 2.0, 5.0, 10.0])
    high = power * steps[np.argmax(largest / power <= steps[:, None] * (1 + 1e-9), axis=0)]
    return np.where(columns.min(0) < 0, -high, 0.0), high


def wide(columns: FloatArray) -> Bounds:
    """Bounds around the values, ten times as wide."""
    low, high = perfect(columns)
    half = 5.0 * np.maximum(high - low, 1e-9)
    return (low + high) / 2 - half, (low + high) / 2 + half


def diffprivlib(bounds: Callable[[FloatArray], Bounds]) -> Method:
    """The functional mechanism of diffprivlib, with pure ε."""

    def fit(features: FloatArray, target: FloatArray, epsilon: float, delta: float) -> Predict:
        from diffprivlib.models import LinearRegression

        of_target = tuple(float(bound[0]) for bound in bounds(target[:, None]))
        model = LinearRegression(epsilon=epsilon, bounds_X=bounds(features), bounds_y=of_target)
        return model.fit(features, target).predict  # type: ignore[no-any-return]

    return fit


def opendp(bounds: Callable[[FloatArray], Bounds]) -> Method:
    """OpenDP's Theil-Sen regression, which takes one feature; pure ε."""

    def fit(features: FloatArray, target: FloatArray, epsilon: float, delta: float) -> Predict:
        import opendp.prelude as dp

        dp.enable_features("contrib", "idealized-numerics", "honest-but-curious", "floating-point")
        limits = [tuple(float(bound[0]) for bound in bounds(features))]
        of_target = tuple(float(bound[0]) for bound in bounds(target[:, None]))

        def make(scale: float):  # type: ignore[no-untyped-def]
            model = dp.sklearn.linear_model.LinearRegression
            return model(dp.max_divergence(), limits, of_target, scale)

        scale = dp.binary_search_param(lambda scale: make(scale).measurement, 1, epsilon, T=float)
        return make(scale).fit(features, target).predict  # type: ignore[no-any-return]

    return fit


def tukey(features: FloatArray, target: FloatArray, epsilon: float, delta: float) -> Predict | None:
    """TukeyEM: 1,000 models of disjoint parts, and one of approximate Tukey depth."""
    records, size = len(target), features.shape[1] + 1
    models = int(min(1_000 * max(1.0, 1 / epsilon), records // (size + 1)))
    if models < 40:
        return None
    coefficients = _models_of_parts(features, target, models)
    ordered = np.sort(coefficients, axis=0)
    half, quarter = models // 2, models // 4
    with np.errstate(divide="ignore"):
        sides = np.maximum(ordered[models - half :][::-1] - ordered[:half], 0)
        logarithms = np.log(sides).sum(1)

    def volume(depth: int) -> float:
        """Logarithm of the volume of all points of at least this depth."""
        if depth < 1:
            return math.inf
        return float(logarithms[depth - 1]) if depth <= half else -math.inf

    share, limit = epsilon / 2, math.log(delta / (8 * math.exp(epsilon)))

    def safe(changes: int) -> bool:
        """Whether the volumes stay regular after so many changes of records."""
        return any(
            volume(quarter - changes - 1) - volume(quarter + changes + gap + 1) - share * gap / 2
            <= limit
            for gap in range(1, half - quarter - changes - 1)
        )

    distance, top = -1, quarter - 2
    if safe(0):
        distance = 0
        while distance < top:
            middle = (distance + top + 1) // 2
            distance, top = (middle, top) if safe(middle) else (distance, middle - 1)
    if distance + _GENERATOR.laplace(scale=1 / share) < math.log(1 / (2 * delta)) / share:
        return None
    depths = np.arange(quarter, half + 1)
    inner = np.array([volume(depth + 1) for depth in depths])
    outer = logarithms[depths - 1]
    shells = outer + np.log1p(-np.exp(np.minimum(inner - outer, -1e-15)))
    score = shells + share * depths / 2
    depth = int(depths[np.argmax(score + _GENERATOR.gumbel(size=len(depths)))])
    low, high = ordered[depth - 1], ordered[models - depth]
    for _ in range(100_000):
        drawn = low + (high - low) * _GENERATOR.random(size)
        if depth == half or np.any(
            (drawn < ordered[depth]) | (drawn > ordered[models - depth - 1])
        ):
            break
    return lambda given: drawn[0] + given @ drawn[1:]


def _models_of_parts(features: FloatArray, target: FloatArray, models: int) -> FloatArray:
    """Coefficients of least squares in disjoint parts, the intercept first.

    Columns are scaled by their plain deviations, which matters only where a part is singular and
    can only flatter the method.
    """
    size = len(target) // models
    parts = _GENERATOR.permutation(len(target))[: size * models].reshape(models, size)
    mean, scale = features.mean(0), features.std(0) + 1e-12
    rows = np.concatenate([np.ones((models, size, 1)), (features[parts] - mean) / scale], axis=2)
    found: FloatArray = np.einsum("mij,mj->mi", np.linalg.pinv(rows, rcond=1e-8), target[parts])
    found[:, 1:] /= scale
    found[:, 0] -= found[:, 1:] @ mean
    spread = 1e-9 * np.abs(found).mean(0)
    return found + spread * _GENERATOR.standard_normal(found.shape)


def boosted_adassp(
    features: FloatArray, target: FloatArray, epsilon: float, delta: float
) -> Predict:
    """Boosted AdaSSP: 100 rounds, rows and residuals clipped to 1."""
    rounds, clip = 100, 1.0
    rows = np.concatenate([np.ones((len(target), 1)), features], axis=1)
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1))[:, None]
    size = rows.shape[1]
    share = gaussian_mu(epsilon, delta) / math.sqrt(3)
    moment = rows.T @ rows
    tail = math.log(6 / delta)
    smallest = float(np.linalg.eigvalsh(moment)[0])
    smallest += (math.sqrt(tail) * float(_GENERATOR.standard_normal()) - tail) / share
    triangle = np.triu(_GENERATOR.standard_normal((size, size)) / share)
    noisy = moment + triangle + np.triu(triangle, 1).T
    spread = math.sqrt(size * math.log(2 * size * size / 0.05)) / share
    noisy += max(0.0, spread - max(0.0, smallest)) * np.eye(size)
    found = np.zeros(size)
    for _ in range(rounds):
        residuals = np.clip(target - rows @ found, -clip, clip)
        noise = clip * math.sqrt(rounds) / share * _GENERATOR.standard_normal(size)
        found += np.linalg.solve(noisy, rows.T @ residuals + noise)

    def predict(given: FloatArray) -> FloatArray:
        extended = np.concatenate([np.ones((len(given), 1)), given], axis=1)
        extended /= np.maximum(1.0, np.linalg.norm(extended, axis=1))[:, None]
        return extended @ found

    return predict


def standardised(fit: Method) -> Method:
    """The method on standardised columns, whose means and deviations cost it nothing.

    They are released as they are, so this is not private: what a data owner with public scales
    would get.
    """

    def wrapped(
        features: FloatArray, target: FloatArray, epsilon: float, delta: float
    ) -> Predict | None:
        mean, scale = features.mean(0), features.std(0) + 1e-12
        middle, width = target.mean(), target.std() + 1e-12
        predict = fit((features - mean) / scale, (target - middle) / width, epsilon, delta)
        if predict is None:
            return None
        return lambda given: middle + width * predict((given - mean) / scale)

    return wrapped


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The μ of Gaussian differential privacy that is (ε, δ)."""

    def excess(mu: float) -> float:
        left = norm.cdf(-epsilon / mu + mu / 2)
        return float(left - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2) - delta)

    return float(brentq(excess, 1e-4, 50))


PEERS: dict[str, Method] = {
    "diffprivlib, perfect bounds": diffprivlib(perfect),
    "diffprivlib, typed bounds": diffprivlib(typed),
    "diffprivlib, wide bounds": diffprivlib(wide),
    "OpenDP, perfect bounds": opendp(perfect),
    "OpenDP, typed bounds": opendp(typed),
    "TukeyEM": tukey,
    "boosted AdaSSP": boosted_adassp,
    "boosted AdaSSP, standardised for free": standardised(boosted_adassp),
}
NOT_PRIVATE = ("boosted AdaSSP, standardised for free",)
FOR_ONE_FEATURE = ("OpenDP, perfect bounds", "OpenDP, typed bounds")


def available() -> dict[str, Method]:
    """The peers that import here: diffprivlib 0.6.6 does not beside scikit-learn 1.9."""
    try:
        import diffprivlib.models  # noqa: F401
    except ImportError as error:
        print(f"without diffprivlib: {error}", file=sys.stderr)
        return {name: fit for name, fit in PEERS.items() if not name.startswith("diffprivlib")}
    return PEERS
