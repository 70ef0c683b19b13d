"""Questions written in the syntax of SQL: "median(salary)", and what a whole query asks of."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import sqlglot
from sqlglot import expressions as ast

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.release.columns.joining import open_source
from prudent.release.columns.row_values.expressions import Expression
from prudent.release.joins import Join, join
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
    """A public number, text or boolean."""
    if isinstance(node, ast.Boolean):
        return bool(node.this)
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


_OF_A_TABLE = frozenset(("this", "db", "catalog", "alias"))
_OF_A_JOIN = frozenset(("this", "on", "using", "side", "kind"))
_OF_ROWS = frozenset(("expressions", "from_", "from", "joins", "where", "kind", "with_", "with"))
_PARTS = _OF_ROWS | {"group", "having", "order", "limit", "offset"}
_LONGEST = 5000  # nodes of a query, with its subqueries written out
_KINDS = {
    ("", ""): "inner",
    ("", "INNER"): "inner",
    ("LEFT", ""): "left",
    ("LEFT", "OUTER"): "left",
}


def select_of(text: str) -> Node:
    """The tree of a query, if it is one that may have a private answer."""
    _validate.instance(str, "a query in SQL", query=text)
    try:
        trees: list[Node] = [
            tree for tree in sqlglot.parse(text, dialect="duckdb") if tree is not None
        ]
    except Exception:  # also of the tokenizer
        raise refused(text, "it cannot be parsed") from None
    if len(trees) != 1 or not isinstance(trees[0], ast.Select):
        raise refused(text, "it is no single SELECT")
    (tree,) = trees
    distinct = tree.args.get("distinct")
    if distinct is not None and (distinct.args.get("on") or not tree.find(ast.AggFunc)):
        raise refused(text, "it has DISTINCT of rows", NEAREST[ast.Distinct])
    tree.set("distinct", None)  # groups differ from each other, and so do their rows
    if unknown := {name for name, value in tree.args.items() if value} - _PARTS:
        raise refused(text, f"it has {', '.join(sorted(unknown)).upper()}")
    tree = _written_out(tree, text, {})
    for kind in (ast.Subquery, ast.Select, ast.Window):
        if any(each is not tree for each in tree.find_all(kind)):
            raise refused(
                text, f"it has a {kind.__name__.upper()}", NEAREST.get(kind, NEAREST[ast.Subquery])
            )
    return tree


def _written_out(tree: Node, text: str, known: Mapping[str, Node]) -> Node:
    """A query with the subquery that it asks of written out, where that looks at one row each."""
    for item in list(tree.expressions):  # by the name that it has in the query as it is given
        if not isinstance(item, ast.Alias) and not isinstance(item, ast.Star):
            item.replace(ast.alias_(item.copy(), text_of(item), quoted=True))
    known = dict(known)
    named = tree.args.get("with_") or tree.args.get("with")
    if named is not None:
        if named.args.get("recursive"):
            raise refused(text, "it has WITH RECURSIVE", NEAREST[ast.Subquery])
        for each in named.expressions:
            known[each.alias] = _of_rows(each.this, text, known)
        for name in ("with_", "with"):
            tree.set(name, None)
    source = tree.args.get("from_") or tree.args.get("from")
    asked = None if source is None else source.this
    if isinstance(asked, ast.Subquery):
        inner = _of_rows(asked.this, text, known)
    elif isinstance(asked, ast.Table) and not asked.args.get("db") and asked.name in known:
        inner = known[asked.name].copy()
    else:
        return tree
    if tree.args.get("joins"):
        raise refused(text, "it joins a subquery", NEAREST[ast.Subquery])
    for name in ("from_", "from"):
        tree.set(name, None)  # the columns that are left are its own
    values = {item.alias_or_name: item.unalias() for item in inner.expressions}
    everything = any(isinstance(item, ast.Star) for item in inner.expressions)
    own = {item.alias for item in tree.expressions}
    for column in list(tree.find_all(ast.Column)):
        if column.table and column.table != asked.alias_or_name:
            raise refused(text, f"it names no table {column.table}")
        if column.name in values:
            value = values[column.name].copy()
            column.replace(value if isinstance(value, ast.Column) else ast.Paren(this=value))
        elif everything:
            column.set("table", None)
        elif column.name not in own:
            raise refused(text, f"its subquery has no column {column.name}")
    conditions = [each.args["where"].this for each in (inner, tree) if each.args.get("where")]
    if conditions:
        tree.set("where", ast.Where(this=ast.and_(*(each.copy() for each in conditions))))
    for name in ("from_", "from", "joins"):
        tree.set(name, inner.args.get(name))
    if sum(1 for _ in tree.walk()) > _LONGEST:
        raise refused(text, "it is too long with its subqueries written out")
    return tree


def _of_rows(inner: Node, text: str, known: Mapping[str, Node]) -> Node:
    """A subquery, written out, if it only chooses and computes values of one row at a time."""
    used = {name.rstrip("_") for name, value in inner.args.items() if value} - _OF_ROWS
    if not isinstance(inner, ast.Select) or used:
        what = ", ".join(sorted(used)).upper() if isinstance(inner, ast.Select) else "no SELECT"
        raise refused(text, f"its subquery has {what}", NEAREST[ast.Subquery])
    inner = _written_out(inner.copy(), text, known)
    if any(item.find(ast.AggFunc) for item in inner.expressions):
        raise refused(text, "its subquery has an aggregate", NEAREST[ast.Subquery])
    return inner


@attrs.frozen
class Named:
    """A table of a query."""

    name: str  # its name, or its path
    alias: str  # what its columns are called by

    @classmethod
    def of(cls, node: Node, text: str) -> "Named":
        """The table that a node names."""
        plain = isinstance(node, ast.Table) and isinstance(node.this, ast.Identifier)
        if not plain or {key for key, value in node.args.items() if value} - _OF_A_TABLE:
            raise refused(text, "it has no single table after FROM")
        name = ".".join(part.name for part in node.parts)
        return cls(name, node.alias or node.name)

    def source(self, tables: Mapping[str, Any], connect: str | None) -> Any:
        """The table itself: one that was given, the name of one in a database, or a file."""
        if connect is not None:
            return self.name
        if self.name in tables:
            return tables[self.name]
        if "." in self.name and os.path.splitext(self.name)[1]:
            return self.name
        raise ArgumentError(
            "query",
            f"FROM one of {', '.join(tables)}"
            if tables
            else "FROM a file in quotes, or a table given",
            got=self.name,
            hint=f"Of a file write FROM '{self.name}.parquet'; in Python, a frame may be given as "
            f"{self.name}=….",
        )


@attrs.frozen
class From:
    """The tables of a query, and how they are joined: how, and on which pairs of columns."""

    first: Named
    others: tuple[tuple[Named, str, Mapping[str, str]], ...]

    @classmethod
    def of(cls, tree: Node, text: str) -> "From":
        """What stands after FROM."""
        source = tree.args.get("from_") or tree.args.get("from")
        first = Named.of(None if source is None else source.this, text)
        others: list[tuple[Named, str, Mapping[str, str]]] = []
        for node in tree.args.get("joins") or ():
            second = Named.of(node.this, text)
            how = _KINDS.get((node.side, node.kind))
            if how is None or {key for key, value in node.args.items() if value} - _OF_A_JOIN:
                raise refused(
                    text,
                    "of joins it may have JOIN and LEFT JOIN, with ON or USING",
                    NEAREST[ast.Join],
                )
            for column in node.find_all(ast.Column):  # the key is that of the first table
                if any(column.table == each.alias for each, how, _ in others if how == "left"):
                    raise refused(text, f"{column.table} was joined by LEFT JOIN, and has no key")
            others.append((second, how, _pairs(node, second, text)))
        known = {first.alias, *(second.alias for second, _, _ in others)}
        if len(known) <= len(others):
            raise refused(
                text, "two tables have the same name", "Give them names: FROM a x JOIN b y."
            )
        for column in tree.find_all(ast.Column):
            if column.table and column.table not in known:
                raise refused(text, f"it names no table {column.table}")
            if not others:  # a value is called the same with and without its table
                column.set("table", None)
        return cls(first, tuple(others))

    def source(
        self,
        data: Any,
        connect: str | None,
        tables: Mapping[str, Any],
        *,
        unit: str | None,
        public: Sequence[str],
    ) -> dict[str, Any]:
        """The arguments of a request that say which table to read."""
        named = _validate.values(public=public)
        file = isinstance(data, str | os.PathLike) and str(data).endswith((".duckdb", ".ddb"))
        if not self.others:
            if named:
                raise ArgumentError("public", "only with JOIN in the query", got=named)
            if file or connect is not None:
                return {"data": data, "connect": connect, "table": self.first.name}
            return {"data": self.first.source(tables, None) if data is None else data}
        if file:
            data, connect = None, f"duckdb://{os.fspath(data)}"
        if data is not None:
            hint = "Give each by its name: a=…, b=…."
            raise ArgumentError("data", "None for a join", shown="one table", hint=hint)
        joined = self._joined(connect, tables, unit, named)
        return {"data": open_source(joined, unit=joined.unit)}

    def _joined(
        self, connect: str | None, tables: Mapping[str, Any], unit: str | None, public: list[str]
    ) -> Join:
        everything = [self.first, *(second for second, _, _ in self.others)]
        names = {name for each in everything for name in (each.name, each.alias)}
        for name in public:
            _validate.one_of(sorted(names), public=name)
        # Of FROM a b JOIN b c, b is what the query calls so: the table a.
        aliases = {each.alias for each in everything}
        public = [
            each.alias
            for each in everything
            if each.alias in public or (each.name in public and each.name not in aliases)
        ]
        first, others = self.first, self.others
        if first.alias in public and len(others) == 1 and others[0][1] == "inner":
            ((second, how, pairs),) = others  # the private table comes first
            first, others = second, ((first, how, {b: a for a, b in pairs.items()}),)
        found: Any = first.source(tables, connect)
        for second, how, pairs in others:
            found = join(
                found,
                second.source(tables, connect),
                on=pairs,
                unit=unit,
                public=second.alias in public,
                how=how,  # type: ignore[arg-type]
                connect=connect,
                names=(first.alias, second.alias),
            )
        return found  # type: ignore[no-any-return]


def _pairs(node: Node, second: Named, text: str) -> dict[str, str]:
    """The pairs of columns that ON or USING calls equal: of a table before, and of this one."""
    if using := node.args.get("using"):
        return {each.name: each.name for each in using}
    found: dict[str, str] = {}
    for each in conjuncts(node.args["on"]) if node.args.get("on") else ():
        match each:
            case ast.EQ(this=ast.Column() as one, expression=ast.Column() as other):
                if one.table == second.alias:
                    one, other = other, one
                if other.table == second.alias != one.table:
                    if one.name in found or other.name in found.values():
                        raise refused(text, f"a column of {text_of(each)} has been named before")
                    found[one.name] = other.name
                    continue
        raise refused(text, f"{text_of(each)} is not a.key = b.key", NEAREST[ast.Join])
    if not found:
        raise refused(text, "its JOIN has neither ON nor USING", NEAREST[ast.Join])
    return found


def qualify(tree: Node, origins: Mapping[tuple[str, str], str], text: str) -> None:
    """Give the columns of a query the names that they have in a join."""
    for column in list(tree.find_all(ast.Column)):
        if column.table:
            plain = origins.get((column.table, column.name))
            if plain is None:
                raise refused(text, f"{column.table} has no column {column.name}")
            quoted = column.this.quoted or "." in plain
            column.set("this", ast.to_identifier(plain, quoted=quoted))
            column.set("table", None)


def conjuncts(node: Node) -> Iterator[Node]:
    """The conditions that must all hold."""
    node = node.unnest()
    if isinstance(node, ast.And):
        yield from conjuncts(node.this)
        yield from conjuncts(node.expression)
    else:
        yield node
