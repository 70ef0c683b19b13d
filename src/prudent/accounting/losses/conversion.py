"""Formulas: conversions from Rényi divergence to (ε, δ), and exact guarantees of plain noise.

The conversions are classic, improved and optimal. Each takes one or several orders with the
divergence at each, and returns the smallest ε that any of them implies, never negative. An order
with infinite divergence is skipped.

Laplace and Gaussian noise are those of a sensitivity of one. Their profile is
δ(ε) = sup over events A of Q(A) - e^ε P(A), the same in both directions because the noise is
symmetric. A sensitivity other than one is absorbed by dividing the noise.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prudent import _validate
from prudent.accounting._numeric import Array, Numbers, finite, orders, smallest

_NEAR_ONE = 1.01  # the conversions of finite orders lose all digits up to this order


def rdp_to_epsilon_classic(order: ArrayLike, rdp: ArrayLike, delta: float) -> float:
    """The conversion of Mironov 2017: rdp + log(1/δ) / (order - 1)."""
    a, divergence, delta = _checked(order, rdp, delta)
    return _least(divergence - math.log(delta) / (a - 1))


def rdp_to_epsilon_balle(order: ArrayLike, rdp: ArrayLike, delta: float) -> float:
    """The conversion of Balle et al. 2020 and of Canonne, Kamath and Steinke 2020.

    ε = rdp + log(1 - 1/order) - (log δ + log order) / (order - 1).
    """
    a, divergence, delta = _checked(order, rdp, delta)
    return _least(_balle(a, divergence, delta))


def rdp_to_epsilon_optimal(order: ArrayLike, rdp: ArrayLike, delta: float) -> float:
    """The optimal conversion of each order (Asoodeh et al. 2021), rounded up.

    If two distributions have δ(ε) = δ, mapping outputs to whether they lie in the worst event gives
    a two-point pair with the same δ and no larger divergence. So a pair with δ(ε) >= δ exists iff
    some two-point pair (p, q) with p - e^ε q = δ has divergence at most `rdp`: a convex
    minimisation over p in (δ, 1).

    Guarantee: any pair with the given divergence at one of the orders is (ε, δ)-DP at the result,
    which never exceeds that of `rdp_to_epsilon_balle`. For a single order no smaller ε is valid.
    """
    a, divergence, delta = _checked(order, rdp, delta)
    keep = np.isfinite(divergence)
    if not keep.any():
        return math.inf
    a, divergence = a[keep], divergence[keep]
    balle = np.maximum(_balle(a, divergence, delta), 0.0)
    # Raised by more than the rounding errors of the log moment, which grow with the order.
    target = (a - 1) * divergence * (1 + 1e-12) + 1e-14 * (1 + a)

    def excluded(epsilon: Array) -> NDArray[np.bool_]:
        return np.asarray(_least_log_moment(a, epsilon, delta) >= target)

    return _least(smallest(excluded, np.zeros_like(a), balle, steps=44))


def best_epsilon(order: Array, rdp: Array, delta: float) -> tuple[float, float]:
    """Return the smallest ε over all orders, 1 and infinity included, and the order that gives it.

    At finite orders ε is that of `rdp_to_epsilon_balle`; at order infinity it is that of randomised
    response, the worst pair with these losses. At every order, ε = 0 where Bretagnolle and Huber's
    bound on the total variation distance, sqrt(1 - e^-rdp), is below δ. At δ = 0 only order
    infinity gives a finite ε, unless nothing was released.
    """
    epsilons = np.full(order.shape, np.inf)
    inside = (order > _NEAR_ONE) & (order < np.inf)
    if delta > 0:
        epsilons[inside] = _balle(order[inside], rdp[inside], delta)
    largest = rdp[order == np.inf]
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.maximum(0.0, 1 - delta * (1 + np.exp(-largest)))
        epsilons[order == np.inf] = np.where(largest < np.inf, largest + np.log(kept), np.inf)
    epsilons[(delta**2 + np.expm1(-rdp) > 0) | (rdp == 0)] = 0.0
    best = int(np.argmin(epsilons))
    return max(0.0, float(epsilons[best])), float(order[best])


def best_delta(order: Array, rdp: Array, epsilon: float) -> tuple[float, float]:
    """Return the smallest δ over all orders, as in `best_epsilon`, and the order that gives it."""
    log_deltas = 0.5 * _log_expm1_negative(rdp)
    inside = (order > _NEAR_ONE) & (order < np.inf) & (rdp < np.inf)
    a, divergence = order[inside], rdp[inside]
    balle = (a - 1) * (divergence - epsilon + np.log1p(-1 / a)) - np.log(a)
    log_deltas[inside] = np.minimum(log_deltas[inside], balle)
    largest = (order == np.inf) & (rdp < np.inf)
    excess = np.maximum(0.0, rdp[largest] - epsilon)
    response = _log_expm1_negative(excess) - np.log1p(np.exp(-rdp[largest]))
    log_deltas[largest] = np.minimum(log_deltas[largest], response)
    best = int(np.argmin(log_deltas))
    return min(1.0, math.exp(log_deltas[best])), float(order[best])


def _log_expm1_negative(x: Array) -> Array:
    """log(1 - e^-x)."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(-np.expm1(-x)))


def _checked(order: ArrayLike, rdp: ArrayLike, delta: float) -> tuple[Array, Array, float]:
    a, divergence = np.broadcast_arrays(
        np.atleast_1d(orders(order)), np.asarray(rdp, dtype=np.float64)
    )
    if a.size == 0:
        raise _validate.ArgumentError("order", "with at least one entry", shown="none")
    _validate.between(0, math.inf, rdp=divergence.min())
    return a, divergence, _validate.between(0, 1, ends="()", delta=delta)


def _least(epsilon: Array) -> float:
    return max(0.0, float(np.min(epsilon)))


def _balle(a: Array, divergence: Array, delta: float) -> Array:
    return divergence + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)


def _least_log_moment(a: Array, epsilon: Array, delta: float) -> Array:
    """A lower bound on log E_Q[(P/Q)^a] over two-point pairs with this δ(ε), tight up to rounding.

    The moment is e^((a-1)ε) F(p), F(p) = p^a (p-δ)^(1-a) + (1-p)^a (e^ε-p+δ)^(1-a), convex in p.
    F decreases up to p = a δ. From there on the root of its derivative is bisected on the logit
    scale, which resolves both ends, and the tangent at the last point left of the minimum bounds F
    from below.
    """
    from scipy import special

    def log_value_and_slope(logit: Array) -> tuple[Array, Array]:
        p, rest = special.expit(logit), special.expit(-logit)
        # p is kept at or above its start despite rounding; e^ε - p + δ is computed as a sum of
        # non-negative terms.
        kept = np.maximum(p - delta, np.minimum((a - 1) * delta, 1 - delta))
        other = np.expm1(epsilon) + rest + delta
        first = a * np.log(p) - (a - 1) * np.log(kept)
        second = a * np.log(rest) - (a - 1) * np.log(other)
        total = np.logaddexp(first, second)
        slope = np.exp(first - total) * (a / p - (a - 1) / kept) - np.exp(second - total) * (
            a / rest - (a - 1) / other
        )
        return total, slope

    high = np.full_like(a, 600.0)
    low = np.minimum(special.logit(np.minimum(a * delta, 1.0)), high)
    with np.errstate(over="ignore"):
        for _ in range(32):
            middle = (low + high) / 2
            right = log_value_and_slope(middle)[1] >= 0
            high, low = np.where(right, middle, high), np.where(right, low, middle)
        total, slope = log_value_and_slope(low)
    width = np.maximum(special.expit(-low) - special.expit(-high), 0.0)
    drop = np.maximum(np.minimum(slope, 0.0) * width, -1 + 1e-15)
    least: Array = (a - 1) * epsilon + total + np.log1p(drop)
    return least


def laplace_epsilon(scale: float) -> float:
    """Pure ε of Laplace noise: 1 / scale (Errata 1, item 3; the paper prints e^(1/scale))."""
    return 1 / _validate.positive(scale=scale)


def gaussian_delta(epsilon: ArrayLike, sigma: float) -> Numbers:
    """Exact privacy profile of Gaussian noise, for any finite ε.

    δ(ε) = Φ(1/(2σ) - εσ) - e^ε Φ(-1/(2σ) - εσ). In the tail both terms share the factor of a
    Gaussian density; factoring it out keeps the relative precision of tiny δ.
    """
    from scipy import special

    sigma = _validate.positive(sigma=sigma)
    loss = finite(epsilon=epsilon)
    half = 1 / (2 * sigma)
    upper, lower = half - loss * sigma, -half - loss * sigma
    depth = np.maximum(-upper, 0.0)
    mills = special.erfcx(depth / math.sqrt(2)) - special.erfcx((depth + 2 * half) / math.sqrt(2))
    tail = np.exp(-(depth**2) / 2) * mills / 2
    body = special.ndtr(upper) - np.exp(np.minimum(loss + special.log_ndtr(lower), 0.0))
    return np.clip(np.where(upper < 0, tail, body), 0.0, 1.0)[()]


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Smallest ε >= 0 with δ(ε) <= delta under Gaussian noise: exact, rounded up.

    Guarantee: the result is never below the true ε. The profile is inverted at a δ one part in 10^9
    smaller than requested, which exceeds the rounding error of `gaussian_delta` for any σ up to
    10^5.
    """
    sigma = _validate.positive(sigma=sigma)
    delta = _validate.between(0, 1, ends="()", delta=delta)
    target = delta * (1 - 1e-9)
    # Concentrated differential privacy of the Gaussian gives a valid, larger ε as upper end of the
    # search.
    enough = 1 / (2 * sigma**2) + math.sqrt(2 * -math.log(target)) / sigma
    return float(smallest(lambda e: np.asarray(gaussian_delta(e, sigma) <= target), 0.0, enough))


def gaussian_rdp(order: ArrayLike, sigma: float) -> Numbers:
    """Exact Rényi divergence of Gaussian noise: order / (2 σ²)."""
    return (orders(order) / (2 * _validate.positive(sigma=sigma) ** 2))[()]
