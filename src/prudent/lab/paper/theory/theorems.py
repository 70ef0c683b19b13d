"""Closed-form guarantees of one Propose-Test-Release, in the paper's order.

The mechanism: a margin of sensitivity one gets Laplace noise of scale `test_scale`; if the noisy
margin exceeds test_scale · log(1/(2 failure)), which margin zero does with probability `failure`,
the answer gets Gaussian noise propose · noise_multiplier, otherwise noise_multiplier. Global
sensitivities are one and both the noisy margin and the answer are released.

Two kinds of neighbours exist. Case 1: both margins are zero, the test reveals nothing, and with
probability `failure` the answer of sensitivity one is released with the small noise. Case 2: the
answer has sensitivity at most `propose` and the test costs one Laplace release.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from prudent import _validate
from prudent.accounting._numeric import Numbers, orders
from prudent.accounting.losses.conversion import (
    gaussian_epsilon,
    gaussian_rdp,
    laplace_epsilon,
)
from prudent.accounting.losses.moments import laplace_rdp
from prudent.lab.paper.theory import ConditionError


def direct_epsilon(
    noise_multiplier: float, test_scale: float, failure: float, delta: float
) -> float:
    """Theorem 4.2: ε of the direct analysis, with two printed formulas corrected (Errata 1, 3-4).

    The release is (1/test_scale + ε_Gauss(δ), failure + δ)-DP; here δ = delta - failure, and
    ε_Gauss is the exact one.

    Raises:
        ConditionError: If delta does not exceed failure.
    """
    rest = _rest(delta, failure)
    return laplace_epsilon(test_scale) + gaussian_epsilon(noise_multiplier, rest)


def direct_epsilon_sharpened(
    noise_multiplier: float, test_scale: float, failure: float, delta: float
) -> float:
    """Theorem 4.2 with a tighter δ: each case is charged only for what it uses (Errata 1, 9).

    Case 1 is (ε_Gauss(δ), (1 - failure) δ + failure)-DP and case 2 is (1/test_scale + ε_Gauss(δ),
    δ)-DP; the larger ε at the requested delta is returned.

    Raises:
        ConditionError: If delta does not exceed failure.
    """
    rest = _rest(delta, failure) / (1 - failure)
    return max(
        gaussian_epsilon(noise_multiplier, rest),
        laplace_epsilon(test_scale) + gaussian_epsilon(noise_multiplier, delta),
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

    Args:
        order: Rényi order or orders.
        noise_multiplier: Gaussian noise of the fallback branch, σ₁.
        propose: Proposed sensitivity; the robust branch has noise σ₂ = propose · σ₁.
        test_scale: Laplace scale of the test.
        failure: Probability in (0, 1/2] that the test passes at margin zero.

    Returns:
        The larger of case 1, a mixture of two Gaussian moments, and case 2, Gaussian plus Laplace.
        Which one is larger depends on the order: from some order on it is case 1 (Errata 1, item
            11).
    """
    a = orders(order)
    safe, trusting = _gaussian_curves(a, noise_multiplier, propose)
    failure = _validate.between(0, 0.5, ends="(]", failure=failure)
    exponent = (a - 1) * (trusting - safe)
    near = np.log1p(failure * np.expm1(np.minimum(exponent, 1.0)))
    far = np.logaddexp(math.log1p(-failure), math.log(failure) + exponent)
    case_1 = safe + np.where(exponent < 1, near, far) / (a - 1)
    case_2 = safe + laplace_rdp(a, test_scale)
    return np.maximum(case_1, case_2)[()]


def _gaussian_curves(
    order: ArrayLike, noise_multiplier: float, propose: float
) -> tuple[Numbers, Numbers]:
    sigma = _validate.positive(noise_multiplier=noise_multiplier)
    propose = _validate.positive(propose=propose)
    return gaussian_rdp(order, sigma), gaussian_rdp(order, propose * sigma)
