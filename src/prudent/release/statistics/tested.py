"""Statistics released by Propose-Test-Release, for one proposal or more.

Always tested are the mode, and means and sums without the extremes.
"""

import abc
import math
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import attrs
from typing_extensions import override

from prudent import _validate
from prudent.release.certificates import MARGIN_CAP, distance_by_margin
from prudent.release.charging import Preview
from prudent.release.columns.column import Column, Kind, in_order
from prudent.release.columns.scales import NUMBER, Scale
from prudent.release.lattice import Lattice, check_bounds
from prudent.release.noise import Noise
from prudent.release.outcome import Outcome, Refused, Released, ScaledSpread
from prudent.release.ptr import margins
from prudent.release.ptr import trimmed as trimming
from prudent.release.ptr.margins import RobustValue
from prudent.release.ptr.mechanism import ProposeTestReleaseMechanism as Mechanism
from prudent.release.request import Priced, Request, Statistic, check_single


class Tested(Statistic):
    """A statistic that is tested before it is trusted."""

    advice: ClassVar[str]  # what would help after a refusal
    # Whether the statistic is a difference of values, such as a range.
    difference: ClassVar[bool] = False

    @abc.abstractmethod
    def measure(self, records: Column, mechanism: Mechanism, propose: int, cap: int) -> RobustValue:
        """The value and its margin for a sensitivity in steps of the lattice, up to a cap."""

    def priced(
        self, name: str, mechanism: Mechanism, request: Request, records: Column, *notes: str
    ) -> Priced:
        """The price of a release by a calibrated mechanism."""
        check_single(records, "a release that is tested first", "propose")
        public = attrs.evolve(preview(name, mechanism, request), notes=notes)
        return Priced(preview=public, mechanism=mechanism)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Outcome:
        mechanism = priced.mechanism

        def measured(records: Column) -> RobustValue:
            return self.measure(records, mechanism, mechanism.steps, mechanism.cap)

        outcome = mechanism.release(records, measured, noise=noise)
        if isinstance(outcome, Released):
            outcome = attrs.evolve(outcome, value=margins.read(outcome.value))
        return advised(displayed(outcome, records.scale, self.difference), self.advice)

    @override
    def distance(self, priced: Priced, records: Column, value: Any) -> tuple[int, Any, Any]:
        """See `Statistic`; by margins, for any statistic that is a number."""
        scale, lattice, length = records.scale, priced.mechanism.lattice, priced.tolerance
        number = scale.length(value) if self.difference else scale.number(value)
        distance = distance_by_margin(
            lambda propose: self.measure(records, priced.mechanism, propose, MARGIN_CAP),
            int(lattice.steps(number)),
            math.floor(math.ldexp(length, -lattice.exponent)),
            MARGIN_CAP,
        )
        show = scale.difference if self.difference else scale.value
        return distance, show(number - length), show(number + length)


def calibrate(
    request: Request, *, scale: Scale = NUMBER, fallback_sensitivity: float | None = None
) -> Mechanism:
    """Calibrate the mechanism to a request, in the unit of a scale; for a category without one."""
    return Mechanism.calibrate(
        propose=0.0 if request.propose is None else proposal(request.propose, scale),
        epsilon=request.epsilon,
        delta=request.required_delta,
        bounds=scale.given_bounds(request.bounds),
        fallback_sensitivity=fallback_sensitivity,
        fallback=request.fallback,
        distribution=request.distribution,
    )


def proposal(propose: Any, scale: Scale) -> float:
    """The proposal as a number of units of the scale."""
    return _validate.positive(propose=scale.given_length("propose", propose))


def preview(name: str, mechanism: Mechanism, request: Request) -> Preview:
    """What is known of the release before the data are read."""
    noisy = mechanism.propose > 0
    spread = mechanism.spread(mechanism.robust_noise_multiplier * mechanism.steps)
    return Preview(
        statistic=name,
        mechanism="propose-test-release",
        epsilon=request.epsilon,
        delta=request.required_delta,
        event=mechanism.event,
        proposal=mechanism.propose or None,
        noise_scale=spread.deviation if noisy else None,
        half_width=spread.half_width(0.95) if noisy else None,
        threshold=mechanism.threshold,
    )


def advised(outcome: Outcome, advice: str) -> Outcome:
    """Add to a refusal what would help, which depends on the statistic but not on the data."""
    if not isinstance(outcome, Refused):
        return outcome
    return attrs.evolve(
        outcome, reason=f"{outcome.reason} {advice} Asking again, even for the same, costs again."
    )


def displayed(outcome: Outcome, scale: Scale, difference: bool = False) -> Outcome:
    """The outcome with its number as a value of the column's type."""
    if scale.plain or not isinstance(outcome, Released) or outcome.spread is None:
        return outcome
    number = outcome.value
    return attrs.evolve(
        outcome,
        value=scale.difference(number) if difference else scale.value(number),
        spread=ScaledSpread(number, outcome.spread, scale, difference),
    )


@attrs.frozen
class Mode(Tested):
    """The most frequent category, of a public list or of any."""

    categories: Sequence[Hashable] | None

    advice = (
        "Spend a larger ε, merge categories that mean the same, or release the count of each "
        "category instead: two of them may be equally frequent."
    )

    @override
    def kind(self, request: Request) -> Kind:
        return "categories"

    @override
    def measure(self, records: Column, mechanism: Mechanism, propose: int, cap: int) -> RobustValue:
        return margins.category_mode(records, self.categories, cap=cap)

    @override
    def price(self, request: Request, records: Column) -> Priced:
        if self.categories is not None:
            _check_categories(self.categories, records)
        return self.priced("mode", calibrate(request), request, records)

    @override
    def distance(self, priced: Priced, records: Column, value: Any) -> tuple[int, Any, Any]:
        """The changes until another category is the mode: one more than the margin."""
        measured = margins.category_mode(records, self.categories, cap=MARGIN_CAP)
        top = margins.read(measured.value[0])
        return (measured.margin + 1 if top == value else 0), value, value


def _check_categories(categories: Sequence[Hashable], records: Column) -> None:
    """Reject, before anything is charged, categories that the column's type cannot hold."""
    try:
        ordered = sorted(set(map(in_order, categories)))
    except TypeError:
        ordered = []
    if isinstance(categories, str) or not ordered:
        raise _validate.ArgumentError(
            "categories", "a list of one or more texts, numbers or dates", got=categories
        )
    if hasattr(records, "listed"):
        records.listed(categories)


MOST_TRIMMED = 2**48  # records; larger than any table, and small enough that ranks fit 64 bits


@attrs.frozen
class TrimmedMean(Tested):
    """The mean without the extremes; see `trimmed_mean`."""

    trim: int
    default: Any

    advice = (
        "Trim more records at each end, propose more, or release the mean, which needs no proposal "
        "and never refuses."
    )

    @override
    def price(self, request: Request, records: Column) -> Priced:
        scale = records.scale
        bounds = scale.given_bounds(request.bounds)
        lattice = Lattice.for_proposal(proposal(request.propose, scale), bounds)
        of_none = self._of_none(lattice, bounds, scale)
        # Computed in steps, because a difference of doubles may be rounded down.
        sensitivity = lattice.value(max(lattice.high - of_none, of_none - lattice.low))
        mechanism = calibrate(
            request, scale=scale, fallback_sensitivity=None if bounds is None else sensitivity
        )
        decided = _decided(self.trim, mechanism)
        return self.priced("trimmed mean", mechanism, request, records, *decided)

    @override
    def measure(self, records: Column, mechanism: Mechanism, propose: int, cap: int) -> RobustValue:
        lattice = mechanism.lattice
        of_none = self._of_none(lattice, mechanism.bounds, records.scale)
        return trimming.trimmed_mean(
            records, lattice, self.trim, default=of_none, propose=propose, cap=cap
        )

    def _of_none(self, lattice: Lattice, bounds: tuple[float, float] | None, scale: Scale) -> int:
        """The value when trimming leaves no record, in steps."""
        low, high = (-lattice.reach, lattice.reach) if bounds is None else check_bounds(bounds)
        middle = (low + high) / 2
        if self.default is not None:
            middle = _validate.between(low, high, default=scale.number(self.default))
        return int(lattice.steps(middle))


def _decided(trim: int, mechanism: Mechanism) -> tuple[str, ...]:
    """What the trim alone decides: without bounds, the margin is at most trim + 1."""
    if mechanism.lattice.bounded or trim + 1 > mechanism.threshold:
        return ()
    return (
        f"It will almost surely be refused: without bounds the margin is at most {trim + 1:,} "
        f"records. Trim more than {mechanism.threshold:,}.",
    )
