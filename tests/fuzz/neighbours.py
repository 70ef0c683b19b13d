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

from prudent.release import Distribution
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
ARRAYS = ("numpy", "masked")
COLUMNS_ONLY = ("list", "numpy", "masked")
UNTYPED = ("list", "pandas", "csv")


# ---- cases -----------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Case:
    """A call, the records, and those of one more unit."""

    name: str
    function: Callable[..., Any]
    container: str
    build: Callable[[Any, Path], dict[str, Any]]  # what a call is given of the records
    options: Mapping[str, Any]
    rows: list[Any]
    more: list[Any]
    first: bool  # whether the one more comes before the others
    removed: bool  # whether what was released with it is told without it
    seen: list[str | None] = attrs.field(factory=list, repr=False)  # the error, or None

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        place = "before" if self.first else "after"
        return (
            f"{self.name}({self.container}, {given}), "
            f"{self.more!r:.300} {place} {len(self.rows)} records"
        )

    def problem(self, seed: int = 1) -> str | None:
        """What is wrong, if anything."""
        both = self.more + self.rows if self.first else self.rows + self.more
        versions = (both, self.rows) if self.removed else (self.rows, both)
        with tempfile.TemporaryDirectory() as folder:
            one = self._run(versions[0], Path(folder), Transcript(seed))
            two = self._run(versions[1], Path(folder), Transcript(seed, one.noise))
        self.seen.append(one.error)
        return compared(one, two)

    def _run(self, rows: list[Any], folder: Path, noise: Transcript) -> "Outcome":
        data = self.build(rows, folder)
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
        place = next(
            i for i, (a, b) in enumerate(itertools.zip_longest(one.answer, two.answer)) if a != b
        )
        start = max(0, place - 60)
        return (
            f"answers differ: …{one.answer[start : place + 60]}… …{two.answer[start : place + 60]}…"
        )
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


EXPRESSIONS = ("v", "v", "v / 3", "v * 0.5", "v / v", "v + 1")
CONDITIONS = ("v > 3", "v IS NOT NULL", "v / 3 < 2", "w > 1", "v > 3 OR w < 2")
PER_UNIT = (None, "mean", "median", "min", "max", "sum", 1, 2)


OF_TABLES = frozenset(("other", "weights", "query", "questions"))
"""Parameters of functions that ask more than one column."""


def values(name: str, kind: Type, taken: Mapping[str, Any]) -> tuple[Any, ...]:
    """Values of a parameter of a statistic, by its name; none for one that is left out."""
    required = taken[name].default is inspect.Parameter.empty
    several = "categories" in taken
    found: dict[str, tuple[Any, ...]] = {
        "p": (0.5, 0.9),
        "ps": ((0.25, 0.75),),
        "trim": (4,),
        "k": (2,),
        "propose": (kind.length,) if required else (None, None, kind.length),
        "proposals": ((kind.length, 2 * kind.length),),
        "high": (kind.python(kind.plain(8)),),
        "other": ("w",),
        "weights": ("w",),
        "bounds": ((0, 10), None) if kind.numeric and not several else (),
        "largest_weight": (10.0, None),
        "certify": (None, None, kind.length),
        "distribution": (Distribution.LAPLACE, Distribution.LAPLACE, Distribution.GAUSSIAN),
        "categories": (None, ["a", "b"], "private") if kind.textual else (None,),
        "questions": ({"v": ["median", "count"]}, {"v": ["mean"], "w": ["sum"]}),
        "default": (kind.python(kind.plain(5)),),
    }
    return found.get(name, ())


def draw(
    functions: Mapping[str, Callable[..., Any]],
    chance: random.Random,
    containers: Sequence[str] = tuple(CONTAINERS),
) -> Case:
    """A case of one of the functions, which take `data` and `noise`."""
    name = chance.choice(sorted(functions))
    taken = inspect.signature(functions[name]).parameters
    if OF_TABLES & taken.keys():
        containers = [each for each in containers if each not in COLUMNS_ONLY] or ["arrow"]
    container = chance.choice(containers)
    kind = TYPES[chance.choice(list(TYPES if container not in ARRAYS else _DTYPES))]
    table = container not in COLUMNS_ONLY
    options: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA}
    for each in taken:
        if given := values(each, kind, taken):
            options[each] = chance.choice(given)
    expression = chance.choice(EXPRESSIONS) if kind.numeric and table else "v"
    unit = table and chance.random() < 0.4
    by = chance.choice((None, None, "public", "private")) if table else None
    where = (
        chance.choice((None, None, *CONDITIONS[: None if kind.numeric else 2])) if table else None
    )
    if where is not None and not kind.numeric:
        where = "v IS NOT NULL"
    if "query" in taken:
        options["query"] = query(expression, by, where, "rows" if container == "duckdb" else "data")
        if by is not None:
            options["groups"] = ["a", "b"] if by == "public" else "private"
    elif table:
        if "column" in taken:
            options["column"] = expression
        if by is not None and "by" in taken:
            options |= {"by": "g", "groups": ["a", "b", "zz"] if by == "public" else "private"}
        options["where"] = where
    if unit:
        options |= {"unit": "u", "per_unit": chance.choice(PER_UNIT)}
    rows: Rows = [
        {"v": kind.plain(i), "w": i % 5, "u": i % 17 if unit else i, "g": "aaabbbaabc"[i % 10]}
        for i in range(COUNT + chance.randrange(2))
    ]
    return Case(
        name=name,
        function=functions[name],
        container=f"{container} of {kind.name}",
        build=lambda rows, folder: CONTAINERS[container](rows, kind, folder),
        options={k: v for k, v in options.items() if k in taken and v is not None},
        rows=rows,
        more=_more(kind, container, bool(unit), chance),
        first=chance.random() < 0.5,
        removed=chance.random() < 0.5,
    )


def _more(kind: Type, container: str, unit: bool, chance: random.Random) -> Rows:
    """The records of one more unit, of which one is odd."""
    own = [*([None] if container != "numpy" else []), *kind.odd]
    wrong = WRONG if container in UNTYPED else ()
    odd = chance.choice([*own, *wrong, kind.plain(3)])
    record = {"v": odd, "w": 2, "u": 99, "g": "a"}
    if container not in COLUMNS_ONLY:
        record |= chance.choice(({}, {}, {}, {"w": None}, {"g": None}, {"g": "new"}, {"w": 2**62}))
        if not unit:
            record |= chance.choice(({}, {}, {"u": None}))
    plain = {"v": kind.plain(4), "w": 3, "u": 99, "g": "b"}
    return [record, *([plain] * chance.choice((0, 0, 1, 3)) if unit else [])]


def query(expression: str, by: str | None, where: str | None, table: str) -> str:
    """A query of SQL with these parts."""
    asked = f"MEDIAN({expression}), COUNT(*)"
    text = f"SELECT {'g, ' * (by is not None)}{asked} FROM {table}"
    text += f" WHERE {where}" * (where is not None)
    return text + " GROUP BY g" * (by is not None)


# ---- models ----------------------------------------------------------------------------------

MODEL_ROWS = 240
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


def told_apart(part: Any) -> float:
    """A number that depends on all that a function can see of its records."""
    seen = [type(part).__name__, getattr(part, "dtypes", getattr(part, "dtype", None)), part]
    return random.Random("".join(map(str, seen))).uniform(0, 100)


def draw_model(models: Mapping[str, Callable[..., Any]], chance: random.Random) -> Case:
    """A case of one of the models, which take X and y, or of a function of records."""
    from tests.fuzz import surface

    name = chance.choice(sorted(models))
    container = chance.choice(list(OF_MODELS))
    features, labels = OF_MODELS[container]
    found, taken = models[name], surface.parameters(models[name])
    if "fit_one" in taken:
        options: dict[str, Any] = {"fit_one": told_apart, "parts": 12, "epsilon": EPSILON}
    else:
        options = {
            each: surface.BY_NAME[f"{name}.{each}"]
            for each in taken
            if f"{name}.{each}" in surface.BY_NAME and each not in ("noise", "ledger")
        }
        options |= {"epsilon": 20.0}
        if "delta" in taken:
            options["delta"] = DELTA
        if "landmarks" in taken:
            options |= {"landmarks": np.eye(2), "classes": 2}

    def build(rows: Any, folder: Path) -> dict[str, Any]:
        xs, ys = zip(*rows, strict=True)
        if "fit_one" in taken:
            return {"data": features(xs)}
        return (
            {"vectors": features(xs)}
            if "vectors" in taken
            else {"X": features(xs), "y": labels(ys)}
        )

    def call(X: Any = None, y: Any = None, **given: Any) -> Any:
        return found(**given).fit(X, y) if hasattr(found, "fit") else found(**given)

    count = MODEL_ROWS + chance.randrange(2)
    draws = np.random.default_rng(chance.randrange(9)).random((count, 2)).tolist()
    odd = chance.choice(ODD_ROWS) if chance.random() < 0.8 else (0.25, 0.75)
    label = chance.choice(ODD_LABELS) if chance.random() < 0.5 else 1
    return Case(
        name=name,
        function=call,
        container=container,
        build=build,
        options=options,
        rows=[(tuple(row), int(row[0] > 0.5)) for row in draws],
        more=[(odd, label)],
        first=chance.random() < 0.5,
        removed=chance.random() < 0.5,
    )
