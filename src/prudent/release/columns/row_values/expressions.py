"""Values and conditions written as text, in the syntax of SQL.

A condition may also be a text, in the syntax of SQL's WHERE: "year = 2024 and city = 'Oslo'". It is
parsed, never executed: what it holds becomes an ibis condition, operation by operation, and that is
then checked like any other.

| text | meaning |
| --- | --- |
| year, "departure delay", t.year | a column |
| 2024, -0.5, 'Oslo', true, null | a number, a text, a boolean, no value |
| '2024-01-31', date '2024-01-31' | a date, beside a column of dates; always a date |
| = == <> != < <= > >= | comparisons |
| and, or, not, parentheses | |
| between … and …, in (…), is null, like, ilike | with `not` as well |
| + - * / % | arithmetic, in DuckDB (files and frames) |
| cast(x as double), x::date | conversion; a text that is not one is dropped; DuckDB and Spark |
| lower(x), upper(x), length(x), abs(x), year(x), month(x), day(x) | |

A column of text that is compared with a number or a date is read as one: in a CSV file all columns
are text.

A value, such as "price * quantity" or "age >= 18", is written in the same way.
"""

import datetime
import itertools
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

from prudent._validate import ArgumentError
from prudent.release.columns.row_values.conditions import Predicate

_TYPES = {
    "DOUBLE": "float64",
    "FLOAT": "float64",
    "DECIMAL": "float64",
    "INT": "int64",
    "BIGINT": "int64",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPNTZ": "timestamp",
    "DATETIME": "timestamp",
    "VARCHAR": "string",
    "TEXT": "string",
}
_LIST = (
    "comparisons, and, or, not, between, in, is null, like, + - * / %, cast, lower, upper, length, "
    "abs, year, month, day"
)
_COMPARED: dict[type, Callable[[Any, Any], Any]] = {
    sql.EQ: lambda a, b: a == b,
    sql.NEQ: lambda a, b: a != b,
    sql.LT: lambda a, b: a < b,
    sql.LTE: lambda a, b: a <= b,
    sql.GT: lambda a, b: a > b,
    sql.GTE: lambda a, b: a >= b,
}
_JOINED: dict[type, Callable[[Any, Any], Any]] = {
    sql.And: lambda a, b: a & b,
    sql.Or: lambda a, b: a | b,
}
_COMPUTED: dict[type, Callable[[Any, Any], Any]] = {
    sql.Add: lambda a, b: a + b,
    sql.Sub: lambda a, b: a - b,
    sql.Mul: lambda a, b: a * b,
    sql.Div: lambda a, b: a / b,
    sql.Mod: lambda a, b: a % b,
}
_ALIKE = {**_COMPARED, **_COMPUTED}
_CALLED: dict[type, Callable[[Any], Any]] = {
    sql.Lower: lambda a: a.lower(),
    sql.Upper: lambda a: a.upper(),
    sql.Length: lambda a: a.length(),
    sql.Abs: lambda a: a.abs(),
    sql.Year: lambda a: a.year(),
    sql.Month: lambda a: a.month(),
    sql.Day: lambda a: a.day(),
}
_MOMENTS = {
    "date": datetime.date.fromisoformat,
    "timestamp": datetime.datetime.fromisoformat,
}
_ARGUMENTS: dict[type, frozenset[str]] = {
    **dict.fromkeys([*_ALIKE, *_JOINED, sql.Is], frozenset({"this", "expression"})),
    **dict.fromkeys(
        [*_CALLED, sql.Paren, sql.Neg, sql.Not, sql.Null, sql.Boolean], frozenset({"this"})
    ),
    **dict.fromkeys([sql.Like, sql.ILike], frozenset({"this", "expression", "negate"})),
    **dict.fromkeys([sql.Cast, sql.TryCast], frozenset({"this", "to", "safe", "requires_string"})),
    sql.Between: frozenset({"this", "low", "high"}),
    sql.Column: frozenset({"this", "table"}),
    sql.DataType: frozenset({"this", "expressions"}),
    sql.DataTypeParam: frozenset({"this"}),
    sql.Identifier: frozenset({"this", "quoted"}),
    sql.In: frozenset({"this", "expressions"}),
    sql.Literal: frozenset({"this", "is_string"}),
}
"""The parts of a parsed text that are allowed, and what each may hold."""


def parse_condition(text: str) -> Predicate:
    """Return the condition that a text says, as a function of the table.

    Only the syntax is checked here. Names and types are checked when the condition is applied to
    a table; both before anything is charged or read.

    Raises:
        ArgumentError: if the text is not a condition; the message says what is allowed.
    """
    value = parse_value(text)

    def predicate(table: ir.Table) -> ir.BooleanValue:
        found = value(table)
        if not found.type().is_boolean():
            raise _unparsed(text, what="a value that is neither true nor false")
        return found

    return predicate


def parse_value(text: str, argument: str = "where") -> Callable[[ir.Table], Any]:
    """Return the value that a text says of one row, as a function of the table.

    Args:
        text: The text.
        argument: The argument that it was given for, which errors name.

    Raises:
        ArgumentError: see `parse_condition`.
    """
    try:
        tree = sqlglot.parse_one(text, dialect="duckdb")
    except Exception:  # also of the tokenizer
        raise _unparsed(text, argument) from None
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
    if not re.fullmatch(r"[\w ]+", text):
        return False
    try:
        return not isinstance(sqlglot.parse_one(text, dialect="duckdb"), sql.Binary | sql.Not)
    except Exception:
        return True


def names_in(text: str) -> list[str]:
    """The columns that a text may mean: those it names, and one that is called like all of it."""
    try:
        tree = sqlglot.parse_one(text, dialect="duckdb")
    except Exception:  # said where it is translated
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
            return _ALIKE[kind](*_alike(self.of(node.this), self.of(node.expression)))
        if kind in _JOINED:
            return _JOINED[kind](self.of(node.this), self.of(node.expression))
        if kind in _CALLED:
            return _CALLED[kind](self.of(node.this))
        return getattr(self, f"_{node.key}")(node)

    def _paren(self, node: Any) -> Any:
        return self.of(node.this)

    def _column(self, node: Any) -> Any:
        for name in (f"{node.table}.{node.name}", node.name):  # the first is of a join
            if name in self.table.columns:
                return self.table[name]
        hint = "Texts are written in single quotes: 'Oslo'." if node.this.quoted else ""
        names = ", ".join(map(str, self.table.columns))
        raise ArgumentError(self.argument, f"with columns among {names}", got=node.name, hint=hint)

    def _literal(self, node: Any) -> Any:
        if node.is_string:
            return ibis.literal(node.this)
        return _number(node.this)

    def _boolean(self, node: Any) -> Any:
        return ibis.literal(bool(node.this))

    def _null(self, node: Any) -> Any:
        return ibis.null()

    def _neg(self, node: Any) -> Any:
        if isinstance(node.this, sql.Literal) and not node.this.is_string:
            return _number(f"-{node.this.this}")
        return -self.of(node.this)

    def _not(self, node: Any) -> Any:
        return ~self.of(node.this)

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
        found = self.of(node.this).like(self._pattern(node))
        return ~found if node.args.get("negate") else found

    def _ilike(self, node: Any) -> Any:
        found = self.of(node.this).ilike(self._pattern(node))
        return ~found if node.args.get("negate") else found

    def _pattern(self, node: Any) -> str:
        if isinstance(node.expression, sql.Literal) and node.expression.is_string:
            return str(node.expression.this)
        raise _unparsed(self.text, self.argument, what="a pattern that is not a text")

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
