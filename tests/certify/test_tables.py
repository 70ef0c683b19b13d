"""Counts of tables in files, DuckDB, PostgreSQL and Spark: those of the same records in memory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="needs the extra `tables`")

import pyarrow as pa
import pyarrow.parquet as pq

from prudent import ArgumentError
from prudent.budget.ledger import Ledger, OverBudgetError
from prudent.certify import CertifiedClassifier
from prudent.certify.counts import STEPS
from prudent.release.failures import SourceError
from tests.certify.test_classifier import SILENT, Halves, blobs
from tests.servers import postgres_url as postgres_url
from tests.servers import spark_session as spark_session

NAMES = ["a", "b", "é", "Z"]
LANDMARKS = blobs(9, 40)[0]
VECTORS, NUMBERS = blobs(1, 300)

Loaded = dict[str, Any]
Loader = Callable[[pa.Table], Loaded]


def model(**options: Any) -> CertifiedClassifier:
    given = {"epsilon": 2.0, "classes": NAMES, "landmarks": LANDMARKS, "noise": SILENT}
    return CertifiedClassifier(**(given | options))


def table_of(cells: Any = None, labels: Any = None, vectors: Any = None) -> pa.Table:
    columns = {
        "cell": model().cells(VECTORS)[:, 0].tolist() if cells is None else cells,
        "vector": VECTORS.tolist() if vectors is None else vectors,
        "label": [NAMES[each] for each in NUMBERS] if labels is None else labels,
    }
    types = {"cell": pa.float64(), "vector": pa.list_(pa.float64()), "label": pa.string()}
    return pa.table({name: pa.array(columns[name], types[name]) for name in columns})


def _postgres(address: str) -> Iterator[Loader]:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS embedded")
        connection.execute("CREATE TABLE embedded (cell float8, vector float8[], label text)")

        def load(table: pa.Table) -> Loaded:
            connection.execute("TRUNCATE embedded")
            with connection.cursor().copy("COPY embedded FROM STDIN") as copy:
                for row in table.to_pylist():
                    copy.write_row((row["cell"], row["vector"], row["label"]))
            return {"data": None, "connect": address, "table": "embedded"}

        yield load
        connection.execute("DROP TABLE embedded")


@pytest.fixture(params=["frame", "parquet", "duckdb", "postgres", "spark"])
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Loader]:
    """Puts a table into an engine; gives back how to name it there."""
    if request.param == "postgres":
        yield from _postgres(str(request.getfixturevalue("postgres_url")))
        return
    if request.param == "spark":
        session = request.getfixturevalue("spark_session")
        schema = "cell double, vector array<double>, label string"
        rows = lambda table: [tuple(row.values()) for row in table.to_pylist()]  # noqa: E731
        yield lambda table: {"data": session.createDataFrame(rows(table), schema)}
        return
    if request.param == "frame":
        yield lambda table: {"data": table}
        return

    def load(table: pa.Table) -> Loaded:
        if request.param == "parquet":
            pq.write_table(table, tmp_path / "x.parquet")
            return {"data": tmp_path / "x.parquet"}
        duckdb = pytest.importorskip("duckdb")
        (tmp_path / "x.duckdb").unlink(missing_ok=True)
        with duckdb.connect(str(tmp_path / "x.duckdb")) as connection:
            connection.register("given", table)
            connection.execute("CREATE TABLE embedded AS SELECT * FROM given")
        return {"data": tmp_path / "x.duckdb", "table": "embedded"}

    yield load


def same(found: CertifiedClassifier, records: Any, labels: Any) -> None:
    expected = model().count(records, labels)
    assert np.array_equal(found.counts_.cells, expected.cells)
    assert np.array_equal(found.counts_.totals, expected.totals)
    assert found.counts_.epsilon == 2.0


@pytest.mark.parametrize("column", ["cell", "vector"])
def test_a_table_has_the_counts_of_its_records(loaded: Loader, column: str) -> None:
    named = [NAMES[each] for each in NUMBERS]
    same(model().fit_table(**loaded(table_of()), column=column, label="label"), VECTORS, named)


def test_odd_rows_are_absent_altogether(loaded: Loader) -> None:
    """No row may add to the records of its class without a cell: its weight would be unknown."""
    cells: list[Any] = model().cells(VECTORS)[:, 0].tolist()
    vectors: list[Any] = VECTORS.tolist()
    labels: list[Any] = [NAMES[each] for each in NUMBERS]
    odd = {3: -1, 7: 40, 9: 1e300, 11: float("nan"), 12: None, 13: float("-inf"), 14: -7.2}
    for row, cell in odd.items():
        cells[row] = cell
    for row, vector in zip(
        odd,
        ([], None, [1.0], [float("nan")] * 12, [None] * 12, [1.0] * 13, [float("inf")] * 12),
        strict=True,
    ):
        vectors[row] = vector
    labels[21], labels[22] = None, "none of them"
    kept = np.setdiff1d(np.arange(300), [*odd, 21, 22])
    where = loaded(table_of(cells, labels, vectors))
    for column in ("cell", "vector"):
        found = model().fit_table(**where, column=column, label="label")
        same(found, VECTORS[kept], [labels[each] for each in kept])


def test_conditions_choose_rows(loaded: Loader) -> None:
    kept = np.flatnonzero(NUMBERS != 2)
    for column in ("cell", "vector"):
        found = model().fit_table(
            **loaded(table_of()), column=column, label="label", where="label <> 'é'"
        )
        same(found, VECTORS[kept], [NAMES[each] for each in NUMBERS[kept]])


def test_many_landmarks_are_counted_in_one_query_per_class() -> None:
    """More cells than a histogram may have bins."""
    many = np.random.default_rng(0).standard_normal((12_000, 12))
    like = model(landmarks=many)
    cells = like.cells(VECTORS)[:, 0].tolist()
    found = model(landmarks=many).fit_table(table_of(cells), "cell", "label")
    expected = like.count(VECTORS, [NAMES[each] for each in NUMBERS])
    assert np.array_equal(found.counts_.cells, expected.cells)


def test_several_tables_need_vectors() -> None:
    halves = {"features": Halves(), "landmarks": None}
    pairs = VECTORS[:, :2]
    table = table_of(vectors=pairs.tolist())
    found = model(**halves).fit_table(table, "vector", "label")
    expected = model(**halves).count(pairs, [NAMES[each] for each in NUMBERS])
    assert np.array_equal(found.counts_.cells, expected.cells)
    with pytest.raises(ArgumentError, match="several tables"):
        model(**halves).fit_table(table, "cell", "label")


class Lukewarm:
    """One table of two cells whose weights are close to a half, so that one record moves little."""

    name, digest, sizes = "lukewarm", "", (2,)

    def cells(self, rows: Any) -> np.ndarray:
        return np.asarray(rows)[:, :1].astype(int)

    def weights(self, rows: Any) -> np.ndarray:
        return np.tile(np.array([STEPS // 4, 3 * STEPS // 4], np.float32), (len(rows), 1))


def test_a_row_without_a_cell_cannot_break_a_radius() -> None:
    """Such a row once lowered the score of its class by a half, which is more than m here."""
    like = {"features": Lukewarm(), "landmarks": None, "classes": ["a", "b"]}
    cells, labels = [1.0] * 9, ["a"] * 9
    honest = model(**like).fit_table(table_of(cells, labels, [[0.0]] * 9), "cell", "label")
    (label,), (radius,) = honest.predict_radius([[0.0]])
    assert (label, radius) == ("a", 9)
    cells, labels = cells + [5.0] * 9, labels + ["a"] * 9
    poisoned = model(**like).fit_table(table_of(cells, labels, [[0.0]] * 18), "cell", "label")
    assert poisoned.predict([[0.0]])[0] == label


@pytest.mark.parametrize("column", ["cell", "vector"])
def test_one_charge_pays_for_a_table(tmp_path: Path, column: str) -> None:
    with Ledger.create(tmp_path / "budget.db", epsilon=3.0, delta=1e-6) as ledger:
        found = model(ledger=ledger).fit_table(table_of(), column, "label")
        assert len(ledger.history()) == 1
        assert ledger.spent == pytest.approx(2.0)
        assert (found.predict(VECTORS) == np.array(NAMES)[NUMBERS]).mean() > 0.9
        with pytest.raises(OverBudgetError):
            model(ledger=ledger).fit_table(table_of(), column, "label")


def test_options_and_types_are_checked_before_the_charge(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "budget.db", epsilon=3.0, delta=1e-6) as ledger:
        fit = model(ledger=ledger).fit_table
        with pytest.raises(TypeError, match="unknown"):
            fit(table_of(), "cell", "label", wehre="cell > 3")
        with pytest.raises(ArgumentError, match="label and classes"):
            fit(table_of(), "cell", "label", by="label")
        with pytest.raises(ArgumentError, match="vectors"):
            fit(table_of(), "vector", "label", unit="cell")
        with pytest.raises(ArgumentError, match="one value per unit"):
            fit(table_of(), "cell", "label", unit="label", per_unit=2)
        texts = pa.table({"vector": [["x"]], "label": ["a"]})
        with pytest.raises(ArgumentError, match="an array of numbers"):
            fit(texts, "vector", "label")
        with pytest.raises((ArgumentError, SourceError)):
            fit(table_of(), "vector", "nothing")
        assert not ledger.history()
