"""Data sources: a file, a frame, a database or Spark, each opened as an ibis table.

Only names and types are read here. The columns of a text file are not even typed: the type that a
reader infers depends on every record, so one odd record could decide whether a release happens.
"""

import contextlib
import csv
import functools
import glob
import os
import re
import string
import threading
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir

from prudent import _validate
from prudent._validate import redacted
from prudent.release.columns import scales
from prudent.release.columns.column import SourceArgumentError, SourceError, redact_errors
from prudent.release.columns.dialects import ENGINES, backend_name, sql_of
from prudent.release.columns.queries import Memory
from prudent.release.joins import Join

_TEXT = {".csv": ",", ".tsv": "\t"}
_SEPARATOR = r"""[^\w\s"'\\]|\t"""
_PARQUET = {".parquet", ".pq"}
_DATABASE = {".duckdb", ".ddb"}
_SCHEME = re.compile(r"([a-z]{2,20})://")
_LISTED = 20  # tables listed in an error message
_HANDED_OVER = ("DuckDBPyRelation", "LazyFrame")  # as Arrow, by a method of its own
_STREAM = re.compile("Stream|Reader|Handle")  # classes of what hands over Arrow data once
_READ: MutableMapping[Any, Any] = weakref.WeakKeyDictionary()  # their tables: a query opens twice
_READING = threading.RLock()
_DECLARED = re.compile(r"ArrowDtype|BooleanDtype|(U?Int|Float)\d+Dtype")  # of pandas
_MONEY = 790  # PostgreSQL's number for this type
_CAPITALS = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_KINDS = "a .parquet, .csv, .tsv or .duckdb file"


def _as_text(path: str | os.PathLike[str]) -> str:
    return str(_validate.path(path=path))


@attrs.frozen
class TextFile(os.PathLike[str]):
    """A text file with a header whose fields or characters are written in another way.

    Attributes:
        path: The file, or a pattern.
        delimiter: What is between two fields; None: what the ending of the name says, a tabulator
            for .tsv and else a comma.
        encoding: "utf-8", "latin-1" or "utf-16". A line that is not valid in it is a record without
            a value.
    """

    path: str = attrs.field(converter=_as_text)
    delimiter: str | None = None
    encoding: str = "utf-8"

    def __attrs_post_init__(self) -> None:
        if self.delimiter is not None and not re.fullmatch(_SEPARATOR, str(self.delimiter)):
            allowed = "one character that is neither letter, digit nor quote"
            raise SourceArgumentError("delimiter", allowed, got=self.delimiter)
        _validate.one_of(("utf-8", "latin-1", "utf-16"), encoding=self.encoding)

    def __fspath__(self) -> str:
        return self.path

    @property
    def separator(self) -> str:
        """What is between two fields."""
        return self.delimiter or _TEXT.get(Path(self.path).suffix.lower(), ",")


@attrs.frozen
class OpenTable:
    """An opened table."""

    table: ir.Table  # the ibis table
    close: Callable[[], None] = lambda: None  # releases the resources that were opened for it
    # The columns without a declared type: all columns of a CSV file, and those of a pandas frame
    # whose type pandas infers from the records.
    text: frozenset[str] = frozenset()
    own_connection: bool = True  # whether the connection was opened here, and not by the caller
    join: Join | None = None  # what it is a join of; None if it is one table
    memory: Memory = attrs.field(factory=Memory, eq=False, repr=False)  # of rows handed over
    # Of a join, the name that each column of each table has in it.
    origins: Mapping[tuple[str, str], str] = attrs.field(factory=dict)


def open_table(
    source: Any = None,
    *,
    connect: str | None = None,
    table: str | None = None,
    columns: Sequence[str] | None = None,
    beside: OpenTable | None = None,
) -> OpenTable:
    """Open one table without reading its records; see `joining.open_source`."""
    backend = None
    if beside is not None and beside.own_connection:
        backend = beside.table.get_backend()
    if (source is None) == (connect is None):
        given = "neither" if source is None else "both"
        raise SourceError(f"Expected either data or connect (an address with table), got {given}.")
    if connect is not None:
        return _known(_from_address(connect, table, backend), "connect")
    path = str(source) if isinstance(source, str | Path) else ""
    if table is not None and Path(path).suffix.lower() not in _DATABASE:
        raise SourceArgumentError("table", "only with connect or a .duckdb file")
    if isinstance(source, TextFile):
        return _from_text(source, backend)
    if isinstance(source, str | Path):
        return _from_path(path, table, columns, backend)
    if isinstance(source, ir.Table):
        return _known(OpenTable(source, own_connection=False), "data")
    if type(source).__module__.startswith("pyspark."):
        return _from_spark(source, backend)
    return _from_frame(source, columns, backend)


def _known(opened: OpenTable, argument: str) -> OpenTable:
    """Return the table, or raise if its engine is one whose odd values and collations are unknown.

    There one record could stop a query, and texts that a collation calls equal could put one record
    into two groups.
    """
    engine = backend_name(opened.table)
    if engine == "postgres":
        try:
            table = _quietly(lambda: _with_amounts(opened.table), "read the types of the columns")
        except BaseException:
            opened.close()
            raise
        return attrs.evolve(opened, table=table)
    if engine in ENGINES:
        return attrs.evolve(opened, table=_compared(opened.table))
    opened.close()
    raise _other_engine(argument, engine)


def _other_engine(argument: str, engine: str) -> SourceArgumentError:
    return SourceArgumentError(
        argument,
        "a table in DuckDB, PostgreSQL or Spark",
        shown=engine,
        hint="Export it to a Parquet file, or read it into a frame.",
    )


def _with_amounts(table: ir.Table) -> ir.Table:
    """Return the table with amounts of `money` as decimals; reads types, and no record.

    PostgreSQL sends these amounts as texts in the language of the server, and ibis takes them for
    numbers. How many digits they have after the point is a setting of the server.
    """
    connection = table.get_backend().con
    described = connection.execute(f"SELECT * FROM ({sql_of(table)}) AS t LIMIT 0").description
    names = [column.name for column in described if column.type_code == _MONEY]
    if not names:
        return table
    (digits,) = connection.execute("SELECT scale(CAST(CAST(0 AS money) AS numeric))").fetchone()
    amount = dt.Decimal(19, digits)  # an amount is an integer of 64 bits
    return table.mutate(**{name: table[name].cast(amount) for name in names})


def _from_path(
    path: str, table: str | None, columns: Sequence[str] | None, backend: Any = None
) -> OpenTable:
    suffix = Path(path).suffix.lower()
    if suffix not in {*_TEXT, *_PARQUET, *_DATABASE}:
        hint = f"Give a pattern, such as {path}/*.parquet." if Path(path).is_dir() else ""
        raise SourceArgumentError("data", _KINDS, got=path, hint=hint)
    files = _files(path)
    if suffix in _DATABASE:
        backend = _quietly(lambda: _opened(files[0]), f"open {path!r}")
        return _known(_table_of(backend, table, path), "data")
    if suffix in _TEXT:
        return _from_text(TextFile(path), backend)
    backend = _embedded(backend)
    opened = _quietly(lambda: _parquet(backend, files, columns), f"read {path!r} as Parquet")
    return OpenTable(opened, backend.disconnect)


def _from_text(source: TextFile, backend: Any = None) -> OpenTable:
    files, backend = _files(source.path), _embedded(backend)
    opened = _quietly(
        lambda: joined(backend, files, source.separator, source.encoding),
        f"read {source.path!r} as text with a header",
    )
    return OpenTable(opened, backend.disconnect, text=frozenset(opened.columns))


def _files(path: str) -> list[str]:
    """The absolute path of the file of this name or, only if there is none, of those that match."""
    if "\0" not in path:
        if Path(path).is_file():
            return [str(Path(path).absolute())]
        if "*" in path and (found := sorted(glob.glob(path, recursive=True))):
            return [str(Path(each).absolute()) for each in found]
    raise SourceArgumentError("data", "an existing file", got=path)


def _parquet(backend: Any, files: list[str], columns: Sequence[str] | None) -> ir.Table:
    """Open Parquet files in DuckDB directly if it can read every record, otherwise via Arrow."""
    from prudent.release.columns import arrow_tables

    if arrow_tables.needs_care(files, columns):
        return arrow_tables.scanned(backend, files, columns)
    return _compared(backend.read_parquet(list(map(escaped, files))), columns)


def _compared(table: ir.Table, columns: Sequence[str] | None = None) -> ir.Table:
    """The table with floating numbers that an engine compares one by one: each times 1.

    The ends that a Parquet file names leave NaN out, and by these alone engines decide comparisons:
    one record beyond 5 would change whether each NaN is at most 5.
    """
    schema = table.schema().items()
    used = {name: of for name, of in schema if of.is_floating() and name in (columns or [name])}
    return table.mutate(**{name: table[name] * ibis.literal(1, of) for name, of in used.items()})


@functools.cache
def _database(process: int) -> Any:
    """The DuckDB in memory of a process: of a fork it would have no threads."""
    import duckdb

    return duckdb.connect()


def embedded() -> Any:
    """A connection of its own to DuckDB in memory: what is registered in one is in no other."""
    return _quiet(ibis.duckdb.from_connection(_database(os.getpid()).cursor()))


def _quiet(backend: Any) -> Any:
    """Turn the progress bar off, since it prints to stdout."""
    # In Jupyter without ipywidgets the bar is off, and DuckDB refuses to have it set.
    (shown,) = backend.raw_sql("SELECT current_setting('enable_progress_bar')").fetchone()
    if shown:
        backend.raw_sql("SET enable_progress_bar = false")
    return backend


def _opened(file: str) -> Any:
    """Connect to a DuckDB file."""
    return _quiet(ibis.duckdb.connect(file, read_only=True))


def _embedded(backend: Any) -> Any:
    """The embedded DuckDB to use: that of another table, if it has one."""
    shared = getattr(backend, "name", "") == "duckdb"
    return backend if shared else _quietly(embedded, "start DuckDB")


def _from_frame(frame: Any, columns: Sequence[str] | None, backend: Any = None) -> OpenTable:
    import pyarrow as pa

    from prudent.release.columns import arrow_tables

    if hasattr(frame, "to_native"):  # of narwhals
        return _from_frame(frame.to_native(), columns, backend)
    bases = {each.__module__.partition(".")[0] for each in type(frame).__mro__}
    texts: frozenset[str] = frozenset()
    if "pandas" in bases and hasattr(frame, "columns"):  # also a class that is made of it
        kept = _kept(list(frame.columns), columns)
        parts = {str(name) or _unnamed(place): frame[name] for place, name in enumerate(kept)}
        # pandas infers all types from all records but Arrow's and the nullable ones.
        dtypes = {name: type(part.dtype).__name__ for name, part in parts.items()}
        texts = frozenset(name for name in dtypes if not _DECLARED.fullmatch(dtypes[name]))
    elif "pandas" in bases or not (
        (hasattr(frame, "__arrow_c_stream__") or type(frame).__name__ in _HANDED_OVER)
        and (type(frame).__weakrefoffset__ or not _is_stream(frame))
    ):
        raise SourceArgumentError(
            "data",
            f"{_KINDS}, an array, a pandas, polars or narwhals frame, a relation of DuckDB, an "
            "Arrow table, an ibis table or a Spark data frame",
            shown=type(frame).__name__,
        )

    def table() -> Any:
        if "pandas" not in bases:
            return pa.table(_selected(frame, columns))
        return pa.table(
            {
                name: scales.cells(part) if name in texts else pa.Array.from_pandas(part)
                for name, part in parts.items()
            }
        )

    backend = _embedded(backend)
    opened = redact_errors(lambda: arrow_tables.registered(backend, table()))
    return OpenTable(opened, backend.disconnect, texts)


def _selected(frame: Any, columns: Sequence[str] | None) -> Any:
    """What hands over an Arrow stream, with the columns that are used if it can select them."""
    kind = type(frame).__name__
    if kind == "DuckDBPyRelation":
        kept = (name.replace('"', '""') for name in _kept(list(frame.columns), columns))
        return frame.select(", ".join(f'"{name}"' for name in kept))
    if kind == "LazyFrame":
        frame = frame.select(_kept(frame.collect_schema().names(), columns)).collect()
    if type(frame).__module__.startswith("polars."):
        import polars

        # Arrow has no integers of 128 bits; one of 39 digits becomes NULL. Its stream of categories
        # holds views of texts, which it cannot convert.
        wide = polars.selectors.by_dtype(polars.Int128, getattr(polars, "UInt128", polars.Int128))
        plain = wide.cast(polars.Decimal(38, 0), strict=False)
        return frame.select(_kept(frame.columns, columns)).with_columns(plain).to_arrow()
    if _is_stream(frame):
        frame, kind = _whole(frame), "Table"
    return frame.select(_kept(frame.column_names, columns)) if kind == "Table" else frame


def _is_stream(frame: Any) -> bool:
    return any(_STREAM.search(each.__name__) for each in type(frame).__mro__)


def _whole(stream: Any) -> Any:
    """The table that a stream holds; an error again where it could not be read to its end."""
    import pyarrow as pa

    with _READING:
        if stream not in _READ:
            _READ[stream] = None
            _READ[stream] = pa.table(stream)
        if _READ[stream] is None:
            raise SourceError("Expected a stream that can be read to its end.")
        return _READ[stream]


def _kept(names: list[Any], columns: Sequence[str] | None) -> list[Any]:
    # Missing names are reported by the caller, which can say which argument they were given for.
    kept = names if not columns or set(columns) - set(names) else list(dict.fromkeys(columns))
    if (twice := _twice(names, kept)) is not None:
        raise SourceError(
            f"Expected distinct column names, got {twice!r} more than once: rename one of them."
        )
    return kept


def _twice(names: Sequence[Any], kept: Sequence[Any]) -> Any:
    """A name that more than one column has; None if there is none."""
    times = Counter(names)
    return next((name for name in kept if times[name] > 1), None)


def _unnamed(place: int) -> str:
    """What a column without a name is called, such as the index that pandas writes to a file."""
    return f"column{place}"


def _from_spark(frame: Any, backend: Any = None) -> OpenTable:
    if backend is None or getattr(backend, "_session", None) is not frame.sparkSession:
        backend = ibis.pyspark.connect(frame.sparkSession)
    view = f"prudent_{uuid.uuid4().hex}"
    frame.createOrReplaceTempView(view)
    catalog = frame.sparkSession.catalog

    def close() -> None:
        with contextlib.suppress(Exception):  # the session may be gone already
            catalog.dropTempView(view)

    opened = _quietly(lambda: backend.table(view), "use a column type of this Spark data frame")
    return OpenTable(_compared(opened), close)


def _from_address(address: str, table: str | None, backend: Any = None) -> OpenTable:
    from prudent.budget.allowance import is_duckdb  # a file needs nothing of a ledger

    if backend is not None:  # of the other table of a join, which is in the same database
        pass
    elif address.startswith(("postgres://", "postgresql://")):
        backend = _quietly(lambda: _postgres(address), "connect: check address, user, server")
    elif is_duckdb(address) and not address.startswith("duckdb://md:"):
        file = address.removeprefix("duckdb://").partition("?")[0]
        backend = _quietly(lambda: _opened(file), "open the database: check its path")
    elif (engine := _SCHEME.match(address)) is not None and engine[1] not in ENGINES:
        raise _other_engine("connect", engine[1])  # no more of the address: it may hold a password
    else:
        backend = _quietly(lambda: ibis.connect(address), "connect: check address, user, server")
    return _table_of(backend, table, "the database")


def _postgres(address: str) -> Any:
    """Connect to PostgreSQL with one read-only transaction, which sees a single snapshot."""
    import psycopg

    connection = psycopg.connect(address, client_encoding="utf8")
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    # Dates are sent in the format that Python parses; this statement also begins the transaction.
    connection.execute("SET datestyle = 'ISO'")
    return ibis.postgres.from_connection(connection)


def _table_of(backend: Any, table: str | None, where: str) -> OpenTable:
    schema, _, name = (table or "").rpartition(".")
    if table is None:
        there = _tables(backend, schema)
        backend.disconnect()
        raise SourceArgumentError(
            "table", f"the name of a table in {where}", shown="nothing", hint=there
        )
    try:
        opened = _quietly(
            lambda: backend.table(name, database=schema or None), f"find table {table!r} in {where}"
        )
    except SourceError as error:
        there = _tables(backend, schema)
        backend.disconnect()
        raise SourceError(f"{error} {there}".rstrip()) from None
    return OpenTable(opened, backend.disconnect)


def _tables(backend: Any, schema: str) -> str:
    """A sentence that lists the tables; empty if they cannot be listed."""
    with contextlib.suppress(Exception):  # only a hint: its failure must not hide the first error
        if names := sorted(backend.list_tables(database=schema or None)):
            return f"Tables there: {', '.join(names[:_LISTED])}{', …' * (len(names) > _LISTED)}."
    return ""


def _quietly(act: Callable[[], Any], what: str) -> Any:
    """Call `act`; on failure raise a SourceError whose message is independent of the records.

    The engine's own message is dropped, because it may quote a record.
    """
    try:
        return act()
    except (ImportError, SourceError):
        raise
    except Exception as error:
        kind = type(error).__name__
    # Outside the handler: the context of this error would quote a record, or a password.
    raise SourceError(f"Could not {redacted(what)} ({kind}).")


def joined(backend: Any, files: Sequence[str], delimiter: str, encoding: str = "utf-8") -> ir.Table:
    """Return one table of all records of CSV files; their columns may be in different orders.

    Nothing is inferred from the records. The dialect is given, never detected, and a malformed line
    is a record without a value. DuckDB's strict mode is off because it stops at a stray quote or
    line end and loses the lines after it. Parallel reading is off because a thread that starts in
    the middle of a file takes a line end inside quotes for the end of a record.
    """
    by_header: dict[tuple[str, ...], list[str]] = {}
    for file in files:
        by_header.setdefault(_header(file, delimiter, encoding), []).append(file)
    first, *others = by_header
    for header in others:
        if set(header) != set(first):
            raise SourceError(
                f"Expected files with the same column names, got other names in the first line of "
                f"{by_header[header][0]!r} than of {by_header[first][0]!r}."
            )
    parts = [
        backend.read_csv(
            list(map(escaped, some)),
            header=True,
            all_varchar=True,
            auto_detect=False,
            columns=dict.fromkeys(header, "VARCHAR"),
            delim=delimiter,
            encoding=encoding,
            quote='"',
            escape='"',
            ignore_errors=True,
            strict_mode=False,
            parallel=False,
        )
        for header, some in by_header.items()
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.union(part.select(*first))
    return whole


def escaped(file: str) -> str:
    """Escape a file name so that DuckDB does not read it as a pattern."""
    pattern = glob.escape(file)
    if pattern != file and "\\" in pattern:
        raise SourceArgumentError(
            "data", "without a backslash beside *, ? or [ in its name", got=file, hint="Rename it."
        )
    return pattern


def _header(path: str, delimiter: str, encoding: str) -> tuple[str, ...]:
    """Return the column names in the first line.

    An unclosed quote in that line is an error: the field would extend into the records, and their
    contents would become part of a column name.
    """
    codec = "utf-8-sig" if encoding == "utf-8" else encoding
    with open(path, encoding=codec, errors="replace", newline="") as file:
        line = file.readline()
    names = [] if line.count('"') % 2 else next(csv.reader([line], delimiter=delimiter), [])
    if "\ufffd" in line:
        raise SourceError(
            f"Expected {path!r} in {encoding.upper()}, got another encoding. Save it in that one, "
            "or name its own: TextFile(path, encoding='latin-1'), --encoding latin-1."
        )
    names = [name or _unnamed(place) for place, name in enumerate(names)]
    alike = [name.translate(_CAPITALS) for name in names]  # DuckDB takes a and A for one name
    twice = _twice(alike, alike)
    if not names or twice is not None:
        hint = "" if twice is None else f" {twice!r} is there more than once: rename one of them."
        raise SourceError(f"Expected a first line of distinct column names in {path!r}.{hint}")
    if len(names) == 1 and '"' not in line and (other := re.search(r"[;,\t|]", names[0])):
        raise SourceError(
            f"Expected names separated by {delimiter!r} in the first line of {path!r}, got "
            f"{other[0]!r} between them. Name what is between them: TextFile(path, "
            f"delimiter={other[0]!r}), --delimiter {other[0]!r}; and where numbers have commas, "
            "read_as='number(1.234,56)'."
        )
    return tuple(names)
