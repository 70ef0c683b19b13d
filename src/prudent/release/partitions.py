"""Which groups occur: a private choice of those with enough records.

A group that occurs in the data may occur because of one person. So a group is kept with a
probability π(n) that depends on its number n of units alone, and is 0 for none. Adding a unit
changes one group's n by 1, so the choice is (ε, δ)-DP if for every n

    π(n+1) <= e^ε π(n) + δ    and    1 - π(n) <= e^ε (1 - π(n+1)) + δ,

and π never decreases (the two other directions). Taking the larger of what both allow, from
π(0) = 0 on, keeps every group with the largest probability that any (ε, δ)-DP choice can
(Desfontaines, Voss, Gipson and Mandayam 2020). All probabilities are whole multiples of 2**-128,
rounded down, with a rational number below e^ε, so both inequalities hold exactly as drawn.
"""

import decimal
from collections.abc import Hashable, Mapping
from fractions import Fraction
from functools import cached_property

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent.accounting import ApproximateDpEvent
from prudent.release.columns.column import in_order
from prudent.release.noise import Noise

ONE = 2**128
"""The denominator of all probabilities."""

_DIGITS = 50


@attrs.frozen(kw_only=True, slots=False)
class PartitionSelection:
    """An (ε, δ)-DP choice of the groups that occur, optimal for adding or removing one unit.

    Guarantee:
        `select` has the privacy of `event`, if a unit has records in one group only, at most
        `records` of them. Their number divided by `records`, rounded up, changes by at most 1.

    Attributes:
        epsilon: ε of the choice.
        delta: δ of the choice: also the probability with which a group of one unit is kept.
        records: The largest number of records of one privacy unit.
    """

    epsilon: float
    delta: float
    records: int = 1

    def __attrs_post_init__(self) -> None:
        _validate.between(1e-4, 50, epsilon=self.epsilon)
        _validate.small_delta(1e-18, ends="[)", delta=self.delta)
        _validate.count(1, records=self.records)

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of the choice."""
        return ApproximateDpEvent(self.epsilon, self.delta)

    @cached_property
    def chances(self) -> tuple[int, ...]:
        """π(0), π(1), …, each times 2**128; the last is 2**128, and so are all after it."""
        ratio, delta = self._ratio, int(Fraction(self.delta) * ONE)
        chances = [0]
        while chances[-1] < ONE:
            last = chances[-1]
            often = last * ratio.numerator // ratio.denominator + delta
            rest = max(0, ONE - last - delta)
            rare = ONE - -(-rest * ratio.denominator // ratio.numerator)
            chances.append(min(often, rare, ONE))
        return tuple(chances)

    @property
    def _ratio(self) -> Fraction:
        """A rational number below e^ε by at most a few parts in 10**49."""
        context = decimal.Context(prec=_DIGITS, rounding=decimal.ROUND_HALF_EVEN)
        rounded = context.exp(decimal.Decimal(self.epsilon))
        return Fraction(rounded) * (1 - Fraction(1, 10 ** (_DIGITS - 2)))

    def chance(self, records: int) -> int:
        """The probability, times 2**128, that a group with so many records is kept."""
        units = -(-records // self.records)
        return self.chances[min(units, len(self.chances) - 1)]

    def needed(self, probability: float = 0.5) -> int:
        """The number of records from which on a group is kept with this probability at least."""
        wanted = Fraction(_validate.between(0, 1, ends="(]", probability=probability)) * ONE
        units = next(place for place, chance in enumerate(self.chances) if chance >= wanted)
        return (units - 1) * self.records + 1

    def select(self, counts: Mapping[Hashable, int], noise: Noise) -> list[Hashable]:
        """Return the groups that are kept, in their own order.

        Args:
            counts: The number of records of each group that occurs.
            noise: Source of randomness.
        """
        return [
            group
            for group in sorted(counts, key=in_order)
            if noise.integer(ONE) < self.chance(counts[group])
        ]
