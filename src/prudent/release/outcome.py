"""What a release returns: a value that may be published, or a refusal."""

import contextlib
import html
import itertools
import math
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import attrs
from typing_extensions import override

from prudent import _validate
from prudent._rounding import exact, nearest, outward, percent, rounded_up, supported
from prudent.accounting.relations import ADD_REMOVE
from prudent.receipts.making import name_of
from prudent.release.certificates import Certificate
from prudent.release.columns.scales import Scale
from prudent.release.noise import Distribution

TOO_FEW = "too few records for this ε"
"""Why a number has no interval, or is not shown at all."""

_NO_INTERVAL = "no interval"  # of a number that too few records are behind


class Branch(_validate.Choice):
    """The branch that produced a released value."""

    ROBUST = "robust"
    FALLBACK = "fallback"
    SELECTED = "selected"
    """One of several candidates, chosen at random by the exponential mechanism."""


class Spread(Protocol):
    """How far a released number may be from the statistic it stands for."""

    def interval(self, value: Any, confidence: float) -> tuple[Any, Any] | None:
        """Return an interval that holds the statistic with at least this probability.

        None if what was released tells nothing: there were too few records for this ε.
        """
        ...


@attrs.frozen
class NoiseSpread:
    """The spread of a number with noise of a known distribution."""

    distribution: Distribution  # the distribution of the noise
    scale: float  # its scale (Laplace) or standard deviation (Gaussian), in the unit of the data
    spacing: float  # spacing of the lattice; half of it is added for the rounding of the noise

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise."""
        return self.distribution.deviation(self.scale)

    def interval(self, value: float, confidence: float) -> tuple[float, float]:
        """See `Spread`. The chance is taken over the noise alone, so it costs nothing."""
        half = self.half_width(confidence)
        return value - half, value + half

    def half_width(self, confidence: float) -> float:
        """The distance that the noise exceeds with probability at most 1 - confidence.

        For discrete Laplace noise of b steps, P(|noise| > t) <= exp(-t/b) for whole t; a Gaussian
        is rounded to the nearest step. One step covers both.
        """
        _validate.between(0, 1, ends="()", confidence=confidence)
        if self.distribution is Distribution.LAPLACE:
            return -self.scale * math.log1p(-confidence) + self.spacing
        return self.scale * NormalDist().inv_cdf((1 + confidence) / 2) + self.spacing


@attrs.frozen
class ScaledSpread:
    """The spread of a number, as values of the type of its column."""

    number: float  # the released number, in the unit of the scale
    spread: Spread  # the spread of the number
    scale: Scale  # the scale of the column
    difference: bool = False  # whether the number is a difference of two values, such as a range

    def interval(self, value: Any, confidence: float) -> tuple[Any, Any] | None:
        """See `Spread`; it follows from the number, whatever the value displays."""
        ends = self.spread.interval(self.number, confidence)
        return None if ends is None else self.scale.ends(*ends, difference=self.difference)


@attrs.frozen
class CountSpread:
    """The spread of a noisy count: an interval of whole numbers, none below zero."""

    number: int  # the count as it was drawn, perhaps negative
    spread: NoiseSpread  # the spread of its noise

    def interval(self, value: Any, confidence: float) -> tuple[int, int]:
        """See `Spread`. A whole number in an interval is between the whole numbers in it."""
        low, high = self.spread.interval(self.number, confidence)
        return max(0, math.ceil(low)), max(0, math.floor(high))


@attrs.frozen
class ReleasedInterval:
    """An interval that was released together with the value."""

    low: float  # its lower end, in the unit of the scale
    high: float  # its upper end
    confidence: float  # probability with which it holds the statistic, at least
    useless: bool = False  # whether it is all values or nearly so, which tells nothing

    def interval(self, value: float, confidence: float) -> tuple[float, float] | None:
        """See `Spread`. It is the same for every confidence up to its own."""
        _validate.between(0, 1, ends="()", confidence=confidence)
        if confidence > self.confidence:
            raise _validate.ArgumentError(
                "confidence",
                f"at most {exact(self.confidence)}, for which the interval was released",
                got=confidence,
                hint="Ask for it with the release: confidence=0.99.",
            )
        return None if self.useless else (self.low, self.high)


@attrs.frozen
class UnknownSpread:
    """The spread of a number that says nothing about the records, so it is not shown either."""

    noise: Spread | None = None  # the spread by its noise alone, which would mislead

    def interval(self, value: Any, confidence: float) -> None:
        """See `Spread`."""
        _validate.between(0, 1, ends="()", confidence=confidence)


class Answer:
    """What may be published: shown in words with its price, as a table, and as rows of a frame."""

    __slots__ = ()
    _columns: ClassVar[Sequence[str]] = ()  # of a frame without rows

    def lines(self) -> list[str]:
        """The answer in words, one line or more."""
        raise NotImplementedError

    def records(self) -> list[dict[str, Any]]:
        """The rows of a frame: value, low, high and status, each number with its name."""
        return [({} if part is None else {"statistic": part}) | row for part, row in rows_of(self)]

    def to_frame(self) -> Any:
        """Return a pandas frame with one row for each number: value, low, high, status.

        The status is "released", "no interval" or "too few records" where there were too few
        records for one or for a value, or "refused". Of these, one that a group's column has the
        name of gets an underscore: `value_`.
        """
        import pandas as pd

        rows = self.records()
        return pd.DataFrame(rows, columns=None if rows else self._columns)

    def to_arrow(self) -> Any:
        """Return a pyarrow table with the rows of `to_frame`."""
        import pyarrow

        def column(values: list[Any]) -> Any:
            types = {type(each) for each in values if each is not None}
            with contextlib.suppress(pyarrow.ArrowException, OverflowError):  # of large numbers
                if len(types) < 2 or types == {int, float}:
                    return pyarrow.array(values)
            # Of several types, which a table cannot have: after a date, 1.5 would become a date.
            return pyarrow.array([None if each is None else str(each) for each in values])

        rows = self.records()
        names = dict.fromkeys(itertools.chain.from_iterable(rows) if rows else self._columns)
        return pyarrow.table({name: column([row.get(name) for row in rows]) for name in names})

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *price_lines(self)])

    def _repr_html_(self) -> str:
        """The answer for a notebook."""
        shown = getattr(self, "table", self.lines)()
        return f"<pre>{html.escape(chr(10).join([*shown, *price_lines(self)]))}</pre>"


_Operator: TypeAlias = Callable[[Any, Any], Any]


def _both_sides(apply: _Operator) -> tuple[_Operator, _Operator]:
    """An operator of the value of an answer, with the answer on its left and on its right."""

    def value(number: Any) -> Any:
        return number.value if isinstance(number, Released) else number

    return (
        lambda left, right: apply(left.value, value(right)),
        lambda right, left: apply(value(left), right.value),
    )


@attrs.frozen
class Released(Answer):
    """A released value, which may be published.

    Printed, a value has the digits that its interval supports. `value`, `float`, `repr` and JSON
    keep all of them. Of private bounds that half of the values may lie outside of nothing follows:
    such a value is not shown, in a sentence, a frame or JSON, but `value` has it.
    `format(answer, ".2f")`, `round(answer, 2)`, arithmetic and comparisons by size are those of the
    value, and give plain numbers.

    Attributes:
        value: A number, a date, a tuple of numbers, or a category.
        branch: The branch that produced it.
        noise_scale: Standard deviation of the noise in it, in the unit of the data.
        spacing: Values are multiples of this public power of two; 0 for a category.
        event: The privacy event of the release, for any accountant.
        mechanism: The name of the mechanism: "propose-test-release", "exponential", "laplace" or
            "gaussian".
        spread: How far the value may be from the statistic; None for a category or a vector.
        epsilon: ε that the release cost; None if it was not asked through a statistic.
        delta: δ that it cost; 0 for a pure mechanism.
        notes: What was done to the records and what to keep in mind, one sentence each.
        certificate: How many bad records the statistic withstands, if `certify` asked for it.
        intervals: Of a tuple of numbers: the interval of each, of the confidence asked for; None
            for one that has none.
        titles: Of a tuple of numbers: what each is, such as "0.9-quantile".
        confidence: The probability with which the interval that is shown holds, if it was not
            released with one; of a tuple of numbers, that of each.
        about: What the interval is about, if it is not the statistic of all values as they are:
            "the mean of the values clipped to [0, 100]".
        clipped_share: Ends of a 95 % interval for the fraction of values that were clipped, if it
            was released.
        protected: What is protected: a "record", or with a `unit` the "unit" that has several.
    """

    value: Any
    branch: Branch
    noise_scale: float = 0.0
    spacing: float = 0.0
    event: Any = attrs.field(default=None, repr=False, hash=False)
    mechanism: str = "propose-test-release"
    spread: Spread | None = attrs.field(default=None, repr=False)
    epsilon: float | None = None
    delta: float | None = None
    notes: tuple[str, ...] = ()
    certificate: Certificate | None = None
    intervals: tuple[Any, ...] | None = None
    titles: tuple[str, ...] | None = attrs.field(default=None, repr=False)
    confidence: float = attrs.field(default=0.95, repr=False)
    about: str | None = None
    clipped_share: tuple[float, float] | None = None
    protected: str = "record"

    @property
    def withstands(self) -> int | None:
        """The number of records that may be added or removed; see `certificate`."""
        return None if self.certificate is None else self.certificate.withstands

    def interval(self, confidence: float = 0.95) -> tuple[Any, Any]:
        """Return an interval that holds the true statistic with at least this probability.

        It follows from what was released, so it costs nothing more. The probability is over the
        noise; it says nothing about sampling error. If values were clipped, the statistic is that
        of the clipped values; see `about`.

        Raises:
            ValueError: if the value is a category or a vector, no interval was asked for, it was
                released at a lower confidence, or there were too few records to give one.
        """
        if self.spread is None:
            raise ValueError(
                "Expected a number released with an interval, got one without, a category or a "
                "vector."
            )
        found = self.spread.interval(self.value, confidence)
        if found is None:
            raise ValueError(f"This number has no interval: {TOO_FEW}.")
        return found

    @property
    def usual_interval(self) -> tuple[Any, Any] | None:
        """The interval that is shown, of confidence `shown_confidence`; None if there is none."""
        if self.spread is None:
            return None
        return self.spread.interval(self.value, self.shown_confidence)

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    __add__, __radd__ = _both_sides(operator.add)
    __sub__, __rsub__ = _both_sides(operator.sub)
    __mul__, __rmul__ = _both_sides(operator.mul)
    __truediv__, __rtruediv__ = _both_sides(operator.truediv)
    __floordiv__, __rfloordiv__ = _both_sides(operator.floordiv)
    __mod__, __rmod__ = _both_sides(operator.mod)
    __pow__, __rpow__ = _both_sides(operator.pow)
    __lt__, __gt__ = _both_sides(operator.lt)
    __le__, __ge__ = _both_sides(operator.le)

    def __neg__(self) -> Any:
        return -self.value

    def __abs__(self) -> Any:
        return abs(self.value)

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.value, digits) if digits is not None else round(self.value)

    def __format__(self, specification: str) -> str:
        return format(self.value, specification) if specification else str(self)

    @override
    def lines(self) -> list[str]:
        tested = self.mechanism == "propose-test-release"
        how = f"{self.mechanism}, {self.branch.value} branch" if tested else self.mechanism
        certified = [] if self.certificate is None else [str(self.certificate)]
        if self.intervals is not None:
            confidence = f" {percent(self.shown_confidence)}"
            titles = [f"{title}: " for title in self.titles or ()] or [""] * len(self.value)
            known = zip(titles, self.value, self.intervals, strict=True)
            each = [
                f"{title}{digits(value, ends or None)}"
                f" ({how}{'' if ends == () else _between(ends, confidence)})"
                for title, value, ends in known
            ]
            return [*each, *self.notes]
        return [f"{self.shown} ({how}{self._error})", *certified, *self.notes]

    @property
    def known(self) -> bool:
        """Whether the value is shown: it says something about the records."""
        return not isinstance(self.spread, UnknownSpread)

    @property
    def shown(self) -> str:
        """The value to the digits that its interval, or else its noise, supports."""
        if not self.known:
            return TOO_FEW
        return digits(self.value, self.usual_interval, self.noise_scale)

    @property
    def _error(self) -> str:
        if self.spread is not None:
            about = "" if self.about is None else f" for {self.about}"
            if not self.known:
                return f", no interval{about}"
            return _between(self.usual_interval, f" {percent(self.shown_confidence)}", about)
        if self.noise_scale:
            return f", noise of standard deviation {nearest(self.noise_scale)}"
        return ""

    @property
    def shown_confidence(self) -> float:
        """The confidence of the interval that is shown: that of its release, else 0.95."""
        known = getattr(self.spread, "spread", self.spread)
        return float(getattr(known, "confidence", self.confidence))

    def plain(self) -> dict[str, Any]:
        """The answer as JSON holds it."""
        if self.intervals is not None:
            intervals = [list(each) if each else None for each in self.intervals]
            values: dict[str, Any] = {"values": list(self.value), "intervals": intervals}
        else:
            ends = self.usual_interval
            values = {"value": self.value if self.known else None}
            values["interval"] = None if ends is None else list(ends)
        extras = {
            "about": self.about,
            "clipped_share": None if self.clipped_share is None else list(self.clipped_share),
            "certificate": None if self.certificate is None else self.certificate.plain(),
        }
        return {
            "status": "released" if self.known else "too few records",
            **values,
            "mechanism": self.mechanism,
            "branch": self.branch.value,
            "noise_scale": self.noise_scale,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "notes": list(self.notes),
        } | {name: each for name, each in extras.items() if each is not None}


@attrs.frozen
class Refused(Answer):
    """A refusal: the test failed, and no value is released. It costs as much as a release.

    Attributes:
        reason: A message that reveals only that the noisy test failed, which was charged for.
        event: The privacy event of the refusal, for any accountant.
        epsilon: ε that it cost; None if it was not asked through a statistic.
        delta: δ that it cost.
        protected: As for `Released`.
    """

    reason: str
    event: Any = attrs.field(repr=False, hash=False)
    epsilon: float | None = None
    delta: float | None = None
    protected: str = "record"

    @override
    def lines(self) -> list[str]:
        return [f"Refused. {self.reason}"]

    def plain(self) -> dict[str, Any]:
        """The refusal as JSON holds it."""
        empty = dict.fromkeys(("value", "branch", "noise_scale", "interval"))
        return {
            "status": "refused",
            **empty,
            "mechanism": "propose-test-release",
            "epsilon": self.epsilon,
            "delta": self.delta,
            "notes": [self.reason],
        }


Outcome: TypeAlias = Released | Refused


def price_lines(answer: Any) -> list[str]:
    """What an answer cost, and for which neighbours, in one line; none if it is not known."""
    if answer.epsilon is None:
        return []
    price = f"({rounded_up(answer.epsilon, 6)}, {rounded_up(answer.delta or 0.0, 6)})-DP"
    return [f"{price} for {ADD_REMOVE.sentence(answer.protected)}"]


def _between(ends: tuple[Any, Any] | None, confidence: str = "", about: str = "") -> str:
    if ends is None:
        return f", no interval{about}: {TOO_FEW}, or too few with a value"
    low, high = outward(*ends)
    return f",{confidence} interval {low} to {high}{about}"


def digits(value: Any, interval: tuple[Any, Any] | None, noise_scale: float = 0.0) -> str:
    """A released value to the digits that its interval, or else its noise, supports."""
    if interval is not None:
        return supported(value, *interval)
    if not isinstance(value, float):
        return exact(value)
    if not noise_scale:
        return nearest(value, 3)
    return supported(value, value - noise_scale, value + noise_scale)


T = TypeVar("T")


NO_GROUPS = "No group was found that has enough records; a dry run says how many it takes."


class Groups(Answer, dict[Hashable, T]):
    """The outcomes of several groups, by group; a dictionary that can be shown as a table.

    Attributes:
        names: The columns that the groups are of; the name of a group has a value for each.
        epsilon: ε that all groups cost together; known also where no group was found.
        delta: δ that they cost.
        protected: As for `Released`.
    """

    def __init__(
        self,
        outcomes: Mapping[Hashable, T],
        names: Sequence[str] = ("group",),
        *,
        epsilon: float,
        delta: float,
        protected: str = "record",
    ) -> None:
        """Store the outcomes and their price."""
        super().__init__(outcomes)
        self.names, self.epsilon, self.delta = tuple(names), epsilon, delta
        self.protected = protected

    def only(self, groups: Sequence[Hashable]) -> "Groups[T]":
        """Some of the groups, in this order, at the same price."""
        price = {name: getattr(self, name) for name in ("epsilon", "delta", "protected")}
        return Groups({group: self[group] for group in groups}, self.names, **price)

    def labels(self, group: Hashable) -> dict[str, Any]:
        """The values that a group is named by, each with its column."""
        values = group if isinstance(group, tuple) else (group,)
        return dict(zip(self.names, values, strict=True))

    @property
    def _columns(self) -> list[str]:  # type: ignore[override]
        none = dict.fromkeys(("value", "low", "high", "status"))
        return list(beside(dict.fromkeys(self.names, None), none))

    @override
    def records(self) -> list[dict[str, Any]]:
        outcomes: Mapping[Hashable, Any] = self
        return [
            beside(self.labels(group), row)
            for group, outcome in outcomes.items()
            for row in outcome.records()
        ]

    def table(self) -> list[str]:
        """The outcomes as aligned columns, one line for each number; then what is to be known."""
        outcomes: Mapping[Hashable, Any] = self
        if any(hasattr(each, "edges") for each in outcomes.values()):  # of bins
            return self.lines()
        rows = [
            (self.labels(group), ({} if part is None else {"statistic": part}) | row)
            for group, outcome in self.items()
            for part, row in rows_of(outcome)
        ]
        shown = aligned(rows, least_confidence(outcomes.values()))
        return [*shown, *notes_of(outcomes)] or [NO_GROUPS]

    @override
    def lines(self) -> list[str]:
        outcomes: Mapping[Hashable, Any] = self
        return [
            f"{group_title(group)}: {line}"
            for group, outcome in outcomes.items()
            for line in outcome.lines()
        ] or [NO_GROUPS]


def group_title(group: Hashable) -> str:
    """The name of a group in words; of several columns, with commas between.

    A whole number is written alike whatever its type: one gap makes integers of pandas doubles.
    """
    return name_of(tuple(map(exact, group))) if isinstance(group, tuple) else exact(group)


def _row(outcome: Any) -> dict[str, Any]:
    plain = outcome.plain()
    low, high = plain.get("interval") or (None, None)
    value = plain.get("value", plain.get("values"))
    status = plain["status"]
    if low is None and value is not None and getattr(outcome, "spread", None) is not None:
        status = _NO_INTERVAL
    return {"value": value, "low": low, "high": high, "status": status}


LabelledRow: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any]]
"""The names of a group, by the columns of the data, and what was released of it."""


def beside(labels: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Both in one row: a fact with the name of a column of the data gets an underscore."""
    row = dict(labels)
    for name, fact in facts.items():
        while name in row:
            name += "_"
        row[name] = fact
    return row


def rows_of(outcome: Any) -> list[tuple[str | None, dict[str, Any]]]:
    """The numbers of an outcome, each with its name if there are several."""
    if (parts := getattr(outcome, "parts", None)) is not None:
        return [(name, _row(each)) for name, each in parts().items()]
    if getattr(outcome, "titles", None) is None:
        return [(None, _row(outcome))]
    ends = [each or (None, None) for each in outcome.intervals]
    statuses = [_NO_INTERVAL if each is None else "released" for each in outcome.intervals]
    known = zip(outcome.titles, outcome.value, ends, statuses, strict=True)
    return [
        (title, {"value": value, "low": low, "high": high, "status": status})
        for title, value, (low, high), status in known
    ]


def least_confidence(outcomes: Iterable[Any]) -> float:
    """The confidence of the intervals that are shown beside each other: the least of them."""
    parts = [each.parts().values() if hasattr(each, "parts") else [each] for each in outcomes]
    shown = [getattr(part, "shown_confidence", None) for each in parts for part in each]
    return min(filter(None, shown), default=0.95)  # 0 of those without an interval


def notes_of(outcomes: Mapping[Hashable, Any]) -> list[str]:
    """What is to be known of outcomes: that of all of them once, that of one with its group."""
    lists: dict[Hashable, list[str]] = {}
    for group, each in outcomes.items():
        about, certificate = getattr(each, "about", None), getattr(each, "certificate", None)
        own = [] if about is None else [f"The interval is for {about}."]
        own += [] if certificate is None else [str(certificate)]
        lists[group] = [*own, *(getattr(each, "notes", None) or each.plain()["notes"])]
    first = next(iter(lists.values()), [])
    shared = [note for note in dict.fromkeys(first) if all(note in each for each in lists.values())]
    found = [*shared]
    for group, notes in lists.items():
        found += [f"{group_title(group)}: {note}" for note in notes if note not in shared]
    return found


def aligned(rows: Sequence[LabelledRow], confidence: float = 0.95) -> list[str]:
    """Rows as aligned columns of text: values to the digits that their intervals support."""
    if not rows:
        return []
    head: list[str] = []
    cells = []
    for labels, facts in rows:
        own = {name: facts[name] for name in ("column", "statistic") if name in facts}
        named = [*labels.items(), *own.items()]
        head = [*(str(name) for name, _ in named), "value", f"{percent(confidence)} interval"]
        interval = None if facts["low"] is None else (facts["low"], facts["high"])
        shown = facts["status"] if facts["value"] is None else digits(facts["value"], interval)
        between = f"({TOO_FEW})" if facts["status"] == _NO_INTERVAL else ""
        between = between if interval is None else " to ".join(outward(*interval))
        cells.append([*("" if each is None else exact(each) for _, each in named), shown, between])
    safe = [
        [each if each.isprintable() else ascii(each)[1:-1] for each in row]
        for row in [head, *cells]
    ]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    numbers = len(head) - 2
    return [
        "  ".join(
            f"{each:>{width}}" if place == numbers else f"{each:<{width}}"
            for place, (each, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in safe
    ]
