"""Private statistics of a column: median, quantile, iqr, trimmed_mean, mode, trimmed_sum.

    median("salaries.parquet", "salary", propose=500, epsilon=0.3, delta=1e-7, ledger=ledger)

Each call calibrates a mechanism to (ε, δ), checks that the column exists, charges the ledger, and
only then reads the data. The result, `Released` or `Refused`, may be published.
"""

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol, Required, TypeAlias, TypedDict, Unpack

import dp_accounting as dp
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._redaction import redacted
from prudent.accounting import MarginTest
from prudent.release.calibration import calibrated
from prudent.release.columns.column import ArrayColumn, Column, Kind, in_order
from prudent.release.failures import withheld
from prudent.release.lattice import Lattice, check_bounds
from prudent.release.margins import mode as modes
from prudent.release.margins import quantile as margin
from prudent.release.margins import trimmed as trimming
from prudent.release.margins.quantile import RobustValue
from prudent.release.mechanism import Outcome, ProposeTestRelease
from prudent.release.noise import Law, Noise

_MOST_TRIMMED = 2**48  # records; larger than any table, and small enough that ranks fit 64 bits
_FAR = 2.0**19  # bound on the norm of a vector, in proposals, when no public bound is given

Outcomes: TypeAlias = Outcome | dict[Hashable, Outcome]


class LedgerLike(Protocol):
    """A privacy ledger that is charged before any data is read."""

    def charge(self, event: dp.DpEvent, label: str = "", *, delta: float | None = None) -> object:
        """Commit the charge, or raise and commit nothing."""
        ...


class Budget(TypedDict, total=False):
    """Privacy parameters of a release and options of its mechanism.

    Attributes:
        epsilon: ε of this release, at least 0.001.
        delta: δ of this release.
        bounds: Public bounds (low, high) on the data, or None. Values outside are clipped to them.
        fallback: Whether a failed test releases the statistic with noise calibrated to `bounds`
            instead of refusing.
        law: Distribution of the noise added to a number: Laplace, or Gaussian when very many
            releases share a budget.
        test: A discrete test of the margin; None selects the one with the smaller error.
        failure: Largest probability with which a margin of 0 passes, in (0, delta]; None means
            delta/2.
        ledger: The ledger to charge before any data is read.
        noise: Source of randomness; None uses the operating system's.
    """

    epsilon: Required[float]
    delta: Required[float]
    bounds: tuple[float, float] | None
    fallback: bool
    law: Law
    test: MarginTest | None
    failure: float | None
    ledger: LedgerLike | None
    noise: Noise | None


class Source(TypedDict, total=False):
    """The table to read, and which of its records.

    Attributes:
        unit: The column that identifies the privacy unit of a row; see
            `columns.opening.open_column`.
        by: The column to group by. One value is released per group, at the price of one release.
        groups: The public list of groups; required with `by`.
        where: Which rows to keep, as a function of one row.
        connect: The address of a database, instead of `data`.
        table: The name of the table in that database.
    """

    unit: str | None
    by: str | None
    groups: Sequence[Hashable] | None
    where: Callable[[Any], Any] | None
    connect: str | None
    table: str | None


class Options(Budget, Source, total=False):
    """Keyword arguments of every statistic of a column; see `Budget` and `Source`."""


def median(
    data: Any = None, column: str | None = None, *, propose: float, **options: Unpack[Options]
) -> Outcomes:
    """Release the lower median: the value of rank ceil(m/2) among m records.

    Args:
        data: An array, a series, a path, a frame, an ibis table, or a `Column`.
        column: The name of the column, unless `data` is an array, a series or a `Column`.
        propose: The proposal τ: how far one record may move the median, in the unit of the data.
        **options: See `Budget` and `Source`.

    Returns:
        `Released` or `Refused`; with `by`, a dictionary with one of them for each group.
    """
    return quantile(data, column, p=0.5, propose=propose, **options)


def quantile(
    data: Any = None,
    column: str | None = None,
    *,
    p: Any,
    propose: float,
    **options: Unpack[Options],
) -> Outcomes:
    """Release the p-quantile: the value of rank ceil(p m) among m records.

    Args:
        data: See `median`.
        column: See `median`.
        p: The probability, in (0, 1]. It is taken as an exact fraction: 0.9 means 9/10. A
            `Fraction` or a string such as "1/3" is accepted as well.
        propose: See `median`.
        **options: See `Budget` and `Source`.
    """
    exact = margin.rational(p)
    name = "median" if exact == margin.HALF else f"{exact}-quantile"

    def measure(mechanism: ProposeTestRelease, records: Column) -> RobustValue:
        return margin.quantile(
            records, mechanism.lattice, exact, propose=mechanism.steps, cap=mechanism.cap
        )

    mechanism = _calibrated(options, propose)
    return _release(name, mechanism, measure, data, column, options)


def iqr(
    data: Any = None, column: str | None = None, *, propose: float, **options: Unpack[Options]
) -> Outcomes:
    """Release the interquartile range Q(3/4) - Q(1/4); see `median` for the arguments."""

    def measure(mechanism: ProposeTestRelease, records: Column) -> RobustValue:
        return margin.interquartile_range(
            records, mechanism.lattice, propose=mechanism.steps, cap=mechanism.cap
        )

    return _release("iqr", _calibrated(options, propose), measure, data, column, options)


def trimmed_mean(
    data: Any = None,
    column: str | None = None,
    *,
    trim: int,
    propose: float,
    default: float | None = None,
    **options: Unpack[Options],
) -> Outcomes:
    """Release the mean without the `trim` smallest and the `trim` largest records.

    Args:
        data: See `median`.
        column: See `median`.
        trim: The number of records to trim at each end. It is public: choose it from the expected
            number of records, not from the data.
        propose: See `median`.
        default: The value when trimming leaves no record; None means the midpoint of the bounds,
            or 0 without bounds.
        **options: See `Budget` and `Source`.
    """
    trim = int(_validate.between(0, _MOST_TRIMMED, trim=_validate.count(trim=trim)))
    check_names(options, Options)
    bounds = options.get("bounds")
    lattice = Lattice.for_proposal(propose, bounds)
    low, high = (-lattice.reach, lattice.reach) if bounds is None else check_bounds(bounds)
    middle = (low + high) / 2 if default is None else _validate.between(low, high, default=default)
    of_none = int(lattice.steps(middle))
    # Computed in steps, because a difference of doubles may be rounded down.
    sensitivity = lattice.value(max(lattice.high - of_none, of_none - lattice.low))

    def measure(mechanism: ProposeTestRelease, records: Column) -> RobustValue:
        return trimming.trimmed_mean(
            records, lattice, trim, default=of_none, propose=mechanism.steps, cap=mechanism.cap
        )

    mechanism = _calibrated(
        options, propose, fallback_sensitivity=sensitivity if bounds is not None else None
    )
    return _release("trimmed mean", mechanism, measure, data, column, options)


def mode(
    data: Any = None,
    column: str | None = None,
    *,
    propose: float | None = None,
    categories: Sequence[Hashable] | None = None,
    **options: Unpack[Options],
) -> Outcomes:
    """Release the most frequent value.

    Args:
        data: See `median`.
        column: See `median`.
        propose: For numbers: the proposal τ, how far one record may move the mode; noise is added.
            None: the most frequent category is released without noise, or refused.
        categories: The public list of possible categories; records with any other value are
            ignored. None: any category is possible.
        **options: See `Budget` and `Source`.
    """
    if propose is not None:
        if categories is not None:
            raise ValueError("Expected categories or propose, got both. Numbers have no list.")

        def measure(mechanism: ProposeTestRelease, records: Column) -> RobustValue:
            return modes.lattice_mode(
                records, mechanism.lattice, propose=mechanism.steps, cap=mechanism.cap
            )

        return _release("mode", _calibrated(options, propose), measure, data, column, options)

    if options.get("bounds") is not None or options.get("fallback"):
        raise ValueError("Expected no bounds and no fallback for the mode of categories, got some.")

    def measure_category(mechanism: ProposeTestRelease, records: Column) -> RobustValue:
        return modes.category_mode(records, categories, cap=mechanism.cap)

    mechanism = _calibrated(options, None)
    return _release(
        "mode",
        mechanism,
        measure_category,
        data,
        column,
        options,
        kind="categories",
        among=categories,
    )


def trimmed_sum(
    vectors: npt.ArrayLike,
    *,
    trim: int,
    propose: float,
    bound: float | None = None,
    **options: Unpack[Budget],
) -> Outcome:
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
    check_names(options, Budget)
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
    given: Options = {**options, "bounds": (-longest, longest), "law": Law.GAUSSIAN}  # type: ignore[typeddict-item]
    mechanism = _calibrated(given, propose, fallback_sensitivity=longest, monotone=True)

    def measure(rows: npt.NDArray[np.float64]) -> RobustValue:
        return trimming.trimmed_sum(
            rows, mechanism.lattice, trim, propose=mechanism.steps, cap=mechanism.cap
        )

    def everything(rows: npt.NDArray[np.float64]) -> tuple[int, ...]:
        return tuple(np.sum(trimming.shortened(rows, mechanism.lattice), axis=0).tolist())

    charge(given, mechanism.event, "trimmed sum")
    return withheld(mechanism.release, rows, measure, everything, noise=given.get("noise"))


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


def _calibrated(
    options: Options,
    propose: float | None,
    *,
    fallback_sensitivity: float | None = None,
    monotone: bool = False,
) -> ProposeTestRelease:
    """Calibrate the mechanism for these options; without a proposal, one for a category."""
    check_names(options, Options)
    return calibrated(
        propose=0.0 if propose is None else _validate.positive(propose=propose),
        epsilon=options["epsilon"],
        delta=options["delta"],
        bounds=options.get("bounds"),
        fallback_sensitivity=fallback_sensitivity,
        fallback=options.get("fallback", False),
        monotone=monotone,
        law=options.get("law", Law.LAPLACE),
        test=options.get("test"),
        failure=options.get("failure"),
    )


def check_names(options: Mapping[str, object], known: type) -> None:
    """Check the names of the options, so that a misspelt one is not silently ignored.

    Args:
        options: The options, as given by name.
        known: A `TypedDict` with the valid names.

    Raises:
        TypeError: if a name is unknown or missing; the message lists it.
    """
    required, optional = known.__required_keys__, known.__optional_keys__  # type: ignore[attr-defined]
    unknown, missing = set(options) - required - optional, required - set(options)
    if unknown or missing:
        wrong = f"unknown {sorted(unknown)}" if unknown else f"no {sorted(missing)}"
        also = f", with {' and '.join(sorted(required))}" if required else ""
        names = ", ".join(sorted(required | optional))
        raise TypeError(f"Expected options among {names}{also}; got {wrong}.")


def _release(
    name: str,
    mechanism: ProposeTestRelease,
    measure: Callable[[ProposeTestRelease, Column], RobustValue],
    data: Any,
    column: str | None,
    options: Options,
    *,
    kind: Kind = "numbers",
    among: Sequence[Hashable] | None = None,
) -> Outcomes:
    """Open the column, charge the ledger and release, in this order."""
    opened = open_records(data, column, options, kind)
    if among is not None:
        _check_categories(among, opened)
    charge(options, mechanism.event, name if column is None else f"{name} of {column}")

    def release(records: Column) -> Outcome:
        measured = functools.partial(measure, mechanism)
        return modes.read(mechanism.release(records, measured, noise=options.get("noise")))

    if isinstance(opened, dict):
        # A record is in one group only, so all groups together cost as much as one (parallel
        # composition).
        return {group: withheld(release, records) for group, records in opened.items()}
    return withheld(release, opened)


def charge(options: Budget, event: dp.DpEvent, label: str) -> None:
    """Charge the ledger, if one is given; an exception it raises must stop the release."""
    ledger = options.get("ledger")
    if ledger is None:
        return
    if not hasattr(ledger, "charge"):
        raise _validate.ArgumentError(
            "ledger",
            "an open prudent.Ledger",
            shown=redacted(repr(ledger), ledger),
            hint="Open it with prudent.Ledger(location).",
        )
    ledger.charge(event, label, delta=options["delta"])


def open_records(
    data: Any,
    column: str | None,
    source: Mapping[str, object],
    kind: Kind,
) -> Column | dict[Hashable, Column]:
    """Open the column to release from, or one per group; arrays need no query engine."""
    if column is None and hasattr(data, "to_frame"):  # a pandas or polars series
        column = "value"
        data = data.to_frame(column)
    asked: dict[str, Any] = {
        name: source[name] for name in Source.__optional_keys__ if source.get(name) is not None
    }
    if isinstance(data, Column | list | tuple | np.ndarray) and column is None:
        if asked:
            raise ValueError(
                f"Expected a table for {', '.join(sorted(asked))}, got values without names. "
                "Give a path, a frame or an ibis table, and the name of its column."
            )
        if isinstance(data, ArrayColumn):
            return data.checked(kind)
        return data if isinstance(data, Column) else ArrayColumn.of(data, kind)
    from prudent.release.columns import opening  # needs ibis, which arrays do not

    if "groups" in asked and "by" not in asked:
        raise _validate.ArgumentError(
            "by", "the name of the column that says which group a row is in", shown="nothing"
        )
    if "by" in asked:
        groups = opening.open_groups(data, column, kind=kind, **{"groups": None, **asked})
        return dict(groups)
    return opening.open_column(data, column, kind=kind, **asked)


def _check_categories(
    categories: Sequence[Hashable], opened: Column | dict[Hashable, Column]
) -> None:
    """Reject, before anything is charged, categories that the column's type cannot hold."""
    try:
        ordered = sorted(set(map(in_order, categories)))
    except TypeError:
        ordered = []
    if isinstance(categories, str) or not ordered:
        raise _validate.ArgumentError(
            "categories", "a list of one or more texts, numbers or dates", got=categories
        )
    for records in opened.values() if isinstance(opened, dict) else [opened]:
        if hasattr(records, "typed") and records.typed(categories) != list(categories):
            raise _validate.ArgumentError(
                "categories",
                "of the type of the column",
                got=categories,
                why="an order of texts is not that of numbers",
            )
