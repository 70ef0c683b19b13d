"""Clipping values to bounds: public ones, or private ones that few records lie outside of.

Without public bounds an interval is released first (see `exponential.interval`), and then how many
values lay outside of it.
"""

import math
from fractions import Fraction
from typing import Any

import attrs
import dp_accounting as dp
import numpy as np

from prudent._rounding import outward, percent
from prudent.accounting._numeric import float_above
from prudent.accounting.events import ExponentialMechanismDpEvent
from prudent.release.columns.column import Column
from prudent.release.columns.scales import Scale
from prudent.release.exponential.interval import PrivateInterval
from prudent.release.lattice import check_bounds
from prudent.release.noise import Noise
from prudent.release.sums.additive import AdditiveMechanism, NoiseRegion

CONFIDENCE = 0.95
"""Least probability, over the noise, with which a share is in its interval."""

_MOST = 0.5  # of the records, that may lie outside of bounds about which something is said


@attrs.frozen
class ClippedShare:
    """Where the fraction of records outside public or released bounds lies, from two noisy counts.

    A record is either inside the bounds or outside. So the two counts together change by 1 with a
    record, and noise for a sensitivity of 1 on each pays for both. The noise is that of no other
    number, so an interval about the clipped values that is shown by what this one says holds as
    often as one that always is.
    """

    # Ends of an interval that holds the fraction with probability `CONFIDENCE`, at least; None if
    # half of the records or more may be outside: what is clipped then says little about them.
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
        return cls((min(shares), max(shares)) if max(shares) < _MOST else None)

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
            return "The bounds are private, and half of the values or more may lie outside."
        low, high = outward(*(100 * share for share in self.interval))
        return (
            f"The bounds are private; {low}% to {high}% of the values lay outside and were moved "
            f"to the nearer one (confidence {percent(CONFIDENCE)})."
        )


@attrs.frozen(kw_only=True)
class Clipping:
    """How values are clipped before they are added up."""

    # Public bounds, as numbers in the unit of the column's scale; None if there are none.
    given: tuple[float, float] | None = None
    interval: PrivateInterval | None = None  # releases private bounds; None if the bounds are given

    @classmethod
    def to(cls, bounds: tuple[Any, Any], scale: Scale) -> "Clipping":
        """Clip to public bounds, given as values of the column's type."""
        return cls(given=check_bounds(scale.pair(bounds)))

    @property
    def events(self) -> list[dp.DpEvent]:
        """The privacy events of releasing the bounds."""
        return [] if self.interval is None else self.interval.events

    def ends(self, column: Column, noise: Noise) -> tuple[float, float]:
        """Return the bounds; if they are private, read the records and release them."""
        if self.interval is not None:
            return self.interval.release(column, noise)
        assert self.given is not None
        return self.given


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
