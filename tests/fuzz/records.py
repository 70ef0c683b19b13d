"""Records for `neighbours`: types, odd values of each, and the containers that hold them."""

import contextlib
import csv
import datetime as dt
import decimal
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

_EPOCH = dt.datetime(1970, 1, 1)
_DAY = 86_400_000_000


@attrs.frozen
class Type:
    """A type of a column.

    Attributes:
        name: Its name.
        arrow: The name of its type in Arrow, with its arguments.
        plain: The value of an ordinary record, as Arrow stores it.
        odd: Values of odd records that the type can hold, besides NULL.
        python: What a Python list or a frame holds instead of what Arrow stores.
        length: A length in the unit of the values: a proposal, a tolerance.
    """

    name: str
    arrow: tuple[Any, ...]
    plain: Callable[[int], Any]
    odd: Sequence[Any]
    python: Callable[[Any], Any] = lambda value: value
    length: Any = 3

    @property
    def numeric(self) -> bool:
        return self.name in ("int", "float32", "float64", "decimal")

    @property
    def textual(self) -> bool:
        return self.name in ("text", "category")


def _day(days: Any) -> Any:
    with contextlib.suppress(OverflowError):
        return (_EPOCH + dt.timedelta(days=days)).date()
    return str(np.datetime64(days, "D"))


def _moment(microseconds: Any) -> Any:
    with contextlib.suppress(OverflowError):
        return _EPOCH + dt.timedelta(microseconds=microseconds)
    return str(np.datetime64(microseconds, "us"))


def _interval(microseconds: Any) -> Any:
    return dt.timedelta(microseconds=microseconds)


_FLOATS = (math.nan, math.inf, -math.inf, 5e-324, -0.0, 1e9)
TYPES = {
    each.name: each
    for each in (
        Type("int", ("int64",), lambda i: i % 11, (2**63 - 1, -(2**63), 2**53 + 1)),
        Type("float32", ("float32",), lambda i: i % 11 + 0.25, (*_FLOATS, 3e38)),
        Type("float64", ("float64",), lambda i: i % 11 + 0.25, (*_FLOATS, 1.7e308)),
        Type(
            "decimal",
            ("decimal128", 18, 2),
            lambda i: decimal.Decimal(i % 11),
            (decimal.Decimal(10**15), decimal.Decimal("-0.01")),
        ),
        Type("bool", ("bool_",), lambda i: i % 3 == 0, (), length=0.25),
        Type(
            "date",
            ("date32",),
            lambda i: 19000 + i % 11,
            (2**31 - 1, -(2**31) + 1, 10**8, -800_000, 3_000_000),
            _day,
            dt.timedelta(days=3),
        ),
        Type(
            "timestamp",
            ("timestamp", "us"),
            lambda i: 19000 * _DAY + i % 11 * _DAY,
            (2**63 - 1, -(2**63) + 1, 2**62, -62_135_596_800_000_000 - _DAY),
            _moment,
            dt.timedelta(days=3),
        ),
        Type(
            "duration",
            ("duration", "us"),
            lambda i: i % 11 * 1_000_000,
            (2**63 - 1, -(2**62), 0),
            _interval,
            dt.timedelta(seconds=3),
        ),
        Type("text", ("string",), lambda i: "abcab"[i % 5], ("", "é", "1", "nan", "x" * 5000)),
        Type(
            "category",
            ("dictionary", "int32", "string"),
            lambda i: "abcab"[i % 5],
            ("", "another"),
        ),
    )
}
WRONG = ("x", "", "infinity", "-infinity", "1e400", 2**70, math.nan, True, 1j, (1, 2), object)
"""Values of another type, where nothing declares one."""


class UnrepresentableError(Exception):
    """The container cannot hold these records."""


# ---- containers ------------------------------------------------------------------------------

Rows = list[dict[str, Any]]
"""Records: the value v, another number w, a privacy unit u and a group g."""


def _arrow_type(kind: Type) -> Any:
    import pyarrow as pa

    name, *given = kind.arrow
    return getattr(pa, name)(
        *(getattr(pa, g)() if isinstance(g, str) and g != "us" else g for g in given)
    )


def _arrow(rows: Rows, kind: Type) -> Any:
    import pyarrow as pa

    wide, stored = _arrow_type(kind), None
    if pa.types.is_date32(wide):
        stored = pa.int32()
    elif pa.types.is_timestamp(wide) or pa.types.is_duration(wide):
        stored = pa.int64()
    try:
        found = pa.array(
            [row["v"] for row in rows], stored or (pa.string() if kind.name == "category" else wide)
        )
        values = found.dictionary_encode() if kind.name == "category" else found.cast(wide)
        return pa.table(
            {
                "v": values,
                "w": pa.array([row["w"] for row in rows], pa.int64()),
                "u": pa.array([row["u"] for row in rows], pa.int64()),
                "g": pa.array([row["g"] for row in rows], pa.string()),
            }
        )
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UnrepresentableError from error


def _python(rows: Rows, kind: Type) -> Rows:
    """What Arrow stores as what Python has; values of another type stay as they are."""

    def shown(value: Any) -> Any:
        stored = isinstance(value, int) and not isinstance(value, bool)
        with contextlib.suppress(OverflowError):
            return kind.python(value) if stored else value
        return value

    return [{**row, "v": shown(row["v"])} for row in rows]


def _list(rows: Rows, kind: Type, folder: Path) -> Any:
    return {"data": [row["v"] for row in _python(rows, kind)]}


DTYPES = {"int": "i8", "float32": "f4", "float64": "f8", "bool": "?", "date": "M8[D]"}
DTYPES |= {"timestamp": "M8[us]", "duration": "m8[us]"}


def _numpy(rows: Rows, kind: Type, folder: Path, *, masked: bool = False) -> Any:
    values = [row["v"] for row in rows]
    absent = [value is None for value in values]
    if kind.name not in DTYPES or (any(absent) and not masked):
        raise UnrepresentableError
    try:
        plain = [kind.plain(0) if none else v for v, none in zip(values, absent, strict=True)]
        dtype = np.dtype(DTYPES[kind.name])
        stored = np.array(plain, "i8" if dtype.kind in "Mm" else dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise UnrepresentableError from error
    found = stored.astype(dtype)
    return {"data": np.ma.masked_array(found, absent) if masked else found}


def _masked(rows: Rows, kind: Type, folder: Path) -> Any:
    return _numpy(rows, kind, folder, masked=True)


def _pandas(rows: Rows, kind: Type, folder: Path) -> Any:
    import pandas as pd

    found = pd.DataFrame(_python(rows, kind))
    if kind.name == "category":
        found["v"] = found["v"].astype("category")
    return {"data": found}


def _declared_pandas(rows: Rows, kind: Type, folder: Path) -> Any:
    import pandas as pd

    return {"data": _arrow(rows, kind).to_pandas(types_mapper=pd.ArrowDtype)}


def _polars(rows: Rows, kind: Type, folder: Path) -> Any:
    import polars as pl

    return {"data": pl.from_arrow(_arrow(rows, kind))}


def _parquet(rows: Rows, kind: Type, folder: Path) -> Any:
    import pyarrow.parquet as pq

    path = folder / "rows.parquet"
    pq.write_table(_arrow(rows, kind), path)
    return {"data": str(path)}


def _csv(rows: Rows, kind: Type, folder: Path) -> Any:
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, list("vwug"))
        out.writeheader()
        out.writerows(_python(rows, kind))
    return {"data": str(path)}


def _duckdb(rows: Rows, kind: Type, folder: Path) -> Any:
    import duckdb

    path = folder / "rows.duckdb"
    path.unlink(missing_ok=True)
    with duckdb.connect(str(path)) as connection:
        made = _arrow(rows, kind)  # noqa: F841, DuckDB finds it by its name
        try:
            connection.execute("CREATE TABLE rows AS SELECT * FROM made")
        except duckdb.Error as error:
            raise UnrepresentableError from error
    return {"connect": f"duckdb://{path}", "table": "rows"}


def _postgres(rows: Rows, kind: Type, folder: Path) -> Any:
    """A table of the server whose address is in `PRUDENT_TEST_POSTGRES`."""
    import psycopg

    address, of_type = os.environ["PRUDENT_TEST_POSTGRES"], POSTGRES.get(kind.name)
    if of_type is None:
        raise UnrepresentableError
    values = [(*map(row.get, "wug"), row["v"]) for row in _python(rows, kind)]
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS rows")
        connection.execute(f"CREATE TABLE rows (w bigint, u bigint, g text, v {of_type})")
        try:
            with connection.cursor() as cursor:
                cursor.executemany("INSERT INTO rows VALUES (%s, %s, %s, %s)", values)
        except psycopg.Error as error:
            raise UnrepresentableError from error
    return {"connect": address, "table": "rows"}


POSTGRES = {"int": "bigint", "float32": "real", "float64": "double precision", "bool": "boolean"}
POSTGRES |= {"decimal": "numeric", "date": "date", "timestamp": "timestamp", "text": "text"}
POSTGRES |= {"duration": "interval"}
INFINITE = {"postgres": ("infinity", "-infinity")}
"""Values of dates and timestamps that only the text of a server holds."""

CONTAINERS: dict[str, Callable[[Rows, Type, Path], dict[str, Any]]] = {
    "list": _list,
    "numpy": _numpy,
    "masked": _masked,
    "pandas": _pandas,
    "declared pandas": _declared_pandas,
    "polars": _polars,
    "arrow": lambda rows, kind, folder: {"data": _arrow(rows, kind)},
    "parquet": _parquet,
    "csv": _csv,
    "duckdb": _duckdb,
    "postgres": _postgres,
}
HERE = tuple(each for each in CONTAINERS if each != "postgres")
"""Those that need no server."""
ARRAYS = ("numpy", "masked")
COLUMNS_ONLY = ("list", "numpy", "masked")
UNTYPED = ("list", "pandas", "csv")


# ---- records of models -----------------------------------------------------------------------

ODD_ROWS = (
    *((math.nan, 0.5), (math.inf, -math.inf), (1.7e308, 0.5), (5e-324, 0.5), (1e9, -1e9)),
    *((None, 0.5), ("x", 0.5), (0.5, 0.5, 0.5), (0.5,), (), None, "x", (2**70, True), (1j, 0.5)),
)
ODD_LABELS = (0, 1, 7, -1, math.nan, None, "x", 2**70, 0.5, True, (0, 1))


def _array(rows: Sequence[Any]) -> Any:
    """An array of double precision, if each row has two numbers that fit into one."""
    try:
        found = np.array([tuple(row) for row in rows], float)
    except (TypeError, ValueError, OverflowError) as error:
        raise UnrepresentableError from error
    if found.shape != (len(rows), 2):
        raise UnrepresentableError
    return found


def _labels(labels: Sequence[Any]) -> Any:
    try:
        return np.array(labels, np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise UnrepresentableError from error


def _frame(rows: Sequence[Any]) -> Any:
    import pandas as pd

    if any(not isinstance(row, tuple) or len(row) != 2 for row in rows):
        raise UnrepresentableError
    return pd.DataFrame([tuple(row) for row in rows], columns=["a", "b"])


def _series(labels: Sequence[Any]) -> Any:
    import pandas as pd

    return pd.Series(list(labels))


def _arrow_frame(rows: Sequence[Any]) -> Any:
    import pyarrow as pa

    found = _array(rows)
    absent = np.isnan(found)
    return pa.table({name: pa.array(found[:, j], mask=absent[:, j]) for j, name in enumerate("ab")})


OF_MODELS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "list": (list, list),
    "numpy": (_array, _labels),
    "masked": (lambda rows: np.ma.masked_invalid(_array(rows)), _labels),
    "pandas": (_frame, _series),
    "arrow": (_arrow_frame, _labels),
}
