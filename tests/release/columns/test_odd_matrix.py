"""One odd record changes nothing that is seen: every column type, engine and way to ask.

Whether a release fails, in which words, what an engine is asked, what is warned, logged or printed:
none of this is charged for, so none may depend on one record, whatever its column can store. The
product of `odd_values` and `odd_requests` is long; a sample of it runs always.
"""

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, get_args

import attrs
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("pandas", reason="frames of pandas are among the sources")
pytest.importorskip("polars", reason="frames of polars are among the sources")
pytest.importorskip("psycopg", reason="PostgreSQL is among the engines")

import ibis.backends.duckdb
import psycopg

import prudent.release
from prudent.cli import main
from prudent.release import median, mode, trimmed_mean
from prudent.release.columns import column, dialects, sources
from prudent.release.columns.column import UNREADABLE, SourceError
from tests import answered_twice
from tests.release.columns.odd_requests import HEAVY, NO_TABLE, REQUESTS, STATISTICS, seen
from tests.release.columns.odd_values import ENGINES, KINDS, Kind, Place, Table

Load = Callable[[Kind, list[Any]], Table]
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def load(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Kind, list[Any]], Table]:
    """Makes a table of a kind with odd records."""
    folder = tmp_path_factory.mktemp("odd")

    def place(kind: Kind) -> Place:
        server = {"postgres": "postgres_url", "pyspark": "spark_session"}.get(kind.engine)
        return folder if server is None else request.getfixturevalue(server)

    return lambda kind, odd: kind.loaded(odd, place(kind))


def check(kind: Kind, request: str, usual: Table, odd: Table) -> None:
    """What is seen is the same, and nothing fails but for what is known before records are read."""
    ask = REQUESTS[request]
    without, with_it = (seen(lambda table=table: ask(table, kind)) for table in (usual, odd))
    if request == "histogram, private edges":  # whose number is released before they are asked for
        without, with_it = (
            attrs.evolve(each, queries=len(each.queries)) for each in (without, with_it)
        )
    assert with_it == without, f"{kind}: {request}"
    if isinstance(without.kind, type):
        assert issubclass(without.kind, ValueError), without


# --- the product, and a sample of it --------------------------------------------------------------

OF_ANYTHING = [
    *("mode, categories", "median, unit", "median, where present", "count, units"),
    *("count, rows", "proportion, present", "count_distinct, of units", "median, by day"),
    *("join, by odd keys", "join, by person"),
]
OF_TEXTS = [
    *("median, by", "mode, listed", "median, by private", "median, where lower"),
    *("median, where like", "mode, of units", "median, where equal", "median, where length"),
    *("median, by two", "top_k, private", "count_distinct, values", "proportion, present"),
    *("join, by odd keys", "join, by person"),
]
OF_NUMBERS = [
    *("median, proposed", "quantiles, chosen", "trimmed_mean, bounded", "iqr, proposed"),
    *("median, per unit, mean", "mode, certified", "sum, bounded", "certify_quantile, high"),
    *("quantile, proposed", "histogram, edges", "median, per unit, 2", "mean, bounded"),
    *("median, chosen", "count, values", "median, dry run", "iqr, chosen"),
    *("covariance, units", "ratio, bounded", "weighted_mean, weights", "correlation, bounded"),
]


def sample() -> list[Any]:
    """Every sixth kind with the next request that suits it; the session of Spark takes too long."""
    found, turns = [], {id(each): 0 for each in (OF_ANYTHING, OF_TEXTS, OF_NUMBERS)}
    kinds = [kind for kind in KINDS if kind.engine != "pyspark"]
    for kind in kinds[::6]:
        names = OF_TEXTS if kind.text else OF_NUMBERS if kind.numeric else OF_ANYTHING
        if kind.engine == "numpy":  # it has no names
            names = ["mode, categories"] if kind.text else OF_NUMBERS[:4]
        turn = turns[id(names)] = turns.get(id(names), 0) + 1
        marks = [pytest.mark.thorough] if kind.engine == "postgres" else []
        found.append(pytest.param(kind, names[turn % len(names)], id=f"{kind}-{turn}", marks=marks))
    return found


@pytest.mark.parametrize(("kind", "request_name"), sample())
def test_one_odd_record_changes_nothing_that_is_seen(
    kind: Kind, request_name: str, load: Load
) -> None:
    """All odd records at once: each of them alone would stop a query as well."""
    check(kind, request_name, load(kind, []), load(kind, kind.records))


@slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_whole_product(kind: Kind, load: Load) -> None:
    """Every request; the odd records together, and each alone for some of the requests."""
    usual, together = load(kind, []), load(kind, kind.records)
    alone = [load(kind, [odd]) for odd in kind.records]
    for turn, name in enumerate(REQUESTS):
        check(kind, name, usual, together)
        if alone and not name.startswith(HEAVY):
            check(kind, name, usual, alone[turn % len(alone)])


def test_every_public_function_that_reads_a_table_is_asked() -> None:
    public = {name: getattr(prudent.release, name) for name in prudent.release.__all__}
    functions = {name: each for name, each in public.items() if inspect.isfunction(each)}
    assert STATISTICS.keys() <= functions.keys()
    assert functions.keys() == STATISTICS.keys() | NO_TABLE.keys()


def test_every_engine_and_contribution_is_tried() -> None:
    suffixes = {suffix.lstrip(".") for suffix in sources._TEXT}
    assert ENGINES.keys() >= {
        *dialects.ENGINES,
        "pandas",
        "polars",
        "pyarrow",
        *suffixes,
        "parquet",
        "numpy",
    }
    assert {kind.engine for kind in KINDS} == ENGINES.keys()
    assert set(get_args(get_args(column.PerUnit)[0])) == set(column._WORDS)
    for how in column._WORDS:
        assert f"median, per unit, {how}" in REQUESTS


# --- engines that fail ----------------------------------------------------------------------------

FAILURES = [
    RuntimeError("secret"),
    ImportError("secret", name="secret"),
    SystemExit("secret"),
    MemoryError("secret: array with shape (2, 24901)"),
    UnicodeDecodeError("utf-8", b"secret", 0, 1, "secret"),
    KeyboardInterrupt("secret"),
]
PTR: Any = {"epsilon": 8.0, "delta": 1e-6}
FAILING: dict[str, Callable[..., Any]] = {
    "proposed": partial(median, column="x", propose=9.0, certify=9.0, **PTR),
    "private groups of units": partial(
        median, column="x", by="c", unit="id", groups="private", **PTR
    ),
    "mode of units": partial(mode, column="c", unit="id", **PTR),
    "trimmed": partial(trimmed_mean, column="x", trim=40, propose=9.0, **PTR),
}
CALLS = [
    (ibis.backends.duckdb.Backend, "to_pyarrow"),
    (ibis.backends.duckdb.Backend, "raw_sql"),
    (psycopg.Cursor, "execute"),
]


@contextlib.contextmanager
def failing(at: int, error: BaseException, calls: list[str]) -> Iterator[list[str]]:
    """Let the engine's call number `at` raise, while another error is handled; list the calls."""
    with answered_twice.counted(), pytest.MonkeyPatch.context() as patch:
        for owner, name in CALLS:
            call = getattr(owner, name)

            def called(*given: Any, _call: Any = call, _name: str = name, **more: Any) -> Any:
                calls.append(_name)
                if len(calls) == at + 1:
                    try:
                        raise ValueError("secret cause")
                    except ValueError:
                        raise error  # noqa: B904
                return _call(*given, **more)

            patch.setattr(owner, name, called)
        yield calls


def kind_named(name: str) -> Kind:
    return next(kind for kind in KINDS if str(kind) == name)


class Marks:
    """A ledger that remembers how many calls an engine had had when it was charged."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.opening = 0

    def charge(self, event: object, label: str = "", *, delta: float | None = None) -> None:
        self.opening = len(self.calls)


def failures() -> list[Any]:
    """A release of each engine, failing where it begins and ends to read; the others are slow."""
    quick = {("parquet string", "private groups of units"), ("postgres text", "mode of units")}
    return [
        pytest.param(name, way, every, marks=() if (name, way) in quick and not every else slow)
        for name in ("parquet string", "postgres text")
        for way in FAILING
        for every in (False, True)
    ]


@pytest.mark.unhurried
@pytest.mark.parametrize(("name", "way", "every"), failures())
def test_a_failure_inside_any_query_is_told_in_the_same_words(
    name: str, way: str, every: bool, load: Load
) -> None:
    """Before the charge an engine may be named, and a driver that is missing; after it nothing."""
    kind = kind_named(name)
    where, ask, ledger = load(kind, []).source, FAILING[way], Marks()
    with failing(10**9, FAILURES[0], ledger.calls):
        ask(**where, ledger=ledger)
    first, last = ledger.opening, len(ledger.calls) - 1
    for at in range(last + 1) if every else (first - 1, first, last):
        reading = at >= first
        for error in FAILURES if reading and at == last else FAILURES[:1]:
            caught: BaseException | None = None
            with failing(at, error, []):
                try:
                    ask(**where)
                except BaseException as raised:
                    caught = raised
            check_nothing_is_told(caught)
            assert caught is not None or not reading
            if reading and isinstance(error, Exception):
                assert isinstance(caught, SourceError)
                assert str(caught) == UNREADABLE


def check_nothing_is_told(error: BaseException | None) -> None:
    """Neither its traceback nor what it refers to, shown or not, quotes what the engine raised."""
    while error is not None:
        assert "secret" not in "".join(traceback.format_exception(error))
        assert "secret" not in str(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("error", FAILURES[::2], ids=lambda error: type(error).__name__)
def test_the_command_line_tells_no_more(
    error: BaseException,
    load: Load,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = load(kind_named("parquet double"), []).source["data"]
    given = ["release", "median", str(path), "--column", "c", "--epsilon", "1"]
    monkeypatch.setenv("PRUDENT_TRACEBACK", "1")
    with failing(10**9, error, []) as calls:
        assert main(given) == 0
    capfd.readouterr()
    with failing(len(calls) - 1, error, []):
        try:
            status = main(given)
        except SystemExit as stopped:
            status = stopped.code  # type: ignore[assignment]
    assert status in (1, 2, 130)
    assert "secret" not in "".join(capfd.readouterr())
