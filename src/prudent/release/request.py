"""A request for a private statistic: its options, and the one way to answer it.

Every statistic is answered in the same order: check the arguments, open the column (which reads
its name and type, no record), calibrate, charge the ledger, and only then read the data.
"""

import contextlib
import functools
import inspect
import os
import types
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import (
    Any,
    Literal,
    Protocol,
    Required,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_type_hints,
)

import attrs
import dp_accounting as dp
import numpy as np

from prudent import _validate
from prudent._redaction import redacted
from prudent.accounting import MarginTest
from prudent.release.additive import shares_of
from prudent.release.certificates import SHARE as CERTIFICATE_SHARE
from prudent.release.certificates import Certificate, DistanceRelease
from prudent.release.columns.column import ArrayColumn, Column, Kind
from prudent.release.columns.contributions import PerUnit
from prudent.release.failures import withheld
from prudent.release.noise import Law, Noise
from prudent.release.outcome import Groups, Outcome, Refused, Released
from prudent.release.preview import Preview

Answer: TypeAlias = Outcome | Groups | Preview
Statistic = TypeVar("Statistic", bound=Callable[..., Any])
OptionsType = TypeVar("OptionsType", bound=Mapping[str, Any])


class LedgerLike(Protocol):
    """A privacy ledger that is charged before any data is read."""

    def charge(self, event: dp.DpEvent, label: str = "", *, delta: float | None = None) -> object:
        """Commit the charge, or raise and commit nothing."""
        ...


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
        law: Distribution of the noise added to a number: Laplace, or Gaussian when very many
            releases share a budget.
        test: A discrete test of the margin; None selects the one with the smaller error.
        failure: Largest probability with which a margin of 0 passes, in (0, delta]; None means
            delta/2.
    """

    bounds: tuple[float, float] | None
    fallback: bool
    law: Law
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
    {"fallback": False, "law": Law.LAPLACE, "dry_run": False, "confidence": 0.95}
)
"""Defaults of options that are not None, to show in a signature."""


@attrs.frozen(kw_only=True)
class Prepared:
    """A statistic that is ready to be released.

    Attributes:
        preview: What is known before the data are read: the price and the noise.
        answer: Reads the records and returns the outcome; None as noise means the operating
            system's.
        certification: How to certify a released value; None if that was not asked for.
    """

    preview: Preview
    answer: Callable[[Column, Noise | None], Outcome]
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

    def certificate(self, records: Column, value: Any, noise: Noise | None) -> Certificate:
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
    prepared = prepare(next(iter(opened.values())) if isinstance(opened, dict) else opened)
    preview, certification = prepared.preview, prepared.certification
    if certification is not None:
        event = dp.ComposedDpEvent([preview.event, certification.mechanism.event])
        preview = attrs.evolve(preview, epsilon=options["epsilon"], event=event)
    if options.get("dry_run"):
        return preview
    charged = charge(options.get("ledger"), preview, data, column, options)
    noise = options.get("noise")

    def answer(records: Column) -> Outcome:
        outcome = withheld(prepared.answer, records, noise)
        if certification is not None and isinstance(outcome, Released):
            found = withheld(certification.certificate, records, outcome.value, noise)
            outcome = attrs.evolve(outcome, certificate=found, event=preview.event)
        if records.contribution.unit is not None and isinstance(outcome, Released):
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


def without_certificate(options: OptionsType) -> tuple[OptionsType, DistanceRelease | None]:
    """Set the share of a certificate aside: return the options of the value, and what certifies."""
    if options.get("certify") is None:
        return options, None
    epsilon = _validate.between(1e-3, 50, epsilon=options["epsilon"])
    share, rest = shares_of(epsilon, CERTIFICATE_SHARE)
    certifies = DistanceRelease(epsilon=share, confidence=options.get("confidence", 0.95))
    return {**options, "epsilon": rest}, certifies  # type: ignore[return-value]


def charge(
    ledger: LedgerLike | None,
    preview: Preview,
    data: Any = None,
    column: str | None = None,
    options: Mapping[str, Any] = types.MappingProxyType({}),
) -> Callable[[Iterable[Outcome]], None]:
    """Charge the ledger, if one is given; an exception it raises must stop the release.

    Args:
        ledger: The ledger; None: nobody keeps count.
        preview: What will be released.
        data: The data, whose name the ledger compares with that of its own.
        column: The name of the column.
        options: The options of the table: groups, unit and so on, for the ledger's history.

    Returns:
        A function that notes the outcomes in the ledger's history.
    """
    if ledger is None:
        return lambda outcomes: None
    if not hasattr(ledger, "charge"):
        raise _validate.ArgumentError(
            "ledger",
            "an open prudent.Ledger",
            shown=redacted(repr(ledger), ledger),
            hint="Open it with prudent.Ledger(location).",
        )
    label = preview.statistic if column is None else f"{preview.statistic} of {column}"
    if not hasattr(ledger, "record_outcome"):
        ledger.charge(preview.event, label, delta=preview.delta)
        return lambda outcomes: None
    asked = _asked(preview, data, column, options)
    keeper: Any = ledger  # one that keeps a history takes what is asked as well
    charged = keeper.charge(preview.event, label, delta=preview.delta, details=asked)

    def note(outcomes: Iterable[Outcome]) -> None:
        from prudent.release.budget.ledger import LedgerError

        counts = Counter(
            "refused" if isinstance(each, Refused) else "released" for each in outcomes
        )
        with contextlib.suppress(LedgerError):  # the answer is paid for, whatever the history says
            keeper.record_outcome(charged, next(iter(counts)) if len(counts) == 1 else counts)

    return note


def _asked(
    preview: Preview, data: Any, column: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What is asked, for the history of a ledger; all of it is public."""
    source = options.get("table") if options.get("connect") else data
    groups = options.get("groups")
    return {
        "statistic": preview.statistic,
        "column": column,
        "mechanism": preview.mechanism,
        "proposal": preview.proposal,
        "groups": groups if groups is None or isinstance(groups, str) else tuple(map(str, groups)),
        "unit": options.get("unit"),
        "epsilon": preview.epsilon,
        "data": str(source) if isinstance(source, str | os.PathLike) else None,
    }


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
    from prudent.release.columns import opening  # needs ibis, which arrays do not

    if "groups" in asked and "by" not in asked:
        raise _validate.ArgumentError(
            "by", "the name of the column that says which group a row is in", shown="nothing"
        )
    if "by" in asked:
        groups = opening.open_groups(data, column, kind=kind, **{"groups": None, **asked})
        return dict(groups)
    return opening.open_column(data, column, kind=kind, **asked)
