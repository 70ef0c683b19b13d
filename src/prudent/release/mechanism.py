"""Propose, test, release: Algorithm 1, for any statistic that knows its margin.

The proposal is a sensitivity τ. The test asks privately whether the data are far from any that
one record could move by more than τ. If they are, the robust statistic f₂ is released with noise
for τ; if not, nothing is, or a fallback f₁ with noise for its global sensitivity.
"""

import enum
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import attrs
import dp_accounting as dp
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent import _validate
from prudent.accounting import MarginTest, ProposeTestReleaseDpEvent, Reveals
from prudent.release.failures import withheld
from prudent.release.lattice import Lattice
from prudent.release.margins.quantile import RobustValue
from prudent.release.noise import LARGEST_SCALE, Law, Noise, SecureNoise, checked_test

Data = TypeVar("Data")

_STILL = 1e9
"""Noise multiplier charged for a value that no record moves while the margin is positive.

It needs no noise at all; a Gaussian of this multiplier reveals more than that.
"""

_HEADROOM = 20.0  # scales of the test's noise beyond the threshold at which margins are capped
_LARGEST_CAP = 2**22  # records: what is read to find a margin has to fit into memory


class Branch(enum.Enum):
    """Which statistic was released."""

    ROBUST = "robust"
    FALLBACK = "fallback"
    SELECTED = "selected"
    """Neither: one of several candidates, chosen at random by the exponential mechanism."""


@attrs.frozen
class Released:
    """A value that may be shown to anyone.

    Attributes:
        value: A number, a tuple of numbers, or a category.
        branch: Which statistic it is of.
        noise_scale: Standard deviation of the noise in it, in the unit of the data.
        spacing: Values are multiples of this public power of two; 0 for a category.
        event: What it cost, for any accountant.
    """

    value: Any
    branch: Branch
    noise_scale: float
    spacing: float
    event: Any = attrs.field(repr=False)


@attrs.frozen
class Refused:
    """No value: the test did not pass. It cost what a release costs.

    Attributes:
        reason: Says no more than that the noisy test failed, which was charged for.
        event: What it cost, for any accountant.
    """

    reason: str
    event: Any = attrs.field(repr=False)


Outcome: TypeAlias = Released | Refused


@attrs.frozen(kw_only=True)
class ProposeTestRelease:
    """The mechanism, with everything public about it.

    Guarantee:
        If the measured margin is safe (it changes by at most 1 with a record, and is 0 wherever a
        record can move the value by more than `propose`), a release has the privacy of `event`.

    Attributes:
        propose: τ, in the unit of the data. 0: a category that is released as it is, or not at all.
        robust_noise_multiplier: Scale of the noise of f₂ over τ.
        law: Of the noise of both branches; Laplace for a single number only.
        test: A discrete test of the margin.
        failure: δ₀: how often a margin of 0 may pass.
        bounds: Public bounds on the data; None if there are none.
        fallback_sensitivity: GS of the fallback, in the unit of the data; None: the distance
            between the bounds.
        fallback_noise_multiplier: Scale of the noise of the fallback over its GS. Infinite: refuse.
        monotone: Whether adding a record can only lower the margin; reveals less.
    """

    propose: float
    robust_noise_multiplier: float
    test: MarginTest
    failure: float
    law: Law = Law.LAPLACE
    bounds: tuple[float, float] | None = None
    fallback_sensitivity: float | None = None
    fallback_noise_multiplier: float = math.inf
    monotone: bool = False

    def __attrs_post_init__(self) -> None:
        _validate.non_negative(propose=self.propose)
        _validate.positive(robust_noise_multiplier=self.robust_noise_multiplier)
        _validate.positive_or_infinite(fallback_noise_multiplier=self.fallback_noise_multiplier)
        checked_test(self.test)
        if self.fallback_sensitivity is not None:
            _validate.positive(fallback_sensitivity=self.fallback_sensitivity)
        _validate.one_of(list(Law), law=self.law)
        if self.falls_back:
            self._check_fallback()
        _ = self.lattice, self.event  # check the rest
        if self.cap > _LARGEST_CAP:
            raise ValueError(
                f"Expected test and failure to ask for at most 2**22 records, got a test that asks "
                f"for {self.threshold:,} at failure = {self.failure:g}. Take a smaller scale."
            )
        if self.robust_noise_multiplier * self.steps > LARGEST_SCALE:
            raise _validate.ArgumentError(
                "robust_noise_multiplier",
                "at most 2**41, so that every draw fits 64 bits",
                shown=f"{self.robust_noise_multiplier:g}",
            )

    def _check_fallback(self) -> None:
        if not self.propose:
            raise _validate.ArgumentError(
                "propose",
                "> 0 for a fallback",
                got=0,
                why="a value that is released as it is has no noise to fall back on",
                hint="Leave the fallback out.",
            )
        if not math.isfinite(self.sensitivity_in_steps):
            raise _validate.ArgumentError(
                "bounds",
                "for a fallback",
                shown="none",
                why="without them no noise is enough",
                hint="Give bounds=(low, high), or leave the fallback out.",
            )
        if self.fallback_noise_multiplier * self.sensitivity_in_steps > LARGEST_SCALE:
            raise _validate.ArgumentError(
                "bounds",
                "within a billion proposals of each other for a fallback",
                shown=f"{self.bounds!r} and propose={self.propose:g}",
                hint="Propose more, or give narrower bounds.",
            )

    @property
    def falls_back(self) -> bool:
        """Whether a failed test still releases something."""
        return math.isfinite(self.fallback_noise_multiplier)

    @property
    def lattice(self) -> Lattice:
        """Where values live."""
        return Lattice.for_proposal(self.propose or 1.0, self.bounds)

    @property
    def steps(self) -> int:
        """τ in steps of the lattice, rounded up."""
        return self.lattice.steps_of_proposal(self.propose) if self.propose else 0

    @property
    def sensitivity_in_steps(self) -> float:
        """GS of the fallback in steps of the lattice, rounded up; infinite without bounds."""
        if self.fallback_sensitivity is not None:
            return self.lattice.steps_of_proposal(self.fallback_sensitivity)
        return self.lattice.diameter if self.bounds is not None else math.inf

    @property
    def threshold(self) -> int:
        """What the noisy margin must exceed."""
        return int(self.test.threshold(self.failure))

    @property
    def cap(self) -> int:
        """The largest margin worth telling apart: beyond it the test passes anyway."""
        return math.ceil(self.threshold + _HEADROOM * self.test.scale)

    @property
    def event(self) -> dp.DpEvent:
        """What one run costs, whichever way it ends.

        An accident of the test (a margin of 0 that passes) is charged as if it revealed everything,
        with bounds or without: propose=0. That is also why the test and the noise of a value may
        be charged one after the other: either the noise is enough for what one record can do, or
        the accident has paid for all that follows.
        """
        if self.law is Law.GAUSSIAN and self.propose:
            return self._test_event(self.fallback_noise_multiplier, self.robust_noise_multiplier)
        test = self._test_event(math.inf, _STILL)
        if self.propose == 0:  # without a fallback, so nothing else is ever released
            return test
        weaker = min(self.robust_noise_multiplier, self.fallback_noise_multiplier)
        # Two equally likely answers but for ε: no mechanism of this ε reveals more.
        return dp.ComposedDpEvent([test, DiscreteLaplaceDpEvent(1 / weaker, 1)])

    def _test_event(self, fallback: float, robust: float) -> ProposeTestReleaseDpEvent:
        reveals = Reveals.MONOTONE_BRANCH if self.monotone else Reveals.BRANCH
        return ProposeTestReleaseDpEvent(fallback, 0.0, self.test, self.failure, robust, reveals)

    def release(
        self,
        data: Data,
        measure: Callable[[Data], RobustValue],
        fallback: Callable[[Data], Sequence[int]] | None = None,
        *,
        noise: Noise | None = None,
    ) -> Outcome:
        """Runs the mechanism once.

        Args:
            data: The records, in whatever form `measure` reads them.
            measure: f₂ and its margin, in steps of `lattice`, for the sensitivity `steps`.
            fallback: f₁, in steps; None: f₂ again, with noise for its global sensitivity.
            noise: Where randomness comes from; None: the operating system.

        Raises:
            SourceError: If `measure` or `fallback` fails, whose own words are withheld.
        """
        noise = SecureNoise() if noise is None else noise
        measured = withheld(measure, data)
        if self.law is Law.LAPLACE and len(measured.value) != 1:  # before the test says anything
            raise ValueError("Expected law=Law.GAUSSIAN for a vector, got Law.LAPLACE.")
        noisy_margin = min(measured.margin, self.cap) + noise.of_test(self.test)
        if noisy_margin > self.threshold:
            if self.propose == 0:
                return Released(measured.value[0], Branch.ROBUST, 0.0, 0.0, self.event)
            scale = self.robust_noise_multiplier * self.steps
            return self._released(measured.value, scale, Branch.ROBUST, noise)
        if self.falls_back:
            value = measured.value if fallback is None else withheld(fallback, data)
            scale = self.fallback_noise_multiplier * self.sensitivity_in_steps
            return self._released(value, scale, Branch.FALLBACK, noise)
        return Refused(self._reason, self.event)

    @property
    def _reason(self) -> str:
        """Why a failed test refuses: the same words whatever the data."""
        far = (
            ""
            if self.lattice.bounded or not self.propose
            else (
                f" Without bounds, an answer beyond ±{self.lattice.reach:.3g} is refused as well."
            )
        )
        return (
            f"The noisy margin did not exceed {self.threshold} records. Propose more, spend more, "
            f"or release from more data; asking again costs again.{far}"
        )

    def _released(
        self, steps: Sequence[int], scale: float, branch: Branch, noise: Noise
    ) -> Released:
        scale = math.nextafter(scale, math.inf)  # the product was rounded, perhaps down
        added = noise.of_value(self.law, scale, len(steps))
        deviation = math.sqrt(2) * scale if self.law is Law.LAPLACE else scale
        lattice = self.lattice
        values = [lattice.value(one + other) for one, other in zip(steps, added, strict=True)]
        value = values[0] if len(values) == 1 else tuple(values)
        return Released(value, branch, deviation * lattice.spacing, lattice.spacing, self.event)


def on_lattice(
    mechanism: ProposeTestRelease,
    statistic: Callable[[Data], float],
    margin: Callable[[Data], int],
) -> Callable[[Data], RobustValue]:
    """Makes a measure of a number in the unit of the data and its margin for `propose`.

    The number is clipped to the bounds and rounded to the lattice here: numbers within τ of each
    other stay within `steps` steps. What is no number goes to the lower end. A vector must be
    rounded record by record, before it is summed, since rounding the sum moves every coordinate.
    """
    _validate.positive(propose=mechanism.propose)  # a number needs a lattice, and that a unit

    def measure(data: Data) -> RobustValue:
        lattice, value = mechanism.lattice, statistic(data)
        step = lattice.low if math.isnan(value) else int(lattice.steps(value))
        return RobustValue((step,), margin(data), mechanism.steps)

    return measure


class UnsafeMarginError(ValueError):
    """A margin that is not safe, with the data that show it."""


def check_margin(
    statistic: Callable[[list[Any]], float | Sequence[float]],
    margin: Callable[[list[Any]], int],
    *,
    propose: float,
    domain: Sequence[Any],
    size: int,
) -> int:
    """Checks a margin on every data set of at most `size` records from a small domain.

    Args:
        statistic: f₂, of a list of records in any order.
        margin: Its margin for `propose`.
        propose: τ.
        domain: Values a record may take; the more extreme, the better the check.
        size: The largest data set.

    Returns:
        How many pairs of data sets one record apart were checked.

    Raises:
        UnsafeMarginError: If the margin jumps by more than 1, or is positive where one record
            moves the statistic by more than τ.
    """
    checked = 0
    layer: list[tuple[int, ...]] = [()]
    for _ in range(size):
        following = [(*places, new) for places in layer for new in range(len(domain))]
        for places in layer:
            data = [domain[place] for place in places]
            for added in domain:
                _check_pair(statistic, margin, propose, data, [*data, added])
                checked += 1
        # Data sets are kept sorted, so each is visited once.
        layer = [places for places in following if list(places) == sorted(places)]
    return checked


def _check_pair(
    statistic: Callable[[list[Any]], float | Sequence[float]],
    margin: Callable[[list[Any]], int],
    propose: float,
    fewer: list[Any],
    more: list[Any],
) -> None:
    margins = margin(fewer), margin(more)
    if abs(margins[0] - margins[1]) > 1:
        raise UnsafeMarginError(
            f"The margin changes by more than 1, from {margins[0]} at {fewer!r} to {margins[1]} at "
            f"{more!r}. A safe margin counts records, so one record changes it by 1 at most."
        )
    change = _distance(statistic(fewer), statistic(more))
    if not change <= propose and max(margins) > 0:  # a change that is no number is none either
        raise UnsafeMarginError(
            f"The statistic changes by {change:g} > {propose:g} from {fewer!r} to {more!r}, where "
            f"the margins are {margins[0]} and {margins[1]}. Both must be 0 there."
        )


def _distance(one: float | Sequence[float], other: float | Sequence[float]) -> float:
    if one == other:  # infinite ones too
        return 0.0
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other)
    return math.dist(one, other)  # type: ignore[arg-type]
