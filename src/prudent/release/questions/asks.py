"""One question of a table, as a value."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from prudent import _validate, release
from prudent.release.ptr.margins import HALF, rational
from prudent.release.request import Condition, Part, Request, Statistic
from prudent.release.statistics.always_tested import Mode
from prudent.release.statistics.extremes import Extreme
from prudent.release.statistics.histograms import Bins
from prudent.release.statistics.moments import Count, Distinct, OneMoment, Proportion, Total
from prudent.release.statistics.pairs import Pairs, Ratio
from prudent.release.statistics.quantiles import Quantile, Quantiles, Range
from prudent.release.statistics.summaries import PROBABILITIES, Summary


def _need_of_quantile(p: Any) -> float:
    """What a quantile needs: more, if fewer records lie beyond it, down to one in a hundred."""
    exact = rational(p)
    beyond = max(0.01, float(min(exact, 1 - exact)))
    return float(1.3 * (0.5 / beyond) ** 0.7)


STATISTICS: dict[str, tuple[float | Callable[..., float], Callable[..., Statistic]]] = {
    "count": (1.0, Count),
    "count_distinct": (2.0, Distinct),
    "proportion": (1.1, Proportion),
    "sum": (2.4, Total),
    "mean": (3.2, lambda: OneMoment("mean", 1)),
    "variance": (9.0, lambda: OneMoment("variance", 2)),
    "deviation": (6.0, lambda: OneMoment("deviation", 2)),
    "median": (1.3, lambda: Quantile(HALF)),
    "quantile": (_need_of_quantile, lambda p: Quantile(rational(p))),
    "quantiles": (
        lambda ps: sum(map(_need_of_quantile, ps)) ** 0.5 * 2,
        lambda ps: Quantiles(tuple(rational(p, "ps") for p in ps)),
    ),
    "iqr": (4.0, Range),
    "minimum": (4.0, lambda: Extreme(lowest=True)),
    "maximum": (4.0, lambda: Extreme(lowest=False)),
    "mode": (2.0, lambda categories=None: Mode(categories)),
    "histogram": (4.0, lambda edges=None, bins=20: Bins(edges, bins, None)),
    "describe": (9.0, lambda ps=PROBABILITIES: Summary(ps)),
    "ratio": (5.0, Ratio),
    "weighted_mean": (4.0, lambda: Pairs("weighted")),
    "covariance": (9.0, lambda: Pairs("covariance")),
    "correlation": (9.0, lambda: Pairs("correlation")),
}
"""The statistics that a table may hold: what each needs, and how it is made of its own options.

The relative error of an answer is about a/(nε). With the same number of records and ε in all, the
sum of these errors is least if each gets a share proportional to √a, its need. The a are those of
rehearsals on normal and lognormal data, in units of the standard deviation or, of counts, sums and
variances, of the answer itself; that of a count is 1. `benchmarks/table_division.py` compares this
division with equal shares. Nothing of the table enters: a share is public.
"""


_OF_THE_WHOLE = {
    *("data", "column", "connect", "table", "unit", "by", "groups"),
    *("epsilon", "delta", "ledger", "noise", "dry_run"),
}
"""What all questions share: one of another unit would not be protected as the price says."""


@attrs.frozen(init=False)
class Ask:
    """One statistic of a table: `Ask("mean", "salary", bounds=(0, 100_000))`.

    Attributes:
        statistic: Its name, as of a function of `prudent`.
        column: The column, or an expression of one row; None for a count of rows.
        name: The name of its answer; None: its statistic and column.
        options: Further options of that function.
    """

    statistic: str
    column: str | None
    name: str | None
    options: Mapping[str, Any]

    def __init__(
        self, statistic: str, column: str | None = None, *, name: str | None = None, **options: Any
    ) -> None:
        """Store what is asked; it is checked where it is asked of a table."""
        _validate.one_of(STATISTICS, statistic=statistic)
        self.__attrs_init__(statistic, column, name, options)

    @property
    def title(self) -> str:
        """The name of its answer."""
        if self.name is not None:
            return self.name
        return self.statistic if self.column is None else f"{self.statistic}({self.column})"

    def part(self, request: Request) -> Part:
        """The part of a request that asks this."""
        need, make = STATISTICS[self.statistic]
        named = {*inspect.signature(getattr(release, self.statistic)).parameters}
        if self.statistic == "weighted_mean":
            named |= {"other", "other_bounds"}  # the function has other names for them
        known = attrs.fields_dict(Request).keys() & named - _OF_THE_WHOLE
        shared = {key: value for key, value in self.options.items() if key in known}
        own = {key: value for key, value in self.options.items() if key not in known}
        if shared.get("where") is not None and request.where is not None:
            shared["where"] = _together(request.where, shared["where"])
        try:
            statistic = make(**own)
        except TypeError:
            unknown = ", ".join(own)
            raise _validate.ArgumentError(
                "options", f"of a {self.statistic}", shown=unknown or "fewer than it needs"
            ) from None
        weight = need(**own) if callable(need) else need
        return Part(statistic, attrs.evolve(request, column=self.column, **shared), weight)


def _together(whole: Condition, own: Condition) -> Condition:
    """The condition of a table, together with that of one of its questions."""
    if isinstance(whole, str) and isinstance(own, str):
        return f"({whole}) AND ({own})"
    from prudent.release.columns.row_values.expressions import parse_condition  # needs ibis

    one, other = (parse_condition(each) if isinstance(each, str) else each for each in (whole, own))
    return lambda rows: one(rows) & other(rows)
