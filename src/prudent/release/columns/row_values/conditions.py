"""Row conditions (`where`) that look at one row at a time and never fail.

A comparison with, say, the largest value would let one record decide about all others, and a
condition that fails on one record would reveal that this record is present. So a condition may use
only the operations of this list, each a function of one row that is defined for every value a
column can store:

| operation |
| --- |
| comparisons of one kind of values, `between`, `isin`, `isnull`, and, or, not |
| `lower`, `upper`, `strip`, `length`, `startswith`, `endswith`, `contains`, `like` |
| `substr`, `left`, `right`, `replace` with constants; `concat` |
| arithmetic, casts, functions of numbers and dates: see `functions` |
| `coalesce`, `nullif`, `ifelse`, `cases`, `least`, `greatest` of one kind of values |
| none else, such as `rowid`, `now`, `random`, aggregates, windows, your own functions |

In DuckDB the condition is wrapped in TRY as well; a row on which it fails is dropped, like a row on
which it is NULL.
"""

from collections.abc import Callable
from typing import Any

import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import ibis.expr.types as ir
from ibis.common.graph import Node

from prudent._validate import ArgumentError
from prudent.release.columns.dialects import as_double, backend_name, check_bound, total, tried
from prudent.release.columns.row_values.functions import CONSTANT, FORMS, UnlistedError, finished

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
    ops.EndsWith,
    ops.IsInf,
    ops.IsNan,
    ops.IsNull,
    ops.LStrip,
    ops.Literal,
    ops.Lowercase,
    ops.Not,
    ops.NotNull,
    ops.Or,
    ops.RStrip,
    ops.StartsWith,
    ops.StrRight,
    ops.StringConcat,
    ops.StringContains,
    ops.StringLength,
    ops.StringReplace,
    ops.Strip,
    ops.Substring,
    ops.Uppercase,
    ops.Xor,
)
_ONE_KIND = {  # of values among which one is chosen, and those that are not
    ops.Coalesce: (),
    ops.Greatest: (),
    ops.IfElse: ("bool_expr",),
    ops.Least: (),
    ops.NullIf: (),
    ops.SearchedCase: ("cases",),
    ops.SimpleCase: ("base", "cases"),
}
_LONGEST = 20_000
"""Operations of a value as an engine reads them: DuckDB plans so many in ten seconds."""

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
    dtype, computed = value.type(), not isinstance(value.op(), ops.Field)
    try:
        _check_length(value.op())
        _check(value.op(), table.op())
        # Of the expression alone: what a view computes is its own.
        value = value.op().replace(_total_nodes(engine), filter=ops.Value).to_expr()
        _check_length(value.op())
    except ArgumentError as error:
        error.argument = argument
        raise
    except UnlistedError as error:
        raise ValueError(
            f"Expected {argument} to look at one row at a time, with operations that cannot fail, "
            f"got {error}: one record could then decide about the rows of others, or whether there "
            "is an answer. Compare columns with constants of their own type, and combine that with "
            "&, | and ~; in an ibis table you can add a column for anything else."
        ) from None
    if computed:
        value = finished(value, dtype)
    found = tried(value) if engine == "duckdb" else value
    check_bound(table.select(value=found), argument)
    return found


def _check_length(value: Any) -> None:
    """Reject a value that takes too many operations in a query, before it is written.

    A query has no names for what is computed on the way: an argument that is used twice is written
    twice, so that a few dozen nested calls would take more memory than there is.
    """
    sizes: dict[Any, int] = {}

    def size(node: Any) -> int:
        if node not in sizes:
            own = [size(each) for each in _children(node) if isinstance(each, ops.Value)]
            # Engines read NULLIF(a, b) as CASE WHEN a = b THEN NULL ELSE a END.
            sizes[node] = 1 + sum(own) + (own[0] if isinstance(node, ops.NullIf) else 0)
        return sizes[node]

    if size(value) > _LONGEST:
        raise ArgumentError(
            "where",
            f"an expression of at most {_LONGEST:,} operations",
            shown="a longer one",
            why="round, %, nullif, clip and case write their arguments more than once in a query",
            hint="Nest fewer of them; in an ibis table you can add a column for a part of it.",
        )


def _total_nodes(engine: str) -> Callable[..., Any]:
    """Return a replacer that gives columns and operations their total forms."""

    def replaced(node: Any, changed: dict[str, Any] | None) -> Any:
        if isinstance(node, ops.Field):
            return total(node.to_expr(), engine).op()
        made = node if changed is None else node.__recreate__(changed)
        if type(made) in FORMS:
            return FORMS[type(made)](made, engine).op()
        if type(made) in _ONE_KIND and any(_fractional(each.dtype) for each in _chosen(made)):
            # DuckDB would compute in FLOAT, or in DECIMAL, which overflows.
            names = zip(made.__argnames__, made.__args__, strict=True)
            made = made.__recreate__(
                {
                    name: arg if name in _ONE_KIND[type(made)] else _doubles(arg)
                    for name, arg in names
                }
            )
        return made

    return replaced


def _doubles(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(map(_doubles, argument))
    plain = isinstance(argument, ops.Value) and argument.dtype.is_numeric()
    return as_double(argument).op() if plain else argument


def _chosen(node: Any) -> list[Any]:
    """The values among which a node chooses one."""
    skipped = [getattr(node, name) for name in _ONE_KIND[type(node)]]
    outside = {
        id(each) for some in skipped for each in (some if isinstance(some, tuple) else [some])
    }
    return [child for child in _children(node) if id(child) not in outside]


def _check(node: Any, table: Any) -> None:
    """Reject operations that are not listed, in all nodes down to the columns of the table."""
    if isinstance(node, ops.Field):
        if node.rel != table:
            raise UnlistedError("a column of another table")
        if node.dtype.is_time():  # an invalid time of day crashes DuckDB, even inside TRY
            raise UnlistedError("a column of times of a day")
        if node.dtype.is_nested() or node.dtype.is_json():  # an invalid text inside stops the scan
            raise UnlistedError("a column of lists, structures or documents")
        return
    kind = type(node)
    if kind in _PATTERNS:  # a backslash can fail, depending on the string it is matched with
        pattern = node.pattern
        if not isinstance(pattern, ops.Literal) or "\\" in str(pattern.value):
            raise UnlistedError(kind.__name__)
    elif kind not in _TOTAL and kind not in FORMS and kind not in _ONE_KIND:
        raise UnlistedError(kind.__name__)
    for name, allowed in CONSTANT.get(kind, {}).items():
        given = getattr(node, name)
        if given is not None and not isinstance(given, ops.Literal):
            raise UnlistedError(f"{kind.__name__} by a value that is no constant")
        if given is not None and allowed is not None and given.value not in allowed:
            raise UnlistedError(f"{kind.__name__} by {given.value}")
    if kind in _COMPARISONS:
        _check_kinds(_children(node))
    elif kind in _ONE_KIND:
        _check_kinds(_chosen(node))
        if kind is ops.SimpleCase:
            _check_kinds([node.base, *node.cases])
    for child in _children(node):
        _check(child, table)


def _check_kinds(given: list[Any]) -> None:
    """Reject values of two kinds side by side, because an engine would convert one of them."""
    values = [child for child in given if not isinstance(child.dtype, dt.Null)]
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
