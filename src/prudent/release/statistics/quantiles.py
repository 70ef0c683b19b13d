"""Private quantiles: median, quantile, several quantiles at once, interquartile range.

Without a proposal they are chosen by the exponential mechanism: no bounds, no δ, never refused.
With one they are tested before they are trusted.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Unpack

from prudent import _validate
from prudent.release import request
from prudent.release.certificates import DistanceRelease, quantile_distance
from prudent.release.columns.column import Column
from prudent.release.columns.scales import Scale
from prudent.release.lattice import Lattice
from prudent.release.margins import quantile as margin
from prudent.release.margins.quantile import RobustValue
from prudent.release.noise import Noise
from prudent.release.outcome import Branch, Outcome, Released
from prudent.release.preview import Preview
from prudent.release.request import (
    Answer,
    Certification,
    Options,
    Prepared,
    Price,
    TableOptions,
    statistic,
)
from prudent.release.statistics import selected, tested

_ADVICE = (
    "Leave the proposal out (the exponential mechanism needs none and never refuses), propose "
    "more, or spend a larger ε."
)


@statistic(Options)
def median(
    data: Any = None,
    column: str | None = None,
    *,
    propose: Any = None,
    **options: Unpack[Options],
) -> Answer:
    """Release the lower median: the value of rank ceil(m/2) among m records.

    Args:
        data: An array, a series, a path, a frame, an ibis table, or a `Column`.
        column: The name of the column, unless `data` is an array, a series or a `Column`.
        propose: The proposal τ: how far one record may move the median, in the unit of the data. It
            is tested, and `delta` pays for the test. None: the median is chosen by the exponential
            mechanism, which needs no proposal, no bounds and no δ, and never refuses.
        **options: See `Budget`, `Certified` and `TableOptions`.

    Returns:
        `Released` or `Refused`; with `by`, a dictionary with one of them for each group.
    """
    return quantile(data, column, p=0.5, propose=propose, **options)


@statistic(Options)
def quantile(
    data: Any = None,
    column: str | None = None,
    *,
    p: Any,
    propose: Any = None,
    **options: Unpack[Options],
) -> Answer:
    """Release the p-quantile: the value of rank ceil(p m) among m records.

    Args:
        data: See `median`.
        column: See `median`.
        p: The probability, in (0, 1]. It is taken as an exact fraction: 0.9 means 9/10. A
            `Fraction` or a string such as "1/3" is accepted as well.
        propose: See `median`.
        **options: See `Budget`, `Certified` and `TableOptions`.
    """
    exact = margin.rational(p)
    name = "median" if exact == margin.HALF else f"{exact}-quantile"

    def measure(records: Column, lattice: Lattice, propose: int, cap: int) -> RobustValue:
        return margin.quantile(records, lattice, exact, propose=propose, cap=cap)

    def prepare(records: Column) -> Prepared:
        price, certifies = request.without_certificate(options)
        certification = None
        if certifies is not None:
            distance = _distance(exact, options.get("certify"), records.scale)
            certification = Certification(mechanism=certifies, distance=distance)
        if propose is None:
            return selected.prepared_quantile(name, exact, price, records, certification)
        mechanism = tested.calibrate(price, propose, scale=records.scale)
        return tested.prepared(
            name,
            mechanism,
            measure,
            price,
            records,
            certification=certification,
            advice=_ADVICE,
        )

    return request.release(prepare, data, column, options)


@statistic(Options)
def quantiles(
    data: Any = None, column: str | None = None, *, ps: Sequence[Any], **options: Unpack[Options]
) -> Answer:
    """Release several quantiles in one release, in ascending order.

    Args:
        data: See `median`.
        column: See `median`.
        ps: The probabilities; see `quantile`.
        **options: See `median`; nothing is tested, so there is no `propose`.

    Returns:
        `Released`, whose value is a tuple with one value for each of `ps`.
    """
    if options.get("certify") is not None:
        raise _validate.ArgumentError(
            "certify", "for one quantile at a time", got=options["certify"]
        )

    exact = [tested.converted("ps", margin.rational, p) for p in _validate.values(ps=ps)]

    def prepare(records: Column) -> Prepared:
        return selected.prepared_quantiles(exact, options, records)

    return request.release(prepare, data, column, options)


@statistic(Options)
def iqr(
    data: Any = None,
    column: str | None = None,
    *,
    propose: Any = None,
    **options: Unpack[Options],
) -> Answer:
    """Release the interquartile range Q(3/4) - Q(1/4); see `median` for the arguments."""

    def measure(records: Column, lattice: Lattice, propose: int, cap: int) -> RobustValue:
        return margin.interquartile_range(records, lattice, propose=propose, cap=cap)

    def prepare(records: Column) -> Prepared:
        price, certifies = request.without_certificate(options)
        if propose is None:
            if certifies is not None:
                raise _validate.ArgumentError(
                    "certify", "with propose, for an interquartile range", got=options["certify"]
                )
            return selected.prepared_range(price, records)
        mechanism = tested.calibrate(price, propose, scale=records.scale)
        certification = tested.certification(
            certifies, options.get("certify"), mechanism, measure, records.scale, difference=True
        )
        return tested.prepared(
            "iqr",
            mechanism,
            measure,
            price,
            records,
            difference=True,
            certification=certification,
            advice=_ADVICE,
        )

    return request.release(prepare, data, column, options)


class CertificateOptions(Price, TableOptions, total=False):
    """Keyword arguments of `certify_quantile`; see `Price` and `TableOptions`.

    Attributes:
        confidence: Probability with which the certificate holds.
    """

    confidence: float


@statistic(CertificateOptions)
def certify_quantile(
    data: Any = None,
    column: str | None = None,
    *,
    p: Any = 0.5,
    low: Any = None,
    high: Any = None,
    **options: Unpack[CertificateOptions],
) -> Answer:
    """Release how many records must be added or removed before a quantile leaves an interval.

    Nothing else is released: not the quantile, and whether it is in the interval only as far as the
    noisy count tells.

    Args:
        data: See `median`.
        column: See `median`.
        p: See `quantile`.
        low: Lower end of the interval, a value of the column's type; None: no lower end.
        high: Upper end; None: no upper end.
        **options: See `CertificateOptions`.

    Returns:
        `Released`, whose value is the bound `needed` of its `certificate`.
    """
    exact = margin.rational(p)
    mechanism = DistanceRelease(
        epsilon=options["epsilon"], confidence=options.get("confidence", 0.95)
    )

    def prepare(records: Column) -> Prepared:
        scale = records.scale
        ends = (
            -math.inf if low is None else tested.converted("low", scale.number, low),
            math.inf if high is None else tested.converted("high", scale.number, high),
        )
        request.check_certifiable(records)
        if not ends[0] <= ends[1] or ends == _EVERYTHING:
            raise _validate.ArgumentError(
                "low",
                "at most high, and at least one of the two",
                shown=f"low={low!r} and high={high!r}",
                hint="They are the ends of the interval that is certified.",
            )

        def answer(records: Column, noise: Noise) -> Outcome:
            distance = quantile_distance(records, exact, *ends)
            shown = [None if math.isinf(end) else scale.value(end) for end in ends]
            found = mechanism.release(distance, *shown, noise=noise)
            return Released(
                found.needed,
                Branch.ROBUST,
                math.sqrt(2) / mechanism.epsilon,
                1.0,
                mechanism.event,
                "laplace",
                certificate=found,
            )

        preview = Preview(
            statistic=f"certificate of a {exact}-quantile",
            mechanism="laplace",
            epsilon=mechanism.epsilon,
            delta=0.0,
            event=mechanism.event,
            noise_scale=math.sqrt(2) / mechanism.epsilon,
        )
        return Prepared(preview=preview, answer=answer)

    return request.release(prepare, data, column, options)


_EVERYTHING = (-math.inf, math.inf)


def _distance(p: Fraction, certify: Any, scale: Scale) -> Any:
    """The distance of a quantile from leaving an interval around the released value."""
    tolerance = tested.tolerance_of(certify, scale)

    def distance(records: Column, value: Any) -> tuple[int, Any, Any]:
        number = scale.number(value)
        low, high = number - tolerance, number + tolerance
        return quantile_distance(records, p, low, high), scale.value(low), scale.value(high)

    return distance
