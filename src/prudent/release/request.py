"""A request for a private statistic: its options, and the one way to answer it.

Every statistic is answered in the same order: check the arguments, open the column (which reads
its name and type, no record), calibrate, charge the ledger, and only then read the data.
"""

import functools
import inspect
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import (
    Any,
    Literal,
    Required,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_type_hints,
)

import attrs
import dp_accounting as dp
import numpy as np

from prudent import _extras, _validate
from prudent._rounding import rounded_up
from prudent.accounting import MarginTest
from prudent.accounting.chargeable import LedgerLike
from prudent.release.certificates import SHARE as CERTIFICATE_SHARE
from prudent.release.certificates import Certificate, DistanceRelease
from prudent.release.charging import charge
from prudent.release.columns.column import ArrayColumn, Column, Kind
from prudent.release.columns.contributions import PerUnit
from prudent.release.failures import withheld
from prudent.release.noise import Distribution, Noise, source_of
from prudent.release.outcome import Groups, Outcome, Refused, Released
from prudent.release.preview import Preview
from prudent.release.sums.additive import shares_of

Answer: TypeAlias = Outcome | Groups | Preview
Statistic = TypeVar("Statistic", bound=Callable[..., Any])
OptionsType = TypeVar("OptionsType", bound=Mapping[str, Any])


class Price(TypedDict, total=False):
    """What a release may cost.

    Attributes:
        epsilon: ε of this release, at least 0.001.
        delta: δ of this release. A mechanism that needs none ignores it.
        ledger: The ledger to charge before any data is read.
        noise: Source of randomness; None uses the operating system's.
        dry_run: Whether to return a `Preview` instead of releasing: nothing is charged, and no
            record is read.
    """

    epsilon: Required[float]
    delta: float | None
    ledger: LedgerLike | None
    noise: Noise | None
    dry_run: bool


class Certified(TypedDict, total=False):
    """Options of a statistic that can be certified.

    Attributes:
        certify: A tolerance, in the unit of the data: a fifth of ε then buys a proof of how many
            records must be added or removed before the statistic is further than that from the
            released value; see `Released.withstands`.
        confidence: Probability with which an interval or a certificate holds.
    """

    certify: float | None
    confidence: float


class Testing(TypedDict, total=False):
    """Options of Propose-Test-Release.

    Attributes:
        bounds: Public bounds (low, high) on the data, or None. Values outside are clipped to them.
        fallback: Whether a failed test releases the statistic with noise calibrated to `bounds`
            instead of refusing.
        distribution: Distribution of the noise added to a number: Laplace, or Gaussian when very many
            releases share a budget.
        test: A discrete test of the margin; None selects the one with the smaller error.
        failure: Largest probability with which a margin of 0 passes, in (0, delta]; None means
            delta/2.
    """

    bounds: tuple[float, float] | None
    fallback: bool
    distribution: Distribution
    test: MarginTest | None
    failure: float | None


class Budget(Price, Testing, total=False):
    """Options of a release by Propose-Test-Release; see `Price` and `Testing`."""


class TableOptions(TypedDict, total=False):
    """The table to read, and which of its records.

    Attributes:
        unit: The column that identifies the privacy unit of a row. All rows of a unit are then
            protected together; without it, every row by itself.
        per_unit: What a unit with several rows counts as: "mean" (the default), "median", "min",
            "max", "sum", "count", or a number of rows to keep of each; see `columns.contributions`.
        by: The column to group by. One value is released per group, at the price of one release.
        groups: The public list of groups; required with `by`. Or "private": the groups are those
            that a private choice finds to have enough records, which needs `delta`, and costs a
            third of ε.
        where: Which rows to keep: a function of one row, or a condition such as "year = 2024".
        read_as: The type of a column of text, as in a CSV file: "number" (the default), "integer",
            "decimal(2)", "date", "timestamp" or "duration".
        connect: The address of a database, instead of `data`.
        table: The name of the table in that database.
    """

    unit: str | None
    per_unit: PerUnit | None
    by: str | None
    groups: Sequence[Hashable] | Literal["private"] | None
    where: Callable[[Any], Any] | str | None
    read_as: str | None
    connect: str | None
    table: str | None


class Options(Budget, Certified, TableOptions, total=False):
    """Keyword arguments of a statistic; see `Budget`, `Certified` and `TableOptions`."""


_DEFAULTS: Mapping[str, object] = types.MappingProxyType(
    {"fallback": False, "distribution": Distribution.LAPLACE, "dry_run": False, "confidence": 0.95}
)
"""Defaults of options that are not None, to show in a signature."""


@attrs.frozen(kw_only=True)
class Prepared:
    """A statistic that is ready to be released.

    Attributes:
        preview: What is known before the data are read: the price and the noise.
        answer: Reads the records and returns the outcome.
        certification: How to certify a released value; None if that was not asked for.
    """

    preview: Preview
    answer: Callable[[Column, Noise], Outcome]
    certification: "Certification | None" = None


@attrs.frozen(kw_only=True)
class Certification:
    """A certificate that is released together with a value.

    Attributes:
        mechanism: Releases a lower bound on the distance.
        distance: Given the records and the released value, the distance of the records from data
            whose statistic is outside an interval around the value, and the ends of that interval.
            For a fixed value, one record changes the distance by at most 1.
    """

    mechanism: DistanceRelease
    distance: Callable[[Column, Any], tuple[int, Any, Any]]

    def certificate(self, records: Column, value: Any, noise: Noise) -> Certificate:
        """Release the certificate for a value that was released."""
        return self.mechanism.release(*self.distance(records, value), noise=noise)


def statistic(
    options: type, *, kind: Callable[[Mapping[str, Any]], Kind] | Kind = "numbers"
) -> Callable[[Statistic], Statistic]:
    """Give a function with `**options` the explicit signature that its `TypedDict` describes.

    A reader, `help()` and a notebook then see every option by name, while each option is declared
    and documented in one place. A name that is not an option raises before anything else happens.
    Private groups, and a proposal for each group, are taken care of here for all statistics.

    Args:
        options: The `TypedDict` of the options.
        kind: Whether the statistic needs numbers or categories, perhaps as its options say.
    """

    def explicit(function: Statistic) -> Statistic:
        @functools.wraps(function)
        def checked(*arguments: Any, **given: Any) -> Any:
            check_names({name: given[name] for name in given if name not in own}, options)
            private = isinstance(each := given.get("groups"), str) and each == "private"
            if not private and not isinstance(given.get("propose"), Mapping):
                return function(*arguments, **given)
            from prudent.release import grouping

            grouped = grouping.private_groups if private else grouping.proposal_per_group
            needs = kind if isinstance(kind, str) else kind(given)
            return grouped(function, inspect.signature(checked).bind(*arguments, **given), needs)

        signature = inspect.signature(function)
        named = [
            each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD
        ]
        own = {each.name for each in named}
        hints = get_type_hints(options)
        required = options.__required_keys__  # type: ignore[attr-defined]
        for name in sorted(hints, key=lambda name: name not in required):
            default = inspect.Parameter.empty if name in required else _DEFAULTS.get(name)
            named.append(
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name]
                )
            )
        checked.__signature__ = signature.replace(parameters=named)  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return explicit


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
    for name in {"dry_run", "fallback"} & set(options):
        _validate.one_of((True, False, None), **{name: options[name]})


def release(
    prepare: Callable[[Column], Prepared],
    data: Any,
    column: str | None,
    options: Mapping[str, Any],
    *,
    kind: Kind = "numbers",
) -> Answer:
    """Open the column, prepare, charge the ledger and answer, in this order.

    Args:
        prepare: Returns what to release, given a column whose type, but no record, may be read.
        data: See `prudent.release.median`.
        column: See `prudent.release.median`.
        options: The options of the statistic.
        kind: Whether the statistic needs numbers or categories.
    """
    opened = open_records(data, column, options, kind)
    one = next(iter(opened.values())) if isinstance(opened, dict) else opened
    prepared = prepare(one)
    preview, certification = prepared.preview, prepared.certification
    if certification is not None:
        check_certifiable(one)
        preview = _with_certificate(preview, certification.mechanism, options["epsilon"])
    if options.get("dry_run"):
        return preview
    noise = source_of(options.get("noise"))
    charged = charge(options.get("ledger"), preview, data, column, options)

    def answer(records: Column) -> Outcome:
        outcome = withheld(prepared.answer, records, noise)
        if certification is not None and isinstance(outcome, Released):
            found = withheld(certification.certificate, records, outcome.value, noise)
            outcome = attrs.evolve(outcome, certificate=found, event=preview.event)
        if records.contribution.unit is not None and not isinstance(outcome, Refused):
            outcome = attrs.evolve(outcome, notes=(records.contribution.sentence, *outcome.notes))
        return attrs.evolve(outcome, epsilon=preview.epsilon, delta=preview.delta)

    if isinstance(opened, dict):
        # A unit is in one group only, so all groups together cost as much as one (parallel
        # composition).
        answers = Groups({group: answer(records) for group, records in opened.items()})
        charged(answers.values())
        return answers
    found = answer(opened)
    charged([found])
    return found


def check_certifiable(records: Column) -> None:
    """Refuse to certify records of which a unit has several: its distance would change by more."""
    if records.contribution.records > 1:
        raise _validate.ArgumentError(
            "per_unit",
            "one value per unit for a certificate",
            got=records.contribution.per_unit,
            why="a certificate counts units, and the distance is in records",
            hint="Give a rule such as per_unit='mean', or leave the certificate out.",
        )


def _with_certificate(preview: Preview, mechanism: DistanceRelease, epsilon: float) -> Preview:
    """The preview of a value and its certificate, which are charged together."""
    note = (
        f"The certificate costs ε = {rounded_up(mechanism.epsilon)} of it, and counts about "
        f"{mechanism.slack:,} records too few, to be on the safe side."
    )
    return attrs.evolve(
        preview,
        epsilon=epsilon,
        event=dp.ComposedDpEvent([preview.event, mechanism.event]),
        notes=(*preview.notes, note),
    )


def without_certificate(options: OptionsType) -> tuple[OptionsType, DistanceRelease | None]:
    """Set the share of a certificate aside: return the options of the value, and what certifies."""
    if options.get("certify") is None:
        return options, None
    epsilon = _validate.between(1e-3, 50, epsilon=options["epsilon"])
    share, rest = shares_of(epsilon, CERTIFICATE_SHARE)
    certifies = DistanceRelease(epsilon=share, confidence=options.get("confidence", 0.95))
    return {**options, "epsilon": rest}, certifies  # type: ignore[return-value]


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
        name: source[name]
        for name in TableOptions.__optional_keys__
        if source.get(name) is not None
    }
    if isinstance(data, Column | list | tuple | np.ndarray) and column is None:
        read_as = None if isinstance(data, Column) else asked.pop("read_as", None)
        if asked:
            raise ValueError(
                f"Expected a table for {', '.join(sorted(asked))}, got values without names. "
                "Give a path, a frame or an ibis table, and the name of its column."
            )
        if isinstance(data, ArrayColumn):
            return data.checked(kind)
        return data if isinstance(data, Column) else ArrayColumn.of(data, kind, read_as)
    with _extras.needed("A release from a table"):
        from prudent.release.columns import opening  # needs ibis, which arrays do not

    if "groups" in asked and "by" not in asked:
        raise _validate.ArgumentError(
            "by", "the name of the column that says which group a row is in", shown="nothing"
        )
    if "by" in asked:
        groups = opening.open_groups(data, column, kind=kind, **{"groups": None, **asked})
        return dict(groups)
    return opening.open_column(data, column, kind=kind, **asked)
