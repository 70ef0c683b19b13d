"""What right guesses about many canaries in one run refute.

Each of m canaries is in the data by a fair coin. From what the run shows, the attacker guesses r of
the coins; T guesses are right. The coins are independent, the guesses are not.

**Point** (Steinke, Nasr and Jagielski 2023). Under pure ε-DP each guess, given the coins and the
guesses before it, is right with a probability of at most p = e^ε/(1 + e^ε), so T is at most
B ~ Bin(r, p) in distribution. Under (ε, δ)-DP it is at most B + N, where N >= 0 is independent of B
with mean at most 2mδ. As Pr[B + N >= v] is linear in the law of N, its largest value is

    Pr[B >= v] + 2mδ max over i of (Pr[B >= v - i] - Pr[B >= v]) / i.

**Curve** (Mahloujifar, Melis and Chaudhuri 2025). Let f be a symmetric trade-off curve, g(x) the
least false-positive rate of a test with true-positive rate x, that is f(1 - x), and
P_j = Pr[T >= j].
Flip the coin of canary i: "guess i is right and T >= j" becomes "guess i is wrong and T >= j - 1".
So the probabilities x and y of these two events satisfy g(x) <= y, given all other coins; g is
convex, hence also on average over coins and over canaries. There x is E[T; T >= j]/m, or

    R_j = (j P_j + P_(j+1) + ... + P_r) / m,

and y is E[r - T; T >= j - 1]/m = ((r - j + 1) P_(j-1) - P_j - ... - P_r)/m. Therefore

    P_(j-1) >= (m g(R_j) + P_j + ... + P_r) / (r - j + 1),        P_(j-1) >= P_j.

The right sides grow with every P on them. So from P_c = β, and 0 above, the recursion down to 0
gives the least P_0 of all laws with Pr[T >= c] >= β. If it exceeds 1 there is none: c right guesses
refute f, with a probability of a false alarm below β.
"""

from collections.abc import Callable

import numpy as np
from scipy import special, stats

from prudent import _validate
from prudent.audit.training.curves import Curve

_LARGEST_EPSILON = 50.0
_PRECISION = 1e-4


def p_value(
    right: int, guesses: int, canaries: int, *, epsilon: float, delta: float = 0.0
) -> float:
    """An upper bound on the probability of this many right guesses if a run is (ε, δ)-DP."""
    check_counts(right, guesses, canaries)
    chance = special.expit(epsilon)
    tail = float(stats.binom.sf(right - 1, guesses, chance))
    if delta == 0 or right == 0:
        return min(1.0, tail)
    steps = np.arange(1, right + 1)
    slopes = (stats.binom.sf(right - 1 - steps, guesses, chance) - tail) / steps
    return min(1.0, tail + 2 * canaries * delta * float(slopes.max()))


def epsilon_of_right_guesses(
    right: int, guesses: int, canaries: int, *, delta: float, confidence: float
) -> float:
    """The largest ε that this many right guesses of one run refute at δ.

    Guarantee:
        If the run is (ε, δ)-DP, the bound exceeds ε with a probability of at most 1 - confidence.
    """

    def refuted(epsilon: float) -> bool:
        return p_value(right, guesses, canaries, epsilon=epsilon, delta=delta) < 1 - confidence

    return largest_refuted(refuted, _LARGEST_EPSILON)


def is_curve_refuted(
    right: int, guesses: int, canaries: int, curve: Curve, *, confidence: float
) -> bool:
    """Whether this many right guesses of one run refute a trade-off curve.

    Guarantee:
        If the run has errors on or above the curve for every canary, the answer is yes with a
        probability of at most 1 - confidence, for a number of guesses fixed before the run.
    """
    check_counts(right, guesses, canaries)
    tail = 1 - confidence  # P_j
    above = 0.0  # P_(j+1) + ... + P_r
    for j in range(right, 0, -1):
        hits = min(1.0, (j * tail + above) / canaries)
        alarms = float(curve.misses(np.array(1 - hits)))
        above += tail
        tail = max(tail, (canaries * alarms + above) / (guesses - j + 1))
        if tail > 1:
            return True
    return False


def largest_refuted(
    refuted: Callable[[float], bool], largest: float, *, precision: float = _PRECISION
) -> float:
    """The largest refuted claim of a family in ascending order, rounded down; 0 if none is."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < largest and refuted(high):
        low, high = high, 2 * high
    while high - low > precision * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def check_counts(right: int, guesses: int, canaries: int) -> None:
    """Raise an error unless right <= guesses <= canaries."""
    _validate.count(1, canaries=canaries)
    _validate.count(0, canaries, guesses=guesses)
    _validate.count(0, guesses, right=right)
