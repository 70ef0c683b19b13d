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
from prudent.release.columns.column import ArrayColumn, Column, Kind
from prudent.release.failures import withheld
from prudent.release.noise import Law, Noise
from prudent.release.outcome import Outcome
from prudent.release.preview import Preview

Answer: TypeAlias = Outcome | dict[Hashable, Outcome] | Preview
Statistic = TypeVar("Statistic", bound=Callable[..., Any])


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
        unit: The column that identifies the privacy unit of a row; see
            `columns.opening.open_column`.
        by: The column to group by. One value is released per group, at the price of one release.
        groups: The public list of groups; required with `by`. Or "private": the groups are those
            that a private choice finds to have enough records, which needs `delta`, and costs a
            third of ε.
        where: Which rows to keep, as a function of one row.
        connect: The address of a database, instead of `data`.
        table: The name of the table in that database.
    """

    unit: str | None
    by: str | None
    groups: Sequence[Hashable] | Literal["private"] | None
    where: Callable[[Any], Any] | None
    connect: str | None
    table: str | None


class Options(Budget, TableOptions, total=False):
    """Keyword arguments of a tested statistic of a column; see `Budget` and `TableOptions`."""


_DEFAULTS: Mapping[str, object] = types.MappingProxyType(
    {"fallback": False, "law": Law.LAPLACE, "dry_run": False}
)
"""Defaults of options that are not None, to show in a signature."""


@attrs.frozen(kw_only=True)
class Prepared:
    """A statistic that is ready to be released.

    Attributes:
        preview: What is known before the data are read: the price and the noise.
        answer: Reads the records and returns the outcome; None as noise means the operating
            system's.
    """

    preview: Preview
    answer: Callable[[Column, Noise | None], Outcome]


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
    preview = prepared.preview
    if options.get("dry_run"):
        return preview
    label = preview.statistic if column is None else f"{preview.statistic} of {column}"
    charge(options.get("ledger"), preview.event, label, preview.delta)

    def answer(records: Column) -> Outcome:
        outcome = withheld(prepared.answer, records, options.get("noise"))
        return attrs.evolve(outcome, epsilon=preview.epsilon, delta=preview.delta)

    if isinstance(opened, dict):
        # A record is in one group only, so all groups together cost as much as one (parallel
        # composition).
        return {group: answer(records) for group, records in opened.items()}
    return answer(opened)


def charge(ledger: LedgerLike | None, event: dp.DpEvent, label: str, delta: float) -> None:
    """Charge the ledger, if one is given; an exception it raises must stop the release."""
    if ledger is None:
        return
    if not hasattr(ledger, "charge"):
        raise _validate.ArgumentError(
            "ledger",
            "an open prudent.Ledger",
            shown=redacted(repr(ledger), ledger),
            hint="Open it with prudent.Ledger(location).",
        )
    ledger.charge(event, label, delta=delta)


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
