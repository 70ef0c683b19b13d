"""What columns of every type can store: for each engine and type a usual value and odd ones.

A table has the columns `c`, all of whose records are usual, `x`, plain numbers, and `id`, a person
with three rows. Its neighbours have one record more, with something odd in `c`.
"""

import datetime
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet

ROWS = 120
"""Records of the table without an odd one: a multiple of three, and enough for every test."""

Place = Any
"""Where an engine keeps its tables: a folder, the address of a server, a session."""


@attrs.frozen
class Table:
    """A table as a statistic takes it."""

    source: Mapping[str, Any]
    named: bool = True

    def of(self, column: str) -> dict[str, Any]:
        """The arguments that name one of its columns; an array has no names."""
        return {**self.source, "column": column} if self.named else dict(self.source)


@attrs.frozen
class Kind:
    """A column type of an engine.

    Attributes:
        engine: The name of the engine, in `ENGINES`.
        name: The name of the type.
        usual: A value, as the engine's loader takes it.
        odd: Values of one record that a neighbour has more. None is NULL.
        value: The usual value as a public one: in a list of categories or of groups.
        ends: Public bounds on the values, if they are not those of numbers.
        read_as: The declared type of a text.
    """

    engine: str
    name: str
    usual: Any
    odd: Sequence[Any]
    value: Any = "a"
    ends: tuple[Any, Any] = (0, 100)
    read_as: str | None = None

    def __str__(self) -> str:
        return f"{self.engine} {self.name}"

    @property
    def text(self) -> bool:
        """Whether the records are texts."""
        return bool(self.value == "a")

    @property
    def numeric(self) -> bool:
        """Whether the records have numbers."""
        known = isinstance(self.value, float | int | datetime.date | datetime.timedelta)
        return self.read_as is not None or (known and self.value is not True)

    def loaded(self, odd: Sequence[Any], place: Place) -> Table:
        """Make the table, with these odd records after the usual ones."""
        return ENGINES[self.engine](self, odd, place)

    @property
    def records(self) -> list[Any]:
        """One odd record after the other: NULL, where there is one, and those of this type."""
        null = [] if self.engine in _WITHOUT_NULL or self.name in _WITHOUT_NULL else [None]
        return null + [each for each in self.odd if each is not None]


_WITHOUT_NULL = (
    "csv",
    "tsv",
    "numpy",
    "bool",
    "uint64",
    "float32",
    "float64",
    "complex128",
    "sparse",
)


def numbers(count: int) -> list[float]:
    """The column `x`."""
    return [50.0 + (i % 7) / 8 for i in range(ROWS)] + [50.0] * (count - ROWS)


def persons(count: int) -> list[int]:
    """The column `id`: every odd record is a person of its own, after those with three rows."""
    return [i // 3 for i in range(ROWS)] + list(range(ROWS, count))


DAY = datetime.date(2024, 1, 1)
DAYS = (datetime.date(2020, 1, 1), datetime.date(2030, 1, 1))
MOMENTS = (datetime.datetime(2020, 1, 1), datetime.datetime(2030, 1, 1))
SPANS = (datetime.timedelta(0), datetime.timedelta(days=9))
TEXTS = ["", " ", "A", "a\x00b", "\x1b[2J", "\u202eabc", "\ufeff", "é", "e\u0301", "\U0010ffff"]
TEXTS += ["'; DROP TABLE t; --", "NaN", "1e999", "\r\n", "a" * 100_000]
FLOATS = ["inf", "-inf", "nan", "-0.0", "5e-324", "-1.7976931348623157e308"]


# --- engines that take SQL ------------------------------------------------------------------------


def in_duckdb(kind: Kind, odd: Sequence[Any], place: Place) -> Table:
    path = place / f"{uuid.uuid4().hex}.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('z', 'a')")
        connection.execute(f"CREATE TABLE t (c {kind.name}, x DOUBLE, id INT)")
        for value, count in [(kind.usual, ROWS), *((each, 1) for each in odd)]:
            value = "NULL" if value is None else value
            connection.execute(
                f"INSERT INTO t SELECT {value}, 50 + (i % 7) / 8, "
                f"CASE WHEN {count} > 1 THEN i // 3 ELSE (SELECT max(id) + 1 FROM t) END "
                f"FROM range({count}) AS r(i)"
            )
    return Table({"data": path, "table": "t"})


def texts(values: Sequence[str], zero: str = "chr(0)") -> list[str]:
    """SQL literals; a zero character needs a function."""
    return [
        "("
        + f" || {zero} || ".join("'" + part.replace("'", "''") + "'" for part in value.split("\0"))
        + ")"
        for value in values
    ]


DUCKDB_MOMENTS = [
    "'infinity'",
    "'-infinity'",
    "'0044-03-15 (BC)'",
    "'10000-01-01'",
    "'290000-01-01'",
]
_duckdb: list[tuple[Any, ...]] = [
    (
        "DATE",
        "'2024-01-01'",
        [*DUCKDB_MOMENTS, "'5877642-06-25 (BC)'", "'5881580-07-10'"],
        DAY,
        DAYS,
    ),
    *(
        (
            name,
            "'2024-01-01'",
            [*DUCKDB_MOMENTS, "'290308-12-22 (BC)'", "'294246-01-10 04:00:54.775806'"],
            DAY,
            MOMENTS,
        )
        for name in ("TIMESTAMP", "TIMESTAMPTZ")
    ),
    ("TIMESTAMP_S", "'2024-01-01'", [*DUCKDB_MOMENTS[2:], "'infinity'::TIMESTAMP"], DAY, MOMENTS),
    ("TIMESTAMP_MS", "'2024-01-01'", DUCKDB_MOMENTS[2:], DAY, MOMENTS),
    (
        "TIMESTAMP_NS",
        "'2024-01-01'",
        ["'2024-01-01 00:00:00.123456789'", "'infinity'", "'-infinity'", "'1678-01-01'"],
        DAY,
        MOMENTS,
    ),
    ("TIME", "'12:00:00'", ["'24:00:00'", "'00:00:00'"]),
    ("TIMETZ", "'12:00:00+01'", ["'23:59:59-15:59'", "'00:00:00+15:59'"]),
    (
        "INTERVAL",
        "to_hours(3)",
        [
            "to_months(2147483647)",
            "to_months(-2147483648)",
            "to_microseconds(9223372036854775807)",
            "to_days(2147483647)",
            "to_months(1) - to_days(30)",
        ],
        datetime.timedelta(hours=3),
        SPANS,
    ),
    ("DECIMAL(38,10)", "1.5", ["'-9999999999999999999999999999.9999999999'", "0.0000000001"], 1.5),
    ("DECIMAL(38,38)", "0.5", ["'0.99999999999999999999999999999999999999'"], 0.5),
    ("DECIMAL(4,1)", "1.5", ["999.9", "-999.9"], 1.5),
    ("HUGEINT", "7", [str(2**127 - 1), str(-(2**127) + 1)], 7),
    ("UHUGEINT", "7", [f"'{2**128 - 1}'"], 7),
    ("UBIGINT", "7", [str(2**64 - 1), str(2**63), str(2**53 + 1)], 7),
    ("BIGINT", "7", [str(2**63 - 1), f"'{-(2**63)}'", str(2**53 + 1)], 7),
    ("TINYINT", "7", ["127", "-128", "0"], 7),
    ("DOUBLE", "1.5", [f"'{each}'" for each in FLOATS], 1.5),
    ("FLOAT", "1.5", ["'inf'", "'-inf'", "'nan'", "'-0.0'", "'1e-45'", "'3.4028235e38'"], 1.5),
    ("BOOLEAN", "true", ["false"], True),
    ("VARCHAR", "'a'", texts(TEXTS)),
    ("VARCHAR COLLATE NOCASE", "'a'", ["'A'"]),
    ("BLOB", "'a'", ["'\\xFF'", "'\\x00'", "''"]),
    ("UUID", f"'{uuid.UUID(int=7)}'", [f"'{uuid.UUID(int=2**128 - 1)}'", f"'{uuid.UUID(int=0)}'"]),
    ("BIT", "'101'", ["'0'", "'" + "1" * 5000 + "'"]),
    ("mood", "'a'", ["'z'"]),
    ("VARCHAR[]", "['a']", ["[]", "[NULL]", "['b', chr(0)]"]),
    ("STRUCT(k INTEGER, s VARCHAR)", "{'k': 1, 's': 'a'}", ["{'k': NULL, 's': NULL}"]),
    ("MAP(VARCHAR, INTEGER)", "MAP {'a': 1}", ["MAP {}"]),
    ("UNION(n INTEGER, s VARCHAR)", "7", ["'b'"]),
    ("JSON", """'{"a": 1}'""", ["'null'", "'[1e999]'"]),
    ("BIGNUM", "7", [f"'{10**300}'", f"'-{10**400}'"], 7),
]


def in_postgres(kind: Kind, odd: Sequence[Any], place: Place) -> Table:
    import psycopg

    name = f"odd_{uuid.uuid4().hex}"
    dtype = kind.name.replace("mood", f"{name}_mood")
    with psycopg.connect(place) as connection:
        connection.execute(f"CREATE TYPE {name}_mood AS ENUM ('z', 'a')")
        connection.execute(f"CREATE TABLE {name} (c {dtype}, x float8, id int)")
        connection.execute(
            f"INSERT INTO {name} SELECT {kind.usual}, 50 + (i % 7) / 8.0, i / 3 "
            f"FROM generate_series(0, {ROWS - 1}) AS i"
        )
        for index, value in enumerate(odd):
            value = "NULL" if value is None else value
            connection.execute(f"INSERT INTO {name} VALUES ({value}, 50.0, {ROWS + index})")
    return Table({"connect": place, "table": name})


POSTGRES_MOMENTS = [
    "'infinity'",
    "'-infinity'",
    "'0044-03-15 BC'",
    "'10000-01-01'",
    "'290000-01-01'",
    "'4713-01-01 BC'",
]
NUMERICS = [
    "'NaN'",
    "'Infinity'",
    "'-Infinity'",
    "1e50",
    "1e400",
    "1e-400",
    "-1e131000",
    f"0.{'1' * 29}",
    "1.500",
]
_postgres: list[tuple[Any, ...]] = [
    ("date", "'2024-01-01'", [*POSTGRES_MOMENTS, "'5874897-12-31'"], DAY, DAYS),
    *(
        (name, "'2024-01-01'", [*POSTGRES_MOMENTS, "'294276-12-31 23:59:59.999999'"], DAY, MOMENTS)
        for name in ("timestamp", "timestamptz")
    ),
    ("time", "'12:00'", ["'24:00'", "'00:00'"]),
    ("timetz", "'12:00+01'", ["'24:00:00-15:59'", "'00:00+15:59'"]),
    (
        "interval",
        "interval '3 hours'",
        [
            "interval '178000000 years'",
            "interval '-178000000 years 3 days'",
            "interval '1 month -30 days'",
            "make_interval(secs => 9.2e12)",
            "make_interval(days => 2147483647)",
        ],
        datetime.timedelta(hours=3),
        SPANS,
    ),
    ("numeric", "1.5", NUMERICS, 1.5),
    ("numeric(9,3)", "1.5", ["'NaN'", "999999.999"], 1.5),
    ("numeric(38,0)", "7", ["9" * 38, "'NaN'"], 7),
    ("numeric(1000,2)", "1.5", ["1e500", "-1e900", "'NaN'"], 1.5),
    ("numeric(1000,400)", "1.5", ["1e500", "1e-400"], 1.5),
    ("numeric(3,-2)", "700", ["99900"], 700),
    ("float8", "1.5", [f"'{each}'" for each in FLOATS], 1.5),
    ("float4", "1.5", ["'inf'", "'-inf'", "'nan'", "'-0'", "'1e-45'", "'3.4028235e38'"], 1.5),
    ("bigint", "7", [str(2**63 - 1), f"'{-(2**63)}'", str(2**53 + 1)], 7),
    ("smallint", "7", ["32767", "0"], 7),
    ("boolean", "true", ["false"], True),
    ("text", "'a'", texts([each for each in TEXTS if "\0" not in each])),
    ('text COLLATE "en-x-icu"', "'a'", ["'A'", "'é'", "E'e\\u0301'"]),
    ("char(3)", "'a'", ["''", "'abc'", "' a'"]),
    ("bytea", "'a'", ["'\\xff'", "'\\x00'", "''"]),
    ("uuid", f"'{uuid.UUID(int=7)}'", [f"'{uuid.UUID(int=2**128 - 1)}'"]),
    ("mood", "'a'", ["'z'"]),
    ("int[]", "'{1}'", ["'{}'", "'{NULL}'", "'{{1,2},{3,4}}'"]),
    ("text[]", "'{a}'", ["'{}'", "'{NULL}'"]),
    ("json", "'{}'", ["'null'", "'[1e999]'"]),
    ("jsonb", "'{}'", ["'null'", "'[1e300]'"]),
    ("inet", "'127.0.0.1'", ["'::1'", "'10.0.0.0/8'"]),
    ("bit varying", "'101'", ["''"]),
    ("money", "'1.50'", ["'-92233720368547758.08'"]),
    ("int4range", "'[1,2)'", ["'empty'", "'(,)'"]),
    ("point", "'(1,2)'", ["'(NaN,inf)'"]),
]


def in_spark(kind: Kind, odd: Sequence[Any], place: Place) -> Table:
    parts = [
        f"SELECT CAST({kind.usual} AS {kind.name}) AS c, 50 + (id % 7) / 8D AS x, "
        f"CAST(id DIV 3 AS INT) AS id FROM range({ROWS})"
    ]
    for index, value in enumerate(odd):
        value = "NULL" if value is None else value
        parts.append(f"SELECT CAST({value} AS {kind.name}), 50D, CAST({ROWS + index} AS INT)")
    return Table({"data": place.sql(" UNION ALL ".join(parts))})


_spark: list[tuple[Any, ...]] = [
    (
        "DATE",
        "DATE'2024-01-01'",
        [
            "DATE'0001-01-01' - 800000",
            "date_add(DATE'1970-01-01', 2147483647)",
            "date_add(DATE'1970-01-01', -2147483648)",
        ],
        DAY,
        DAYS,
    ),
    *(
        (
            name,
            "'2024-01-01'",
            [
                "timestamp_micros(9223372036854775807)",
                "timestamp_micros(-9223372036854775808)",
                "'0001-01-01'",
                "'10000-01-01'",
            ],
            DAY,
            MOMENTS,
        )
        for name in ("TIMESTAMP", "TIMESTAMP_NTZ")
    ),
    (
        "DECIMAL(38,10)",
        "1.5",
        ["9999999999999999999999999999.9999999999BD", "-0.0000000001BD"],
        1.5,
    ),
    ("BIGINT", "7", ["9223372036854775807", "-9223372036854775807L - 1"], 7),
    (
        "DOUBLE",
        "1.5D",
        [
            f"DOUBLE('{each}')"
            for each in (
                "Infinity",
                "-Infinity",
                "NaN",
                "-0.0",
                "4.9E-324",
                "-1.7976931348623157E308",
            )
        ],
        1.5,
    ),
    (
        "FLOAT",
        "1.5F",
        ["FLOAT('Infinity')", "FLOAT('NaN')", "FLOAT('-0.0')", "FLOAT('1e-45')"],
        1.5,
    ),
    ("BOOLEAN", "true", ["false"], True),
    ("STRING", "'a'", ["''", "'A'", "CAST(X'FF' AS STRING)", "CAST(X'00' AS STRING)", "'é'"]),
    ("BINARY", "X'61'", ["X'FF'", "X''"]),
    ("ARRAY<STRING>", "array('a')", ["array()", "array(NULL)"]),
    ("STRUCT<k: STRING>", "struct('a')", ["struct(NULL)"]),
    (
        "INTERVAL DAY TO SECOND",
        "INTERVAL '3' HOUR",
        ["INTERVAL '106751991' DAY", "INTERVAL '-106751991' DAY"],
    ),
    ("INTERVAL YEAR TO MONTH", "INTERVAL '3' MONTH", ["INTERVAL '178956970' YEAR"]),
]


# --- arrays, frames and files ---------------------------------------------------------------------


@attrs.frozen
class Bits:
    """An Arrow type whose values are given as stored bits: a foreign writer validates nothing."""

    dtype: pa.DataType
    storage: pa.DataType | None = None

    def array(self, values: Sequence[Any]) -> pa.Array:
        if isinstance(self.dtype, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(
                self.dtype, Bits(self.dtype.storage_type, self.storage).array(values)
            )
        if pa.types.is_dictionary(self.dtype):
            words = list(dict.fromkeys(each for each in values if each is not None))
            places = [None if each is None else words.index(each) for each in values]
            held = pa.array(words, self.storage).view(self.dtype.value_type)
            return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), held)
        if pa.types.is_decimal(self.dtype) and isinstance(
            next((v for v in values if v is not None), None), int
        ):
            width = self.dtype.byte_width
            raw = [
                None if each is None else each.to_bytes(width, "little", signed=True)
                for each in values
            ]
            held = pa.array(raw, pa.binary(width))
            return pa.Array.from_buffers(self.dtype, len(values), held.buffers())
        if pa.types.is_list(self.dtype):
            flat = [each for value in values if value is not None for each in value]
            ends = np.cumsum([0] + [0 if value is None else len(value) for value in values])
            child = Bits(self.dtype.value_type, self.storage).array(flat)
            mask = pa.array([value is None for value in values])
            return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), child, mask=mask)
        if pa.types.is_struct(self.dtype):
            child = Bits(self.dtype.field(0).type, self.storage).array(values)
            return pa.StructArray.from_arrays([child], fields=[self.dtype.field(0)])
        if self.storage is None:
            return pa.array(values, self.dtype)
        return pa.array(values, self.storage).view(self.dtype)


BAD = b"caf\xe9"
WORDS = [each.encode() for each in TEXTS] + [BAD, b"\xed\xa0\x80", b"\xff\xfe"]
MOST, LEAST = 2**63 - 1, -(2**63)
FAR = 2**62
SECOND = 1_704_067_200


def _bits() -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []

    def add(
        dtype: pa.DataType, usual: Any, odd: Sequence[Any], storage: Any = None, **more: Any
    ) -> None:
        found.append((Bits(dtype, storage), usual, odd, more))

    add(pa.bool_(), True, [False], value=True)
    for width in (8, 64):
        add(
            getattr(pa, f"int{width}")(), 7, [2 ** (width - 1) - 1, -(2 ** (width - 1)), 0], value=7
        )
        add(getattr(pa, f"uint{width}")(), 7, [2**width - 1, 0], value=7)
    floats = [float(each) for each in FLOATS]
    add(pa.float64(), 1.5, floats, value=1.5)
    add(pa.float32(), 1.5, [*floats[:4], 1e-45, 3.4028234663852886e38], value=1.5)
    add(
        pa.float16(),
        np.float16(1.5),
        [np.float16(each) for each in ("inf", "nan", "-0.0", "6e-8")],
        value=1.5,
    )
    for dtype in (
        pa.decimal128(5, 2),
        pa.decimal128(18, 0),
        pa.decimal128(38, 10),
        pa.decimal32(5, 2),
        pa.decimal64(18, 3),
        pa.decimal256(60, 2),
    ):
        width = 8 * dtype.byte_width
        odd = [
            10**dtype.precision - 1,
            -(10**dtype.precision) + 1,
            10**dtype.precision,
            2 ** (width - 1) - 1,
            -(2 ** (width - 1)),
        ]
        add(dtype, 150, odd, value=1.5)
    add(pa.date32(), 19_723, [2**31 - 1, -(2**31), -800_000], pa.int32(), value=DAY, ends=DAYS)
    add(pa.date64(), 19_723 * 86_400_000, [FAR, LEAST, MOST, 1], pa.int64(), value=DAY, ends=DAYS)
    for unit, each in {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.items():
        extremes = [MOST, LEAST, MOST - 1, LEAST + 1, FAR // each, -FAR // each, 1, -1]
        for zone in (None, "America/New_York"):
            add(
                pa.timestamp(unit, zone),
                SECOND * each,
                extremes,
                pa.int64(),
                value=DAY,
                ends=MOMENTS,
            )
        add(
            pa.duration(unit),
            3_600 * each,
            extremes,
            pa.int64(),
            value=datetime.timedelta(hours=1),
            ends=SPANS,
        )
    add(pa.time32("s"), 43_200, [86_400, -1, 2**31 - 1], pa.int32())
    add(pa.time32("ms"), 43_200_000, [86_400_000, -1, 2**31 - 1], pa.int32())
    add(pa.time64("us"), 43_200_000_000, [86_400_000_000, -1, MOST, LEAST], pa.int64())
    add(pa.time64("ns"), 43_200_000_000_000, [MOST, LEAST], pa.int64())
    interval = pa.MonthDayNano
    add(
        pa.month_day_nano_interval(),
        interval([0, 0, 10**9]),
        [interval([2**31 - 1, 2**31 - 1, MOST]), interval([-(2**31), 0, LEAST])],
        value=datetime.timedelta(seconds=1),
        ends=SPANS,
    )
    add(pa.string(), b"a", WORDS, pa.binary())
    add(pa.large_string(), b"a", WORDS, pa.large_binary())
    add(pa.string_view(), b"a", WORDS, pa.binary_view())
    add(pa.dictionary(pa.int32(), pa.string()), b"a", WORDS, pa.binary())
    add(
        pa.dictionary(pa.int32(), pa.timestamp("ms")),
        SECOND * 10**3,
        [MOST, LEAST],
        pa.int64(),
        value=DAY,
        ends=MOMENTS,
    )
    add(pa.binary(), b"a", WORDS)
    add(pa.binary_view(), b"a", WORDS)
    add(pa.binary(2), b"ab", [b"\xff\xff"])
    add(pa.list_(pa.string()), [b"a"], [[], [BAD], [None], [b"\0"]], pa.binary())
    add(pa.list_(pa.timestamp("ms")), [SECOND], [[MOST], [LEAST]], pa.int64())
    add(pa.struct([("k", pa.string())]), b"a", [BAD], pa.binary())
    add(pa.struct([("k", pa.timestamp("s"))]), SECOND, [MOST, LEAST], pa.int64())
    add(pa.map_(pa.string(), pa.int32()), [("a", 1)], [[], [("b", None)]])
    add(pa.uuid(), bytes(16), [b"\xff" * 16], pa.binary(16))
    add(pa.json_(), b"1", [b"{", BAD, b""], pa.binary())
    add(pa.bool8(), 1, [0, 7, -128], pa.int8(), value=True)
    add(pa.null(), None, [])
    return found


ARROW_BITS = {str(bits.dtype): bits for bits, *_ in _bits()}


def arrow_table(kind: Kind, odd: Sequence[Any]) -> pa.Table:
    values = [kind.usual] * ROWS + list(odd)
    column = ARROW_BITS[kind.name].array(values)
    return pa.table({"c": column, "x": numbers(len(values)), "id": persons(len(values))})


def in_arrow(kind: Kind, odd: Sequence[Any], _: Place) -> Table:
    return Table({"data": arrow_table(kind, odd)})


def in_parquet(kind: Kind, odd: Sequence[Any], place: Place) -> Table:
    path = place / f"{uuid.uuid4().hex}.parquet"
    pa.parquet.write_table(arrow_table(kind, odd), path)
    return Table({"data": path})


def in_pandas(kind: Kind, odd: Sequence[Any], _: Place) -> Table:
    values = [kind.usual] * ROWS + list(odd)
    if kind.name.startswith(("datetime64", "timedelta64")):
        column: Any = pandas.Series(
            np.array([0 if v is None else v for v in values]).view(
                kind.name.replace(", UTC", "")
                .replace("datetime64", "M8")
                .replace("timedelta64", "m8")
            )
        )
        column = column.mask([v is None for v in values])
        column = column.dt.tz_localize("UTC") if "UTC" in kind.name else column
    else:
        column = pandas.Series(values, dtype=object).astype(_PANDAS.get(kind.name, kind.name))
    return Table(
        {
            "data": pandas.DataFrame(
                {"c": column, "x": numbers(len(values)), "id": persons(len(values))}
            )
        }
    )


_PANDAS: dict[str, Any] = {
    "interval": object,
    "object of texts": object,
    "object of dates": object,
    "arrow string": pandas.ArrowDtype(pa.string()),
    "period": "period[D]",
    "sparse": pandas.SparseDtype(float),
}


class Hostile:
    """A record whose every method raises."""

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("secret")

    __str__ = __repr__ = __float__ = __int__ = __index__ = __eq__ = __lt__ = __hash__ = _raise  # type: ignore[assignment]
    __len__ = __iter__ = __bool__ = __array__ = _raise


class HostileFloat(float):
    """A number that cannot be converted or compared."""

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("secret")

    __float__ = __str__ = __repr__ = __eq__ = __ne__ = __lt__ = __gt__ = __hash__ = __add__ = _raise  # type: ignore[assignment]


class HostileText(str):
    """A text that cannot be compared."""

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("secret")

    __str__ = __repr__ = __eq__ = __ne__ = __lt__ = __gt__ = __hash__ = encode = _raise  # type: ignore[assignment]


class HostileDate(datetime.date):
    """A date without arithmetic."""

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("secret")

    __sub__ = __str__ = __eq__ = __ne__ = __lt__ = __gt__ = __hash__ = isoformat = _raise  # type: ignore[assignment]


class date(str):  # noqa: N801
    """A text whose type has the name of another."""


OBJECTS: list[Any] = [
    None, "secret", "\ud800", "a\0", 10**400, 10**5000, [1, 2], {}, (1,), {1}, Decimal("sNaN"),
    Decimal("NaN"), Decimal("1e999999"), Decimal("-Infinity"), object(), b"1", b"\xff", 1j,
    True, 1, 1.0, -0.0, 5e-324, float("nan"), float("inf"), np.float16("inf"),
    np.longdouble("1e4000"), np.int8(1), np.str_("a"), np.datetime64("NaT"),
    np.datetime64(2**62, "s"), np.timedelta64(1, "ns"), datetime.date.max, datetime.datetime.min,
    datetime.time(1, tzinfo=datetime.UTC), datetime.time(2),
    datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=23))),
    datetime.timedelta.max, uuid.UUID(int=0), np.array([1]), np.array([[1], [2]]), pandas.NaT,
    pandas.NA, pandas.Timestamp.max, Path("a"), date("a"),
    Hostile(), HostileFloat(1), HostileText("a"), HostileDate(2024, 1, 1),
]  # fmt: skip

_pandas: list[tuple[Any, ...]] = [
    ("object", 7, OBJECTS, "7"),
    ("object of texts", "a", OBJECTS),
    ("object of dates", DAY, OBJECTS, DAY, DAYS, "date"),
    ("category", 7, [None, "a", 1.5, ("a", 1), "\ud800", 10**30], "7"),
    ("string", "a", [None, *TEXTS, "\ud800"]),
    ("arrow string", "a", [None, *TEXTS]),
    ("float64", 1.5, [float(each) for each in FLOATS], 1.5),
    ("float32", 1.5, [np.inf, np.nan, -0.0], 1.5),
    ("Float64", 1.5, [None, np.inf, -0.0], 1.5),
    ("Int64", 7, [None, MOST, LEAST], 7),
    ("uint64", 7, [2**64 - 1, 2**53 + 1], 7),
    ("bool", True, [False], True),
    ("boolean", True, [None, False], True),
    ("complex128", 1.5, [np.nan, 2 + 1j], 1.5),
    ("period", "2024-01-01", [None, "0001-01-01", "9999-12-31"]),
    ("interval", pandas.Interval(0, 1), [pandas.Interval(0, 2), None]),
    ("sparse", 1.5, [np.nan, np.inf], 1.5),
    *(
        (
            f"datetime64[{unit}{zone}]",
            SECOND * each,
            [None, LEAST, FAR // 10**4 if zone else MOST, 1],
            DAY,
            MOMENTS,
        )
        for unit, each in {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.items()
        for zone in ("", ", UTC")
    ),
    *(
        (
            f"timedelta64[{unit}]",
            3_600 * each,
            [None, MOST, -MOST, 1],
            datetime.timedelta(hours=1),
            SPANS,
        )
        for unit, each in {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}.items()
    ),
]


def in_polars(kind: Kind, odd: Sequence[Any], _: Place) -> Table:
    values, (dtype, storage) = [kind.usual] * ROWS + list(odd), POLARS[kind.name]
    column = polars.Series(values, dtype=dtype if storage is None else storage, strict=False)
    frame = polars.DataFrame(
        {
            "c": column if storage is None else column.cast(dtype),
            "x": numbers(len(values)),
            "id": persons(len(values)),
        }
    )
    return Table({"data": frame.lazy() if kind.engine == "polars lazy" else frame})


POLARS: dict[str, tuple[Any, Any]] = {
    "Float64": (polars.Float64, None),
    "Float32": (polars.Float32, None),
    "Int64": (polars.Int64, None),
    "UInt64": (polars.UInt64, None),
    "Int128": (polars.Int128, None),
    "Boolean": (polars.Boolean, None),
    "String": (polars.String, None),
    "Categorical": (polars.Categorical, None),
    "Enum": (polars.Enum(["z", "a"]), None),
    "Binary": (polars.Binary, None),
    "Decimal": (polars.Decimal(38, 10), None),
    "Date": (polars.Date, polars.Int32),
    "Time": (polars.Time, None),
    **{f"Datetime[{unit}]": (polars.Datetime(unit), polars.Int64) for unit in ("ms", "us", "ns")},
    "Datetime[ms, UTC]": (polars.Datetime("ms", "UTC"), polars.Int64),
    "Datetime[us, UTC]": (polars.Datetime("us", "UTC"), polars.Int64),
    **{f"Duration[{unit}]": (polars.Duration(unit), polars.Int64) for unit in ("ms", "us", "ns")},
    "List": (polars.List(polars.String), None),
    "Struct": (polars.Struct({"k": polars.String}), None),
    "Array": (polars.Array(polars.Int64, 2), None),
    "Object": (polars.Object, None),
    "Null": (polars.Null, None),
}  # fmt: skip
_UNITS = {"ms": 10**3, "us": 10**6, "ns": 10**9}
_polars: list[tuple[Any, ...]] = [
    ("Float64", 1.5, [float(each) for each in FLOATS], 1.5),
    ("Float32", 1.5, [float(each) for each in FLOATS[:4]], 1.5),
    ("Int64", 7, [MOST, LEAST], 7),
    ("UInt64", 7, [2**64 - 1], 7),
    ("Int128", 7, [2**127 - 1, -(2**127)], 7),
    ("Boolean", True, [False], True),
    ("String", "a", TEXTS),
    ("Categorical", "a", TEXTS),
    ("Enum", "a", ["z"]),
    ("Binary", b"a", [BAD, b""]),
    ("Decimal", Decimal("1.5"), [Decimal("9" * 28), Decimal("-1e-10")], 1.5),
    ("Date", 19_723, [2**31 - 1, -(2**31)], DAY, DAYS),
    ("Time", datetime.time(12), [datetime.time.min, datetime.time.max]),
    *(
        (f"Datetime[{unit}]", SECOND * each, [MOST, LEAST, 1], DAY, MOMENTS)
        for unit, each in _UNITS.items()
    ),
    *(
        (f"Datetime[{unit}, UTC]", SECOND * _UNITS[unit], [MOST, LEAST, 1], DAY, MOMENTS)
        for unit in ("ms", "us")
    ),
    *(
        (f"Duration[{unit}]", 3_600 * each, [MOST, LEAST, 1], datetime.timedelta(hours=1), SPANS)
        for unit, each in _UNITS.items()
    ),
    ("List", ["a"], [[], [None]]),
    ("Struct", {"k": "a"}, [{"k": None}]),
    ("Array", [1, 2], [[None, None]]),
    ("Object", 7, [object(), "a"]),
    ("Null", None, []),
]


def in_numpy(kind: Kind, odd: Sequence[Any], _: Place) -> Table:
    values = [kind.usual] * ROWS + list(odd)
    if kind.name == "list":
        return Table({"data": values}, named=False)
    if kind.name == "object":
        array = np.fromiter(values, dtype=object)
    elif kind.name.startswith(("M8", "m8")):
        array = np.array([LEAST if v is None else v for v in values], np.int64).view(kind.name)
    elif kind.name == "masked":
        array = np.ma.masked_array(
            [1.5 if v is None else v for v in values], mask=[v is None for v in values]
        )
    elif kind.name == "StringDType":
        array = np.array(values, np.dtypes.StringDType(na_object=None))
    else:
        array = np.array(values, kind.name)
    return Table({"data": array}, named=False)


_numpy: list[tuple[Any, ...]] = [
    ("list", 7, OBJECTS, 7),
    ("list", "a", OBJECTS),
    ("list", DAY, OBJECTS, DAY, DAYS, "date"),
    ("list", datetime.datetime(2024, 1, 1), OBJECTS, DAY, MOMENTS, "timestamp"),
    ("list", datetime.timedelta(hours=1), OBJECTS, datetime.timedelta(hours=1), SPANS, "duration"),
    ("list", Decimal("1.5"), OBJECTS, 1.5, (0, 100), "decimal(2)"),
    ("object", 7, OBJECTS, 7),
    ("object", "a", OBJECTS),
    *((name, 1.5, [float(each) for each in FLOATS[:4]], 1.5) for name in ("f2", "f4", "f8")),
    ("longdouble", 1.5, [np.longdouble("1e4000"), np.longdouble("-1e-4000")], 1.5),
    ("i8", 7, [MOST, LEAST], 7),
    ("u8", 7, [2**64 - 1], 7),
    ("i1", 7, [-128], 7),
    ("?", True, [False], True),
    ("c16", 1.5, [complex("nan"), complex("inf"), 2 + 1j], 1.5),
    ("U9", "a", ["", "\ud800", "\x1b[2J"]),
    ("S9", b"a", [b"", BAD]),
    ("V2", b"ab", [b"\xff\xff"]),
    ("StringDType", "a", [None, "", "\x1b[2J"]),
    ("masked", 1.5, [None, float("inf")], 1.5),
    *(
        (f"M8[{unit}]", 1, [None, MOST, LEAST + 1], DAY, MOMENTS)
        for unit in ("Y", "M", "h", "s", "ms", "us", "ns", "as")
    ),
    ("M8[D]", 19_723, [None, MOST, LEAST + 1], DAY, DAYS),
    *(
        (f"m8[{unit}]", 1, [None, MOST, LEAST + 1], datetime.timedelta(hours=1), SPANS)
        for unit in ("D", "s", "us", "ns")
    ),
]


def in_text(kind: Kind, odd: Sequence[Any], place: Place) -> Table:
    tab = kind.engine == "tsv"
    path = place / f"{uuid.uuid4().hex}.{'tsv' if tab else 'csv'}"
    lines = [
        b"%s,%f,%d\n" % (kind.usual.encode(), x, i)
        for x, i in zip(numbers(ROWS), persons(ROWS), strict=True)
    ]
    lines += [
        each if each.endswith(b"\n") else b"%s,50.0,%d\n" % (each, ROWS + index)
        for index, each in enumerate(odd)
    ]
    text = b"c,x,id\n" + b"".join(lines)
    path.write_bytes(text.replace(b",", b"\t") if tab else text)
    return Table({"data": path})


FIELDS = [
    b"", b"NULL", b"nan", b"inf", b"-Infinity", b"1e999", b"0x1F", b"1_000", b"abc", b"\xff",
    b"7\x00", b"\x1b[2J", b'""', b'"7"8', b'"a\nb"', b"9" * 400, b"10000-01-01", b"infinity",
    b"0044-03-15 (BC)", b"2024-02-30", b"290000-01-01", b"24:00:00", b"\xe2\x80\xae", b"-0.0",
    b"5e-324", b"7,8,9,10,11\n", b"7\n", b"\n", b"7,50,1\r\n", b"7\r,50,1\n", b"a" * 3_000_000,
]  # fmt: skip
_text: list[tuple[Any, ...]] = [
    ("text", "a", FIELDS, "a"),
    ("number", "1.5", FIELDS, "1.5", (0, 100), "number"),
    ("integer", "7", FIELDS, "7", (0, 100), "integer"),
    ("decimal", "1.5", FIELDS, "1.5", (0, 100), "decimal(2)"),
    ("date", "2024-01-01", FIELDS, "2024-01-01", DAYS, "date"),
    ("timestamp", "2024-01-01", FIELDS, "2024-01-01", MOMENTS, "timestamp"),
    ("duration", "3600", FIELDS, "3600", SPANS, "duration"),
]

ENGINES: dict[str, Callable[[Kind, Sequence[Any], Place], Table]] = {
    "duckdb": in_duckdb,
    "postgres": in_postgres,
    "pyspark": in_spark,
    "pyarrow": in_arrow,
    "parquet": in_parquet,
    "pandas": in_pandas,
    "polars": in_polars,
    "polars lazy": in_polars,
    "numpy": in_numpy,
    "csv": in_text,
    "tsv": in_text,
}

KINDS: list[Kind] = [
    *(Kind("duckdb", *each) for each in _duckdb),
    *(Kind("postgres", *each) for each in _postgres),
    *(Kind("pyspark", *each) for each in _spark),
    *(
        Kind(engine, str(bits.dtype), usual, odd, **more)
        for engine in ("pyarrow", "parquet")
        for bits, usual, odd, more in _bits()
        # Parquet has no seconds and no intervals of months, days and nanoseconds.
        if engine == "pyarrow" or not re.search(r"timestamp\[s|interval", str(bits.dtype))
    ),
    *(Kind("pandas", *each) for each in _pandas),
    *(Kind("polars", *each) for each in _polars),
    *(Kind("polars lazy", *each) for each in _polars if each[0] in ("String", "Datetime[ms]")),
    *(Kind("numpy", *each) for each in _numpy),
    *(Kind("csv", *each) for each in _text),
    *(Kind("tsv", *each) for each in _text if each[0] in ("text", "number")),
]
