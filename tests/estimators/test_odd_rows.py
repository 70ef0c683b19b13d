"""Rows that are not as a model expects them: no error quotes them, or how many there are."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="estimators need scikit-learn")

from prudent import ArgumentError
from prudent.estimators import LinearRegression
from prudent.estimators.base import TooFewRecordsError
from prudent.estimators.rows import ModelData, queries_of
from prudent.release.noise import PartitionSelection, ReproducibleNoise
from tests.release.recording import Book


class Raising:
    """Whatever is asked of it is an error that quotes a record."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("secret 918273")


class Endless(list):
    """A row whose length is an error that quotes a record."""

    def __len__(self) -> int:
        raise RuntimeError("secret 918273")


def fitted(rows: Any, targets: Any) -> None:
    LinearRegression(epsilon=1.0, noise=ReproducibleNoise(0)).fit(rows, targets)


ODD = {
    "scalar array": np.array(5.0),
    "raising": Raising(),
    "without length": Endless([1.0, 2.0]),
    "lists": [[1, 2], [3, 4]],
    "row": [1.0],
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_target_of_a_list_is_absent(name: str) -> None:
    for others in (1, 4000):  # also where there are as many odd ones as others
        x = np.random.default_rng(0).normal(size=(others + 1, 1))
        _, rows = opened(x, [*x[:-1, 0].tolist(), ODD[name]])
        assert len(rows) == others


def opened(x: Any, y: Any, **given: Any) -> tuple[list[str], Any]:
    """The names of the features, and the rows that a model reads."""
    rows, names = ModelData(data=x, target=y, **given).open()
    return names, np.concatenate([np.empty((0, len(rows.names))), *rows.batches()])


@pytest.mark.parametrize("rows", [[[1.0, 2.0]] * 5, [[1.0, 2.0], [3.0]], ([1.0], [2.0]), []])
def test_a_list_of_rows_has_no_declared_width(rows: Any) -> None:
    """One record more of another length would decide how many features there are."""
    book = Book()
    with pytest.raises(ArgumentError) as caught:
        LinearRegression(epsilon=1.0, ledger=book).fit(rows, [1.0] * len(rows))
    assert caught.value.argument == "X"
    assert not book.charges


def test_a_fitted_model_knows_the_width_of_a_list() -> None:
    x = np.random.default_rng(0).normal(size=(4000, 2))
    model = LinearRegression(epsilon=9.0, noise=ReproducibleNoise(0)).fit(x, x[:, 0])
    assert (model.predict(x[:3].tolist()) == model.predict(x[:3])).all()
    for wrong in ([[1.0, 2.0, 3.0]], [[1.0, 2.0], [3.0]]):
        with pytest.raises(ValueError, match=r"features|2D"):
            model.predict(wrong)


@pytest.mark.parametrize("dtype", [float, int, bool, object, "M8[D]"])
def test_what_an_array_masks_is_absent(dtype: Any) -> None:
    x = np.ma.masked_array(np.arange(40).reshape(20, 2).astype(dtype), mask=False)
    y = np.ma.masked_array(np.arange(20).astype(dtype), mask=False)
    x.mask[3, 1] = y.mask[4] = y.mask[5] = True
    assert len(opened(x, y)[1]) == 17
    kept = np.delete(np.arange(20), [3, 4, 5])
    assert (opened(x, y)[1] == opened(x.data[kept], y.data[kept])[1]).all()


def test_what_an_array_masks_has_no_label_and_is_no_query() -> None:
    x = np.arange(40.0).reshape(20, 2)
    y = np.ma.masked_array(np.arange(20) % 2, mask=np.arange(20) < 5)
    assert len(opened(x, y, classes=[0, 1])[1]) == 15
    assert np.isnan(queries_of(np.ma.masked_array(x, mask=x > 5), ["x0", "x1"])).sum() == 34


class Reading:
    """A number that tells when it is read."""

    def __init__(self) -> None:
        self.read = False

    def __getattribute__(self, name: str) -> Any:
        object.__setattr__(self, "read", True)
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("kind", ["list", "array", "pandas", "frame and list", "frame and pandas"])
def test_a_refused_charge_reads_no_target(kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    cell = Reading()
    x = np.ones((20, 2))
    cells = [cell, *[1.0] * 19]
    y: Any = {"list": cells, "array": np.array(cells, dtype=object)}.get(kind, cells)
    if kind.endswith("pandas"):
        y = pandas.Series(cells, dtype=object)
    features = pandas.DataFrame(x, columns=["a", "b"]) if kind.startswith("frame") else x
    object.__setattr__(cell, "read", False)
    with pytest.raises(OverdrawnError):
        LinearRegression(epsilon=1.0, ledger=Refusing()).fit(features, y)
    assert not object.__getattribute__(cell, "read")


class OverdrawnError(Exception):
    pass


class Refusing:
    """A ledger without any budget."""

    def charge(self, *given: Any, **named: Any) -> Any:
        raise OverdrawnError

    def __getattr__(self, name: str) -> Any:
        raise OverdrawnError


def columns() -> dict[str, Any]:
    """Targets of each library, with one cell that Python cannot represent, or none."""
    pandas, polars, arrow = (pytest.importorskip(n) for n in ("pandas", "polars", "pyarrow"))
    days = [*range(19), 10**8]
    return {
        "pandas": pandas.Series([*map(float, range(19)), None]),
        "pandas booleans": pandas.Series([True] * 19 + [None]),
        "pandas dates": pandas.Series([*map(datetime.date.fromordinal, range(719163, 719182)), 1j]),
        "pandas nullable": pandas.Series([*range(19), None], dtype="Int64"),
        "pandas array": pandas.array([*range(19), None], dtype="Int64"),
        "pandas Arrow": pandas.Series(arrow.array(days, "date32"), dtype="date32[pyarrow]"),
        "pandas frame": pandas.DataFrame({"a": [*map(float, range(19)), None]}),
        "polars": polars.Series([*range(19), None]),
        "polars dates": polars.Series(days).cast(polars.Date),
        "arrow": arrow.array([*range(19), None]),
        "arrow dates": arrow.chunked_array([arrow.array(days, "date32")]),
    }


@pytest.mark.filterwarnings("ignore:A column-vector y")
@pytest.mark.parametrize("name", list(columns()))
@pytest.mark.parametrize("framed", [False, True])
def test_one_odd_cell_of_targets_leaves_the_others(name: str, framed: bool) -> None:
    pandas = pytest.importorskip("pandas")
    y, x = columns()[name], np.arange(20.0)[:, None]
    found = opened(pandas.DataFrame(x, columns=["target"]) if framed else x, y)[1]
    wanted = np.ones(19) if "booleans" in name else np.arange(19.0)
    assert (found[:19] == np.stack([np.arange(19.0), wanted], axis=1)).all()
    assert len(found) == 19 + (name in ("pandas Arrow", "polars dates", "arrow dates"))


@pytest.mark.filterwarnings("ignore:A column-vector y")
@pytest.mark.parametrize("name", list(columns()))
def test_one_odd_cell_of_labels_leaves_the_others(name: str) -> None:
    label: Any = datetime.date(1970, 1, 2) if "dates" in name or "Arrow" in name else 1
    found = opened(np.arange(20.0)[:, None], columns()[name], classes=["other", label])[1]
    assert len(found) == (19 if "booleans" in name else 1)


@pytest.mark.parametrize("labels", [[0, 1] * 2000, [0.0, 1.0] * 2000, [0, 1] * 2000 + [None]])
def test_one_absent_label_does_not_show_in_the_others(labels: list[Any]) -> None:
    pandas = pytest.importorskip("pandas")
    data = ModelData(data=np.ones((len(labels), 1)), target=pandas.Series(labels), classes=[])
    found = data.labels(PartitionSelection(epsilon=1.0, delta=1e-6), ReproducibleNoise(0))
    assert list(map(repr, found)) == ["0", "1"]


def test_targets_beside_a_table_that_is_not_in_memory_are_refused(tmp_path: Path) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    frame = pandas.DataFrame({"a": [1.0] * 400})
    path = str(tmp_path / "a.parquet")
    frame[: len(path)].to_parquet(path)
    for x, y, given in (
        (path, np.ones(len(path)), {}),
        (polars.from_pandas(frame).lazy(), np.ones(400), {}),
        (frame, np.ones(400), {"where": "a > 0"}),
    ):
        with pytest.raises(ArgumentError, match="the name of a column"):
            opened(x, y, **given)


CELLS = {
    "true": 1.0,
    "False": 0.0,
    "2024-01-02": 19724.0,
    "2024-01-02 00:00:01": 19724 * 86_400e6 + 1e6,
    "-1.5e3": -1500.0,
    "infinity": np.inf,
}


def test_a_text_file_is_read_cell_by_cell(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = [f"{text},{number}" for number, text in enumerate([*CELLS, "secret", "nan", ""])]
    path.write_text("\n".join(["x,y", *lines]) + "\n")
    assert opened(str(path), "y")[1][:, 0].tolist() == list(CELLS.values())


def test_one_text_does_not_change_the_unit_of_times() -> None:
    pandas = pytest.importorskip("pandas")
    times = list(pandas.date_range("2024-01-01", periods=20, freq="h"))
    whole, odd = (pandas.DataFrame({"x": each, "y": 1.0}) for each in (times, [*times, "secret"]))
    assert (opened(whole, "y")[1] == opened(odd, "y")[1]).all()


def duplicates() -> dict[str, Any]:
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    return {
        "pandas": pandas.DataFrame(np.ones((20, 3)), columns=["a", "a", "y"]),
        "as texts": pandas.DataFrame(np.ones((20, 3)), columns=[1, "1", "y"]),
        "arrow": arrow.table([arrow.array([1.0] * 20)] * 3, names=["a", "a", "y"]),
    }


@pytest.mark.parametrize("name", list(duplicates()))
@pytest.mark.parametrize("y", ["y", "y ~ a", "array"])
def test_two_columns_of_one_name_are_refused(name: str, y: str) -> None:
    book = Book()
    with pytest.raises(ArgumentError, match="columns of different names") as caught:
        LinearRegression(epsilon=1.0, ledger=book).fit(
            duplicates()[name], np.ones(20) if y == "array" else y
        )
    assert caught.value.argument == "X"
    assert not book.charges


@pytest.mark.parametrize("y", [np.array(["a"] * 20), np.zeros(20, "V4"), "name", {1.0}, 3.0])
def test_targets_that_are_no_numbers_cost_nothing(y: Any) -> None:
    book = Book()
    with pytest.raises(ArgumentError) as caught:
        LinearRegression(epsilon=1.0, ledger=book).fit(np.ones((20, 2)), y)
    assert caught.value.argument == "y"
    assert not book.charges


@pytest.mark.unhurried
@pytest.mark.parametrize("odd", [None, "secret", 1j], ids=repr)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_odd_value_of_a_frame_is_one_row_less(odd: Any, place: int) -> None:
    pandas = pytest.importorskip("pandas")
    values = np.random.default_rng(0).normal(size=(3, 4000))
    columns = {f"x{at}": each.tolist() for at, each in enumerate(values)}
    columns[f"x{place}"][7] = odd
    frame = pandas.DataFrame(columns)
    features, target = frame[["x0", "x1"]], frame["x2"]
    for rows, targets in ((frame, "x2"), (features, target), (features, target.to_numpy())):
        model = LinearRegression(epsilon=2.0, noise=ReproducibleNoise(0)).fit(rows, targets)
        assert 3900 < model.n_records_ < 4100


def test_an_array_of_texts_costs_nothing() -> None:
    """One text makes all numbers of an array texts."""
    book = Book()
    with pytest.raises(ValueError, match="Expected X an array of numbers, got one of texts"):
        LinearRegression(epsilon=1.0, ledger=book).fit(
            np.array([[1.0, 2.0], ["a", 3.0]]), [1.0, 2.0]
        )
    assert not book.charges


def test_a_column_of_texts_is_named_as_a_reason_for_few_rows() -> None:
    """Whether a text is a number is private: all refusals say the same."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"name": ["a"] * 500, "x": [1.0] * 500, "y": [1.0] * 500})
    told = set()
    for rows in (frame, frame[["x", "y"]][:3]):
        with pytest.raises(TooFewRecordsError, match="Texts are left out by") as caught:
            fitted(rows, "y")
        told.add(str(caught.value).partition("fewer columns")[2])
    assert len(told) == 1


@pytest.mark.parametrize("dtype", ["string", "category", "string[pyarrow]"])
@pytest.mark.parametrize("target", ["y", "y ~ a + text", np.arange(20.0)])
def test_declared_texts_of_a_frame_are_refused_before_a_charge(dtype: str, target: Any) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.arange(20.0), "text": ["1", "b"] * 10})
    frame = frame.astype({"text": dtype}).assign(y=1.0)
    book = Book()
    with pytest.raises(ArgumentError, match=r"text.*C\(text\)|'text'"):
        LinearRegression(epsilon=1.0, ledger=book).fit(frame, target)
    assert not book.charges
