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
"""

from collections.abc import Callable
from typing import Any

import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import ibis.expr.types as ir
from ibis.common.graph import Node

from prudent._validate import ArgumentError
from prudent.release.columns.dialects import as_double, backend_name, check_bound, total, tried

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
_ARITHMETIC = (ops.Add, ops.Divide, ops.Modulus, ops.Multiply, ops.Subtract)
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
            "t.year == 2024, or a text such as 'year = 2024'",
            shown=type(where).__name__,
            hint="Columns of a CSV file, and of a pandas frame without nullable dtypes, are texts: "
            "write 'year = 2024', or t.year.try_cast('int64').",
        )
    return total_value(predicate, table)


def total_value(value: ir.Value, table: ir.Table, argument: str = "where") -> Any:
    """Check that a value looks at one row at a time, and return it in a form that cannot fail.

    Raises:
        ValueError: if it uses an operation that is not listed.
    """
    engine = backend_name(table)
    try:
        _check(value.op(), table.op(), engine)
    except _UnlistedError as error:
        raise ValueError(
            f"Expected {argument} to look at one row at a time, with operations that cannot fail, "
            f"got {error}: one record could then decide about the rows of others, or whether there "
            "is an answer. Compare columns with constants of their own type, and combine that with "
            "&, | and ~; in an ibis table you can add a column for anything else."
        ) from None
    # Of the expression alone: what a view computes is its own.
    value = value.op().replace(_total_nodes(engine), filter=ops.Value).to_expr()
    if _fractional(value.type()):
        value = as_double(value)
    found = tried(value) if engine == "duckdb" else value
    check_bound(table.select(value=found), argument)
    return found


class _UnlistedError(Exception):
    """An operation that is not listed."""


def _total_nodes(engine: str) -> Callable[..., Any]:
    """Return a replacer that applies `total` to columns, and computes in doubles.

    Where ibis expects a fraction, DuckDB would compute in the types of the operands: in FLOAT, or
    in DECIMAL, which overflows, and of whose digits ibis has rules of its own.
    """

    def replaced(node: Any, changed: dict[str, Any] | None) -> Any:
        if isinstance(node, ops.Field):
            return total(node.to_expr(), engine).op()
        made = node if changed is None else node.__recreate__(changed)
        if isinstance(made, _ARITHMETIC) and _fractional(made.dtype):
            names = zip(made.__argnames__, made.__args__, strict=True)
            made = made.__recreate__({name: as_double(arg).op() for name, arg in names})
        return made

    return replaced


def _check(node: Any, table: Any, engine: str) -> None:
    """Reject operations that are not listed, in all nodes down to the columns of the table."""
    if isinstance(node, ops.Field):
        if node.rel != table:
            raise _UnlistedError("a column of another table")
        if node.dtype.is_time():  # an invalid time of day crashes DuckDB, even inside TRY
            raise _UnlistedError("a column of times of a day")
        if node.dtype.is_nested() or node.dtype.is_json():  # an invalid text inside stops the scan
            raise _UnlistedError("a column of lists, structures or documents")
        return
    if isinstance(node, _COMPARISONS):
        _check_kinds(node)
    if not _is_allowed(node, engine):
        raise _UnlistedError(type(node).__name__)
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
    # A constant date may be given as a string, and one beside times as a date: its conversion does
    # not depend on the records.
    moments = any(value.dtype.is_temporal() for value in values)
    times = any(value.dtype.is_timestamp() for value in values)
    kinds = {
        _kind(value.dtype)
        for value in values
        if not isinstance(value, ops.Literal)
        or not ((moments and value.dtype.is_string()) or (times and value.dtype.is_date()))
    }
    if len(kinds) > 1 or None in kinds:
        raise ArgumentError(
            "where",
            "to compare values of one type with each other",
            shown=" and ".join(sorted({str(value.dtype) for value in values})),
            hint='A text of a CSV file becomes a number by t.column.try_cast("float64").',
        )


def _fractional(dtype: dt.DataType) -> bool:
    return bool(dtype.is_floating() or dtype.is_decimal())


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
