"""Questions written as texts, in the syntax of SQL: "median(salary)", "count(*)"."""

from typing import Any, TypeAlias

import sqlglot
from sqlglot import expressions as ast

from prudent._validate import ArgumentError
from prudent.release.columns.row_values.expressions import Expression
from prudent.release.questions.tables import Ask

Node: TypeAlias = Any  # of a parsed query; its classes have other bases in other versions

_AGGREGATES: dict[Any, str] = {
    ast.ApproxDistinct: "count_distinct",
    ast.Avg: "mean",
    ast.Max: "maximum",
    ast.Median: "median",
    ast.Min: "minimum",
    ast.Mode: "mode",
    ast.Stddev: "deviation",
    ast.StddevPop: "deviation",
    ast.StddevSamp: "deviation",
    ast.Sum: "sum",
    ast.Variance: "variance",
    ast.VariancePop: "variance",
}
_PAIRS: dict[Any, str] = {
    ast.Corr: "correlation",
    ast.CovarPop: "covariance",
    ast.CovarSamp: "covariance",
}
_NAMED = frozenset(("histogram", "iqr", "mean", "proportion"))  # which sqlglot has no class for
OF_SAMPLES = (ast.Stddev, ast.StddevSamp, ast.Variance, ast.CovarSamp)
"""Those whose divisor SQL has as one less than the number of records."""

_QUANTILES = (ast.Quantile, ast.ApproxQuantile, ast.PercentileCont, ast.PercentileDisc)
NEAREST: dict[Any, str] = {
    ast.Join: "Join on the privacy unit: FROM a JOIN b ON a.person = b.person, and name it as "
    "unit; or declare the second table public.",
    ast.Subquery: "A subquery stands after FROM, and looks at one row at a time: "
    "FROM (SELECT x / y AS z FROM t WHERE y > 0).",
    ast.Window: "Ask by group: SELECT key, avg(x) … GROUP BY key.",
    ast.Star: "Name the statistics: SELECT count(*), avg(x) …",
    ast.Distinct: "Ask for count(DISTINCT x), or for the groups: SELECT x, count(*) … GROUP BY x.",
    ast.Column: "Single values are private: ask for median(x), or GROUP BY x.",
}
_ALLOWED = (
    "count, sum, avg, median, quantile_cont, iqr, histogram, min, max, mode, variance, stddev, "
    "corr, covar_pop, proportion, each perhaps with FILTER (WHERE …), and arithmetic on them"
)


def parse_question(text: str) -> Ask:
    """Return the question that one aggregate asks: "median(salary)", "count(*)"."""
    try:
        node = sqlglot.parse_one(str(text), dialect="duckdb")
    except Exception:  # also of the tokenizer
        raise refused(text, "it cannot be parsed", argument="questions") from None
    try:
        return ask_of(node, str(text))
    except ArgumentError as error:
        error.argument = "questions"  # it is a part of no query
        raise


def refused(text: str, why: str, hint: str = "", *, argument: str = "query") -> ArgumentError:
    """The error of a question that has no private answer, with the nearest one that has."""
    return ArgumentError(
        argument,
        "to select aggregates from a table, or from two that are joined",
        got=text,
        why=why,
        hint=hint or f"Aggregates that can be asked: {_ALLOWED}.",
    )


def is_question(node: Node) -> bool:
    """Whether a node is one aggregate, or a quotient of two that has a statistic of its own."""
    if isinstance(node, ast.AggFunc | ast.Filter | ast.WithinGroup | ast.IgnoreNulls | ast.Window):
        return True
    if isinstance(node, ast.Anonymous) and node.name.lower() in _NAMED:
        return True
    return (
        isinstance(node, ast.Div)
        and isinstance(node.this, ast.Sum)
        and isinstance(node.expression, ast.Sum)
    )


def ask_of(node: Node, text: str) -> Ask:
    """The question that an aggregate asks."""
    options: dict[str, Any] = {"name": text_of(node)}
    if isinstance(node, ast.Filter):
        options["where"] = Expression(node.expression.this)
        node = node.this
    if isinstance(node, ast.WithinGroup) and isinstance(node.this, _QUANTILES):
        ordered, *others = node.expression.expressions
        if others or ordered.args.get("desc"):
            raise refused(text, "it orders by more than one value, ascending", "Ask for 1 - p.")
        return _quantile(ordered.this, node.this.this, options)
    if isinstance(node, _QUANTILES):
        p = node.args.get("quantile") or node.args.get("expression")
        if p is not None:
            return _quantile(node.this, p, options)
    if isinstance(node, ast.CountIf):
        own = options.pop("where", None)
        both = node.this if own is None else ast.and_(own.tree, node.this)
        return Ask("count", None, where=Expression(both), **options)
    if isinstance(node, ast.Count):
        return _count(node, options)
    if type(node) in _PAIRS:
        return _pair(node.this, node.expression, _PAIRS[type(node)], options)
    if isinstance(node, ast.Div) and is_question(node):
        return _quotient(node.this.this, node.expression.this, options)
    if isinstance(node, ast.Anonymous) and is_question(node) and len(node.expressions) == 1:
        return _of(node.expressions[0], node.name.lower(), options)
    if type(node) in _AGGREGATES and {key for key, value in node.args.items() if value} == {"this"}:
        return _of(node.this, _AGGREGATES[type(node)], options)
    raise refused(
        text, f"{text_of(node)} is no private question", NEAREST.get(type(node.unalias()), "")
    )


def _quantile(value: Node, p: Node, options: dict[str, Any]) -> Ask:
    if isinstance(p, ast.Array):
        return _of(value, "quantiles", options | {"ps": tuple(map(constant_of, p.expressions))})
    return _of(value, "quantile", options | {"p": constant_of(p)})


def _count(node: Node, options: dict[str, Any]) -> Ask:
    match node.this:
        case None | ast.Star():
            return Ask("count", None, **options)
        case ast.Distinct(expressions=[value]):
            return Ask("count_distinct", Expression(value), **options)
    if node.expressions:
        raise refused(text_of(node), "it counts several values")
    if isinstance(node.this, ast.Literal):  # count(1)
        return Ask("count", None, **options)
    return Ask("count", Expression(node.this), **options)


def _of(value: Node, statistic: str, options: dict[str, Any]) -> Ask:
    if isinstance(value, ast.Distinct):
        why = f"a {statistic} of different values has no private answer"
        raise refused(text_of(value), why, NEAREST[ast.Distinct])
    value, bounds = _bounds(value)
    known: dict[str, Any] = {} if bounds is None else {"bounds": bounds}
    return Ask(statistic, Expression(value), **options, **known)


def _pair(first: Node, second: Node, statistic: str, options: dict[str, Any]) -> Ask:
    (first, bounds), (second, others) = _bounds(first), _bounds(second)
    given = {"bounds": bounds, "other_bounds": others}
    known: dict[str, Any] = {name: each for name, each in given.items() if each is not None}
    return Ask(statistic, Expression(first), other=Expression(second), **options, **known)


def _quotient(above: Node, below: Node, options: dict[str, Any]) -> Ask:
    weight = text_of(_bounds(below)[0])
    if isinstance(above, ast.Mul):
        factors = [above.this, above.expression]
        for value, other in (factors, factors[::-1]):
            if text_of(_bounds(other)[0]) == weight:
                return _pair(value, below, "weighted_mean", options)
    return _pair(above, below, "ratio", options)


def _bounds(value: Node) -> tuple[Node, tuple[Any, Any] | None]:
    """A value, and its public bounds: of clip(value, low, high), or of a CASE between constants."""
    value = value.unnest()
    if isinstance(value, ast.Anonymous) and value.name.lower() in ("clip", "clamp"):
        if len(value.expressions) != 3:
            raise refused(text_of(value), "bounds are written as clip(x, low, high)")
        inside, low, high = value.expressions
        return inside, (constant_of(low), constant_of(high))
    if isinstance(value, ast.Case):
        results = [each.args["true"] for each in value.args["ifs"]]
        results += [each for each in [value.args.get("default")] if each is not None]
        results = [each for each in results if not isinstance(each, ast.Null)]
        plain = all(isinstance(each, ast.Literal) and not each.is_string for each in results)
        numbers = [constant_of(each) for each in results] if plain else []
        if len(set(numbers)) == 1:  # CASE WHEN … THEN 1 END
            numbers.append(0 if numbers[0] > 0 else 1)
        return value, (min(numbers), max(numbers)) if numbers else None
    return value, None


def constant_of(node: Node) -> Any:
    """A public number or text."""
    if isinstance(node, ast.Neg):
        return -constant_of(node.this)
    if not isinstance(node, ast.Literal):
        raise refused(text_of(node), "a constant is expected there")
    if node.is_string:
        return node.name
    return int(node.name) if node.name.isdigit() else float(node.name)


def text_of(node: Node) -> str:
    """The text of a value as it is shown: a name as it is, an expression as SQL."""
    return str(Expression(node))


def name_of(text: str) -> str:
    """The name of the answer to a question, however its text is spaced and capitalised."""
    try:
        return text_of(sqlglot.parse_one(str(text), dialect="duckdb"))
    except Exception:  # also of the tokenizer
        return str(text)
