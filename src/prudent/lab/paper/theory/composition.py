"""Composition and sampling of (ε, δ) guarantees, for comparison with Rényi accounting."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from prudent import _validate
from prudent.accounting._numeric import Array, smallest
from prudent.lab.paper.theory import ConditionError


def strong_composition(epsilon: float, delta: float, count: int, delta_total: float) -> float:
    """Smallest ε of `count` adaptive (epsilon, delta)-DP releases: optimal composition.

    Kairouz, Oh and Viswanath 2015, Theorem 3.3: the worst case is the pair that reveals the record
    with probability delta and otherwise answers by randomized response, so the composed privacy
    loss is epsilon times a shifted binomial. Its profile is inverted exactly, rounded up.

    Args:
        epsilon: ε of each release.
        delta: δ of each release.
        count: Number of releases.
        delta_total: δ of all of them together, at least 1 - (1 - delta)^count.

    Raises:
        ConditionError: If delta_total is smaller than what the deltas alone cost.
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
    log_mass = (
        special.gammaln(count + 1)
        - special.gammaln(flips + 1)
        - special.gammaln(count - flips + 1)
        - flips * np.logaddexp(0.0, epsilon)
        - (count - flips) * np.logaddexp(0.0, -epsilon)
    )
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
