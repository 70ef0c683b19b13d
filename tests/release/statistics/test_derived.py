"""Proportions, deviations and extremes: what they are, and that they say so."""

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis", reason="needs the extra `tables`")

import pyarrow as pa

import prudent
from prudent._validate import ArgumentError
from prudent.budget.ledger import Ledger
from prudent.release.noise import ReproducibleNoise
from tests.release.recording import Silence

VALUES = np.random.default_rng(1).normal(50, 10, 2000)
TABLE = pa.table({"x": VALUES, "high": VALUES > 60, "city": ["a", "b"] * 1000})


def test_a_proportion_of_a_condition_and_of_truth_values() -> None:
    share = float((VALUES > 60).mean())
    for data, column in ((TABLE, "high"), (TABLE, "x > 60"), (VALUES > 60, None)):
        found = prudent.proportion(data, column, epsilon=1.0, noise=Silence())
        assert found.value == pytest.approx(share, abs=1e-9)
        assert 0 <= found.interval()[0] < share < found.interval()[1] <= 1
    assert prudent.mean(TABLE, "high", epsilon=1.0, noise=Silence()).value == pytest.approx(share)
    nobody = prudent.proportion(TABLE, "x > 1000", epsilon=1.0, noise=Silence())
    assert nobody.interval()[0] == 0.0
    mixed = [True, False, True, None, "yes", 7]
    assert prudent.proportion(mixed, epsilon=9.0, noise=Silence()).value == pytest.approx(2 / 3)


@pytest.mark.parametrize("column", ["x", "city", "max(x) > 3", "nowhere", "x > 'a'"])
def test_what_is_no_condition_is_refused(column: str) -> None:
    with pytest.raises(ValueError, match=r"Expected (column|where)|unknown column"):
        prudent.proportion(TABLE, column, epsilon=1.0)


@pytest.mark.parametrize("rule", ["count", "sum"])
def test_a_share_of_what_is_counted_is_refused_before_the_charge(rule: str, tmp_path) -> None:
    table = TABLE.drop_columns(["city"]).append_column("who", [[i // 4 for i in range(2000)]])
    with Ledger(tmp_path / "l.db", epsilon=9.0, delta=1e-6) as ledger:
        whole = prudent.Table(table, unit="who", per_unit=rule, ledger=ledger)
        for ask in (
            lambda: whole.proportion("high", epsilon=1.0),
            lambda: prudent.table(
                table, ["avg(x)", "proportion(x > 60)"], unit="who", per_unit=rule, epsilon=1.0,
                ledger=ledger,
            ),
        ):  # fmt: skip
            with pytest.raises(ArgumentError, match="numbers above 1") as caught:
                ask()
            assert caught.value.argument == "per_unit"
        assert ledger.balance().charges == 0
    described = prudent.describe(
        table, unit="who", per_unit=rule, epsilon=9.0, noise=ReproducibleNoise(1)
    )
    assert "describe(high)" in described.answers
    share = prudent.proportion(
        table, "high", unit="who", per_unit="max", epsilon=9.0, noise=Silence()
    )
    assert 0 <= share.value <= 1


def test_a_csv_file_has_truth_values_if_they_are_declared(tmp_path) -> None:
    (tmp_path / "t.csv").write_text("b\ntrue\nfalse\ntrue\nperhaps\n")
    found = prudent.proportion(str(tmp_path / "t.csv"), "b", epsilon=9.0, noise=Silence())
    assert found.value == pytest.approx(2 / 3)
    given = {"read_as": "boolean", "epsilon": 9.0, "noise": Silence()}
    assert prudent.mean(str(tmp_path / "t.csv"), "b", **given).value == pytest.approx(2 / 3)


def test_a_deviation_is_the_root_of_the_variance() -> None:
    given = {"bounds": (0.0, 100.0), "epsilon": 1.0, "noise": Silence()}
    root = prudent.variance(TABLE, "x", **given).value ** 0.5
    assert prudent.deviation(TABLE, "x", **given).value == pytest.approx(root)


def test_extremes_are_quantiles_and_say_which() -> None:
    given = {"bounds": (0.0, 100.0), "epsilon": 2.0, "noise": ReproducibleNoise(4)}
    low, high = prudent.minimum(TABLE, "x", **given), prudent.maximum(TABLE, "x", **given)
    assert np.quantile(VALUES, 0.001) < low.value < np.quantile(VALUES, 0.1)
    assert np.quantile(VALUES, 0.9) < high.value < np.quantile(VALUES, 0.999)
    assert "-quantile: about" in high.notes[-1]
    assert "records lie above it" in high.notes[-1]
    few = prudent.maximum([1.0, 2.0, 3.0], bounds=(0, 9), epsilon=1.0, noise=ReproducibleNoise(4))
    assert "This is the median" in few.notes[-1]


def test_a_column_may_be_an_expression() -> None:
    found = prudent.mean(TABLE, "x * 2 + 1", bounds=(0, 300), epsilon=1.0, noise=Silence())
    assert found.value == pytest.approx(2 * VALUES.mean() + 1)
    found = prudent.count(TABLE, by="upper(city)", groups=["A"], epsilon=1.0, noise=Silence())
    assert found["A"].value == 1000
    with pytest.raises(ArgumentError, match="it uses avg"):
        prudent.mean(TABLE, "x - avg(x)", epsilon=1.0)
