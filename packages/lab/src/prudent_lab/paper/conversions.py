"""The conversions from Rényi divergence to (ε, δ) that the paper compares.

Each takes one or several orders with the divergence at each, and returns the smallest ε that any of
them implies, never negative. An order with infinite divergence is skipped. The accountants use the
improved one, `rdp_to_epsilon_balle`.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prudent.accounting._numeric import Array, smallest
from prudent.accounting.losses.moments import checked_divergences, improved_conversion


def rdp_to_epsilon_classic(order: ArrayLike, rdp: ArrayLike, delta: float) -> float:
    """The conversion of Mironov 2017: rdp + log(1/δ) / (order - 1)."""
    a, divergence, delta = checked_divergences(order, rdp, delta)
    return max(0.0, float(np.min(divergence - math.log(delta) / (a - 1))))


def rdp_to_epsilon_optimal(order: ArrayLike, rdp: ArrayLike, delta: float) -> float:
    """The optimal conversion of each order (Asoodeh et al. 2021), rounded up.

    If two distributions have δ(ε) = δ, mapping outputs to whether they lie in the worst event gives
    a two-point pair with the same δ and no larger divergence. So a pair with δ(ε) >= δ exists iff
    some two-point pair (p, q) with p - e^ε q = δ has divergence at most `rdp`: a convex
    minimisation over p in (δ, 1).

    Guarantee: any pair with the given divergence at one of the orders is (ε, δ)-DP at the result,
    which never exceeds that of `rdp_to_epsilon_balle`. For a single order no smaller ε is valid.
    """
    a, divergence, delta = checked_divergences(order, rdp, delta)
    keep = np.isfinite(divergence)
    if not keep.any():
        return math.inf
    a, divergence = a[keep], divergence[keep]
    balle = np.maximum(improved_conversion(a, divergence, delta), 0.0)
    # Raised by more than the rounding errors of the log moment, which grow with the order.
    target = (a - 1) * divergence * (1 + 1e-12) + 1e-14 * (1 + a)

    def excluded(epsilon: Array) -> NDArray[np.bool_]:
        return np.asarray(_least_log_moment(a, epsilon, delta) >= target)

    return float(np.min(smallest(excluded, np.zeros_like(a), balle, steps=44)))


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
