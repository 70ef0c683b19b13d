"""What was asked of an aggregation, and the parts of an answer that medians and votes share."""

from typing import Any

import attrs
import dp_accounting as dp

from prudent.release.certificates import Certificate
from prudent.release.charging import Preview
from prudent.release.outcome import Branch, Released
from prudent.release.sums.additive import composed

MOST_PARTS = 10**6
"""Largest number of parts."""


@attrs.frozen(kw_only=True)
class AggregateRequest:
    """The arguments of `aggregate` that decide its price, checked.

    Attributes:
        epsilon: ε of the release.
        delta: δ of the release; None for a pure one.
        size: How many numbers or labels each part has.
        single: Whether it is one that comes without a list.
        parts: The number of parts; None to choose one.
        tolerance: Of a certificate; None if none is asked for.
        confidence: Of an interval and of certificates; None if no interval is asked for.
    """

    epsilon: float
    delta: float | None
    size: int
    single: bool
    parts: int | None
    tolerance: float | None
    confidence: float | None


def preview_of(
    mechanism: str, asked: AggregateRequest, events: list[dp.DpEvent], parts: int
) -> Preview:
    """The price of an aggregation, from its events."""
    return Preview(
        statistic="aggregate",
        mechanism=mechanism,
        epsilon=asked.epsilon,
        delta=asked.delta or 0.0,
        event=composed(events),
        notes=(f"Of {parts:,} disjoint parts; one record is in one of them.",),
    )


def selected(
    value: Any,
    certificate: Certificate | None,
    *,
    spread: Any = None,
    intervals: Any = None,
    name: str = "exponential",
) -> Released:
    """A released value; its price is filled in later."""
    return Released(
        value=value,
        branch=Branch.SELECTED,
        noise_scale=0.0,
        spacing=0.0,
        event=None,
        mechanism=name,
        spread=spread,
        certificate=certificate,
        intervals=intervals,
        about=None if spread is None else "the exact median of the parts",
    )
