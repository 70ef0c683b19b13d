"""A request for a private statistic, and the one way to answer it: `release`.

Every statistic is answered in the same order: open the column (which reads its name and type, no
record), price the release, charge the ledger, and only then ask the data and answer. Several
statistics of one table are answered in the same way, at one charge: `release_all`.

A unit is in one group only. So what is released from all groups together costs as much as the most
expensive of them (parallel composition), and for private groups also their choice. With
`groups_per_unit` a unit is in at most k groups, chosen among its own: what a group costs is then
paid k times, and each has an equal share of ε and δ.
"""

import abc
import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, TypeAlias, cast

import attrs
import dp_accounting as dp
import numpy as np

from prudent import _extras, _validate
from prudent._rounding import rounded_up
from prudent.accounting._numeric import float_above, float_share
from prudent.receipts.making import ReceiptTarget
from prudent.release.certificates import SHARE as CERTIFICATE_SHARE
from prudent.release.certificates import DistanceRelease
from prudent.release.charging import AnyLedger, Preview, charge, opened_ledger
from prudent.release.columns.column import (
    Column,
    KeptGroups,
    Kind,
    PerUnit,
    Pool,
    redact_errors,
    together,
)
from prudent.release.joins import Join
from prudent.release.noise import Distribution, Noise, PartitionSelection, shares_of, source_of
from prudent.release.outcome import Groups, Refused, Released

SELECTION_SHARE = 1 / 3
"""The fraction of ε that the choice of private groups costs; the rest is for each statistic.

A group is kept if it has about ln(1/δ)/(ε/3) records. A larger share would keep smaller groups, in
which the statistic itself is hardly better than its noise.
"""

_MOST_GROUPS = 10_000  # of one unit
_RESERVE = 1e-6  # fraction of δ that accountants need for their own rounding

GroupNames: TypeAlias = Sequence[Hashable] | Mapping[str, Sequence[Hashable]] | Literal["private"]
By: TypeAlias = str | Sequence[str]
Condition: TypeAlias = Callable[[Any], Any] | str


@attrs.frozen(kw_only=True, eq=False, repr=False)  # its text would quote records
class Request:
    """All options of a statistic; each takes those that have a meaning for it.

    They are documented at `prudent.release.median`.
    """

    data: Any = None
    column: str | None = None
    other: str | None = None
    epsilon: float
    delta: float | None = None
    propose: Any = None
    bounds: tuple[Any, Any] | None = None
    other_bounds: tuple[Any, Any] | None = None
    fallback: bool = False
    distribution: Distribution = Distribution.LAPLACE
    certify: Any = None
    confidence: float = 0.95
    unit: str | None = None
    per_unit: PerUnit | None = None
    groups_per_unit: int | None = None
    by: By | None = None
    groups: GroupNames | None = None
    where: Condition | None = None
    read_as: str | Mapping[str, str] | None = None
    connect: str | None = None
    table: str | None = None
    ledger: AnyLedger | None = None
    receipt: ReceiptTarget | None = None
    noise: Noise | None = None
    dry_run: bool = False

    def __attrs_post_init__(self) -> None:
        _validate.one_of((True, False, None), dry_run=self.dry_run)
        _validate.one_of((True, False, None), fallback=self.fallback)
        if self.delta is not None:  # also where nothing needs it: a slip must not pass unseen
            _validate.small_delta(ends="[)", delta=self.delta)
        data, column = _with_name(self.data, self.column)
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "column", column)
        if self.unit is None and self.join is not None:
            object.__setattr__(self, "unit", self.join.unit)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Request":
        """The request of a function with these arguments; those of its own are left out."""
        names = attrs.fields_dict(cls)
        return cls(**{name: value for name, value in given.items() if name in names})

    @property
    def join(self) -> Join | None:
        """The join that the data are; None if they are one table."""
        join = getattr(self.data, "join", self.data)  # of a table that is open already
        return join if isinstance(join, Join) else None

    @property
    def protected(self) -> str:
        """What is protected: a record, or a unit that may have several."""
        return "record" if self.unit is None else "unit"

    @property
    def private_groups(self) -> bool:
        """Whether the groups are found in the data."""
        return isinstance(self.groups, str) and self.groups == "private"

    @property
    def required_delta(self) -> float:
        """The δ, which a test cannot do without."""
        if self.delta is None:
            raise _validate.ArgumentError(
                "delta",
                "for a release that is tested first",
                got=None,
                why="the test passes by accident with a small probability, and delta pays for it",
                hint="Give delta=1e-7, for example, well below one over the number of records.",
            )
        return self.delta

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns that say which group a row is in."""
        return (self.by,) if isinstance(self.by, str) else tuple(self.by or ())

    @property
    def fold(self) -> int:
        """How many groups one unit may be in: so often is what one group costs paid."""
        if self.groups_per_unit is None:
            return 1
        for name in ("unit", "by"):
            if getattr(self, name) is None:
                raise _validate.ArgumentError("groups_per_unit", f"only with {name}", shown="it")
        return _validate.count(1, _MOST_GROUPS, groups_per_unit=self.groups_per_unit)

    @property
    def used(self) -> list[str]:
        """The columns and values that are named, apart from the condition."""
        named = (self.column, self.other, self.unit, *self.group_columns)
        return [name for name in named if isinstance(name, str)]

    def in_table(self) -> dict[str, Any]:
        """The options of the table that were given."""
        given = {name: getattr(self, name) for name in (*TABLE_OPTIONS, "other")}
        if self.groups_per_unit is not None:  # by a secret, which depends on no record
            key = f"{source_of(self.noise).integer(2**128):032x}"
            given["kept"] = KeptGroups(self.fold, key)
        return {name: value for name, value in given.items() if value is not None}


TABLE_OPTIONS = ("unit", "per_unit", "by", "groups", "where", "read_as", "connect", "table")
"""The options that say which table to read, and which of its records."""


def _with_name(data: Any, column: str | None) -> tuple[Any, str | None]:
    """One column that is given by itself, as a table and its name."""
    if column is not None:
        if hasattr(data, "to_frame"):
            hint = "A series is one column: leave the name out, or give the frame it is of."
            raise _validate.ArgumentError("column", "None with a series", got=column, hint=hint)
        return data, column
    home = type(data).__module__.partition(".")[0]
    if hasattr(data, "to_frame"):  # a series of pandas, polars or narwhals
        return data.rename("value").to_frame(), "value"
    if home == "ibis" and hasattr(data, "as_table") and not hasattr(data, "columns"):
        return data.as_table(), data.get_name()
    if home == "pyarrow" and hasattr(data, "to_numpy"):  # an array, in one chunk or several
        import pyarrow

        return pyarrow.table({"value": data}), "value"
    return data, None


@attrs.frozen(kw_only=True)
class Priced:
    """A release with its price; nothing has been charged or read."""

    preview: Preview  # what is known before the data are read: the price and the noise
    mechanism: Any  # the calibrated mechanism, or those among which ε is divided
    # Releases a lower bound on the distance; None if that was not asked for.
    certifies: DistanceRelease | None = None
    tolerance: float = 0.0  # of the certificate, in units of the column's scale
    # Whether the event is that of a unit in all its groups, and not of one group alone.
    of_all_groups: bool = False


class Statistic(abc.ABC):
    """A statistic with its own arguments: a frozen value."""

    def kind(self, request: Request) -> Kind:
        """What it needs: numbers, categories, booleans, or rows alone."""
        return "numbers"

    @abc.abstractmethod
    def price(self, request: Request, records: Column) -> Priced:
        """Calibrate the release to the request; only the type of the column may be read."""

    def prepare(self, priced: Priced, pool: Column, noise: Noise) -> Priced:
        """Release what all groups share, from their records together; `answer` is given it."""
        return priced

    @abc.abstractmethod
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Any:
        """Read the records of one group and return the outcome; its price is added to it."""

    def finish(
        self, priced: Priced, pool: Column, outcomes: list[Any], noise: Noise
    ) -> Sequence[Any]:
        """Add to the outcomes of all groups what is released from their records together."""
        return outcomes

    def distance(self, priced: Priced, records: Column, value: Any) -> tuple[int, Any, Any]:
        """The distance of the records from data whose statistic is outside an interval.

        The interval is around the released value; its ends are returned as well. For a fixed value,
        one record changes the distance by at most 1.
        """
        raise NotImplementedError


@attrs.frozen
class Part:
    """One of several statistics of a table."""

    statistic: Statistic  # the statistic
    request: Request  # what is asked of it; ε and δ are shares of those of the whole
    weight: float = 1.0  # its share of ε, relative to the others


def release(statistic: Statistic, request: Request) -> Any:
    """Answer a request: open, price, charge, ask and answer, in this order.

    Guarantee:
        With public groups, all have the same event, which is charged once. With private groups, the
        answer, with its keys, is (ε, δ)-DP: the choice has the privacy of `PartitionSelection`, and
        a statistic in a chosen group spends what is left of ε and δ.

    Returns:
        An outcome; one for each group, with groups; a `Preview`, with `dry_run`.
    """
    preview, found = release_all([Part(statistic, request)], request)
    return preview if request.dry_run else found[0]


def release_all(parts: Sequence[Part], request: Request) -> tuple[Preview, list[Any]]:
    """Answer several statistics of one table, at one charge.

    Guarantee:
        The event is that of all parts together; private groups are chosen once, by the number of
        their rows, and every part is answered in the same groups. A unit may be in another group
        for each part, and is in one group for each.
    """
    if len(parts) > 1:
        parts = of_one_table(parts, request)
    opened = [open_records(part.request, part.statistic.kind(part.request)) for part in parts]
    counted = opened[0]
    if request.private_groups and len(parts) > 1:
        rows = attrs.evolve(parts[0].request, column=None, other=None, where=request.where)
        counted = open_records(rows, "rows")
    whole = _price_all(parts, opened, counted, request)
    if request.dry_run:
        return whole.preview, []
    noise = source_of(request.noise)
    names = [part.request.column for part in parts if part.request.column is not None]
    with opened_ledger(request.ledger) as ledger:
        paid = charge(
            ledger,
            whole.preview,
            request.table if request.connect else request.join or request.data,
            ", ".join(dict.fromkeys(names)) or None,
            connect=request.connect,
            groups=request.groups,
            unit=request.unit,
            receipt=request.receipt,
            more={"by": request.by, "parts": [_facts(part) for part in parts]}
            | ({} if request.groups_per_unit is None else {"groups_per_unit": request.fold}),
        )
        kept: Any = None
        if whole.selection is not None:
            kept = redact_errors(whole.selection.select, redact_errors(counted.counts), noise)
        found: list[Any] = []
        every: list[Any] = []
        for part in whole.parts:
            outcomes = part.answer(kept, noise)
            every += outcomes.values()
            if request.by is None:
                found.append(outcomes[None])
            else:
                known = whole.price(part) | {"protected": request.protected}
                found.append(Groups(outcomes, request.group_columns, **known))
        paid.note(every, found[0] if len(parts) == 1 else {"answers": found})
    return whole.preview, found


_FACTS = (
    *("column", "other", "where", "per_unit", "bounds", "other_bounds", "propose", "fallback"),
    *("distribution", "certify", "confidence", "delta", "read_as"),
)


def _facts(part: Part) -> dict[str, Any]:
    """What was asked of one statistic, all that it takes; of a function nothing can be told."""
    statistic: Any = part.statistic  # a frozen value, with its arguments as fields
    asked = {name: getattr(part.request, name) for name in _FACTS}
    asked |= attrs.asdict(statistic, recurse=False)
    given = {name: "a function" if callable(each) else each for name, each in asked.items()}
    return {"statistic": type(statistic).__name__} | {
        name: each for name, each in given.items() if each is not None and each is not False
    }


def of_one_table(parts: Sequence[Part], request: Request) -> list[Part]:
    """The parts with their table opened once: one connection, one snapshot, one copy of a frame."""
    from prudent.release.columns.joining import open_source
    from prudent.release.columns.opening import columns_used

    data = request.data
    if not isinstance(data, Column):
        asked = [part.request for part in parts]
        used = [columns_used(each.used, each.where) for each in asked]
        known = [name for names in used for name in names or ()]
        data = open_source(
            data,
            connect=request.connect,
            table=request.table,
            columns=None if None in used else known,
            unit=request.unit,
        )
    own = {"data": data, "connect": None, "table": None}
    return [attrs.evolve(part, request=attrs.evolve(part.request, **own)) for part in parts]


def open_records(request: Request, kind: Kind) -> Any:
    """Open a column for each group, for None without groups; or all that are private."""
    data, column = request.data, request.column
    table = request.in_table()
    if isinstance(data, Column | list | tuple | np.ndarray) and column is None:
        own = {} if isinstance(data, Column) else {"read_as": table.pop("read_as", None)}
        if table:
            raise ValueError(
                f"Expected a table for {', '.join(sorted(table))}, got values without names. "
                "Give a path, a frame or an ibis table, and the name of its column."
            )
        if isinstance(data, Column):
            return {None: data}
        table = own
    if request.by is None and request.groups is not None:
        raise _validate.ArgumentError(
            "by", "the name of the column that says which group a row is in", shown="nothing"
        )
    with _extras.needed("A release from a table"):
        from prudent.release.columns import opening

    if request.private_groups:
        del table["groups"]
        return opening.open_private_groups(data, column, kind=kind, **table)
    if request.by is None:
        return {None: opening.open_column(data, column, kind=kind, **table)}
    return opening.open_groups(data, column, kind=kind, **{"groups": None, **table})


@attrs.frozen(eq=False, repr=False)  # its text would quote records
class PricedPart:
    """One part with its records and what it costs, in all its groups."""

    statistic: Statistic  # the statistic
    records: Any  # its opened records, of all groups
    preview: Preview  # the price that is shown with its outcomes
    release: Priced  # the release of one group
    fold: int = 1  # how many groups a unit may be in

    def answer(self, kept: Any, noise: Noise) -> dict[Hashable, Any]:
        """The outcomes of all groups, each at the price of all of it."""
        columns = self.records if kept is None else redact_errors(self.records.columns, kept)
        if not columns:  # no private group was chosen
            return {}
        pool = cast(Column, Pool(list(columns.values()), self.fold))
        shared = attrs.evolve(self.release, preview=self.preview)
        shared = redact_errors(self.statistic.prepare, shared, pool, noise)
        tasks = [
            functools.partial(_answer, self.statistic, shared, column, noise)
            for column in columns.values()
        ]
        outcomes = redact_errors(self.statistic.finish, shared, pool, together(tasks), noise)
        return dict(zip(columns, outcomes, strict=True))


@attrs.frozen
class PricedRequest:
    """What all parts cost, and the choice of private groups; None if they are public."""

    preview: Preview
    parts: tuple[PricedPart, ...]
    selection: PartitionSelection | None = None

    def price(self, part: PricedPart) -> dict[str, Any]:
        """What the outcomes of a part cost with their groups, whose names were paid for as well."""
        if self.selection is None or part.preview is self.preview:
            return {"epsilon": part.preview.epsilon, "delta": part.preview.delta}
        chosen = self.selection.epsilon * part.fold
        both = math.nextafter(part.preview.epsilon + chosen, math.inf)
        return {"epsilon": min(both, self.preview.epsilon), "delta": self.preview.delta}


def _price_all(
    parts: Sequence[Part], opened: Sequence[Any], counted: Any, request: Request
) -> PricedRequest:
    """Divide ε and δ between the choice of private groups and the parts, by their weights.

    Guarantee: tables that differ by a unit differ in at most `fold` groups, in each by what the
    unit contributes there. The others are released alike, so all of it is the composition of `fold`
    releases of one group, with its choice if groups are private, and of what all groups share.
    """
    fold, epsilon, delta = request.fold, request.epsilon, request.delta
    if len(parts) > 1 or fold > 1:
        _validate.positive(epsilon=epsilon)
    epsilon = float_share(epsilon, fold) if fold > 1 else epsilon
    of_group = delta if delta is None or fold == 1 else float_share(delta, fold)
    choosing, delta = 0.0, of_group
    if request.private_groups:
        if delta is None:
            raise _validate.ArgumentError(
                "delta",
                "for groups or categories that are found privately",
                shown="nothing",
                hint="Give delta=1e-7, for example, or a list of them that is public knowledge.",
            )
        choosing, epsilon = shares_of(_validate.positive(epsilon=epsilon), SELECTION_SHARE)
        delta = delta / 2  # a test may need half of δ; what is left is for the groups
    total = sum(part.weight for part in parts)
    shares = [part.weight / total for part in parts]
    epsilons = shares_of(epsilon, *shares[:-1]) if len(parts) > 1 else (epsilon,)
    deltas = (None,) * len(parts) if delta is None else shares_of(delta, *shares[:-1])
    priced = [
        _price(part.statistic, attrs.evolve(part.request, epsilon=own, delta=spent), columns)
        for part, own, spent, columns in zip(parts, epsilons, deltas, opened, strict=True)
    ]
    selection: PartitionSelection | None = None
    notes = [] if request.join is None else [request.join.sentence]
    if fold > 1:
        notes.append(f"A unit is in at most {fold:,} groups, and each group has that part of ε.")
    events = [part.preview.event for part in priced]
    spent_delta = _sum_rounded_up([part.preview.delta for part in priced])
    if request.delta is not None:
        spent_delta = min(spent_delta, request.delta)
    if request.private_groups:
        assert request.delta is not None
        assert of_group is not None
        rest = of_group - _sum_rounded_up([part.release.preview.delta for part in priced])
        selection = PartitionSelection(
            epsilon=choosing, delta=rest * (1 - _RESERVE), records=counted.contribution.records
        )
        half, surely = selection.needed(0.5), selection.needed(0.95)
        notes.insert(
            0,
            f"A group is kept with probability 1/2 if it has {half:,} records, and with "
            f"probability 0.95 if it has {surely:,}; the choice costs ε = "
            f"{rounded_up(selection.epsilon)}.",
        )
        events, spent_delta = [repeated(selection.event, fold), *events], request.delta
    first = priced[0].preview
    if len(parts) > 1:
        preview = Preview(
            statistic="table",
            mechanism=", ".join(dict.fromkeys(part.preview.mechanism for part in priced)),
            epsilon=request.epsilon,
            delta=spent_delta,
            event=dp.ComposedDpEvent(events),
            parts=tuple(part.preview for part in priced),
            notes=tuple(notes),
        )
        return PricedRequest(preview, tuple(priced), selection)
    event = first.event if selection is None else dp.ComposedDpEvent(events)
    preview = attrs.evolve(first, notes=(*first.notes, *notes), delta=spent_delta, event=event)
    if selection is not None or fold > 1:
        preview = attrs.evolve(preview, epsilon=request.epsilon)
    return PricedRequest(preview, (attrs.evolve(priced[0], preview=preview),), selection)


def repeated(event: dp.DpEvent, times: int) -> dp.DpEvent:
    """The event of a unit that is in several groups, each of which has this one."""
    return event if times == 1 else dp.SelfComposedDpEvent(event, times)


def _sum_rounded_up(deltas: Sequence[float]) -> float:
    """The sum of parts of δ; it is at most δ, since the exact sum is."""
    return float_above(sum(map(Fraction, deltas), Fraction(0)))


def _price(statistic: Statistic, request: Request, opened: Any) -> PricedPart:
    """The price of one part, of a unit in all its groups."""
    records = opened.column() if request.private_groups else next(iter(opened.values()))
    first = price(statistic, request, records)
    preview, fold = first.preview, request.fold
    if fold > 1:
        preview = attrs.evolve(
            preview,
            epsilon=math.nextafter(preview.epsilon * fold, math.inf),
            delta=_sum_rounded_up([preview.delta] * fold),
            event=preview.event if first.of_all_groups else repeated(preview.event, fold),
        )
    return PricedPart(statistic, opened, preview, first, fold)


def price(statistic: Statistic, request: Request, records: Column) -> Priced:
    """Price a release from one column; a certificate is charged together with the value."""
    if request.bounds is None and statistic.kind(request) in ("numbers", "truth"):
        request = attrs.evolve(request, bounds=records.scale.own_bounds)
    if request.certify is None:
        return statistic.price(request, records)
    check_single(records, "a certificate", "the certificate")
    epsilon = _validate.between(1e-3, 50, epsilon=request.epsilon)
    share, rest = shares_of(epsilon, CERTIFICATE_SHARE)
    certifies = DistanceRelease(epsilon=share, confidence=request.confidence)
    tolerance = 0.0
    if not (request.certify is True and statistic.kind(request) == "categories"):
        tolerance = _validate.non_negative(
            certify=records.scale.given_length("certify", request.certify)
        )
    priced = statistic.price(attrs.evolve(request, epsilon=rest), records)
    note = (
        f"The certificate costs ε = {rounded_up(share)} of it, and counts about "
        f"{certifies.slack:,} records too few, to be on the safe side."
    )
    preview = attrs.evolve(
        priced.preview,
        epsilon=epsilon,
        event=dp.ComposedDpEvent([priced.preview.event, certifies.event]),
        notes=(*priced.preview.notes, note),
    )
    return attrs.evolve(priced, preview=preview, certifies=certifies, tolerance=tolerance)


def check_single(records: Column, what: str, option: str) -> None:
    """Refuse several records of one unit where distances and margins count single records."""
    if records.contribution.records > 1:
        raise _validate.ArgumentError(
            "per_unit",
            f"one value per unit for {what}",
            got=records.contribution.per_unit,
            why="its margin counts single records",
            hint=f"Give a rule such as per_unit='mean', or leave {option} out.",
        )


def _answer(statistic: Statistic, priced: Priced, records: Column, noise: Noise) -> Any:
    """Read the records, and answer with what was charged."""
    outcome = redact_errors(statistic.answer, priced, records, noise)
    if priced.certifies is not None and isinstance(outcome, Released):
        distance = redact_errors(statistic.distance, priced, records, outcome.value)
        certificate = redact_errors(priced.certifies.release, *distance, noise=noise)
        outcome = attrs.evolve(outcome, certificate=certificate)
    preview, unit = priced.preview, records.contribution.unit
    known = {"event": preview.event, "epsilon": preview.epsilon, "delta": preview.delta}
    known["protected"] = "record" if unit is None else "unit"
    if not isinstance(outcome, Refused):
        notes = () if unit is None else (records.contribution.sentence,)
        known |= {"mechanism": preview.mechanism, "notes": (*notes, *outcome.notes)}
    return attrs.evolve(outcome, **known)
