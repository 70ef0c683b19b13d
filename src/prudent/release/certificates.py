"""How many bad records an answer withstands: a private lower bound on a distance.

For an interval [low, high], the *distance* of a data set is the least number of records to add or
remove until its statistic lies outside; it is 0 if it lies outside already. A distance to a set of
data sets changes by at most 1 with a record. So it can be released like a count: with discrete
Laplace noise of scale 1/ε, at the price of ε. Minus a quantile of the noise it is a lower bound k
that holds with probability 1 - β: *at least k records must be added or removed before the statistic
leaves the interval*. A record that is changed in place counts twice, as one removed and one added.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import attrs
import dp_accounting as dp
import numpy as np
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent import _validate
from prudent._rounding import exact, outward
from prudent._validate import by
from prudent.accounting import DiscreteLaplaceTest
from prudent.release.columns.column import Column
from prudent.release.margins import RobustValue
from prudent.release.noise import Noise, source_of

MARGIN_CAP = 2**15
"""Largest margin that is told apart for a certificate: the window it needs must be read."""

CAP = 2**40
"""Largest distance that is told apart: more records than any table has."""

SHARE = 0.2
"""The fraction of ε that a certificate costs; the rest is for the value."""

_HALVINGS = 12
"""How often the tolerance is halved in search of the sensitivity that certifies most."""


@attrs.frozen(kw_only=True)
class Certificate:
    """A proof of how many bad records a statistic withstands; it may be published.

    Attributes:
        low: Lower end of the interval, a value of the column's type; for a category, the category;
            None if there is no lower end.
        high: Upper end.
        needed: At least this many records must be added or removed before the statistic lies
            outside the interval; 0 certifies nothing.
        confidence: Probability, over the noise, that this is true.
        epsilon: ε of the certificate.
        event: Its privacy event, for any accountant.
        basis: The released numbers that it follows from, with which anyone can compute it again.
    """

    low: Any
    high: Any
    needed: int
    confidence: float
    epsilon: float
    event: dp.DpEvent = attrs.field(repr=False)
    basis: Mapping[str, Any] = attrs.field(factory=dict, repr=False)

    @property
    def withstands(self) -> int:
        """The number of records that may be added or removed while the statistic stays inside."""
        return max(0, self.needed - 1)

    def plain(self) -> dict[str, Any]:
        """The certificate as JSON holds it."""
        return {
            "low": self.low,
            "high": self.high,
            "needed": self.needed,
            "withstands": self.withstands,
            "confidence": self.confidence,
            "epsilon": self.epsilon,
            "basis": dict(self.basis),
        }

    def __str__(self) -> str:
        return (
            f"At least {self.needed:,} records must be added or removed before the exact statistic "
            f"of the data {self._leaves()} (confidence {exact(self.confidence)})."
        )

    def _leaves(self) -> str:
        if self.low is None:
            return f"exceeds {exact(self.high)}"
        if self.high is None:
            return f"is below {exact(self.low)}"
        if self.low == self.high:
            return f"is no longer {exact(self.low)}"
        return "leaves [{}, {}]".format(*outward(self.low, self.high))


@attrs.frozen(kw_only=True)
class DistanceRelease:
    """The mechanism that releases a lower bound on a distance.

    Attributes:
        epsilon: ε of the release.
        confidence: Probability with which the bound holds.
    """

    epsilon: float = attrs.field(validator=by(_validate.between, 1e-3, 50))
    confidence: float = attrs.field(
        default=0.95, validator=by(_validate.between, 0.5, 1, ends="[)")
    )

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event: discrete Laplace noise on a count."""
        return DiscreteLaplaceDpEvent(self.epsilon, 1)

    @property
    def slack(self) -> int:
        """The number of records that is subtracted for the noise.

        Discrete Laplace noise of scale b exceeds a whole number t with probability
        r^(t+1)/(1 + r), r = exp(-1/b), which is below exp(-t/b)/2.
        """
        return math.ceil(math.log(0.5 / (1 - self.confidence)) / self.epsilon)

    def release(
        self, distance: int, low: Any, high: Any, *, noise: Noise | None = None
    ) -> Certificate:
        """Release a lower bound on this distance, which one record must change by at most 1."""
        drawn = source_of(noise).of_test(
            DiscreteLaplaceTest(math.nextafter(1 / self.epsilon, math.inf))
        )
        noisy = min(distance, CAP) + drawn
        return Certificate(
            low=low,
            high=high,
            needed=max(0, noisy - max(0, self.slack)),
            confidence=self.confidence,
            epsilon=self.epsilon,
            event=self.event,
            basis={"kind": "distance", "noisy": noisy},
        )


def quantile_distance(column: Column, p: Fraction, low: float, high: float) -> int:
    """Return the exact distance of the p-quantile from leaving [low, high]; two counts decide it.

    With m records, A of them below `low` and B at most `high`, the quantile (rank ceil(pm)) is
    above `high` if and only if pm - B > 0. A record added above raises pm - B by p, a record
    removed from the B raises it by 1 - p. It is below `low` if and only if A - pm >= 0; a record
    added below raises that by 1 - p, a record removed from the others by p. In either case one kind
    of change is best, until the records to remove run out. An end that is infinite is never left.
    """
    count = column.count()
    edges = np.array([low, math.nextafter(high, math.inf)])
    below, within = (int(each) for each in column.counts_below(edges))
    add, remove = p.numerator, p.denominator - p.numerator  # p and 1 - p, times the denominator
    found = [CAP]
    if high < math.inf:
        missing = p.denominator * within - p.numerator * count + 1  # more than zero is needed
        found.append(_fewest(missing, unlimited=add, limited=remove, available=within))
    if low > -math.inf:
        missing = p.numerator * count - p.denominator * below
        found.append(_fewest(missing, unlimited=remove, limited=add, available=count - below))
    return min(found)


def _fewest(missing: int, *, unlimited: int, limited: int, available: int) -> int:
    """The least number of changes that gain `missing`, by two kinds, of which one may run out."""
    if missing <= 0:
        return 0
    if unlimited >= limited:
        return -(-missing // unlimited)
    removed = min(available, -(-missing // limited))
    rest = max(0, missing - removed * limited)
    if rest == 0:
        return removed
    return removed - (-rest // unlimited) if unlimited else CAP


def distance_by_margin(
    measure: Callable[[int], RobustValue], centre: int, tolerance: int, cap: int
) -> int:
    """Return a lower bound on the distance from leaving centre ± tolerance, from margins.

    Guarantee:
        For a sensitivity τ let g be the smaller of the margin for τ and
        floor((tolerance - |f - centre|)/τ) + 1. While the margin is positive a record moves f by at
        most τ, so fewer than g changes leave f inside: g is a lower bound. It changes by at most 1
        with a record: the margin does, and so does the other term wherever both margins are
        positive; elsewhere g is at most 1. The largest g over a public list of τ inherits both.
    """
    best = 0
    for halving in range(_HALVINGS):
        propose = tolerance >> halving
        if propose < 1:
            break
        measured = measure(propose)
        room = tolerance - abs(int(measured.value[0]) - centre)
        reach = room // propose + 1 if room >= 0 else 0
        best = max(best, min(measured.margin, reach, cap))
    return best
