"""Private quantiles: median, quantile and interquartile range."""

from typing import Any, Unpack

from prudent.release import request
from prudent.release.columns.column import Column
from prudent.release.margins import quantile as margin
from prudent.release.margins.quantile import RobustValue
from prudent.release.mechanism import ProposeTestReleaseMechanism
from prudent.release.request import Answer, Options, Prepared, statistic
from prudent.release.statistics import tested


@statistic(Options)
def median(
    data: Any = None, column: str | None = None, *, propose: float, **options: Unpack[Options]
) -> Answer:
    """Release the lower median: the value of rank ceil(m/2) among m records.

    Args:
        data: An array, a series, a path, a frame, an ibis table, or a `Column`.
        column: The name of the column, unless `data` is an array, a series or a `Column`.
        propose: The proposal τ: how far one record may move the median, in the unit of the data.
        **options: See `Budget` and `TableOptions`.

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
    propose: float,
    **options: Unpack[Options],
) -> Answer:
    """Release the p-quantile: the value of rank ceil(p m) among m records.

    Args:
        data: See `median`.
        column: See `median`.
        p: The probability, in (0, 1]. It is taken as an exact fraction: 0.9 means 9/10. A
            `Fraction` or a string such as "1/3" is accepted as well.
        propose: See `median`.
        **options: See `Budget` and `TableOptions`.
    """
    exact = margin.rational(p)
    name = "median" if exact == margin.HALF else f"{exact}-quantile"
    mechanism = tested.calibrate(options, propose)

    def measure(mechanism: ProposeTestReleaseMechanism, records: Column) -> RobustValue:
        return margin.quantile(
            records, mechanism.lattice, exact, propose=mechanism.steps, cap=mechanism.cap
        )

    def prepare(_: Column) -> Prepared:
        return tested.prepared(name, mechanism, measure, options)

    return request.release(prepare, data, column, options)


@statistic(Options)
def iqr(
    data: Any = None, column: str | None = None, *, propose: float, **options: Unpack[Options]
) -> Answer:
    """Release the interquartile range Q(3/4) - Q(1/4); see `median` for the arguments."""
    mechanism = tested.calibrate(options, propose)

    def measure(mechanism: ProposeTestReleaseMechanism, records: Column) -> RobustValue:
        return margin.interquartile_range(
            records, mechanism.lattice, propose=mechanism.steps, cap=mechanism.cap
        )

    def prepare(_: Column) -> Prepared:
        return tested.prepared("iqr", mechanism, measure, options)

    return request.release(prepare, data, column, options)
