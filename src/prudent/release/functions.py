"""The statistics as functions of any data, for one question: `prudent.median(data, "cost", …)`.

Each is made of the method of `Table` of its name: it takes the arguments of both, and asks a table
for one question. Type checkers and editors read the signatures in `functions.pyi`, which
`tests/release/test_functions.py` derives from the same methods.
"""

import inspect
from collections.abc import Callable
from typing import Any

from prudent.release.data_table import GroupedTable, Table

METHODS: dict[str, str] = {}
"""The function of each method."""

UNGROUPED = ("top_k",)  # whose answer has groups of its own


def _function(method: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    name = METHODS[method.__name__] = name or method.__name__
    _, *own = inspect.signature(method).parameters.values()
    kind = Table if name in UNGROUPED else GroupedTable
    data, *table = inspect.signature(kind).parameters.values()
    signature = inspect.Signature([data.replace(name="data"), *own, *table])
    of_table = {each.name for each in table}

    def ask(*arguments: Any, **named: Any) -> Any:
        try:
            given = signature.bind(*arguments, **named).arguments
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None
        source = given.pop("data", None)
        facts = {each: given.pop(each) for each in of_table & given.keys()}
        grouped = facts.get("by") is not None or facts.get("groups") is not None
        if not grouped:
            facts = {each: fact for each, fact in facts.items() if each not in ("by", "groups")}
        return method((GroupedTable if grouped else Table)(source, **facts), **given)

    ask.__name__ = ask.__qualname__ = name
    ask.__doc__ = f"{method.__doc__}\n\n    The other arguments are those of `Table`."
    ask.__signature__ = signature  # type: ignore[attr-defined]
    return ask


median = _function(Table.median)
"""`Table.median` as a function; see there."""

quantile = _function(Table.quantile)
"""`Table.quantile` as a function; see there."""

quantiles = _function(Table.quantiles)
"""`Table.quantiles` as a function; see there."""

iqr = _function(Table.iqr)
"""`Table.iqr` as a function; see there."""

search_quantile = _function(Table.search_quantile)
"""`Table.search_quantile` as a function; see there."""

certify_quantile = _function(Table.certify_quantile)
"""`Table.certify_quantile` as a function; see there."""

maximum = _function(Table.maximum)
"""`Table.maximum` as a function; see there."""

minimum = _function(Table.minimum)
"""`Table.minimum` as a function; see there."""

count = _function(Table.count)
"""`Table.count` as a function; see there."""

count_distinct = _function(Table.count_distinct)
"""`Table.count_distinct` as a function; see there."""

proportion = _function(Table.proportion)
"""`Table.proportion` as a function; see there."""

mean = _function(Table.mean)
"""`Table.mean` as a function; see there."""

sum = _function(Table.sum)
"""`Table.sum` as a function; see there."""

variance = _function(Table.variance)
"""`Table.variance` as a function; see there."""

deviation = _function(Table.deviation)
"""`Table.deviation` as a function; see there."""

ratio = _function(Table.ratio)
"""`Table.ratio` as a function; see there."""

covariance = _function(Table.covariance)
"""`Table.covariance` as a function; see there."""

correlation = _function(Table.correlation)
"""`Table.correlation` as a function; see there."""

weighted_mean = _function(Table.weighted_mean)
"""`Table.weighted_mean` as a function; see there."""

mode = _function(Table.mode)
"""`Table.mode` as a function; see there."""

trimmed_mean = _function(Table.trimmed_mean)
"""`Table.trimmed_mean` as a function; see there."""

histogram = _function(Table.histogram)
"""`Table.histogram` as a function; see there."""

top_k = _function(Table.top_k)
"""`Table.top_k` as a function; see there."""

describe = _function(Table.describe)
"""`Table.describe` as a function; see there."""

table = _function(Table.ask, "table")
"""`Table.ask` as a function; see there."""
