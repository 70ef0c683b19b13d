r"""Values and conditions written as text, in the syntax of SQL: one grammar for all of them.

A text is parsed once, into an `Expression` that carries its tree, and never executed: the tree is
translated to an ibis expression, operation by operation, which is then checked like any other.

| text | meaning |
| --- | --- |
| year, "departure delay", t.year | a column |
| 2024, -0.5, 'Oslo', true, null | a number, a text, a boolean, no value |
| '2024-01-31', date '2024-01-31' | a date, beside a column of dates; always a date |
| = == <> != < <= > >= and or not | comparisons, conditions |
| between … and …, in (…), is null, like, ilike | with `not` as well |
| + - * / // %, x ** 2 | arithmetic, in doubles; powers to 6; d - e of dates: days |
| abs, sign, floor, ceil, round, ln, log10, exp, sqrt, least, greatest, clip(x, low, high) | |
| case when … then … else … end, if, coalesce, nullif | |
| lower, upper, trim, ltrim, rtrim, length, substr, left, right, replace, \|\|, concat | of texts |
| starts_with, ends_with, contains | of texts |
| year, quarter, month, day, dayofweek, hour, minute, extract(year from d), date_part | of dates |
| date_trunc('month', d), date_diff('day', d, e) | the first day; the days from d to e |
| cast(x as double), x::date, try_cast | conversion; what is none is NULL |

What has no result for a row is NULL there, in every engine (see `functions`). A column of text that
is used as a number or a date is read as one: in a CSV file all columns are text.
"""

import datetime
import functools
import itertools
import operator
import re
from collections.abc import Callable
from typing import Any

import attrs
import ibis
import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import ibis.expr.types as ir
import sqlglot
from sqlglot import expressions as sql

from prudent._validate import ArgumentError, UnknownColumnError
from prudent.release.columns.row_values.conditions import Predicate

_TYPES = {
    **dict.fromkeys(("DOUBLE", "FLOAT", "DECIMAL"), "float64"),
    **dict.fromkeys(("INT", "BIGINT"), "int64"),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPNTZ", "DATETIME"), "timestamp"),
    **dict.fromkeys(("VARCHAR", "TEXT"), "string"),
    "DATE": "date",
}
_LIST = (
    "comparisons, and, or, not, between, in, is null, like, + - * / // % **, case, if, coalesce, "
    "nullif, cast, abs, sign, floor, ceil, round, ln, log10, exp, sqrt, least, greatest, clip, "
    "lower, upper, trim, length, substr, left, right, replace, ||, concat, starts_with, "
    "year, quarter, month, day, dayofweek, hour, minute, extract, date_trunc, date_diff"
)
_COMPARED: dict[type, Callable[[Any, Any], Any]] = {
    sql.EQ: lambda a, b: ops.Equals(a, b).to_expr(),  # of ibis, x == NULL is x IS NULL
    sql.NEQ: lambda a, b: ops.NotEquals(a, b).to_expr(),
    sql.LT: lambda a, b: a < b,
    sql.LTE: lambda a, b: a <= b,
    sql.GT: lambda a, b: a > b,
    sql.GTE: lambda a, b: a >= b,
}
_COMPUTED: dict[type, Callable[[Any, Any], Any]] = {
    sql.Add: lambda a, b: a + b,
    sql.Sub: lambda a, b: _days_between(a, b) if a.type().is_temporal() else a - b,
    sql.Mul: lambda a, b: a * b,
    sql.Div: lambda a, b: a / b,
    sql.IntDiv: lambda a, b: a // b,
    sql.Mod: lambda a, b: a % b,
}
_ALIKE = {**_COMPARED, **_COMPUTED}
_SIGNS = ((operator.lt, -1), (operator.gt, 1), (operator.eq, 0))
_PARTS: dict[str, Callable[[Any], Any]] = {
    "year": lambda a: _moment(a).year(),
    "quarter": lambda a: _moment(a).quarter(),
    "month": lambda a: _moment(a).month(),
    "day": lambda a: _moment(a).day(),
    "dayofweek": lambda a: (ops.DayOfWeekIndex(_moment(a)).to_expr() + 1) % 7,  # 0 is Sunday
    "hour": lambda a: _moment(a, "timestamp").hour(),
    "minute": lambda a: _moment(a, "timestamp").minute(),
}
_PARTS["dow"] = _PARTS["dayofweek"]
_UNITS = {"day": "D", "week": "W", "month": "M", "quarter": "Q", "year": "Y"}
_MOST_POWER = 6
_WITHIN_DAYS = ("hour", "minute", "second")
_CALLED: dict[type, tuple[tuple[str, ...], Callable[..., Any]]] = {
    sql.And: (("this", "expression"), lambda a, b: a & b),
    sql.Null: ((), ibis.null),
    sql.Or: (("this", "expression"), lambda a, b: a | b),
    sql.Not: (("this",), lambda a: ~a),
    sql.Paren: (("this",), lambda a: a),
    sql.Abs: (("this",), lambda a: _numeric(a).abs()),
    sql.Ceil: (("this",), lambda a: _numeric(a).ceil()),
    sql.Concat: (
        ("expressions", "safe", "coalesce"),
        lambda *some: functools.reduce(operator.add, (ibis.coalesce(each, "") for each in some)),
    ),
    sql.Contains: (("this", "expression"), lambda a, b: a.contains(b)),
    sql.Coalesce: (("this", "expressions"), lambda *some: ibis.coalesce(*some)),
    sql.Day: (("this",), _PARTS["day"]),
    sql.DayOfWeek: (("this",), _PARTS["dayofweek"]),
    sql.DPipe: (("this", "expression", "safe"), lambda a, b: a + b),
    sql.EndsWith: (("this", "expression"), lambda a, b: a.endswith(b)),
    sql.Exp: (("this",), lambda a: _numeric(a).exp()),
    sql.Floor: (("this",), lambda a: _numeric(a).floor()),
    sql.Greatest: (("this", "expressions", "ignore_nulls"), lambda *some: ibis.greatest(*some)),
    sql.Hour: (("this",), _PARTS["hour"]),
    sql.If: (("this", "true", "false"), lambda c, a, b=None: ibis.ifelse(c, a, b)),
    sql.Least: (("this", "expressions", "ignore_nulls"), lambda *some: ibis.least(*some)),
    sql.Left: (("this", "expression"), lambda a, n: a.substr(0, _constant(n))),
    sql.Length: (("this",), lambda a: a.length()),
    sql.Ln: (("this",), lambda a: _numeric(a).ln()),
    sql.Log: (("this", "expression"), lambda *some: _log10(*some)),
    sql.Lower: (("this",), lambda a: a.lower()),
    sql.Minute: (("this",), _PARTS["minute"]),
    sql.Month: (("this",), _PARTS["month"]),
    sql.Nullif: (("this", "expression"), lambda a, b: a.nullif(b)),
    sql.Pow: (("this", "expression"), lambda a, n: _power(_numeric(a), _constant(n))),
    sql.Quarter: (("this",), _PARTS["quarter"]),
    sql.Replace: (("this", "expression", "replacement"), lambda a, b, c: a.replace(b, c)),
    sql.Right: (("this", "expression"), lambda a, n: a.right(_constant(n))),
    sql.Round: (("this", "decimals"), lambda a, n=0: _numeric(a).round(_constant(n))),
    sql.Sign: (
        ("this",),
        lambda a: ibis.cases(*((test(_numeric(a), 0), found) for test, found in _SIGNS)),
    ),
    sql.Sqrt: (("this",), lambda a: _numeric(a).sqrt()),
    sql.StartsWith: (("this", "expression"), lambda a, b: a.startswith(b)),
    sql.Substring: (
        ("this", "start", "length"),
        lambda a, start, n=2**31 - 1: a.substr(_constant(start) - 1, _constant(n)),
    ),
    sql.Upper: (("this",), lambda a: a.upper()),
    sql.Year: (("this",), _PARTS["year"]),
}
"""Functions: their arguments, in order, and what they are of translated ones."""

_MOMENTS = {"date": datetime.date.fromisoformat, "timestamp": datetime.datetime.fromisoformat}
_ARGUMENTS: dict[type, frozenset[str]] = {
    **{kind: frozenset(names) for kind, (names, _) in _CALLED.items()},
    **dict.fromkeys([*_ALIKE, sql.Is], frozenset({"this", "expression", "typed", "safe"})),
    **dict.fromkeys([sql.Neg, sql.Null, sql.Boolean, sql.Var], frozenset({"this"})),
    **dict.fromkeys([sql.Like, sql.ILike], frozenset({"this", "expression", "negate"})),
    **dict.fromkeys([sql.Cast, sql.TryCast], frozenset({"this", "to", "safe", "requires_string"})),
    sql.Anonymous: frozenset({"this", "expressions"}),
    sql.Between: frozenset({"this", "low", "high"}),
    sql.Case: frozenset({"this", "ifs", "default"}),
    sql.Column: frozenset({"this", "table"}),
    sql.DataType: frozenset({"this", "expressions"}),
    sql.DataTypeParam: frozenset({"this"}),
    sql.DateDiff: frozenset({"this", "expression", "unit", "date_part_boundary"}),
    sql.Extract: frozenset({"this", "expression"}),
    sql.Identifier: frozenset({"this", "quoted"}),
    sql.In: frozenset({"this", "expressions"}),
    sql.Literal: frozenset({"this", "is_string"}),
    **dict.fromkeys([sql.TimestampTrunc, sql.DateTrunc], frozenset({"this", "unit"})),
    sql.Trim: frozenset({"this", "position"}),
}
"""The parts of a parsed text that are allowed, and what each may hold."""


class Expression(str):
    """The text of a value of one row, with the tree that it was parsed into."""

    __slots__ = ("tree",)
    tree: Any

    def __new__(cls, tree: Any) -> "Expression":
        """The expression of a tree; a column is called by its name alone."""
        plain = isinstance(tree, sql.Column)
        text = tree.name if plain else tree.sql(dialect="duckdb", normalize_functions="lower")
        made = super().__new__(cls, text)
        made.tree = tree
        return made

    @property
    def period(self) -> "tuple[Expression, str] | None":
        """The value and the unit of date_trunc('month', x); None if it is something else."""
        if not isinstance(self.tree, sql.TimestampTrunc | sql.DateTrunc):
            return None
        return Expression(self.tree.this), self.tree.args["unit"].name.lower()


def parsed(text: str, argument: str = "where") -> Expression:
    """The expression that a text is."""
    if isinstance(text, Expression):
        return text
    try:
        return Expression(sqlglot.parse_one(text, dialect="duckdb"))
    except Exception:  # also of the tokenizer
        raise _unparsed(text, argument) from None


def both(one: str, other: str) -> Expression:
    """The condition that two texts hold."""
    return Expression(sql.and_(parsed(one).tree, parsed(other).tree))


def parse_condition(text: str) -> Predicate:
    """Return the condition that a text says, as a function of the table.

    Only the syntax is checked here. Names and types are checked when the condition is applied to
    a table; both before anything is charged or read.
    """
    value = parse_value(text)

    def predicate(table: ir.Table) -> ir.BooleanValue:
        found = value(table)
        if not found.type().is_boolean():
            raise _unparsed(text, what="a value that is neither true nor false")
        return found

    return predicate


def parse_value(text: str, argument: str = "where") -> Callable[[ir.Table], Any]:
    """Return the value that a text says of one row, as a function of the table."""
    tree = parsed(text, argument).tree
    for node in tree.walk():
        used = {name for name, value in node.args.items() if value}
        if type(node) not in _ARGUMENTS or used - _ARGUMENTS[type(node)]:
            raise _unparsed(text, argument, what=node.key)

    def value(table: ir.Table) -> Any:
        try:
            found = _Translation(table, text, argument).of(tree)
            return found if isinstance(found, ir.Value) else ibis.literal(found)
        except ArgumentError:
            raise
        except Exception:  # ibis has many, for operations that a type does not have
            lacking = "an operation that the types of its columns lack"
            raise _unparsed(text, argument, what=lacking) from None

    return value


def is_name(text: str) -> bool:
    """Whether a text of words is the name of a column, and no condition such as x IS NULL."""
    if isinstance(text, Expression):
        return isinstance(text.tree, sql.Column)
    if not re.fullmatch(r"[\w ]+", text):
        return False
    try:
        return not isinstance(sqlglot.parse_one(text, dialect="duckdb"), sql.Binary | sql.Not)
    except Exception:
        return True


def names_in(text: str) -> list[str]:
    """The columns that a text may mean: those it names, and one that is called like all of it."""
    try:
        tree = parsed(text).tree
    except ArgumentError:  # said where it is translated
        return [text]
    named = [(f"{node.table}.{node.name}", node.name) for node in tree.find_all(sql.Column)]
    return [text, *itertools.chain(*named)]


@attrs.frozen
class _Translation:
    """Translates a parsed text to a condition on the rows of a table."""

    table: ir.Table
    text: str
    argument: str

    def of(self, node: Any) -> Any:
        """Translate one node; all nodes are of a listed type."""
        kind = type(node)
        if kind in _ALIKE:
            pair = _alike(self.of(node.this), self.of(node.expression))
            if kind in _COMPUTED and all(each.type().is_string() for each in pair):
                pair = _numeric(pair[0]), _numeric(pair[1])
            return _ALIKE[kind](*pair)
        if kind in _CALLED:
            names, call = _CALLED[kind]
            given = [each for name in names if (each := node.args.get(name)) not in (None, [])]
            listed = [each if isinstance(each, list) else [each] for each in given]
            plain = [each for some in listed for each in some if not isinstance(each, bool)]
            return call(*map(self.of, plain))
        return getattr(self, f"_{node.key}")(node)

    def _column(self, node: Any) -> Any:
        for name in (f"{node.table}.{node.name}", node.name):  # the first is of a join
            if name in self.table.columns:
                return self.table[name]
        hint = "Texts are written in single quotes: 'Oslo'." if node.this.quoted else ""
        raise UnknownColumnError(self.argument, node.name, self.table.columns, hint)

    def _literal(self, node: Any) -> Any:
        return ibis.literal(node.this) if node.is_string else _number(node.this)

    def _boolean(self, node: Any) -> Any:
        return ibis.literal(bool(node.this))

    def _neg(self, node: Any) -> Any:
        if isinstance(node.this, sql.Literal) and not node.this.is_string:
            return _number(f"-{node.this.this}")
        return -self.of(node.this)

    def _anonymous(self, node: Any) -> Any:
        name, given = node.name.lower(), [self.of(each) for each in node.expressions]
        if name == "date_part" and len(given) == 2:
            return self._part(str(_constant(given[0])), given[1])
        if name in ("clip", "clamp") and len(given) == 3:
            value, low, high = given
            clipped = ibis.least(ibis.greatest(_numeric(value), low), high)
            return ibis.ifelse(value.isnull(), ibis.null(), clipped)
        raise _unparsed(self.text, self.argument, what=name)

    def _extract(self, node: Any) -> Any:
        return self._part(node.name, self.of(node.expression))

    def _part(self, part: str, value: Any) -> Any:
        if part.lower() not in _PARTS:
            raise _unparsed(self.text, self.argument, what=f"the {part} of a date")
        return _PARTS[part.lower()](value)

    def _timestamptrunc(self, node: Any) -> Any:
        unit = node.args["unit"].name.lower()
        if unit not in _UNITS:
            raise _unparsed(self.text, self.argument, what=f"date_trunc to a {unit}")
        return _moment(self.of(node.this)).truncate(_UNITS[unit])

    _datetrunc = _timestamptrunc

    def _datediff(self, node: Any) -> Any:
        last, first = self.of(node.this), self.of(node.expression)
        return _days_between(last, first, node.args["unit"].name.lower())

    def _case(self, node: Any) -> Any:
        base = None if node.this is None else self.of(node.this)
        branches = []
        for each in node.args["ifs"]:
            condition = self.of(each.this)
            if base is not None:
                condition = _COMPARED[sql.EQ](*_alike(base, condition))
            branches.append((condition, self.of(each.args["true"])))
        default = node.args.get("default")
        return ibis.cases(*branches, else_=None if default is None else self.of(default))

    def _trim(self, node: Any) -> Any:
        value = self.of(node.this)
        sides = {"LEADING": value.lstrip, "TRAILING": value.rstrip}
        return sides.get(node.args.get("position") or "", value.strip)()

    def _is(self, node: Any) -> Any:
        value = self.of(node.this)
        if isinstance(node.expression, sql.Null):
            return value.isnull()
        return value.identical_to(self.of(node.expression))

    def _between(self, node: Any) -> Any:
        value, low = _alike(self.of(node.this), self.of(node.args["low"]))
        value, high = _alike(value, self.of(node.args["high"]))
        return value.between(low, high)

    def _in(self, node: Any) -> Any:
        value, values = self.of(node.this), [self.of(each) for each in node.expressions]
        if values and all(each.type().is_numeric() for each in values):
            value, _ = _alike(value, values[0])
        return value.isin(values)

    def _like(self, node: Any) -> Any:
        value, pattern = self.of(node.this), node.expression
        if not (isinstance(pattern, sql.Literal) and pattern.is_string):
            raise _unparsed(self.text, self.argument, what="a pattern that is not a text")
        found = (value.like if isinstance(node, sql.Like) else value.ilike)(str(pattern.this))
        return ~found if node.args.get("negate") else found

    _ilike = _like

    def _cast(self, node: Any) -> Any:
        target = _TYPES.get(node.to.this.name)
        if target is None:
            raise _unparsed(self.text, self.argument, what=f"a cast to {node.to.sql()}")
        if isinstance(node.this, sql.Literal) and target in _MOMENTS:
            try:
                return ibis.literal(_MOMENTS[target](str(node.this.this)))
            except ValueError:
                raise _unparsed(
                    self.text, self.argument, what=f"{node.this.this!r} as a {target}"
                ) from None
        value = self.of(node.this)
        return value.try_cast(target) if value.type().is_string() else value.cast(target)

    _trycast = _cast


def _constant(value: Any) -> Any:
    """The constant that an argument is; any other fails, and is said to be an operation lacking."""
    return value if isinstance(value, int) else value.op().value


def _numeric(value: ir.Value) -> ir.Value:
    return _read_as(value, dt.float64)


def _log10(*given: ir.Value) -> ir.Value:
    """The decimal logarithm, of log(x) and log10(x), which is parsed as log(10, x)."""
    *base, value = given
    if base and _constant(*base) != 10:
        raise ValueError
    return _numeric(value).log10()


def _power(value: ir.Value, exponent: Any) -> ir.Value:
    """A small whole power, as products: what `pow` fails on differs from engine to engine."""
    if exponent not in range(1, _MOST_POWER + 1):
        raise ValueError
    return value if exponent == 1 else value * _power(value, exponent - 1)


def _moment(value: ir.Value, kind: str = "date") -> ir.Value:
    """A date or time; a text is read as one."""
    return value.try_cast(kind) if value.type().is_string() else value


def _days_between(last: ir.Value, first: ir.Value, unit: str = "day") -> ir.Value:
    """The number of units that begin between two dates or times."""
    if unit in _WITHIN_DAYS:
        ends = [_moment(each, "timestamp").cast("timestamp") for each in (last, first)]
        return ops.TimestampDelta(unit, *ends).to_expr()
    ends = [_moment(each) for each in (last, first)]
    ends = [each if each.type().is_date() else each.date() for each in ends]
    return ops.DateDelta(unit, *ends).to_expr()


def _number(text: str) -> ir.Value:
    try:
        whole = int(text)
        return ibis.literal(whole, "int64") if abs(whole) < 2**63 else ibis.literal(float(whole))
    except (OverflowError, ValueError):
        return ibis.literal(float(text))


def _alike(one: ir.Value, other: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Read a column of text as a number or a date if it is compared with one."""
    return _read_as(one, other.type()), _read_as(other, one.type())


def _read_as(value: ir.Value, dtype: dt.DataType) -> ir.Value:
    if not value.type().is_string() or isinstance(value.op(), ops.Literal):
        return value
    if dtype.is_numeric() and not dtype.is_boolean():
        return value.try_cast("float64")
    if dtype.is_date() or dtype.is_timestamp():
        return value.try_cast("date" if dtype.is_date() else "timestamp")
    return value


def _unparsed(text: str, argument: str = "where", *, what: str = "") -> ArgumentError:
    return ArgumentError(
        argument,
        "a condition on one row, in the syntax of SQL"
        if argument == "where"
        else "the name of a column, or an expression of one row in the syntax of SQL",
        got=text,
        why=f"it uses {what}" if what else "it cannot be parsed",
        hint=f"Allowed are {_LIST}; texts are in single quotes, as in year = 2024 and city in "
        "('Oslo', 'Bergen').",
    )
