"""Row conditions (`where`) that look at one row at a time and never fail.

A comparison with, say, the largest value would let one record decide about all others, and a
condition that fails on one record would reveal that this record is present. So a condition may use
only the operations of this list, each a function of one row that is defined for every value a
column can store:

| operation | where |
| --- | --- |
| comparisons of one kind of values, `between`, `isin`, `isnull`, and, or, not | all engines |
| `lower`, `upper`, `strip`, `length`, `startswith`, `endswith`, `contains`, `like` | all |
| `year`, `month`, `day`, `quarter` of a date or time; `fill_null`, `ifelse` | all |
| arithmetic, `cast`, `round`, `abs`, parts of a text or a time | DuckDB: files and frames |
| `try_cast` | DuckDB, Spark |
| anything else, such as `rowid`, `now`, `random`, aggregates, windows, your own functions | none |

In DuckDB the condition is wrapped in TRY; a row on which it fails is dropped, like a row on which
it is NULL. The other engines have no TRY, so operations that might fail are rejected there.

A condition may also be a text, in the syntax of SQL's WHERE: "year = 2024 and city = 'Oslo'". It is
parsed, never executed: what it holds becomes an ibis condition, operation by operation, and that is
then checked like any other.

| text | meaning |
| --- | --- |
| year, "departure delay", t.year | a column |
| 2024, -0.5, 'Oslo', true, null | a number, a text, a truth value, no value |
| '2024-01-31', date '2024-01-31' | a date, beside a column of dates; always a date |
| = == <> != < <= > >= | comparisons |
| and, or, not, parentheses | |
| between … and …, in (…), is null, like, ilike | with `not` as well |
| + - * / % | arithmetic, in DuckDB (files and frames) |
| cast(x as double), x::date | conversion; a text that is not one is dropped; DuckDB and Spark |
| lower(x), upper(x), length(x), abs(x), year(x), month(x), day(x) | |

A column of text that is compared with a number or a date is read as one: in a CSV file all columns
are text.
"""

import datetime
from collections.abc import Callable
from typing import Any

import attrs
import ibis
import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import ibis.expr.types as ir
import sqlglot
from ibis.common.graph import Node
from sqlglot import expressions as sql

from prudent._validate import ArgumentError
from prudent.release.columns.dialects import backend_name, total, tried

Predicate = Callable[[ir.Table], ir.BooleanValue]

_COMPARISONS = (
    ops.Between,
    ops.Equals,
    ops.Greater,
    ops.GreaterEqual,
    ops.IdenticalTo,
    ops.InValues,
    ops.Less,
    ops.LessEqual,
    ops.NotEquals,
)
_TOTAL = (
    *_COMPARISONS,
    ops.Alias,
    ops.And,
    ops.Coalesce,
    ops.EndsWith,
    ops.ExtractDay,
    ops.ExtractMonth,
    ops.ExtractQuarter,
    ops.ExtractYear,
    ops.IfElse,
    ops.IsInf,
    ops.IsNan,
    ops.IsNull,
    ops.LStrip,
    ops.Literal,
    ops.Lowercase,
    ops.Not,
    ops.NotNull,
    ops.NullIf,
    ops.Or,
    ops.RStrip,
    ops.StartsWith,
    ops.StringContains,
    ops.StringLength,
    ops.Strip,
    ops.Uppercase,
    ops.Xor,
)
_TRIED = (
    ops.Abs,
    ops.Add,
    ops.Cast,
    ops.Ceil,
    ops.Date,
    ops.DateTruncate,
    ops.DayOfWeekIndex,
    ops.Divide,
    ops.ExtractHour,
    ops.ExtractMinute,
    ops.ExtractSecond,
    ops.Floor,
    ops.FloorDivide,
    ops.Modulus,
    ops.Multiply,
    ops.Negate,
    ops.Round,
    ops.StrRight,
    ops.Substring,
    ops.Subtract,
    ops.TimestampTruncate,
    ops.TryCast,
)
_PATTERNS = (ops.StringSQLILike, ops.StringSQLLike)


def of_one_row(where: Predicate, table: ir.Table) -> ir.BooleanValue:
    """Check that a condition looks at one row at a time, and return it in a form that cannot fail.

    Args:
        where: A function of the table, such as `lambda t: t.year == 2024`.

    Raises:
        ValueError: if it is not a condition, or uses an operation that is not listed.
    """
    try:
        (predicate,) = table.bind(where)
        boolean = predicate.type().is_boolean()
    except ArgumentError:  # from a parsed text, which says what is wrong with it
        raise
    except Exception:
        boolean = False
    if not boolean:
        raise ArgumentError(
            "where",
            "a function of the table that says which rows to keep, such as lambda t: "
            "t.year == 2024",
            shown="another",
        )
    engine = backend_name(table)
    _check(predicate.op(), table.op(), engine)
    predicate = predicate.op().replace(_total_fields(engine)).to_expr()
    return tried(predicate) if engine == "duckdb" else predicate


def _total_fields(engine: str) -> Callable[..., Any]:
    """Return a replacer that applies `total` to the columns of a condition and to nothing else."""

    def replaced(node: Any, changed: dict[str, Any] | None) -> Any:
        if isinstance(node, ops.Field):
            return total(node.to_expr(), engine).op()
        return node if changed is None else node.__recreate__(changed)

    return replaced


def _check(node: Any, table: Any, engine: str) -> None:
    """Reject operations that are not listed, in all nodes down to the columns of the table."""
    if isinstance(node, ops.Field):
        if node.rel != table:
            raise _refused("a column of another table")
        if node.dtype.is_time():  # an invalid time of day crashes DuckDB, even inside TRY
            raise _refused("a column of times of a day")
        if node.dtype.is_nested() or node.dtype.is_json():  # an invalid text inside stops the scan
            raise _refused("a column of lists, structures or documents")
        return
    if isinstance(node, _COMPARISONS):
        _check_kinds(node)
    if not _is_allowed(node, engine):
        raise _refused(type(node).__name__)
    for child in _children(node):
        _check(child, table, engine)


def _is_allowed(node: Any, engine: str) -> bool:
    if type(node) in _TOTAL:
        return True
    if type(node) in _PATTERNS:  # a backslash can fail, depending on the string it is matched with
        pattern = node.pattern
        return isinstance(pattern, ops.Literal) and "\\" not in str(pattern.value)
    if type(node) is ops.Cast and not node.find(ops.Field):
        return True  # a cast of a public constant, which succeeds or fails whatever the records are
    if type(node) is ops.TryCast and engine == "pyspark":
        return True
    return type(node) in _TRIED and engine == "duckdb"


def _check_kinds(node: Any) -> None:
    """Reject a comparison of two kinds of values, because an engine would convert one of them."""
    values = [child for child in _children(node) if not isinstance(child.dtype, dt.Null)]
    # A constant date may be given as a string: its conversion does not depend on the records.
    moments = any(value.dtype.is_temporal() for value in values)
    kinds = {
        _kind(value.dtype)
        for value in values
        if not (moments and isinstance(value, ops.Literal) and value.dtype.is_string())
    }
    if len(kinds) > 1 or None in kinds:
        raise ArgumentError(
            "where",
            "to compare values of one type with each other",
            shown=" and ".join(sorted({str(value.dtype) for value in values})),
            hint='A text of a CSV file becomes a number by t.column.try_cast("float64").',
        )


def _kind(dtype: dt.DataType) -> str | None:
    if dtype.is_numeric() and not dtype.is_boolean():
        return "number"
    for name in ("boolean", "string", "binary", "date", "timestamp", "uuid"):
        if getattr(dtype, f"is_{name}")():
            return name
    return None


def _children(node: Any) -> list[Any]:
    found: list[Any] = []
    for argument in node.__args__:
        several = argument if isinstance(argument, tuple) else (argument,)
        found.extend(each for each in several if isinstance(each, Node))
    return found


def _refused(what: str) -> ValueError:
    return ValueError(
        f"Expected where to look at one row at a time, with operations that cannot fail, got "
        f"{what}: one record could then decide about the rows of others, or whether there is an "
        "answer. Compare columns with constants of their own type, and combine that with &, | and ~"
        "; in an ibis table you can add a column for anything else."
    )


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
    **dict.fromkeys([sql.Cast, sql.TryCast], frozenset({"this", "to", "requires_string"})),
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
    try:
        tree = sqlglot.parse_one(text, dialect="duckdb")
    except Exception:  # also of the tokenizer
        raise _unparsed(text) from None
    for node in tree.walk():
        used = {name for name, value in node.args.items() if value}
        if type(node) not in _ARGUMENTS or used - _ARGUMENTS[type(node)]:
            raise _unparsed(text, what=node.key)

    def predicate(table: ir.Table) -> ir.BooleanValue:
        try:
            found = _Translation(table, text).of(tree)
            boolean = found.type().is_boolean()
        except ArgumentError:
            raise
        except Exception:  # ibis has many, for operations that a type does not have
            raise _unparsed(text, what="an operation that the types of its columns lack") from None
        if not boolean:
            raise _unparsed(text, what="a value that is neither true nor false")
        return found

    return predicate


@attrs.frozen
class _Translation:
    """Translates a parsed text to a condition on the rows of a table."""

    table: ir.Table
    text: str

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
        if node.name in self.table.columns:
            return self.table[node.name]
        hint = "Texts are written in single quotes: 'Oslo'." if node.this.quoted else ""
        names = ", ".join(map(str, self.table.columns))
        raise ArgumentError("where", f"with columns among {names}", got=node.name, hint=hint)

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
        raise _unparsed(self.text, what="a pattern that is not a text")

    def _cast(self, node: Any) -> Any:
        target = _TYPES.get(node.to.this.name)
        if target is None:
            raise _unparsed(self.text, what=f"a cast to {node.to.sql()}")
        if isinstance(node.this, sql.Literal) and target in _MOMENTS:
            try:
                return ibis.literal(_MOMENTS[target](str(node.this.this)))
            except ValueError:
                raise _unparsed(self.text, what=f"{node.this.this!r} as a {target}") from None
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


def _unparsed(text: str, *, what: str = "") -> ArgumentError:
    return ArgumentError(
        "where",
        "a condition on one row, in the syntax of SQL",
        got=text,
        why=f"it uses {what}" if what else "it cannot be parsed",
        hint=f"Allowed are {_LIST}; texts are in single quotes, as in year = 2024 and city in "
        "('Oslo', 'Bergen').",
    )
