"""Names and literals reach an engine quoted: any name gives the answer of a harmless one.

The same table is made twice, in DuckDB and in PostgreSQL, once with plain names and values and once
with hostile ones, and every release must give the same answer with the same noise. Ledgers are in
SQLite and in PostgreSQL.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("duckdb")
pytest.importorskip("ibis")

import dp_accounting as dp
import duckdb

from prudent import count, median, mode
from prudent.budget.ledger import Ledger, datasets
from prudent.release import ReproducibleNoise
from tests.servers import postgres_url
from tests.tiers import CHARACTERS

__all__ = ["postgres_url"]

EVIL = (
    *("'", '"', "''", '""', "`", ";", "--", "/*", "*/", "\\", "\\'", "$1", ":a", "?", "%s", "%"),
    *("'; DROP TABLE t; --", '"; DROP TABLE t; --', "x' OR '1'='1", "a b", "a.b", "[x]", "{0}"),
    *("select", "from", "order", "null", "true", "user", "rowid", "é", "\u6771", "\U0001f642"),
    *("\x1b[2J", "\t", "\n", "\u202e", "E'\\x27'", "U&'\\0027'", "0x27", "@@x", "#", "~"),
    *("a" * 60, " ", "NaN", "$$", "_"),
)
LETTERS = st.characters(exclude_characters="\x00", exclude_categories=["Cs"])
TEXTS = st.one_of(
    st.sampled_from(EVIL),
    st.text(LETTERS, min_size=1, max_size=8),
    st.lists(st.sampled_from(EVIL), min_size=1, max_size=3).map("".join),
)
ROWS = [(float(n % 7), n % 5, n % 3) for n in range(60)]
NAMES = ("value", "person", "town")
TOWNS = ("red", "green", "blue")

Make = Callable[[str, tuple[str, ...], tuple[str, ...]], dict[str, Any]]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def fill(
    execute: Callable[..., Any], table: str, names: tuple[str, ...], towns: Any, mark: str
) -> None:
    """Make the table by statements that quote by themselves, and parameters for values."""
    types = zip(map(quoted, names), ("DOUBLE PRECISION", "INTEGER", "TEXT"), strict=True)
    columns = ", ".join(f"{name} {kind}" for name, kind in types)
    execute(f"DROP TABLE IF EXISTS {quoted(table)}")
    execute(f"CREATE TABLE {quoted(table)} ({columns})")
    for value, person, town in ROWS:
        execute(
            f"INSERT INTO {quoted(table)} VALUES ({mark}, {mark}, {mark})",
            (value, person, towns[town]),
        )


@pytest.fixture(scope="module")
def in_duckdb(tmp_path_factory: pytest.TempPathFactory) -> Make:
    path = tmp_path_factory.mktemp("engines") / "some.duckdb"

    def make(table: str, names: tuple[str, ...], towns: tuple[str, ...]) -> dict[str, Any]:
        path.unlink(missing_ok=True)
        with duckdb.connect(str(path)) as connection:
            fill(connection.execute, table, names, towns, "?")
        return {"data": str(path), "table": table}

    return make


@pytest.fixture(scope="module")
def in_postgres(postgres_url: str) -> Iterator[Make]:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:

        def make(table: str, names: tuple[str, ...], towns: tuple[str, ...]) -> dict[str, Any]:
            def execute(statement: str, values: Any = None) -> None:
                if values:  # the three marks are at the end
                    head, _, tail = statement.rpartition(" VALUES ")
                    text = f"{head.replace('%', '%%')} VALUES {tail}"
                    connection.execute(text.encode(), values)
                else:
                    connection.execute(statement.encode())

            fill(execute, table, names, towns, "%s")
            return {"connect": postgres_url, "table": table}

        yield make


def answers(source: dict[str, Any], names: tuple[str, ...], towns: tuple[str, ...]) -> list[Any]:
    """What the table says, asked in every way that takes a name or a literal."""
    value, person, town = names
    where = f"{quoted(town)} = '{towns[0].replace(chr(39), chr(39) * 2)}'"
    price: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6}

    def noise() -> dict[str, Any]:
        return {"noise": ReproducibleNoise(7)}

    given = dict(source)
    data = given.pop("data", None)
    grouped = count(data, value, by=town, groups=list(towns), **price, **given, **noise())
    most = mode(data, town, categories=list(towns), **price, **given, **noise())
    return [
        median(data, value, **price, **given, **noise()).value,
        count(data, value, unit=person, per_unit="max", **price, **given, **noise()).value,
        count(data, value, where=where, **price, **given, **noise()).value,
        [grouped[each].value for each in towns],
        towns.index(most.value) if getattr(most, "value", None) in towns else None,
    ]


def distinct(texts: list[str], *, folded: bool) -> bool:
    """Whether names differ for an engine that does not tell cases apart."""
    return len({each.lower() if folded else each for each in texts}) == len(texts)


def is_allowed(table: str, names: list[str], towns: list[str]) -> bool:
    """Whether the engines themselves can hold such a table.

    A dot separates a schema from a table, so it is no part of either.
    """
    short = all(len(each.encode()) < 60 for each in (table, *names))
    plain = "." not in table and table.strip() == table
    return short and plain and distinct(names, folded=True) and distinct(towns, folded=False)


def check(make: Make, table: str, names: list[str], towns: list[str]) -> None:
    harmless = answers(make("t", NAMES, TOWNS), NAMES, TOWNS)
    hostile = answers(make(table, tuple(names), tuple(towns)), tuple(names), tuple(towns))
    assert hostile == harmless


THREE = st.lists(TEXTS, min_size=3, max_size=3)
FEW = {"phases": [hypothesis.Phase.generate], "database": None, "deadline": None}
FEW["suppress_health_check"] = list(hypothesis.HealthCheck)


def test_names_with_quotes(in_duckdb: Make) -> None:
    check(in_duckdb, "ta'b\"le", ["a'b", 'c"d;', "select"], ["'; --", '"', "\\"])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["in_duckdb", "in_postgres"])
def test_any_name_and_literal(engine: str, request: pytest.FixtureRequest) -> None:
    make = request.getfixturevalue(engine)

    @hypothesis.settings(max_examples=20, **FEW)
    @hypothesis.given(TEXTS, THREE, THREE)
    def run(table: str, names: list[str], towns: list[str]) -> None:
        hypothesis.assume(is_allowed(table, names, towns))
        check(make, table, names, towns)

    run()


def check_ledger(location: str, dataset: str, label: str, column: str) -> None:
    with Ledger.create(location, epsilon=1.0, delta=1e-6, dataset=dataset) as ledger:
        charge = ledger.charge(dp.LaplaceDpEvent(99.0), label, details={"column": column})
        ledger.record_outcome(charge, "released")
    with Ledger.open(location, dataset=dataset) as ledger:
        (found,) = ledger.history()
        assert (found.label, found.details.column) == (label, column)
        assert ledger.verify() == 1
    assert dataset in datasets(location)


PRINTABLE = TEXTS.filter(lambda text: text.isprintable())
LABELS = st.one_of(TEXTS, st.text(CHARACTERS, max_size=8))


@pytest.mark.parametrize("text", EVIL[:4])
def test_ledgers_with_quotes(tmp_path: Path, text: str) -> None:
    check_ledger(str(tmp_path / f"{text.replace('/', '')}.db"), text, text, text)


@pytest.mark.slow
@pytest.mark.parametrize("server", [False, True])
def test_any_name_and_note_of_a_ledger(
    server: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address, numbers = server and request.getfixturevalue("postgres_url"), iter(range(10**6))

    @hypothesis.settings(max_examples=20, **FEW)
    @hypothesis.given(PRINTABLE, LABELS, LABELS)
    def run(dataset: str, label: str, column: str) -> None:
        number = next(numbers)
        place = address or str(tmp_path / f"{number}.db")
        check_ledger(place, f"{dataset}{number}" if server else dataset, label, column)

    run()
