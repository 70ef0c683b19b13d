"""Guarantees of one Propose-Test-Release, of its Poisson-sampled form, and of compositions.

The mechanism: a margin of sensitivity one gets Laplace noise of scale `test_scale`; if the noisy
margin exceeds test_scale · log(1/(2 failure)), which margin zero does with probability `failure`,
the answer gets Gaussian noise propose · noise_multiplier, otherwise noise_multiplier. Global
sensitivities are one and both the noisy margin and the answer are released.

Two kinds of neighbours exist. Case 1: both margins are zero, the test reveals nothing, and with
probability `failure` the answer of sensitivity one is released with the small noise. Case 2: the
answer has sensitivity at most `propose` and the test costs one Laplace release.

P is the release without a record, Q the one with it, M = (1 - sampling_rate) P + sampling_rate Q:
forward is M against P, reverse is P against M.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from prudent import _validate
from prudent.accounting._numeric import Array, Numbers, expm1_minus, orders, smallest
from prudent.accounting.losses.moments import gaussian_epsilon, laplace_rdp

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)


class ConditionError(ValueError):
    """A bound was requested where its theorem does not hold, so it would not be a guarantee."""

    def __init__(self, theorem: str, condition: str, given: str) -> None:
        super().__init__(
            f"{theorem} needs {condition}, got {given}. Outside its conditions the formula is not "
            "a bound. Use the exact accountant, prudent.PldAccountant, which has none."
        )


def log1p_minus(x: Array) -> Array:
    """Compute log(1 + x) - x to full relative precision, also near zero."""
    small = np.abs(x) < 0.5
    near = np.where(small, x, 0.0)
    # log(1 + x) = 2 artanh(r) with r = x / (2 + x), and 2 r - x = -x r.
    r = near / (2 + near)
    odd = np.zeros_like(near)
    for k in range(35, 1, -2):
        odd = (odd + 1.0 / k) * r * r
    return np.where(small, 2 * r * odd - near * r, np.log1p(x) - x)


def laplace_log_moment(exponent: float, q: float, b: float) -> float:
    """Logarithm of the moment R(e) = E_P[(M/P)^e] of P = Laplace(0), Q = Laplace(1).

    The moment E_M[(P/M)^a] of the other direction is R(1 - a). The privacy loss of Q against P has
    a point mass at both ends and is smooth between them. The smooth part is integrated by
    Gauss-Legendre panels short enough for every order, and the first-order term, whose mean is
    zero, is removed before integrating: the logarithm is accurate to about twelve digits even where
    the moment differs from one by only 10^-12.
    """
    loss, weight = _laplace_losses(exponent, b)
    excess = q * np.expm1(loss)
    power = exponent * _log_mixture(loss, q)
    if np.max(power) < 500:
        return math.log1p(
            float(np.sum(weight * (expm1_minus(power) + exponent * log1p_minus(excess))))
        )
    return float(special.logsumexp(power, b=weight))


def _log_squared_share(exponent: float, q: float, b: float) -> float:
    """Logarithm of E_P[(M/P)^exponent (q Q/M)^2], q Q/M being the share of Q in the mixture."""
    loss, weight = _laplace_losses(exponent, b)
    power = (exponent - 2) * _log_mixture(loss, q) + 2 * (math.log(q) + loss)
    return float(special.logsumexp(power, b=weight))


def _log_mixture(loss: Array, q: float) -> Array:
    if q == 1:
        return loss
    return np.where(
        loss < 1,
        np.log1p(q * np.expm1(np.minimum(loss, 1.0))),
        np.logaddexp(math.log1p(-q), (math.log(q) if q else -math.inf) + loss),
    )


def _laplace_losses(exponent: float, b: float) -> tuple[Array, Array]:
    """Quadrature of the loss log(Q/P) under P: nodes and weights for e^(exponent · loss)."""
    peak = 1 / b
    panels = math.ceil(2 * peak * max(1.0, abs(exponent) / 64))
    edges = np.linspace(-peak, peak, panels + 1)
    centre, half = (edges[1:] + edges[:-1]) / 2, peak / panels
    loss = (centre[:, None] + half * _NODES).ravel()
    weight = np.tile(half * _WEIGHTS, panels) * np.exp(-(loss + peak) / 2) / 4
    ends = np.array([-peak, peak])
    return np.concatenate([loss, ends]), np.concatenate([weight, [0.5, 0.5 * math.exp(-peak)]])


def white_box_applies(
    order: ArrayLike,
    sampling_rate: float,
    noise_multiplier: float,
    propose: float,
    test_scale: float,
) -> NDArray[np.bool_]:
    """Whether Theorem 4.4 holds, for each order."""
    a = orders(order)
    if _parameter_failure(sampling_rate, noise_multiplier, propose, test_scale):
        return np.zeros(a.shape, dtype=np.bool_)
    limits = _order_limits(a, sampling_rate, noise_multiplier * propose, test_scale)
    return np.asarray((a <= limits[0]) & (a <= limits[1]))


def white_box_rdp(
    order: ArrayLike,
    sampling_rate: float,
    noise_multiplier: float,
    propose: float,
    test_scale: float,
    failure: float,
) -> Numbers:
    """Theorem 4.4, the paper's bound on Poisson-sampled Propose-Test-Release, where it holds.

    The appendix form, with 1/σ₁² in its second and third term (Errata 1, item 14).

    Guarantee: the bound is valid for every argument that does not raise. No experiment of the paper
    is among them, and outside the conditions the formula can be thousands of times too small
    (Errata 3): there it raises a ConditionError.
    """
    a = orders(order)
    _validate.between(0, 0.5, ends="(]", failure=failure)
    broken = _parameter_failure(sampling_rate, noise_multiplier, propose, test_scale)
    if broken:
        raise ConditionError("The white-box bound (Theorem 4.4)", *broken)
    limits = _order_limits(a, sampling_rate, noise_multiplier * propose, test_scale)
    for name, limit in zip(("first", "second"), limits, strict=True):
        if np.any(a > limit):
            at = int(np.argmax((a - limit).ravel()))
            worst, allowed = float(a.ravel()[at]), float(limit.ravel()[at])
            broken = (
                f"order <= {allowed:.6g} at order {worst:g} (its {name} condition on the order)",
                f"{worst:g} ({worst - allowed:.3g} too large; white_box_applies lists the orders "
                "that do)",
            )
            raise ConditionError("The white-box bound (Theorem 4.4)", *broken)
    return _white_box_formula(a, sampling_rate, noise_multiplier, propose, test_scale, failure)


def _parameter_failure(
    sampling_rate: float, noise_multiplier: float, propose: float, test_scale: float
) -> tuple[str, str] | None:
    """The first failed condition of Theorem 4.4 other than on the order, and by how much."""
    q = _validate.between(0, 1, ends="(]", sampling_rate=sampling_rate)
    sigma = _validate.positive(noise_multiplier=noise_multiplier)
    propose = _validate.positive(propose=propose)
    fall = math.exp(-1 / _validate.positive(test_scale=test_scale))
    if q > fall / (4 + fall):
        limit = fall / (4 + fall)
        return f"sampling_rate <= {limit:.6g}", f"{q:g} ({q - limit:.3g} too large)"
    if propose > 1:
        return "propose <= 1", f"{propose:g} ({propose - 1:.3g} too large)"
    if propose * sigma < 4:
        given = propose * sigma
        return "propose * noise_multiplier >= 4", f"{given:g} ({4 - given:.3g} too small)"
    return None


def _order_limits(a: Array, q: float, small_noise: float, b: float) -> tuple[Array, Array]:
    share = q / (q + (1 - q) * math.exp(-1 / b))
    logarithm = np.log1p(1 / (share * (a - 1)))
    variance, spread = small_noise**2, 2 * math.log(small_noise)
    first = variance * logarithm / 2 - spread
    second = (variance * logarithm**2 / 2 - math.log(5) - spread) / (
        logarithm + np.log(share * a) + 1 / (2 * variance)
    )
    return first, second


def _white_box_formula(
    a: Array, q: float, noise_multiplier: float, propose: float, b: float, failure: float
) -> Numbers:
    """The formula of Theorem 4.4, unchecked; it is a bound only within its conditions."""
    variance = noise_multiplier**2
    growth = 2 * a * (a - 1)
    case_1 = np.log1p(growth * q**2 * ((1 - failure) + failure / propose**2) / variance)
    case_2 = [
        _white_box_case_2(float(o), float(g) / variance, q, b)
        for o, g in zip(a.ravel(), growth.ravel(), strict=True)
    ]
    larger: Array = np.maximum(case_1, np.reshape(case_2, a.shape))
    return (larger / (a - 1))[()]


def _white_box_case_2(order: float, factor: float, q: float, b: float) -> float:
    """Larger log-moment of both directions: R + factor · E_P[(M/P)^e (q Q/M)^2], e = a or 1 - a.

    The last expectation is the paper's R(e) - 2 (1-q) R(e-1) + (1-q)^2 R(e-2), without its
    cancellation.
    """

    def direction(e: float) -> float:
        moment, addend = laplace_log_moment(e, q, b), math.log(factor) + _log_squared_share(e, q, b)
        if max(moment, addend) > 1:
            return float(np.logaddexp(moment, addend))
        return math.log1p(math.expm1(moment) + math.exp(addend))

    return max(direction(order), direction(1 - order))


def black_box_rdp(order: ArrayLike, sampling_rate: float, **mechanism: float) -> Numbers:
    """Theorem 4.3 combined with the bound for any Poisson-sampled mechanism (Zhu and Wang 2019).

    Between two whole orders the logarithm of the moment, which is convex in the order for every
    pair and zero at order one, is bounded by the chord: a valid bound at any order above one.
    The mechanism is as for `ptr_rdp`.
    """
    return _sampled_curve(order, sampling_rate, mechanism, factor=3)


def plug_in_rdp(order: ArrayLike, sampling_rate: float, **mechanism: float) -> Numbers:
    """The curve that the paper calls a lower bound, which it is not (Errata 1, item 20).

    It is `black_box_rdp` without the factor 3, which is exact for a single pair that attains the
    input curve at every order. The curve of Theorem 4.3 is a maximum over two pairs, so the plug-in
    exceeds the exact value where they cross (1.4 times at order 39 with rate 0.01, noise multiplier
    4, propose 1/2, test scale 1 and failure 10^-4). It is an upper bound: each case is a
    swap-symmetric pair, for which forward dominates reverse and the expansion is exact (Errata 2.2,
    Theorem B).
    """
    return _sampled_curve(order, sampling_rate, mechanism, factor=1)


def _sampled_curve(
    order: ArrayLike, sampling_rate: float, mechanism: dict[str, float], factor: int
) -> Numbers:
    a = orders(order)
    q = _validate.between(0, 1, sampling_rate=sampling_rate)
    if q == 0 or a.size == 0:
        return np.zeros(a.shape)[()]
    below, above = np.floor(a), np.ceil(a)
    whole = np.unique(np.concatenate([below.ravel(), above.ravel(), [2.0]]))
    last = int(whole[-1])
    terms = np.arange(2, last + 1)
    exponent = (terms - 1) * ptr_rdp(terms.astype(np.float64), **mechanism)
    # The weights of all terms sum to one, so one is factored out and each moment enters minus one.
    scale = np.where(terms >= 3, float(factor), 1.0)
    log_terms = exponent + np.log(scale - 1 - np.expm1(-exponent))
    cumulant = np.array([_log_expansion(int(n), q, log_terms) for n in whole])
    at_below = cumulant[np.searchsorted(whole, below)]
    at_above = cumulant[np.searchsorted(whole, above)]
    chord: Array = at_below + (a - below) * (at_above - at_below)
    return (chord / (a - 1))[()]


def _log_binomial(n: int, k: NDArray[np.int64]) -> Array:
    found: Array = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    return found


def _log_expansion(n: int, q: float, log_terms: Array) -> float:
    """The value log(1 + Σ C(n,k) (1-q)^(n-k) q^k e^log_terms[k-2]), k = 2..n; zero at n = 1."""
    if n < 2:
        return 0.0
    k = np.arange(2, n + 1)
    weight = _log_binomial(n, k) + special.xlog1py(n - k, -q) + k * math.log(q)
    return float(np.logaddexp(0.0, special.logsumexp(weight + log_terms[: n - 1])))


def strong_composition(epsilon: float, delta: float, count: int, delta_total: float) -> float:
    """Smallest ε of `count` adaptive (epsilon, delta)-DP releases: optimal composition.

    Kairouz, Oh and Viswanath 2015, Theorem 3.3: the worst case is the pair that reveals the record
    with probability delta and otherwise answers by randomized response, so the composed privacy
    loss is epsilon times a shifted binomial. Its profile is inverted exactly, rounded up. A
    delta_total below 1 - (1 - delta)^count, what the deltas alone cost, raises a ConditionError.
    """
    epsilon = _validate.non_negative(epsilon=epsilon)
    delta = _validate.between(0, 1, ends="[)", delta=delta)
    count = _validate.count(count=count)
    delta_total = _validate.between(0, 1, ends="[)", delta_total=delta_total)
    revealed = -math.expm1(count * math.log1p(-delta))
    if delta_total < revealed:
        raise ConditionError(
            "Strong composition",
            f"delta_total >= 1 - (1 - delta)^count = {revealed:.6g}",
            f"{delta_total:g} ({revealed - delta_total:.3g} too small)",
        )
    rest = (delta_total - revealed) / (1 - revealed)
    flips = np.arange(count + 1)
    losses = (count - 2.0 * flips) * epsilon
    log_odds = np.logaddexp(0.0, epsilon), np.logaddexp(0.0, -epsilon)
    log_mass = _log_binomial(count, flips) - flips * log_odds[0] - (count - flips) * log_odds[1]
    # The margin covers the rounding of the log-gamma functions, which grows with the count.
    target = rest * (1 - 1e-14 * (10 + count * math.log1p(count)))

    def holds(total: Array) -> NDArray[np.bool_]:
        above = losses > total
        return np.asarray(
            np.sum(np.exp(log_mass[above]) * -np.expm1(total - losses[above])) <= target
        )

    return float(smallest(holds, 0.0, count * epsilon))


def amplify_by_sampling(epsilon: float, delta: float, sampling_rate: float) -> tuple[float, float]:
    """(ε, δ) of a release on a Poisson sample: log(1 + q (e^ε - 1)) and q δ."""
    epsilon = _validate.non_negative(epsilon=epsilon)
    delta = _validate.between(0, 1, delta=delta)
    q = _validate.between(0, 1, sampling_rate=sampling_rate)
    if q == 0:
        return 0.0, 0.0
    if epsilon < 1:
        return math.log1p(q * math.expm1(epsilon)), q * delta
    return epsilon + math.log(q + (1 - q) * math.exp(-epsilon)), q * delta


def direct_epsilon(
    noise_multiplier: float, test_scale: float, failure: float, delta: float
) -> float:
    """Theorem 4.2: ε of the direct analysis, with two printed formulas corrected (Errata 1, 3-4).

    The release is (1/test_scale + ε_Gauss(δ), failure + δ)-DP; here δ = delta - failure, and
    ε_Gauss is the exact one. A delta that does not exceed failure raises a ConditionError.
    """
    rest = _rest(delta, failure)
    test_scale = _validate.positive(test_scale=test_scale)
    return 1 / test_scale + gaussian_epsilon(noise_multiplier, rest)


def direct_epsilon_sharpened(
    noise_multiplier: float, test_scale: float, failure: float, delta: float
) -> float:
    """Theorem 4.2 with a tighter δ: each case is charged only for what it uses (Errata 1, 9).

    Case 1 is (ε_Gauss(δ), (1 - failure) δ + failure)-DP and case 2 is (1/test_scale + ε_Gauss(δ),
    δ)-DP; the larger ε at the requested delta is returned.
    """
    rest = _rest(delta, failure) / (1 - failure)
    test_scale = _validate.positive(test_scale=test_scale)
    return max(
        gaussian_epsilon(noise_multiplier, rest),
        1 / test_scale + gaussian_epsilon(noise_multiplier, delta),
    )


def _rest(delta: float, failure: float) -> float:
    delta = _validate.between(0, 1, ends="()", delta=delta)
    failure = _validate.between(0, 0.5, ends="(]", failure=failure)
    if delta <= failure:
        raise ConditionError(
            "The direct analysis (Theorem 4.2)",
            "delta > failure",
            f"delta={delta:g} and failure={failure:g} ({failure - delta:.3g} too small)",
        )
    return delta - failure


def ptr_rdp(
    order: ArrayLike, noise_multiplier: float, propose: float, test_scale: float, failure: float
) -> Numbers:
    """Theorem 4.3: Rényi divergence bound of one Propose-Test-Release, any order above one.

    The larger of case 1, a mixture of two Gaussian moments, and case 2, Gaussian plus Laplace: from
    some order on it is case 1 (Errata 1, item 11).
    """
    a = orders(order)
    sigma = _validate.positive(noise_multiplier=noise_multiplier)
    safe = a / (2 * sigma**2)
    trusting = a / (2 * (_validate.positive(propose=propose) * sigma) ** 2)
    failure = _validate.between(0, 0.5, ends="(]", failure=failure)
    exponent = (a - 1) * (trusting - safe)
    near = np.log1p(failure * np.expm1(np.minimum(exponent, 1.0)))
    far = np.logaddexp(math.log1p(-failure), math.log(failure) + exponent)
    case_1 = safe + np.where(exponent < 1, near, far) / (a - 1)
    case_2 = safe + laplace_rdp(a, test_scale)
    return np.maximum(case_1, case_2)[()]
