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

An engine's own division, logarithm or cast fails on some values, and each engine on others. So
every operation is written here in a form that returns NULL instead, the same in all of them:

| operation | is NULL for |
| --- | --- |
| + - * / // % of numbers, in doubles | results beyond 2**500 (computed values), a divisor of 0 |
| floor, ceil, round (half up), casts to integers | numbers beyond 2**53 |
| ln, log10, sqrt, exp | numbers that have none; exp beyond ±346 |
| year, month, date_trunc, date_diff, … | dates before year 1 and beyond 9999, infinite ones |
| casts of texts | texts that are no number or date |

An engine has no names for what is computed on the way, so a guard that names its argument twice
doubles the length of a query: arithmetic has none but in PostgreSQL, where it names it once. In
DuckDB a value is wrapped in TRY as well; a row on which a condition is NULL is dropped.
"""

import datetime
import math
from collections.abc import Callable
from typing import Any

import ibis
import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import ibis.expr.types as ir
from ibis.common.exceptions import IbisError
from ibis.common.graph import Node

from prudent._validate import ArgumentError
from prudent.release.columns.dialects import (
    as_double,
    backend_name,
    call,
    check_bound,
    double,
    floored,
    number_of,
    scale_of,
    total,
    tried,
)
from prudent.release.columns.row_values.groups import starts
from prudent.release.columns.scales import DATE

_FAR = 2.0**500  # products and quotients of such numbers are finite
_NEAR = 2.0**-432  # added and subtracted again, it leaves 0 or 2**-485 at least
_WHOLE = 2.0**53
_DAY = 86_400e6  # microseconds
_FIRST, _LAST = (
    float((day - datetime.date(1970, 1, 1)).days) for day in (datetime.date.min, datetime.date.max)
)
_MOST_DIGITS = 15
_YEARS = r"([0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP = r"([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"({_YEARS}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    rf"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = r"([ T]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]{1,6})?)?)?"
_NUMBER = r"^ *[+-]?([0-9]{1,30}([.][0-9]{0,30})?|[.][0-9]{1,30})([eE][+-]?[0-9]{1,2})? *$"


class UnlistedError(Exception):
    """An operation that is not listed."""


def within(value: ir.Value, low: float, high: float) -> ir.Value:
    """A double, or NULL if it is NaN or outside of an interval."""
    return ibis.ifelse(value.between(double(low), double(high)), value, ibis.null("float64"))


def whole(value: ir.Value) -> ir.Value:
    """A double whose whole part every engine can compute; others are NULL."""
    return within(value, -_WHOLE, _WHOLE)


def _number(value: Any, engine: str) -> ir.Value:
    """An operand of arithmetic: a double, in PostgreSQL one that cannot overflow or underflow."""
    number = as_double(value)
    if engine != "postgres":
        return number
    # Tiny ones become 0: PostgreSQL refuses a product that does.
    number = (number + double(_NEAR)) - double(_NEAR)
    ends = double(-_FAR), double(_FAR)
    number = ibis.least(ibis.greatest(number, ends[0]), ends[1])
    return number.nullif(ends[0]).nullif(ends[1])  # also of NaN, which is the greatest, and of NULL


def _arithmetic(apply: Callable[[ir.Value, ir.Value], ir.Value]) -> "Form":
    return lambda node, engine: apply(_number(node.left, engine), _number(node.right, engine))


def _quotient(one: ir.Value, other: ir.Value) -> ir.Value:
    return one / other.nullif(double(0.0))


def _floor(number: ir.Value) -> ir.Value:
    return floored(whole(number))


def _rest(node: Any, engine: str) -> ir.Value:
    """The rest of a division that rounds towards zero, as SQL has it."""
    if node.left.dtype.is_integer() and node.right.dtype.is_integer():
        # The rest by -1 is that by 1, without the quotient of -2**63, which has no integer.
        divisor = node.right.to_expr()
        divisor = ibis.ifelse(divisor == -1, ibis.literal(1, node.right.dtype), divisor.nullif(0))
        return ops.Modulus(node.left, divisor).to_expr()
    one, other = _number(node.left, engine), _number(node.right, engine)
    size = _floor(_quotient(one.abs(), other.abs())) * other.abs()
    return ibis.ifelse(one < double(0.0), one + size, one - size)


def _rounded(node: Any, engine: str) -> ir.Value:
    digits = 0 if node.digits is None else node.digits.value
    number = _number(node.arg, engine)
    if digits < 0:
        return _floor(number / double(10.0**-digits) + double(0.5)) * double(10.0**-digits)
    scaled = _floor(number * double(10.0**digits) + double(0.5))
    return scaled / double(10.0**digits) if digits else scaled


def _of_number(apply: Callable[[ir.Value], ir.Value]) -> "Form":
    return lambda node, engine: apply(_number(node.arg, engine))


# --- dates ----------------------------------------------------------------------------------------


def _micros(value: ir.Value, engine: str) -> ir.Value:
    """Microseconds since 1970 of a time, in years 1 to 9999."""
    number = number_of(value, scale_of(value.type(), engine, "a time"))
    return within(number, _FIRST * _DAY, (_LAST + 1) * _DAY)


def _days(value: ir.Value, engine: str) -> ir.Value:
    """Days since 1970 of a date or a time, in years 1 to 9999."""
    if value.type().is_date():
        days = number_of(value, DATE)
    elif value.type().is_timestamp():
        days = floored(_micros(value, engine) / double(_DAY))
    else:
        raise UnlistedError(f"a date of a value of type {value.type()}")
    return within(days, _FIRST, _LAST)


def _date(days: ir.Value, engine: str) -> ir.Value:
    """The date of so many days since 1970."""
    if engine == "duckdb":
        return _midnight(days).cast("date")
    if engine == "postgres":
        return call("date_pli", ibis.literal("1970-01-01").cast("date"), days.cast("int32"),
                    returns=dt.date)  # fmt: skip
    return call("`date_from_unix_date`", days.cast("int32"), returns=dt.date)


def _midnight(days: ir.Value) -> ir.Value:
    """The time at which a day begins; DuckDB cannot compare a date that was cast with infinity."""
    return call("make_timestamp", (days * double(_DAY)).cast("int64"), returns=dt.timestamp)


def _calendar(value: Any, engine: str) -> ir.Value:
    """The date of a date or a time; NULL outside of years 1 to 9999."""
    value = value.to_expr()
    if not value.type().is_date():
        return _date(_days(value, engine), engine)
    ends = (ibis.literal(day) for day in (datetime.date.min, datetime.date.max))
    return ibis.ifelse(value.between(*ends), value, ibis.null("date"))


def _part(operation: Any) -> "Form":
    return lambda node, engine: operation(_calendar(node.arg, engine)).to_expr()


def _of_day(length: float, within_next: float) -> "Form":
    def part(node: Any, engine: str) -> ir.Value:
        passed = floored(_micros(node.arg.to_expr(), engine) / double(length))
        return (passed - floored(passed / double(within_next)) * double(within_next)).cast("int32")

    return part


def _weekday(node: Any, engine: str) -> ir.Value:
    days = _days(node.arg.to_expr(), engine) + double(3.0)  # 1970 began with a Thursday
    return (days - floored(days / double(7.0)) * double(7.0)).cast("int32")


def _truncated(node: Any, engine: str) -> ir.Value:
    unit = node.unit.name.lower()
    if unit not in ("day", "week", "month", "quarter", "year"):
        raise UnlistedError(f"date_trunc to a {unit}, which is for groups only")
    return _date(starts(_days(node.arg.to_expr(), engine), DATE, unit), engine)


def _difference(node: Any, engine: str) -> ir.Value:
    """The number of units that begin between two dates or times."""
    unit = node.part.value
    return _since(node.left, unit, engine) - _since(node.right, unit, engine)


def _since(value: Any, unit: str, engine: str) -> ir.Value:
    moment = value.to_expr()
    if unit in ("hour", "minute", "second") and moment.type().is_timestamp():
        length = {"hour": 3600e6, "minute": 60e6, "second": 1e6}[unit]
        return floored(_micros(moment, engine) / double(length))
    if unit == "day":
        return _days(moment, engine)
    if unit == "week":
        return floored((_days(moment, engine) + double(3.0)) / double(7.0))
    date = _calendar(value, engine)
    year, month = as_double(date.year()), as_double(date.month())
    months = year * double(12.0) + month - double(1.0)
    lengths = {"month": 1.0, "quarter": 3.0, "year": 12.0}
    if unit not in lengths:
        raise UnlistedError(f"date_diff in units of a {unit}")
    return floored(months / double(lengths[unit]))


# --- casts ----------------------------------------------------------------------------------------


def _cast(node: Any, engine: str) -> ir.Value:
    value, target = node.arg.to_expr(), node.to
    dtype = value.type()
    if not node.arg.find(ops.Field):
        return node.to_expr()  # of a constant: it succeeds or fails whatever the records are
    if dtype.is_string():
        return _read(value, target, engine)
    if target.is_string() and (dtype.is_integer() or engine == "duckdb"):
        return value.cast(target)
    if dtype.is_boolean() and target.is_numeric():
        if engine == "duckdb" or target.is_floating():
            return value.cast("int32").cast(target)
        if target.is_decimal() and target.precision == target.scale is not None:
            raise UnlistedError(f"a cast of {dtype} to {target}")  # 1 has no such decimal
        number = ibis.ifelse(value, ibis.literal(1, target), ibis.literal(0, target))
        return ibis.ifelse(value.isnull(), ibis.null(target), number)
    if dtype.is_numeric() and target.is_floating():
        return as_double(value)
    if dtype.is_integer() and target.is_int64():
        if dtype.is_uint64():  # DuckDB computes what a value names twice outside of its TRY
            near = value <= ibis.literal(2**63 - 1, dtype)
            value = ibis.ifelse(near, value, ibis.null(dtype))
        return value.cast(target)
    if dtype.is_numeric() and target.is_integer():
        return _integer(value, target, engine)
    if dtype.is_temporal() and target.is_date():
        return _calendar(node.arg, engine)
    if dtype.is_date() and target.is_timestamp():
        if engine == "duckdb":
            return _midnight(_days(value, engine))
        return _calendar(node.arg, engine).cast(target)
    if dtype.is_timestamp() and target.is_timestamp() and dtype.timezone == target.timezone:
        return value
    # Of other pairs of types DuckDB has no cast, which it says when it meets the first value.
    alike = _kind(target) in (_kind(dtype), "boolean") and dtype.is_numeric() | dtype.is_timestamp()
    if dtype == target or (engine == "duckdb" and alike):
        return node.to_expr()
    raise UnlistedError(f"a cast of {dtype} to {target}")


def _integer(value: ir.Value, target: Any, engine: str) -> ir.Value:
    """The nearest integer of a type, half up; NULL if the type has none."""
    low, high = max(float(target.bounds.lower), -_WHOLE), min(float(target.bounds.upper), _WHOLE)
    raised = _number(value, engine) + double(0.5)
    return floored(within(raised, low, math.nextafter(high + 1.0, 0.0))).cast(target)


def _read(text: ir.Value, target: dt.DataType, engine: str) -> ir.Value:
    """What a text says; NULL if it does not. DuckDB has more forms of dates."""
    if target.is_string():
        return text
    if target.is_integer():
        return _integer(_read(text, dt.float64, engine), target, engine)
    if engine == "duckdb":
        return text.try_cast(target)
    if target.is_numeric():
        return ibis.ifelse(text.re_search(_NUMBER), text, ibis.null("string")).cast("float64")
    if target.is_date() or target.is_timestamp():
        written = text.substr(0, 10) if target.is_date() else text
        is_time = text.re_search(f"^{_DATE}{_TIME}$")
        return ibis.ifelse(is_time, written, ibis.null("string")).cast(target)
    raise UnlistedError(f"a cast of a text to {target}")


Form = Callable[[Any, str], ir.Value]
FORMS: dict[Any, Form] = {
    ops.Abs: _of_number(lambda x: x.abs()),
    ops.Add: _arithmetic(lambda a, b: a + b),
    ops.Cast: _cast,
    ops.Ceil: _of_number(lambda x: double(0.0) - _floor(double(0.0) - x)),
    ops.Date: lambda node, engine: _calendar(node.arg, engine),
    ops.DateDelta: _difference,
    ops.DateTruncate: _truncated,
    ops.DayOfWeekIndex: _weekday,
    ops.Divide: _arithmetic(_quotient),
    ops.Exp: _of_number(lambda x: within(x, -346.0, 346.0).exp()),
    ops.ExtractDay: _part(ops.ExtractDay),
    ops.ExtractHour: _of_day(3600e6, 24.0),
    ops.ExtractMinute: _of_day(60e6, 60.0),
    ops.ExtractMonth: _part(ops.ExtractMonth),
    ops.ExtractQuarter: _part(ops.ExtractQuarter),
    ops.ExtractYear: _part(ops.ExtractYear),
    ops.Floor: _of_number(_floor),
    ops.FloorDivide: _arithmetic(lambda a, b: _floor(_quotient(a, b))),
    ops.Ln: _of_number(lambda x: within(x, 2.0**-1000, 2.0**1000).ln()),
    ops.Log10: lambda node, engine: call(
        "log" if engine == "postgres" else "log10",  # which is written there as log(10, x)
        within(_number(node.arg, engine), 2.0**-1000, 2.0**1000),
        returns=dt.float64,
    ),
    ops.Modulus: _rest,
    ops.Multiply: _arithmetic(lambda a, b: a * b),
    ops.Negate: _of_number(lambda x: double(0.0) - x),
    ops.Round: _rounded,
    ops.Sqrt: _of_number(lambda x: within(x, 0.0, 2.0**1000).sqrt()),
    ops.Subtract: _arithmetic(lambda a, b: a - b),
    ops.TimestampDelta: _difference,
    ops.TimestampTruncate: _truncated,
    ops.TryCast: _cast,
}
"""The operations that are written anew, each with its form; their arguments are total already."""

CONSTANT: dict[Any, dict[str, range | None]] = {
    ops.Round: {"digits": range(-_MOST_DIGITS, _MOST_DIGITS + 1)},
    ops.StrRight: {"nchars": range(2**31)},
    ops.StringReplace: {"pattern": None, "replacement": None},
    ops.Substring: {"start": range(2**31), "length": range(2**31)},
}
"""Arguments that must be constants, because an engine fails on some values of them."""


def finished(value: ir.Value, dtype: dt.DataType) -> ir.Value:
    """A computed number in the type that it was announced in; NULL if it has none there."""
    if dtype.is_floating() or dtype.is_decimal():
        return within(as_double(value), -_FAR, _FAR)
    if dtype.is_integer() and value.type().is_floating():
        return whole(value).cast("int64")
    return value


Predicate = Callable[[ir.Table], ir.BooleanValue]

_COMPARISONS = (
    *(ops.Between, ops.Equals, ops.Greater, ops.GreaterEqual, ops.IdenticalTo, ops.InValues),
    *(ops.Less, ops.LessEqual, ops.NotEquals),
)
_BOUND = (*_COMPARISONS, ops.IsNull, ops.NotNull)
_TOTAL = (
    *_BOUND,
    *(ops.Alias, ops.Literal, ops.And, ops.Not, ops.Or, ops.Xor, ops.IsInf, ops.IsNan),
    *(ops.Lowercase, ops.Uppercase, ops.LStrip, ops.RStrip, ops.Strip, ops.StringLength),
    *(ops.StartsWith, ops.EndsWith, ops.StringContains, ops.StringConcat, ops.StringReplace),
    *(ops.StrRight, ops.Substring),
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
    """The condition in a form that cannot fail; an error if it looks at more than one row."""
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
    """Check that a value looks at one row at a time, and return it in a form that cannot fail."""
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
    except (UnlistedError, IbisError) as error:
        raise ValueError(
            f"Expected {argument} to look at one row at a time, with operations that cannot fail, "
            f"got {error}: one record could then decide about the rows of others, or whether there "
            "is an answer. Compare columns with constants of their own type, and combine that with "
            "&, | and ~; in an ibis table you can add a column for anything else."
        ) from None
    if computed:
        value = finished(value, dtype)
    if engine == "duckdb":
        value = tried(value)
    elif argument != "where":  # a filter is left as it is, so that an index may serve it
        value = _closed(value.op()).to_expr()
    check_bound(table.select(value=value), argument)
    return value


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
        if type(made) in _ONE_KIND and any(
            each.dtype.is_floating() or each.dtype.is_decimal() for each in _chosen(made)
        ):
            # DuckDB would compute in FLOAT, or in DECIMAL, which overflows.
            made = _changed(made, _double, _ONE_KIND[type(made)])
        if type(made) in _COMPARISONS and _too_wide(made):
            made = _changed(made, _double)
        return _changed(made, _closed) if isinstance(made, _BOUND) else made

    return replaced


def _too_wide(node: Any) -> bool:
    """Whether no decimal has the digits of all values that are compared, as DuckDB has them."""
    types = [each.dtype for each in _children(node)]
    # DuckDB reads a cast to decimal as one to DECIMAL(18, 3).
    decimals = [each for each in types if each.is_decimal()]
    digits = [(each.precision or 18, 3 if each.scale is None else each.scale) for each in decimals]
    wholes = [every - after for every, after in digits]
    wholes += [20 for each in types if each.is_integer()]
    return bool(decimals) and max(wholes) + max(after for _, after in digits) > 38


def _changed(node: Any, change: Callable[[Any], Any], but: tuple[str, ...] = ()) -> Any:
    """A node with its arguments changed, each value in a list as well."""

    def changed(given: Any) -> Any:
        if isinstance(given, tuple):
            return tuple(map(changed, given))
        return change(given) if isinstance(given, ops.Value) else given

    named = zip(node.__argnames__, node.__args__, strict=True)
    return node.__recreate__({name: each if name in but else changed(each) for name, each in named})


def _double(value: Any) -> Any:
    return as_double(value).op() if value.dtype.is_numeric() else value


def _closed(value: Any) -> Any:
    """A condition that is compared: ibis writes no parentheses around NOT, IN, BETWEEN or IS."""
    computed = value.dtype.is_boolean() and not isinstance(value, ops.Field | ops.Literal)
    return ops.Coalesce((value,)) if computed else value


def _chosen(node: Any) -> list[Any]:
    """The values among which a node chooses one."""
    skipped = {id(each) for name in _ONE_KIND[type(node)] for each in _several(getattr(node, name))}
    return [child for child in _children(node) if id(child) not in skipped]


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
        if (given := getattr(node, name)) is None:
            continue
        if not isinstance(given, ops.Literal):
            raise UnlistedError(f"{kind.__name__} by a value that is no constant")
        if allowed is not None and given.value not in allowed:
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


def _kind(dtype: dt.DataType) -> str | None:
    if dtype.is_numeric() and not dtype.is_boolean():
        return "number"
    for name in ("boolean", "string", "binary", "date", "timestamp", "uuid"):
        if getattr(dtype, f"is_{name}")():
            return name
    return None


def _several(argument: Any) -> tuple[Any, ...]:
    return argument if isinstance(argument, tuple) else (argument,)


def _children(node: Any) -> list[Any]:
    given = (each for argument in node.__args__ for each in _several(argument))
    return [each for each in given if isinstance(each, Node)]
