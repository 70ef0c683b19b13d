"""Laplace and Gaussian mechanisms of sensitivity one: exact guarantees.

Every profile here is δ(ε) = sup over events A of Q(A) - e^ε P(A), the same in both directions
because the noise is symmetric. A sensitivity other than one is absorbed by dividing the noise.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from prudent import _validate
from prudent.accounting._numeric import Numbers, finite, orders, smallest


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
