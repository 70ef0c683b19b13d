"""One record more, of any kind, in any container: the release must end in the same way.

A case is a public function, the options it is called with, records of one type, and one more that
is odd. The release of the n records is told again for the n + 1, or the other way round
(`transcripts`). Whatever then differs, in the answer, the error, the charges, the questions to
the source of noise or the number of queries, is a finding; so is an error after a charge, and a
distance between exact answers that is not paid for.
"""

import contextlib
import csv
import datetime as dt
import decimal
import inspect
import io
import itertools
import logging
import math
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import numpy as np

from tests.fuzz.judging import FindingError
from tests.fuzz.transcripts import Transcript, choices_noted

DELTA = 1e-4
EPSILON = 4.0
COUNT = 40
SLACK = 1e-6
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
        Type("bool", ("bool_",), lambda i: i % 3 == 0, ()),
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
NUMBERS = ("int", "float32", "float64", "decimal")
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
    return getattr(pa, name)(*(getattr(pa, g)() if isinstance(g, str) and g != "us" else g for g in given))


def _arrow(rows: Rows, kind: Type) -> Any:
    import pyarrow as pa

    wide, stored = _arrow_type(kind), None
    if pa.types.is_date32(wide):
        stored = pa.int32()
    elif pa.types.is_timestamp(wide) or pa.types.is_duration(wide):
        stored = pa.int64()
    try:
        found = pa.array([row["v"] for row in rows], stored or (pa.string() if kind.name == "category" else wide))
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
        return kind.python(value) if stored else value

    return [{**row, "v": shown(row["v"])} for row in rows]


def _list(rows: Rows, kind: Type, folder: Path) -> Any:
    return {"data": [row["v"] for row in _python(rows, kind)]}


_DTYPES = {"int": "i8", "float32": "f4", "float64": "f8", "bool": "?", "date": "M8[D]"}
_DTYPES |= {"timestamp": "M8[us]", "duration": "m8[us]"}


def _numpy(rows: Rows, kind: Type, folder: Path, *, masked: bool = False) -> Any:
    values = [row["v"] for row in rows]
    absent = [value is None for value in values]
    if kind.name not in _DTYPES or (any(absent) and not masked):
        raise UnrepresentableError
    try:
        plain = [kind.plain(0) if none else v for v, none in zip(values, absent, strict=True)]
        dtype = np.dtype(_DTYPES[kind.name])
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
}
COLUMNS_ONLY = ("list", "numpy", "masked")
UNTYPED = ("list", "pandas", "csv")


# ---- cases -----------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Case:
    """A call, the records, and those of one more unit."""

    name: str
    function: Callable[..., Any]
    container: str
    kind: Type
    options: Mapping[str, Any]
    rows: Rows
    more: Rows
    first: bool  # whether the one more comes before the others
    removed: bool  # whether what was released with it is told without it

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        place = "before" if self.first else "after"
        return (
            f"{self.name}({self.container} of {self.kind.name}, {given}), "
            f"{self.more!r:.300} {place} {len(self.rows)} records"
        )

    def problem(self, seed: int = 1) -> str | None:
        """What is wrong, if anything."""
        both = self.more + self.rows if self.first else self.rows + self.more
        versions = (both, self.rows) if self.removed else (self.rows, both)
        with tempfile.TemporaryDirectory() as folder:
            one = self._run(versions[0], Path(folder), Transcript(seed))
            two = self._run(versions[1], Path(folder), Transcript(seed, one.noise))
        return compared(one, two)

    def _run(self, rows: Rows, folder: Path, noise: Transcript) -> "Outcome":
        data = CONTAINERS[self.container](rows, self.kind, folder)
        ledger = Charges()
        given = {**self.options, **data, "noise": noise, "ledger": ledger}
        return observed(lambda: self.function(**given), noise, ledger)


class Charges:
    """A ledger that notes its charges and what came of them."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.outcomes: list[str] = []
        self.epsilon, self.delta = 0.0, 0.0

    def charge(self, event: Any, label: str, delta: float | None = None, **more: Any) -> int:
        self.rows.append((repr(event), label, delta, repr(more)))
        self.epsilon += more["details"]["epsilon"]
        self.delta += delta or 0.0
        return len(self.rows)

    def record_outcome(self, charge: int, outcome: Any) -> None:
        self.outcomes.append(repr((charge, outcome)))


@attrs.frozen(eq=False)
class Outcome:
    """All that could be seen of a release."""

    answer: str
    error: str | None
    told: str  # standard output and error, log lines, warnings
    queries: int
    noise: Transcript
    ledger: Charges
    is_chosen: bool  # an error that decides by what was released


def observed(act: Callable[[], Any], noise: Transcript, ledger: Charges) -> Outcome:
    """What can be seen while a function runs."""
    told, answer, error = io.StringIO(), "", None
    handler, log = logging.StreamHandler(told), logging.getLogger()
    log.addHandler(handler)
    is_chosen = False
    with (
        contextlib.redirect_stdout(told),
        contextlib.redirect_stderr(told),
        warnings.catch_warnings(record=True) as warned,
        choices_noted(),
        _counted() as queries,
    ):
        warnings.simplefilter("always")
        try:
            answer = shown(act())
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
            is_chosen = type(raised).__name__ == "TooFewRecordsError"
    log.removeHandler(handler)
    lines = sorted({f"{each.category.__name__}: {each.message}" for each in warned})
    return Outcome(
        answer, error, told.getvalue() + "\n".join(lines), len(queries), noise, ledger, is_chosen
    )


def shown(answer: Any) -> str:
    """All that an answer says; of a model, what it learned."""
    if hasattr(answer, "get_params"):
        learned = {k: v for k, v in vars(answer).items() if k.endswith("_") and k[0] != "_"}
        return repr({name: getattr(v, "tolist", lambda v=v: v)() for name, v in learned.items()})
    return f"{type(answer).__name__}\n{answer!r}\n{answer}"


@contextlib.contextmanager
def _counted() -> Iterator[list[str]]:
    """The queries that DuckDB and PostgreSQL get from ibis."""
    from ibis.backends import duckdb as backend

    found: list[str] = []
    with contextlib.ExitStack() as patched:
        for name in ("raw_sql", "to_pyarrow", "to_pyarrow_batches"):
            inner = getattr(backend.Backend, name)

            def counted(*given: Any, _inner: Any = inner, _name: str = name, **more: Any) -> Any:
                found.append(_name)
                return _inner(*given, **more)

            patched.enter_context(mock.patch.object(backend.Backend, name, counted))
        yield found


def compared(one: Outcome, two: Outcome) -> str | None:
    """What tells two neighbours apart, or is not paid for."""
    for each in (one, two):
        if each.error is not None and each.ledger.rows and not each.is_chosen:
            other = two if each is one else one
            return f"raised after a charge: {each.error}; the neighbour: {other.error}"
    if one.error != two.error:
        return f"outcomes differ: {one.error or 'an answer'}; {two.error or 'an answer'}"
    if one.ledger.rows != two.ledger.rows or one.ledger.outcomes != two.ledger.outcomes:
        return f"charges differ: {one.ledger.rows} {two.ledger.rows}"
    if two.noise.differs or len(one.noise.queries) != len(two.noise.queries):
        return f"questions differ: {two.noise.differs or 'fewer are asked'}"
    if one.queries != two.queries:
        return f"the number of queries differs: {one.queries}, {two.queries}"
    if one.told != two.told:
        return f"what is printed differs: {one.told!r}, {two.told!r}"
    if not one.noise.seen:
        return None
    if one.answer != two.answer:
        place = next(i for i, (a, b) in enumerate(itertools.zip_longest(one.answer, two.answer)) if a != b)
        start = max(0, place - 60)
        return f"answers differ: …{one.answer[start:place + 60]}… …{two.answer[start:place + 60]}…"
    pure, gaussian = one.noise.loss(two.noise)
    spent = pure + gaussian_epsilon(math.sqrt(gaussian), one.ledger.delta)
    if spent > one.ledger.epsilon * (1 + SLACK):
        return f"exact answers are apart by ε = {spent:.6g}, priced at {one.ledger.epsilon:.6g}"
    return None


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The ε of a Gaussian mechanism whose sensitivity is μ standard deviations."""
    if not mu:
        return 0.0
    from scipy import optimize, stats

    def excess(epsilon: float) -> float:
        above = stats.norm.cdf(mu / 2 - epsilon / mu)
        below = math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
        return float(above - below - delta)

    return float(optimize.brentq(excess, 0.0, 500.0)) if excess(0.0) > 0 else 0.0
