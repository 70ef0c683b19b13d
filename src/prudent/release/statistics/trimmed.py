"""Private sums and means of what is left after trimming the extremes."""

from typing import Any, Unpack

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent.release import request
from prudent.release.charging import charge
from prudent.release.columns.column import Column
from prudent.release.failures import withheld
from prudent.release.lattice import Lattice, check_bounds
from prudent.release.margins import trimmed as trimming
from prudent.release.margins.quantile import RobustValue
from prudent.release.mechanism import ProposeTestReleaseMechanism
from prudent.release.noise import Distribution, source_of
from prudent.release.outcome import Outcome
from prudent.release.preview import Preview
from prudent.release.request import Answer, Budget, Options, Prepared, statistic
from prudent.release.statistics import tested

_MOST_TRIMMED = 2**48  # records; larger than any table, and small enough that ranks fit 64 bits
_FAR = 2.0**19  # bound on the norm of a vector, in proposals, when no public bound is given

_OF_MEANS = (
    "Trim more records at each end, propose more, or release the mean, which needs no proposal "
    "and never refuses."
)
_OF_SUMS = "Trim more vectors, propose a larger norm, or spend a larger ε."


@statistic(Options)
def trimmed_mean(
    data: Any = None,
    column: str | None = None,
    *,
    trim: int,
    propose: Any,
    default: Any = None,
    **options: Unpack[Options],
) -> Answer:
    """Release the mean without the `trim` smallest and the `trim` largest records.

    Args:
        data: See `median`.
        column: See `median`.
        trim: The number of records to trim at each end. It is public: choose it from the expected
            number of records, not from the data.
        propose: See `median`.
        default: The value when trimming leaves no record; None means the midpoint of the bounds,
            or 0 without bounds.
        **options: See `Budget` and `TableOptions`.
    """
    trim = _validate.count(0, _MOST_TRIMMED, trim=trim)

    def prepare(records: Column) -> Prepared:
        price, certifies = request.without_certificate(options)
        scale = records.scale
        bounds = tested.bounds(options, scale)
        lattice = Lattice.for_proposal(tested.proposal(propose, scale), bounds)
        of_none = _of_none(lattice, bounds, None if default is None else scale.number(default))
        # Computed in steps, because a difference of doubles may be rounded down.
        sensitivity = lattice.value(max(lattice.high - of_none, of_none - lattice.low))
        mechanism = tested.calibrate(
            price,
            propose,
            scale=scale,
            fallback_sensitivity=sensitivity if bounds is not None else None,
        )

        def measure(records: Column, lattice: Lattice, propose: int, cap: int) -> RobustValue:
            return trimming.trimmed_mean(
                records, lattice, trim, default=of_none, propose=propose, cap=cap
            )

        certification = tested.certification(
            certifies, options.get("certify"), mechanism, measure, scale
        )
        return tested.prepared(
            "trimmed mean",
            mechanism,
            measure,
            price,
            records,
            certification=certification,
            advice=_OF_MEANS,
            notes=_decided(trim, mechanism),
        )

    return request.release(prepare, data, column, options)


def _of_none(lattice: Lattice, bounds: tuple[float, float] | None, default: float | None) -> int:
    """The value when trimming leaves no record, in steps."""
    low, high = (-lattice.reach, lattice.reach) if bounds is None else check_bounds(bounds)
    middle = (low + high) / 2 if default is None else _validate.between(low, high, default=default)
    return int(lattice.steps(middle))


def _decided(trim: int, mechanism: ProposeTestReleaseMechanism) -> tuple[str, ...]:
    """What the trim alone decides: without bounds, the margin is at most trim + 1."""
    if mechanism.lattice.bounded or trim + 1 > mechanism.threshold:
        return ()
    return (
        f"It will almost surely be refused: without bounds the margin is at most {trim + 1:,} "
        f"records. Trim more than {mechanism.threshold:,}.",
    )


@statistic(Budget)
def trimmed_sum(
    vectors: npt.ArrayLike,
    *,
    trim: int,
    propose: float,
    bound: float | None = None,
    **options: Unpack[Budget],
) -> Outcome | Preview:
    """Release the sum of all vectors except the `trim` longest.

    Args:
        vectors: One row per record.
        trim: The number of vectors to trim. It is public: choose it from the expected number of
            records, not from the data.
        propose: The proposal τ: the largest norm that a vector in the sum may have.
        bound: A public bound on the norm; longer vectors are scaled down to it. None: no bound is
            known.
        **options: See `Budget`; `bounds` follows from `bound`, and the noise is Gaussian.
    """
    trim = _validate.count(trim=trim)
    propose = _validate.positive(propose=propose)
    if options.get("bounds") is not None:
        raise ValueError("Expected bound, a bound on the norm, got bounds.")
    if options.get("fallback") and bound is None:
        raise _validate.ArgumentError(
            "bound", "for a fallback", got=None, hint="Without it no noise is enough."
        )
    far = propose * _FAR
    longest = far if bound is None else _validate.between(propose, far, bound=bound)
    rows = _table(vectors)
    options = {**options, "bounds": (-longest, longest), "distribution": Distribution.GAUSSIAN}
    mechanism = tested.calibrate(options, propose, fallback_sensitivity=longest, monotone=True)
    preview = tested.preview("trimmed sum", mechanism, options)
    if options.get("dry_run"):
        return preview

    def measure(rows: npt.NDArray[np.float64]) -> RobustValue:
        return trimming.trimmed_sum(
            rows, mechanism.lattice, trim, propose=mechanism.steps, cap=mechanism.cap
        )

    def everything(rows: npt.NDArray[np.float64]) -> tuple[int, ...]:
        return tuple(np.sum(trimming.shortened(rows, mechanism.lattice), axis=0).tolist())

    noise = source_of(options.get("noise"))
    note = charge(options.get("ledger"), preview)
    found = withheld(mechanism.release, rows, measure, everything, noise=noise)
    note([found])
    found = tested.advised(found, _OF_SUMS)
    return attrs.evolve(found, epsilon=preview.epsilon, delta=preview.delta)


def _table(vectors: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the vectors as rows of doubles.

    Only typed arrays are accepted. Whether a list of lists forms an array depends on every record,
    so one malformed record could turn a release into an error.
    """
    rows = np.asarray(vectors) if hasattr(vectors, "__array__") else None
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
