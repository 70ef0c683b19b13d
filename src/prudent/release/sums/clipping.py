"""Clipping values to bounds: public ones, or private ones around the median.

Without public bounds, a centre and a radius are released first, and values are clipped to the
interval around the centre. The centre is the median, by the exponential mechanism, and a radius is
chosen, again by the exponential mechanism, such that about k records lie outside.

**Radius.** Candidates are r = 2**j and 1.5 · 2**j. Let O_j be the number of records farther than
r_j from the centre. The radius sought is the first with O_j <= k, so its distance is
d_j = max(0, O_j - k, k - O_(j-1)). One record changes each O_j by at most 1, in one direction, so
each d_j changes by between -1 and +1: a range of length 2, and weights exp(-ε d_j/2) are ε-DP. A
public prior prefers radii near |centre|/4, or near 1000 around zero: it decides where there are too
few records to tell.

With fewer than k records the radius is the least one, and what is released is nearly the median
itself. Around zero, k is at most a quarter of the records: a sum of values near zero would be lost.
Both k and n/4 change by at most 1 with a record, in the direction of O_j, so the range is the same.

**How many outside.** A record outside biases a sum by its distance from the interval, which is a
fraction of the radius for the usual tails; a smaller radius lowers the noise of the sum, radius/ε.
Both balance when k is a few times 1/ε. A smaller k than `_DEPTH`/ε risks a radius far too large,
because only k records stand between the right radius and the largest one.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import attrs
import dp_accounting as dp
import numpy as np

from prudent._rounding import outward, percent
from prudent.accounting._numeric import float_above, float_share
from prudent.accounting.events import ExponentialMechanismDpEvent
from prudent.release.columns.column import Column
from prudent.release.columns.scales import Scale
from prudent.release.exponential.measure import (
    Decay,
    DoubleMeasure,
    LatticeMeasure,
    Measure,
    UniformMeasure,
    choose,
    rate,
)
from prudent.release.exponential.quantile import ExponentialQuantile
from prudent.release.lattice import FloatArray, Lattice, check_bounds
from prudent.release.noise import Noise
from prudent.release.sums.additive import AdditiveMechanism, NoiseRegion

CONFIDENCE = 0.95
"""Least probability, over the noise, with which a share is in its interval."""


@attrs.frozen
class ClippedShare:
    """Where the fraction of records outside public or released bounds lies, from two noisy counts.

    A record is either inside the bounds or outside. So the two counts together change by 1 with a
    record, and noise for a sensitivity of 1 on each pays for both.

    Attributes:
        interval: Ends of an interval that holds the fraction with probability `CONFIDENCE`, at
            least; None if there are too few records to tell.
    """

    interval: tuple[float, float] | None

    @classmethod
    def release(
        cls, column: Column, ends: tuple[float, float], mechanism: AdditiveMechanism, noise: Noise
    ) -> "ClippedShare":
        """Release the share; the mechanism must have Laplace noise."""
        low, high = ends
        below, within = column.counts_below(np.array([low, math.nextafter(high, math.inf)]))
        inside = int(within - below)
        counts = [inside, column.count() - inside]
        records = column.contribution.records
        noisy = mechanism.noisy(counts, records, noise)
        region = NoiseRegion(
            tuple(map(float, noisy)), mechanism.distribution, mechanism.scale(records), rounding=1.0
        )
        corners = list(region.vertices(CONFIDENCE))
        if min(map(sum, corners)) <= 0:
            return cls(None)
        shares = [min(1.0, max(0.0, outside / (inside + outside))) for inside, outside in corners]
        return cls((min(shares), max(shares)))

    @staticmethod
    def enough_records(mechanism: AdditiveMechanism, records: int) -> int:
        """A number of records with which the share is released, as good as surely.

        The noise and what is allowed for it may each take away as much as `CONFIDENCE` says.
        """
        region = NoiseRegion(
            (0.0, 0.0), mechanism.distribution, mechanism.scale(records), rounding=1.0
        )
        return math.ceil(2 * max(map(sum, region.vertices(CONFIDENCE))))

    def __str__(self) -> str:
        if self.interval is None:
            return "The bounds are private; how many values lay outside is not known."
        low, high = outward(*(100 * share for share in self.interval))
        return (
            f"The bounds are private; {low}% to {high}% of the values lay outside and were moved "
            f"to the nearer one (confidence {percent(CONFIDENCE)})."
        )


_DEPTH = 16.0  # k, the number of records that should lie outside, times ε of the radius
_USUAL = 2.0**10  # the radius around zero that the prior prefers
_LARGEST_PART = 4  # around zero, at most one record in so many should lie outside
_FAR = 50.0  # loss of weight from which on all radii weigh the same: a probability of 1e-21
_SPREAD = Fraction(2)  # length of the range of the changes of distances, in records


def base_measure(scale: Scale) -> Measure:
    """The values that a private quantile of a column with this scale may take."""
    return LatticeMeasure(scale.lattice()) if scale.whole else DoubleMeasure()


def measure_between(ends: tuple[float, float], scale: Scale) -> Measure:
    """The values between two ends, public or released, that a private quantile may take."""
    if not scale.whole:
        unit = max(math.ldexp(ends[1] - ends[0], -20), math.ldexp(max(map(abs, ends)), -50))
        return UniformMeasure(Lattice.for_unit(unit, ends))
    lattice = scale.lattice()
    low, high = lattice.steps(ends).tolist()
    return UniformMeasure(attrs.evolve(lattice, low=min(low, high - 1), high=high))


@attrs.frozen(kw_only=True, slots=False)
class PrivateRadius:
    """A radius around a public centre, outside of which about `outside` records lie.

    Guarantee:
        A release is ε-DP with δ = 0, and has the privacy of `event`, for adding or removing one
        unit of at most `records` records. One query counts the records within every radius.

    Attributes:
        epsilon: ε of the release.
        records: The largest number of records of one privacy unit.
        whole: Whether all values are whole numbers, so that no radius below 1 is needed.
        part: At most one record in `part` should lie outside; 1 sets no such limit.
    """

    epsilon: float
    records: int = 1
    whole: bool = False
    part: int = 1

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one release."""
        return ExponentialMechanismDpEvent(self.epsilon)

    @property
    def outside(self) -> int:
        """k: the number of records that should lie outside."""
        return math.ceil(_DEPTH * self.records / self.epsilon)

    @cached_property
    def radii(self) -> FloatArray:
        """The radii to choose from, in ascending order."""
        octaves = 2.0 ** np.arange(0 if self.whole else -32, 48)
        return np.sort(np.concatenate([octaves, 1.5 * octaves]))

    @cached_property
    def _decay(self) -> Decay:
        speed = rate(float_share(self.epsilon, self.records), _SPREAD)
        return Decay(speed, math.ceil(_FAR / speed), self.part)

    def release(self, column: Column, centre: float, noise: Noise) -> float:
        """Release a radius around the centre, which must be public or released."""
        weights = self.weights(self._outside_of(column, centre), column.count(), centre)
        return float(self.radii[choose(weights, noise)])

    def weights(self, outside: Sequence[int], count: int, centre: float) -> list[int]:
        """Whole numbers proportional to the probability of each radius.

        Args:
            outside: The number of records outside each radius.
            count: The number of records.
            centre: The centre.
        """
        part = self.part
        k = min(self.outside * part, count)  # all in units of 1/part records
        wider = [k, *(each * part for each in outside[:-1])]  # the first radius is never too wide
        distances = [
            max(0, here * part - k, k - there) for here, there in zip(outside, wider, strict=True)
        ]
        decay = self._decay.weights(distances)
        return [prior * weight for prior, weight in zip(self._prior(centre), decay, strict=True)]

    def _outside_of(self, column: Column, centre: float) -> list[int]:
        radii = self.radii
        with np.errstate(over="ignore"):
            lows = centre - radii[::-1]
            highs = np.nextafter(centre + radii, math.inf)
        below = column.counts_below(np.concatenate([lows, highs]))
        inside = below[len(radii) :] - below[: len(radii)][::-1]
        count = column.count()
        return [count - each for each in inside.tolist()]

    def _prior(self, centre: float) -> list[int]:
        """A mass for each radius, by its distance in octaves from the usual one.

        It falls faster for larger radii: they may be wrong by far more.
        """
        radii = self.radii
        usual = abs(centre) / 4 if centre else _USUAL
        octaves = np.log2(radii / min(max(usual, radii[0]), radii[-1])).tolist()
        return [round(2**30 / (1 + abs(far)) ** (3 if far > 0 else 1)) for far in octaves]


@attrs.frozen(kw_only=True, slots=False)
class Clipping:
    """How values are clipped before they are added up.

    Attributes:
        given: Public bounds, as numbers in the unit of the column's scale; None if there are none.
        centre: The private median; None if the bounds are given, or the centre is zero.
        radius: The private radius; None if the bounds are given.
    """

    given: tuple[float, float] | None = None
    centre: ExponentialQuantile | None = None
    radius: PrivateRadius | None = None

    @classmethod
    def to(cls, bounds: tuple[Any, Any], scale: Scale) -> "Clipping":
        """Clip to public bounds, given as values of the column's type."""
        return cls(given=check_bounds(scale.pair(bounds)))

    @classmethod
    def privately(cls, column: Column, centre: float, radius: float) -> "Clipping":
        """Clip to a private interval, for these ε of its centre and its radius.

        Without any ε for the centre, the interval is around zero.
        """
        records, scale = column.contribution.records, column.scale
        median = None
        if centre:
            measure = base_measure(scale)
            median = ExponentialQuantile(
                p="1/2",
                epsilon=float_share(centre, records),
                measure=measure,
                interval_share=0.0,
            )
        part = 1 if centre else _LARGEST_PART
        width = PrivateRadius(epsilon=radius, records=records, whole=scale.whole, part=part)
        return cls(centre=median, radius=width)

    @property
    def events(self) -> list[dp.DpEvent]:
        """The privacy events of releasing the bounds."""
        if self.radius is None:
            return []
        if self.centre is None:
            return [self.radius.event]
        return [for_units(self.centre.event, self.radius.records), self.radius.event]

    def ends(self, column: Column, noise: Noise) -> tuple[float, float]:
        """Return the bounds; if they are private, read the records and release them."""
        if self.radius is None:
            assert self.given is not None
            return self.given
        centre = 0.0 if self.centre is None else self.centre.release(column, noise).value
        radius = self.radius.release(column, centre, noise)
        return around(centre, radius, column.scale)


def around(centre: float, radius: float, scale: Scale) -> tuple[float, float]:
    """The ends of an interval, of at least the width that the doubles at its centre resolve.

    They are rounded outward to few digits, and to whole units if the column has any: what is
    printed as the bounds are then the bounds themselves.
    """
    radius = max(radius, math.ldexp(abs(centre), -40))
    low, high = map(float, outward(centre - radius, centre + radius))
    return (float(math.floor(low)), float(math.ceil(high))) if scale.whole else (low, high)


def for_units(event: dp.DpEvent, records: int) -> dp.DpEvent:
    """The event of choices whose ε is per record, for a unit of several records.

    Along a chain of added records the ranges of log-ratios add up, so a choice of range ε/k per
    record has range ε for a unit of k records.
    """
    match event:
        case ExponentialMechanismDpEvent():
            return ExponentialMechanismDpEvent(float_above(Fraction(event.epsilon) * records))
        case dp.ComposedDpEvent():
            return dp.ComposedDpEvent([for_units(each, records) for each in event.events])
    raise ValueError(f"Expected choices, got {event!r}.")
