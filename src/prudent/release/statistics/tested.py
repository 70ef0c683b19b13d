"""Statistics released by Propose-Test-Release, for one proposal or more.

Always tested are the mode, and means and sums without the extremes.
"""

import abc
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import attrs
import dp_accounting as dp
import numpy as np
import numpy.typing as npt
from typing_extensions import override

from prudent import _validate
from prudent.accounting import DiscreteLaplaceTest, MarginTest
from prudent.accounting.calibration import Search, solve
from prudent.budget import LedgerLike
from prudent.receipts.making import ReceiptTarget
from prudent.release.certificates import MARGIN_CAP, distance_by_margin
from prudent.release.charging import Preview, charge
from prudent.release.columns.column import Column, Kind, in_order
from prudent.release.columns.scales import NUMBER, Scale
from prudent.release.failures import redact_errors
from prudent.release.lattice import Lattice, check_bounds
from prudent.release.noise import Distribution, Noise, source_of
from prudent.release.outcome import Outcome, Refused, Released, ScaledSpread
from prudent.release.ptr import margins
from prudent.release.ptr import trimmed as trimming
from prudent.release.ptr.margins import RobustValue
from prudent.release.ptr.mechanism import ProposeTestReleaseMechanism as Mechanism
from prudent.release.request import Priced, Request, Statistic


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


@attrs.frozen
class ModeOfNumbers(Tested):
    """The most frequent point of a lattice."""

    advice = (
        "Propose more, spend a larger ε, or leave the proposal out: the most frequent number is "
        "then released as a category."
    )

    @override
    def measure(self, records: Column, mechanism: Mechanism, propose: int, cap: int) -> RobustValue:
        return margins.lattice_mode(records, mechanism.lattice, propose=propose, cap=cap)

    @override
    def price(self, request: Request, records: Column) -> Priced:
        mechanism = calibrate(request, scale=records.scale)
        return self.priced("mode", mechanism, request, records)


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
_FAR = 2.0**19  # bound on the norm of a vector, in proposals, when no public bound is given

_OF_SUMS = "Trim more vectors, propose a larger norm, or spend a larger ε."


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
            request,
            scale=scale,
            fallback_sensitivity=None if bounds is None else sensitivity,
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


def trimmed_sum(
    vectors: npt.ArrayLike,
    *,
    trim: int,
    propose: float,
    bound: float | None = None,
    epsilon: float,
    delta: float | None = None,
    fallback: bool = False,
    test: MarginTest | None = None,
    failure: float | None = None,
    ledger: LedgerLike | None = None,
    receipt: ReceiptTarget | None = None,
    noise: Noise | None = None,
    dry_run: bool = False,
) -> Outcome:
    """Release the sum of all vectors except the `trim` longest, with Gaussian noise.

    Args:
        vectors: One row per record.
        trim: The number of vectors to trim. It is public: choose it from the expected number of
            records, not from the data.
        propose: The proposal τ: the largest norm that a vector in the sum may have.
        bound: A public bound on the norm; longer vectors are scaled down to it. None: no bound is
            known.

    The other arguments are those of `median`.
    """
    trim = _validate.count(trim=trim)
    propose = _validate.positive(propose=propose)
    if fallback and bound is None:
        raise _validate.ArgumentError(
            "bound", "for a fallback", got=None, hint="Without it no noise is enough."
        )
    far = propose * _FAR
    longest = far if bound is None else _validate.between(propose, far, bound=bound)
    rows = _table(vectors)
    request = attrs.evolve(
        Request.of(locals()), bounds=(-longest, longest), distribution=Distribution.GAUSSIAN
    )
    mechanism = calibrate(request, fallback_sensitivity=longest, monotone=True)
    public = preview("trimmed sum", mechanism, request)
    if dry_run:
        return public  # type: ignore[return-value]

    def measure(rows: npt.NDArray[np.float64]) -> RobustValue:
        return trimming.trimmed_sum(
            rows, mechanism.lattice, trim, propose=mechanism.steps, cap=mechanism.cap
        )

    def everything(rows: npt.NDArray[np.float64]) -> tuple[int, ...]:
        return tuple(np.sum(trimming.shortened(rows, mechanism.lattice), axis=0).tolist())

    source = source_of(noise)
    paid = charge(ledger, public, receipt=receipt)
    outcome = redact_errors(mechanism.release, rows, measure, everything, noise=source)
    outcome = advised(outcome, _OF_SUMS)
    outcome = attrs.evolve(outcome, epsilon=public.epsilon, delta=public.delta)
    paid.note([outcome], outcome)
    return outcome


def _table(vectors: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the vectors as rows of doubles.

    Only typed arrays are accepted. What a list of lists, or a frame, becomes as an array depends on
    every record, so one malformed record could turn a release into an error.
    """
    typed = hasattr(vectors, "__array__") and not hasattr(vectors, "dtypes")
    rows = np.asarray(vectors) if typed else None
    if rows is None or rows.dtype.kind not in "iufb":
        raise _validate.ArgumentError(
            "vectors",
            "an array of numbers, with one row per record",
            shown="another type",
            hint="Make one with numpy.array(rows, float).",
        )
    if rows.ndim != 2 or rows.shape[1] == 0:  # the number of rows is private, so it is not checked
        raise _validate.ArgumentError("vectors", "a table of rows", shown=f"{rows.ndim} dimensions")
    with np.errstate(over="ignore"):  # a warning would reveal that some record is huge
        return rows.astype(np.float64)
