"""What a release returns: a value that may be published, or a refusal."""

import html
import math
from collections.abc import Hashable
from statistics import NormalDist
from typing import Any, Protocol, TypeAlias

import attrs

from prudent import _validate
from prudent.release.certificates import Certificate
from prudent.release.columns.scales import Scale
from prudent.release.noise import Law


class Branch(_validate.Choice):
    """The branch that produced a released value."""

    ROBUST = "robust"
    FALLBACK = "fallback"
    SELECTED = "selected"
    """One of several candidates, chosen at random by the exponential mechanism."""


class Spread(Protocol):
    """How far a released number may be from the statistic it stands for."""

    def interval(self, value: Any, confidence: float) -> tuple[Any, Any]:
        """Return an interval that holds the statistic with at least this probability."""
        ...


@attrs.frozen
class NoiseSpread:
    """The spread of a number with noise of a known law.

    Attributes:
        law: The distribution of the noise.
        scale: Its scale (Laplace) or standard deviation (Gaussian), in the unit of the data.
        spacing: Spacing of the lattice; half of it is added for the rounding of the noise.
    """

    law: Law
    scale: float
    spacing: float

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise."""
        return math.sqrt(2) * self.scale if self.law is Law.LAPLACE else self.scale

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
        if self.law is Law.LAPLACE:
            return -self.scale * math.log1p(-confidence) + self.spacing
        return self.scale * NormalDist().inv_cdf((1 + confidence) / 2) + self.spacing


@attrs.frozen
class ScaledSpread:
    """The spread of a number, as values of the type of its column.

    Attributes:
        number: The released number, in the unit of the scale.
        spread: The spread of the number.
        scale: The scale of the column.
        difference: Whether the number is a difference of two values, such as a range.
    """

    number: float
    spread: Spread
    scale: Scale
    difference: bool = False

    def interval(self, value: Any, confidence: float) -> tuple[Any, Any]:
        """See `Spread`; it follows from the number, whatever the value displays."""
        low, high = self.spread.interval(self.number, confidence)
        show = self.scale.difference if self.difference else self.scale.value
        return show(low), show(high)


@attrs.frozen
class CountSpread:
    """The spread of a noisy count: an interval of whole numbers, none below zero.

    Attributes:
        number: The count as it was drawn, perhaps negative.
        spread: The spread of its noise.
    """

    number: int
    spread: NoiseSpread

    def interval(self, value: Any, confidence: float) -> tuple[int, int]:
        """See `Spread`. A whole number in an interval is between the whole numbers in it."""
        low, high = self.spread.interval(self.number, confidence)
        return max(0, math.ceil(low)), max(0, math.floor(high))


@attrs.frozen
class ReleasedInterval:
    """An interval that was released together with the value.

    Attributes:
        low: Its lower end, in the unit of the scale.
        high: Its upper end.
        confidence: Probability with which it holds the statistic, at least.
    """

    low: float
    high: float
    confidence: float

    def interval(self, value: float, confidence: float) -> tuple[float, float]:
        """See `Spread`. It is the same for every confidence up to its own."""
        _validate.between(0, 1, ends="()", confidence=confidence)
        if confidence > self.confidence:
            raise _validate.ArgumentError(
                "confidence",
                f"at most {self.confidence:g}, for which the interval was released",
                got=confidence,
                hint="Ask for it with the release: confidence=0.99.",
            )
        return self.low, self.high


@attrs.frozen
class Released:
    """A released value, which may be published.

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
        intervals: Of a tuple of numbers: the interval of each, of the confidence asked for.
    """

    value: Any
    branch: Branch
    noise_scale: float
    spacing: float
    event: Any = attrs.field(repr=False)
    mechanism: str = "propose-test-release"
    spread: Spread | None = attrs.field(default=None, repr=False)
    epsilon: float | None = None
    delta: float | None = None
    notes: tuple[str, ...] = ()
    certificate: Certificate | None = None
    intervals: tuple[Any, ...] | None = None

    @property
    def withstands(self) -> int | None:
        """The number of records that may be added or removed; see `certificate`."""
        return None if self.certificate is None else self.certificate.withstands

    def interval(self, confidence: float = 0.95) -> tuple[Any, Any]:
        """Return an interval that holds the true statistic with at least this probability.

        It follows from what was released, so it costs nothing more. The probability is over the
        noise; it says nothing about sampling error.

        Raises:
            ValueError: if the value is a category or a vector, or the interval was released at a
                lower confidence.
        """
        if self.spread is None:
            raise ValueError(
                "Expected a released number, got a category or a vector, which has no interval."
            )
        return self.spread.interval(self.value, confidence)

    def __float__(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        """The answer in words and, if it is known, its price."""
        price = [] if self.epsilon is None else [_price(self.epsilon, self.delta)]
        return "\n".join([*self.lines(), *price])

    def lines(self) -> list[str]:
        """The answer in words, one line or more."""
        tested = self.mechanism == "propose-test-release"
        how = f"{self.mechanism}, {self.branch.value} branch" if tested else self.mechanism
        certified = [] if self.certificate is None else [str(self.certificate)]
        if self.intervals is not None:
            known = zip(self.value, self.intervals, strict=True)
            each = [f"{value} ({how}{_between(ends)})" for value, ends in known]
            return [*each, *self.notes]
        error = ""
        if self.spread is not None:
            error = _between(self.interval(self._confidence), f" {self._confidence:.0%}")
        elif self.noise_scale:
            error = f", noise of standard deviation {self.noise_scale:.4g}"
        return [f"{self.value} ({how}{error})", *certified, *self.notes]

    def plain(self) -> dict[str, Any]:
        """The answer as JSON holds it."""
        return {
            "status": "released",
            **self._values(),
            "mechanism": self.mechanism,
            "branch": self.branch.value,
            "noise_scale": self.noise_scale,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "notes": list(self.notes),
        } | ({} if self.certificate is None else {"certificate": self.certificate.plain()})

    @property
    def _confidence(self) -> float:
        """The confidence to show: the usual one, or that of an interval released at a lower one."""
        known = getattr(getattr(self.spread, "spread", self.spread), "confidence", 0.95)
        return min(0.95, float(known))

    def _values(self) -> dict[str, Any]:
        if self.intervals is not None:
            intervals = [None if each is None else list(each) for each in self.intervals]
            return {"values": list(self.value), "intervals": intervals}
        interval = None if self.spread is None else list(self.interval(self._confidence))
        return {"value": self.value, "interval": interval}

    def _repr_html_(self) -> str:
        """The answer for a notebook."""
        first, *rest = map(html.escape, self.lines())
        price = [] if self.epsilon is None else [_price(self.epsilon, self.delta)]
        return f"<b>{first}</b><br><small>{' '.join([*rest, *price])}</small>"


@attrs.frozen
class Refused:
    """A refusal: the test failed, and no value is released. It costs as much as a release.

    Attributes:
        reason: A message that reveals only that the noisy test failed, which was charged for.
        event: The privacy event of the refusal, for any accountant.
        epsilon: ε that it cost; None if it was not asked through a statistic.
        delta: δ that it cost.
    """

    reason: str
    event: Any = attrs.field(repr=False)
    epsilon: float | None = None
    delta: float | None = None

    def __str__(self) -> str:
        """The refusal in words and, if it is known, its price."""
        price = [] if self.epsilon is None else [_price(self.epsilon, self.delta)]
        return "\n".join([*self.lines(), *price])

    def lines(self) -> list[str]:
        """The refusal in words."""
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

    def _repr_html_(self) -> str:
        """The refusal for a notebook."""
        return f"<b>Refused.</b> {html.escape(self.reason)}"


Outcome: TypeAlias = Released | Refused


def _price(epsilon: float, delta: float | None) -> str:
    return f"({epsilon:g}, {delta or 0:g})-DP"


def _between(ends: tuple[Any, Any] | None, confidence: str = "") -> str:
    if ends is None:
        return ""
    return f",{confidence} interval {short(ends[0])} to {short(ends[1])}"


class Groups(dict[Hashable, Outcome]):
    """The outcomes of several groups, by group; a dictionary that can be shown as a table."""

    def to_frame(self) -> Any:
        """Return a pandas frame with one row per group: value, low, high, status."""
        import pandas as pd

        rows = [{"group": group, **_row(outcome)} for group, outcome in self.items()]
        return pd.DataFrame(rows, columns=["group", "value", "low", "high", "status"])

    def _repr_html_(self) -> str:
        """The outcomes for a notebook."""
        rows = "".join(
            f"<tr><td>{html.escape(str(group))}</td><td>{html.escape(outcome.lines()[0])}</td></tr>"
            for group, outcome in self.items()
        )
        return f"<table><tr><th>group</th><th>answer</th></tr>{rows}</table>"


def _row(outcome: Outcome) -> dict[str, Any]:
    plain = outcome.plain()
    low, high = plain.get("interval") or (None, None)
    value = plain.get("value", plain.get("values"))
    return {"value": value, "low": low, "high": high, "status": plain["status"]}


def short(number: Any) -> str:
    """A number in six digits, to be read; anything else as it is written."""
    return f"{number:.6g}" if isinstance(number, float) else str(number)
