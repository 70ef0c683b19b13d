"""Statistics that are always tested: the mode, and means and sums without the extremes."""

from collections.abc import Hashable, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
from typing_extensions import override

from prudent import _validate
from prudent.accounting import MarginTest
from prudent.budget import LedgerLike
from prudent.receipts.making import ReceiptTarget
from prudent.release.certificates import MARGIN_CAP
from prudent.release.charging import charge
from prudent.release.columns.column import Column, Kind, in_order
from prudent.release.columns.scales import Scale
from prudent.release.failures import redact_errors
from prudent.release.lattice import Lattice, check_bounds
from prudent.release.noise import Distribution, Noise, source_of
from prudent.release.outcome import Outcome
from prudent.release.ptr import margins
from prudent.release.ptr import trimmed as trimming
from prudent.release.ptr.margins import RobustValue
from prudent.release.ptr.mechanism import ProposeTestReleaseMechanism as Mechanism
from prudent.release.request import Priced, Request
from prudent.release.statistics import tested
from prudent.release.statistics.tested import Tested


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
        mechanism = tested.calibrate(request, scale=records.scale)
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
        return self.priced("mode", tested.calibrate(request), request, records)

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


_MOST_TRIMMED = 2**48  # records; larger than any table, and small enough that ranks fit 64 bits
_FAR = 2.0**19  # bound on the norm of a vector, in proposals, when no public bound is given

_OF_SUMS = "Trim more vectors, propose a larger norm, or spend a larger ε."


def check_trim(trim: int) -> int:
    """The number of records to trim at each end, or an error."""
    return _validate.count(0, _MOST_TRIMMED, trim=trim)


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
        lattice = Lattice.for_proposal(tested.proposal(request.propose, scale), bounds)
        of_none = self._of_none(lattice, bounds, scale)
        # Computed in steps, because a difference of doubles may be rounded down.
        sensitivity = lattice.value(max(lattice.high - of_none, of_none - lattice.low))
        mechanism = tested.calibrate(
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
    mechanism = tested.calibrate(request, fallback_sensitivity=longest, monotone=True)
    preview = tested.preview("trimmed sum", mechanism, request)
    if dry_run:
        return preview  # type: ignore[return-value]

    def measure(rows: npt.NDArray[np.float64]) -> RobustValue:
        return trimming.trimmed_sum(
            rows, mechanism.lattice, trim, propose=mechanism.steps, cap=mechanism.cap
        )

    def everything(rows: npt.NDArray[np.float64]) -> tuple[int, ...]:
        return tuple(np.sum(trimming.shortened(rows, mechanism.lattice), axis=0).tolist())

    source = source_of(noise)
    paid = charge(ledger, preview, receipt=receipt)
    outcome = redact_errors(mechanism.release, rows, measure, everything, noise=source)
    outcome = tested.advised(outcome, _OF_SUMS)
    outcome = attrs.evolve(outcome, epsilon=preview.epsilon, delta=preview.delta)
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
