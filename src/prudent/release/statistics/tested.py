"""How a statistic with a margin is released: by Propose-Test-Release, for one proposal or more."""

import abc
import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import attrs
import dp_accounting as dp
from typing_extensions import override

from prudent import _validate
from prudent.accounting import DiscreteLaplaceTest
from prudent.accounting.calibration import Search, solve
from prudent.release.certificates import MARGIN_CAP, distance_by_margin
from prudent.release.charging import Preview
from prudent.release.columns.column import Column
from prudent.release.columns.scales import NUMBER, Scale
from prudent.release.noise import Noise
from prudent.release.outcome import Outcome, Refused, Released, ScaledSpread
from prudent.release.ptr import margins
from prudent.release.ptr.margins import RobustValue
from prudent.release.ptr.mechanism import ProposeTestReleaseMechanism as Mechanism
from prudent.release.request import (
    Priced,
    Request,
    Statistic,
)


class Tested(Statistic):
    """A statistic that is tested before it is trusted."""

    advice: ClassVar[str]  # what would help after a refusal
    # Whether the statistic is a difference of values, such as a range.
    difference: ClassVar[bool] = False

    @abc.abstractmethod
    def measure(self, records: Column, mechanism: Mechanism, propose: int, cap: int) -> RobustValue:
        """The value and its margin for a sensitivity in steps of the lattice, up to a cap."""

    def priced(
        self,
        name: str,
        mechanism: Mechanism,
        request: Request,
        records: Column,
        *notes: str,
    ) -> Priced:
        """The price of a release by a calibrated mechanism."""
        check_single(records)
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


def check_single(records: Column) -> None:
    """Refuse to test records of which a unit has several: a margin counts single records."""
    if records.contribution.records > 1:
        raise _validate.ArgumentError(
            "per_unit",
            "one value per unit for a release that is tested first",
            got=records.contribution.per_unit,
            why="a margin counts single records",
            hint="Leave propose out, or give a rule such as per_unit='mean'.",
        )


def calibrate(
    request: Request,
    *,
    scale: Scale = NUMBER,
    fallback_sensitivity: float | None = None,
    monotone: bool = False,
) -> Mechanism:
    """Calibrate the mechanism for these options; without a proposal, one for a category.

    Args:
        request: The options of the statistic.
        scale: The scale of the column: the mechanism works with its numbers.
        fallback_sensitivity: See `ProposeTestReleaseMechanism`.
        monotone: See `ProposeTestReleaseMechanism`.
    """
    return Mechanism.calibrate(
        propose=0.0 if request.propose is None else proposal(request.propose, scale),
        epsilon=request.epsilon,
        delta=request.required_delta,
        bounds=scale.given_bounds(request.bounds),
        fallback_sensitivity=fallback_sensitivity,
        fallback=request.fallback,
        monotone=monotone,
        distribution=request.distribution,
        test=request.test,
        failure=request.failure,
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


@attrs.frozen(kw_only=True)
class ProposalSearch:
    """A search that tests several proposals in ascending order and releases at the first pass.

    The charge covers all tests and one release, even if the search stops early. If a wrong proposal
    passes by accident, its test has already been charged as revealing everything, so the noise that
    follows is charged once, as sufficient (see `ProposeTestReleaseMechanism.event`).

    Attributes:
        mechanisms: One mechanism for each proposal; all have the same test and noise multiplier.
    """

    mechanisms: tuple[Mechanism, ...]

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of the whole search."""
        test, value = self.mechanisms[0].event.events
        return dp.ComposedDpEvent([dp.SelfComposedDpEvent(test, len(self.mechanisms)), value])

    @classmethod
    def calibrate(
        cls,
        proposals: Sequence[float],
        *,
        epsilon: float,
        delta: float,
        bounds: tuple[float, float] | None = None,
    ) -> "ProposalSearch":
        """Return a search that is (epsilon, delta)-DP: half of ε for all tests, half to release.

        Args:
            proposals: A public list of proposals, in the unit of the data. Each additional one
                needs more noise in every test.
            epsilon: ε of the whole search.
            delta: δ of the whole search.
            bounds: Public bounds on the data, or None.
        """
        ordered = sorted(
            {
                _validate.positive(proposals=propose)
                for propose in _validate.values(proposals=proposals)
            }
        )
        if not ordered:
            raise ValueError("Expected at least one proposal, got none.")
        _validate.between(1e-3, 50, epsilon=epsilon)
        _validate.small_delta(1e-18, ends="[)", delta=delta)
        scale = _least_scale(len(ordered), epsilon, delta)
        return cls._with_scale(scale, ordered, epsilon, delta, bounds)

    @classmethod
    def _with_scale(
        cls,
        scale: float,
        proposals: Sequence[float],
        epsilon: float,
        delta: float,
        bounds: tuple[float, float] | None,
    ) -> "ProposalSearch":
        return cls(
            mechanisms=tuple(
                Mechanism(
                    propose=propose,
                    robust_noise_multiplier=math.nextafter(2 / epsilon, math.inf),
                    test=DiscreteLaplaceTest(scale),
                    failure=delta / (2 * len(proposals)),
                    bounds=bounds,
                )
                for propose in proposals
            )
        )

    def release(
        self,
        records: Column,
        measure: Callable[[Mechanism, Column], margins.RobustValue],
        *,
        noise: Noise | None = None,
    ) -> Outcome:
        """Test each proposal in turn and release at the first that passes."""
        for mechanism in self.mechanisms:
            measured = functools.partial(measure, mechanism)
            outcome = mechanism.release(records, measured, noise=noise)
            if isinstance(outcome, Released):
                return attrs.evolve(outcome, event=self.event)
        return Refused(
            "No proposal passed its noisy test. Propose more, spend more, or release from more "
            "data; asking again costs again.",
            self.event,
        )


@functools.lru_cache(maxsize=256)
def _least_scale(count: int, epsilon: float, delta: float) -> float:
    """The least scale of the tests of a search: it depends on the number of proposals alone."""

    def event_of(scale: float) -> dp.DpEvent:
        return ProposalSearch._with_scale(scale, [1.0] * count, epsilon, delta, None).event

    pure = 2 * count / epsilon  # by basic composition; exact composition is no worse
    search = Search(safe=1.01 * pure, unsafe=pure / count, guess=pure)
    return solve(event_of, search, epsilon=epsilon, delta=delta, name="scale")


@attrs.frozen
class SearchedQuantile(Statistic):
    """A quantile at the smallest of several proposals that passes."""

    p: Fraction
    proposals: Sequence[Any]

    @override
    def price(self, request: Request, records: Column) -> Priced:
        check_single(records)
        scale, delta = records.scale, request.required_delta
        search = ProposalSearch.calibrate(
            [
                scale.given_length("proposals", each)
                for each in _validate.values(proposals=self.proposals)
            ],
            epsilon=request.epsilon,
            delta=delta,
            bounds=scale.given_bounds(request.bounds),
        )
        preview = Preview(
            statistic=f"search for a {margins.title(self.p)}",
            mechanism="propose-test-release",
            epsilon=request.epsilon,
            delta=delta,
            event=search.event,
        )
        return Priced(preview=preview, mechanism=search)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Outcome:
        outcome = priced.mechanism.release(records, self._measure, noise=noise)
        return displayed(outcome, records.scale)

    def _measure(self, mechanism: Mechanism, records: Column) -> margins.RobustValue:
        return margins.quantile(
            records, mechanism.lattice, self.p, propose=mechanism.steps, cap=mechanism.cap
        )
