"""Poisson-sampled Gaussian noise for a person with several records, in ball arithmetic.

Each of k records is in the sample with probability q, so the noise N(0, 1) is moved by j/σ with a
binomial probability. The ratio of the two densities rises along the line, so the best event is a
half-line; both sides of a narrow bracket of its end bound the profile from above.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from flint import arb

from prudent.verification.pairs import least

_STEPS = 90  # bisections


def sampled_group(sigma: arb, rate: arb, relation: Mapping[str, Any]) -> Callable[..., arb]:
    """The profile for all records of a person, removed, added or replaced."""
    records = int(relation["records"])
    weights = [
        math.comb(records, j) * rate**j * (1 - rate) ** (records - j) for j in range(records + 1)
    ]
    present = [(weight, arb(j) / sigma) for j, weight in enumerate(weights)]
    absent = [(arb(1), arb(0))]
    if relation["adjacency"] == "replace-one":
        absent = [(weight, -arb(j) / sigma) for j, weight in enumerate(weights)]

    def profile(epsilon: arb, *, adding: bool) -> arb:
        # Mirrored, the swapped pair has its largest losses on the right as well.
        first, second = (_mirrored(absent), _mirrored(present)) if adding else (present, absent)
        low, high = _bracket(first, second, epsilon)
        found = _above(first, low) - epsilon.exp() * _above(second, high)
        return found.nonnegative_part().max(least(epsilon))

    return profile


_Law = list[tuple[arb, arb]]
_FAR = 1e6  # beyond it, no ball of a tail is above zero


def _mirrored(law: _Law) -> _Law:
    return [(weight, -mean) for weight, mean in law]


def _above(law: _Law, at: float) -> arb:
    total = arb(0)
    for weight, mean in law:
        total += weight * ((at - mean) / arb(2).sqrt()).erfc() / 2
    return total


def _log_density(law: _Law, at: float) -> arb:
    total = arb(0)
    for weight, mean in law:
        total += weight * (-((at - mean) ** 2) / 2).exp()
    return total.log()


def _bracket(first: _Law, second: _Law, epsilon: arb) -> tuple[float, float]:
    """Two points: the log-ratio of the densities is below ε at the first, above it at the second.

    Each sign is that of a ball, so it is certain. Where none is, an end of the line serves.
    """

    def excess(at: float) -> arb:
        return _log_density(first, at) - _log_density(second, at) - epsilon

    reach = 60.0 + max(abs(float(mean)) for _, mean in (*first, *second))
    low, high = -_FAR, _FAR
    if excess(-reach) > 0:
        return low, -reach
    if excess(reach) < 0:
        return reach, high
    low, high = -reach, reach
    for _ in range(_STEPS):
        middle = low + (high - low) * 0.4871  # not one half: at zero signs are often uncertain
        sign = excess(middle)
        if sign < 0:
            low = middle
        elif sign > 0:
            high = middle
        else:
            break
    return low, high
