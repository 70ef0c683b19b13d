"""The statistics as functions of any data, for one question: `prudent.median(data, "cost", …)`.

Each is made of the method of `Table` of its name: it takes the arguments of both, and asks a table
for one question. Type checkers and editors read the signatures in `functions.pyi`, which
`tests/release/test_functions.py` derives from the same methods.
"""

import inspect
from collections.abc import Callable
from typing import Any

from prudent.release.data_table import GroupedTable, Table

METHODS = (
    *("median", "quantile", "quantiles", "iqr", "search_quantile", "certify_quantile"),
    *("maximum", "minimum", "count", "count_distinct", "proportion", "mean", "sum", "variance"),
    *("deviation", "ratio", "covariance", "correlation", "weighted_mean", "mode", "trimmed_mean"),
    *("histogram", "top_k", "describe", "ask"),
)
NAMES = {"ask": "table"}  # the function of a method, where it has another name
UNGROUPED = ("top_k",)  # whose answer has groups of its own


def _function(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
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


for _method in METHODS:
    _name = NAMES.get(_method, _method)
    globals()[_name] = _function(_name, getattr(Table, _method))
