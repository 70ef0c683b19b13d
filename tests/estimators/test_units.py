"""Models of rows of which a privacy unit may have several: what is kept, and what it costs."""

import collections
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn", reason="estimators need scikit-learn")

from prudent import ArgumentError
from prudent.estimators import KMeans, LinearRegression, LogisticRegression
from prudent.estimators.formula import FormulaRows
from prudent.estimators.rows import ModelData
from prudent.release.noise import PartitionSelection, ReproducibleNoise
from tests.release.recording import Book, Silence


def visits(rows: int = 900) -> pd.DataFrame:
    """Rows of 200 units with ties, gaps, and rows of no unit."""
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "who": pd.array(generator.integers(0, 200, rows), "Int64"),
            "a": generator.integers(0, 5, rows) - 0.5,
            "b": np.where(generator.random(rows) < 0.1, np.nan, generator.normal(size=rows)),
            "label": generator.choice(["n", "s", "w"], rows),
            "y": generator.normal(size=rows),
        }
    ).assign(who=lambda t: t.who.mask(t.who == 7))


def kept(table: pd.DataFrame, most: int) -> list[list[float]]:
    """The rows of each unit at places floor((2i - 1) n / 2k) of their order; one by one."""
    own: dict[Any, list[list[float]]] = collections.defaultdict(list)
    for row in table[table.who.notna()].itertuples():
        numbers = [row.a, row.b, row.y]
        if not np.isnan(numbers).any():
            own[row.who].append(numbers)
    found: list[list[float]] = []
    for rows in map(sorted, own.values()):
        places = range(len(rows))
        if len(rows) > most:
            places = [(2 * i - 1) * len(rows) // (2 * most) for i in range(1, most + 1)]
        found += [rows[place] for place in places]
    return sorted(found)


def rows_of(opened: Any) -> list[list[float]]:
    return sorted(row for batch in opened.batches() for row in batch.tolist())


@pytest.mark.unhurried
@pytest.mark.parametrize("most", [1, 3])
def test_what_is_kept_of_a_unit_is_the_same_from_every_container(most: int, tmp_path: Path) -> None:
    import duckdb
    import polars

    table = visits()
    expected = kept(table, most)
    table.to_parquet(tmp_path / "t.parquet")
    table.to_csv(tmp_path / "t.csv", index=False)
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.register("visited", table)
        connection.execute("CREATE TABLE t AS SELECT * FROM visited")
    files = [str(tmp_path / name) for name in ("t.parquet", "t.csv", "t.duckdb")]
    for source in (table, polars.from_pandas(table), polars.from_pandas(table).to_arrow(), *files):
        at = {"table": "t"} if str(source).endswith(".duckdb") else {}
        rows = FormulaRows("y ~ a + b", source, unit="who", most=most, **at)
        rows.choose(None, ReproducibleNoise(0))
        assert rows_of(rows) == expected
        named, _ = ModelData(
            data=source, target="y", features=["a", "b"], unit="who", most=most, **at
        ).open()
        assert rows_of(named) == expected
    features = table[["a", "b"]]
    for x, y, unit in (
        (features, table.y, table.who),
        (features.to_numpy(), table.y.to_numpy(), table.who.to_numpy()),
        (features.to_numpy(), table.y.tolist(), [*map(str, table.who)]),
    ):
        if isinstance(unit, list):
            unit = [None if each == "<NA>" else each for each in unit]
        own, _ = ModelData(data=x, target=y, unit=unit, most=most).open()
        assert rows_of(own) == expected


def test_one_unit_of_many_odd_rows_adds_few_rows() -> None:
    table = visits()
    before = collections.Counter(map(tuple, kept(table, 2)))
    odd = [np.inf, -np.inf, 1e308, 0.0, -0.0, np.nan]
    rows = [(9999, one, other, "zzz", third) for one in odd for other in odd for third in odd]
    more = pd.concat([table, pd.DataFrame(rows, columns=table.columns)], ignore_index=True)
    opened = FormulaRows("y ~ a + b", more, unit="who", most=2)
    opened.choose(None, ReproducibleNoise(0))
    after = collections.Counter(map(tuple, rows_of(opened)))
    assert not before - after
    assert (after - before).total() == 2


@pytest.mark.parametrize("most", [1, 4])
def test_noise_grows_with_the_rows_of_a_unit_and_the_price_does_not(most: int) -> None:
    table = visits(6000).dropna()
    drawn = []
    for given in ({}, {"unit": table.who, "per_unit": most}):
        noise = Silence()
        model = LinearRegression(epsilon=30.0, bounds={0: (-1, 5), 1: (-4, 4)}, noise=noise)
        model.fit(table[["a", "b"]].to_numpy(), table.y.to_numpy(), **given)
        drawn.append((noise.drawn[0], model.event_))
    (plain, event), (own, same) = drawn
    assert event == same
    assert own[1] == pytest.approx(most * plain[1])  # of the count, to which a row adds 1
    one, several = (
        LinearRegression(epsilon=30.0)._prices(2, records=records) for records in (1, most)
    )
    for name, part in one.parts.items():
        if part.choice:
            assert several.choice_epsilon(name) == pytest.approx(one.choice_epsilon(name) / most)
        else:
            assert several.multiplier(name) == pytest.approx(one.multiplier(name) * most)


def test_dependent_rows_have_no_interval() -> None:
    table, model = visits(6000), LinearRegression(epsilon=30.0, noise=ReproducibleNoise(1))
    single = model.fit(table, "y ~ a", unit="who").summary()
    assert "adding or removing one unit" in single
    several = model.fit(table, "y ~ a", unit="who", per_unit=3)
    assert np.isnan(several.intervals_).all()
    assert "independent" in several.no_interval_


def test_a_unit_chooses_one_label() -> None:
    """A unit of 500 rows that alone has a label does not make the label known."""
    names = ["p"] * 300 + ["q"] * 300 + ["alone"] * 500
    who = [*range(600), *["one"] * 500]
    chosen = PartitionSelection(epsilon=1.0, delta=1e-6)
    frame = pd.DataFrame({"x": 1.0, "label": names, "who": list(map(str, who))})
    for given in (
        {"data": np.ones((1100, 1)), "target": names, "unit": who},
        {"data": frame, "target": "label", "unit": "who"},
    ):
        found = ModelData(classes=[], **given).labels(chosen, ReproducibleNoise(0))
        assert found == ["p", "q"]
    plain = ModelData(data=np.ones((1100, 1)), target=names, classes=[])
    assert len(plain.labels(chosen, ReproducibleNoise(0))) == 3


@pytest.mark.unhurried
def test_every_kind_of_model_takes_units() -> None:
    table = visits(6000).dropna()
    x, noise = table[["a", "b"]], ReproducibleNoise(1)
    assert KMeans(2, epsilon=30.0, noise=noise).fit(x, unit=table.who).n_records_ < 300
    model = LogisticRegression(epsilon=30.0, noise=noise)
    assert model.fit(x, table.label, unit=table.who).n_records_ < 300
    assert model.fit(table, "label ~ a + b", unit="who").n_records_ < 300


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"y": "y", "unit": "nobody"}, "unit"),
        ({"y": "y ~ a", "unit": "nobody"}, "unit"),
        ({"y": "y ~ a", "unit": [91827] * 900}, "unit"),
        ({"y": "y", "unit": [91827] * 900}, "unit"),
        ({"y": [1.0] * 900, "unit": "who"}, "unit"),
        ({"y": [1.0] * 900, "unit": [91827] * 899}, "unit"),
        ({"y": "y ~ a", "unit": "who", "per_unit": 0}, "per_unit"),
        ({"y": "y ~ a", "unit": "who", "per_unit": 10**9}, "per_unit"),
    ],
)
def test_what_is_no_unit_is_refused_before_a_charge(given: dict[str, Any], argument: str) -> None:
    book = Book()
    with pytest.raises(ArgumentError) as caught:
        LinearRegression(ledger=book).fit(visits()[["who", "a", "y"]], **given)
    assert caught.value.argument == argument
    assert "91827" not in str(caught.value)
    assert not book.charges


@pytest.mark.filterwarnings("ignore::prudent.PrivacyWarning")
@pytest.mark.unhurried
def test_scikit_learn_routes_units() -> None:
    import sklearn
    from sklearn.model_selection import cross_validate

    table = visits(6000).dropna()
    with sklearn.config_context(enable_metadata_routing=True):
        model = LinearRegression(epsilon=30.0).set_fit_request(unit=True)
        x, y = table[["a", "b"]].to_numpy(), table.y.to_numpy()
        given = {"params": {"unit": table.who.to_numpy()}, "return_estimator": True, "cv": 2}
        found = cross_validate(model, x, y, **given)["estimator"]
    assert all(each.n_records_ < 250 for each in found)
