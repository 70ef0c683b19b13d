"""The release as a whole: charged before it reads, typed as declared, refused in time."""

import datetime
import hashlib
import json
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

pytest.importorskip("ibis")
pytest.importorskip("sklearn")

import pyarrow as pa
import pyarrow.parquet

import prudent
from prudent import ArgumentError
from prudent.accounting import PldAccountant
from prudent.release import ReproducibleNoise
from prudent.release.columns.column import SourceError
from prudent.samples import SAMPLES
from prudent.synth import making
from prudent.synth.columns import Source
from tests.synth.test_differential import TYPED, typed_rows

SALARIES = str(SAMPLES["salaries"].file)
PRICE: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-5}


class Keeper:
    """A ledger that notes, or refuses."""

    def __init__(self, refuses: bool = False) -> None:
        self.charged: list[Any] = []
        self._refuses = refuses

    def charge(self, event: Any, label: str = "", delta: float | None = None, **_: Any) -> None:
        if self._refuses:
            raise PermissionError("over budget")
        self.charged.append((event, delta))


@pytest.fixture
def noise() -> ReproducibleNoise:
    return ReproducibleNoise(3)


@pytest.mark.usefixtures("quick_prices")
class TestOrder:
    def test_it_is_charged_once_before_anything_is_read(
        self, monkeypatch: pytest.MonkeyPatch, noise: Any
    ) -> None:
        keeper, read = Keeper(), Source.read

        def noted(self: Source) -> Any:
            assert len(keeper.charged) == 1
            return read(self)

        monkeypatch.setattr(Source, "read", noted)
        given = {"columns": ["age", "married"], "ledger": keeper, "noise": noise}
        made = prudent.synthesize(SALARIES, **given, **PRICE)
        assert [(made.event, made.delta)] == keeper.charged

    def test_nothing_is_read_if_the_budget_is_spent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Source, "read", lambda self: pytest.fail("it was read"))
        with pytest.raises(PermissionError):
            prudent.synthesize(SALARIES, ledger=Keeper(refuses=True), **PRICE)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"columns": "age"},
            {"columns": 3},
            {"epsilon": "1"},
            {"epsilon": True},
            {"delta": "1e-6"},
            {"delta": np.array([1e-6])},
            {"constraints": ["age >="]},
            {"rows": 100},
            {"unit": "nobody"},
            {"unit": "age", "most_rows": 10_000},
            {"out": "table.xlsx"},
            {"epsilon": 0.0},
            {"delta": 0.0},
            {"noise": ReproducibleNoise},
        ],
    )
    def test_what_is_wrong_is_refused_before_a_charge(self, wrong: dict[str, Any]) -> None:
        keeper = Keeper()
        with pytest.raises(ArgumentError):
            prudent.synthesize(SALARIES, ledger=keeper, **(PRICE | {"epsilon": 0.1} | wrong))
        assert not keeper.charged

    @pytest.mark.parametrize(
        ("name", "value", "flag", "said"),
        [
            ("columns", ["nobody"], "--columns=nobody", "unknown column 'nobody'"),
            ("columns", ["a", "a"], "--columns=a,a", "each named once, got one of them twice"),
            ("columns", [], "--columns=", "one or more (left out: all), got []"),
            ("epsilon", 60.0, "--epsilon=60", "in [0.01, 50], got 60.0"),
            ("epsilon", 0.001, "--epsilon=0.001", "in [0.01, 50], got 0.001"),
            ("delta", 0.5, "--delta=0.5", "in (1e-18, 0.5), got 0.5"),
            ("constraints", ["height > 0"], "--constraint=height > 0", "unknown column 'height'"),
            ("constraints", ["a >"], "--constraint=a >", "a condition on one row, in the syntax"),
            # The file declares no types, and no types make a condition of these.
            ("constraints", ["a + 1"], "--constraint=a + 1", "neither true nor false"),
            ("constraints", ["b"], "--constraint=b", "neither true nor false"),
            ("constraints", ["odd(a) > b"], "--constraint=odd(a) > b", "it uses odd"),
        ],
    )
    def test_the_command_says_the_same(
        self,
        name: str,
        value: Any,
        flag: str,
        said: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        from prudent.cli import main

        file, keeper = tmp_path / "t.csv", Keeper()
        file.write_text("a,b\n1,2\n")
        with pytest.raises(ArgumentError) as caught:
            prudent.synthesize(file, ledger=keeper, **(PRICE | {name: value}))
        assert said in str(caught.value)
        assert not keeper.charged
        out = f"--out={tmp_path / 'made.csv'}"
        assert main(["synth", str(file), "--epsilon=1", "--delta=1e-6", out, flag]) == 2
        assert said in capsys.readouterr().err

    @pytest.mark.filterwarnings("ignore:fetch_arrow_table")
    def test_the_least_epsilon_is_allowed_and_a_large_delta_warned_of(self) -> None:
        refuses, file = Keeper(refuses=True), {"a": [0.5]}
        with pytest.raises(PermissionError):
            prudent.synthesize(pa.table(file), epsilon=0.01, delta=1e-6, ledger=refuses)
        given = {"epsilon": 50.0, "delta": 1e-3, "rows": 1000, "ledger": refuses}
        with (
            pytest.warns(RuntimeWarning, match="one over the number"),
            pytest.raises(PermissionError),
        ):
            prudent.synthesize(pa.table(file), **given)

    def test_a_failure_quotes_no_record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def failing(self: Source) -> Any:
            raise ValueError("a secret")

        monkeypatch.setattr(Source, "read", failing)
        with pytest.raises(SourceError) as caught:
            prudent.synthesize(SALARIES, **PRICE)
        assert "secret" not in str(caught.value)
        assert caught.value.__context__ is None

    def test_a_part_cannot_be_asked_more_often_than_paid(
        self, monkeypatch: pytest.MonkeyPatch, noise: Any
    ) -> None:
        honest = making.parts_of

        def cheaper(fields: Any) -> Any:
            return honest(fields) | {"tables": making.BudgetPart(0.5, 2)}

        monkeypatch.setattr(making, "parts_of", cheaper)
        with pytest.raises(SourceError):
            prudent.synthesize(SALARIES, noise=noise, **PRICE)


@pytest.mark.unhurried
def test_the_event_has_the_price_that_is_claimed(noise: Any) -> None:
    columns = ["married", "education"]
    price = {"epsilon": 1.0, "delta": 1e-6}
    made = prudent.synthesize(SALARIES, columns=columns, noise=noise, **price)
    accountant = PldAccountant().compose(made.event)
    assert 0.99 < accountant.get_epsilon(1e-6) <= 1.0


@pytest.mark.usefixtures("quick_prices")
class TestTables:
    def test_types_stay_as_declared(self, noise: Any) -> None:
        table = pa.Table.from_pylist(typed_rows(4000), TYPED)
        made = prudent.synthesize(table, noise=noise, **PRICE)
        assert made.to_arrow().schema.names == TYPED.names
        kinds = {name: str(made.data.schema.field(name).type) for name in TYPED.names}
        assert kinds == {name: str(TYPED.field(name).type) for name in TYPED.names} | {
            "money": "decimal128(38, 2)"
        }
        values = made.data.to_pydict()
        assert 0.05 < np.mean([each is None for each in values["real"]]) < 0.15
        assert set(values["town"]) <= {"Oslo", "Bergen", "Voss", "(other)", None}
        days = [each for each in values["day"] if each is not None]
        assert np.median([each.toordinal() for each in days]) == pytest.approx(
            datetime.date(2020, 5, 30).toordinal(), abs=15
        )
        money = [each for each in values["money"] if each is not None]
        assert Decimal("20") < sorted(money)[len(money) // 2] < Decimal("80")

    def test_types_of_a_text_file_are_found(self, tmp_path: Path, noise: Any) -> None:
        draw = np.random.default_rng(1)
        lines = ["a,b,c,d,e"]
        for place in range(3000):
            day = datetime.date(2021, 1, 1) + datetime.timedelta(days=int(draw.integers(0, 90)))
            price = f"{draw.gamma(2, 10):.2f}"
            town = draw.choice(["Oslo", "Bergen"])
            lines.append(f"{draw.integers(18, 60)},{price},{day},{town},person {place}")
        path = tmp_path / "people.csv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        made = prudent.synthesize(str(path), noise=noise, **PRICE)
        kinds = {field.name: str(field.type) for field in made.data.schema}
        assert kinds == {"a": "int64", "b": "double", "c": "date32[day]", "d": "string"}
        assert any("'e' is left out" in note for note in made.notes)
        prices = [each for each in made.data["b"].to_pylist() if each is not None]
        assert all(round(each, 2) == each for each in prices)

    def test_columns_that_cannot_be_counted_are_left_out(self, noise: Any) -> None:
        table = pa.table({"a": [1, 2] * 500, "b": [[1], [2]] * 500})
        made = prudent.synthesize(table, noise=noise, **PRICE)
        assert made.data.column_names == ["a"]
        assert "'b' is left out" in made.report

    def test_many_frequent_texts_beside_another_column(self, noise: Any) -> None:
        table = pa.table(
            {"a": [f"text {place % 200}" for place in range(8000)], "b": [1, 2] * 4000}
        )
        made = prudent.synthesize(table, epsilon=50.0, delta=1e-5, noise=noise)
        assert len(made.domains[0].keys) == 200

    @pytest.mark.parametrize("rows", [0, 1])
    def test_an_empty_table_is_no_error(self, rows: int, noise: Any) -> None:
        table = pa.Table.from_pylist(typed_rows(rows), TYPED)
        made = prudent.synthesize(table, noise=noise, **PRICE)
        assert "too few" in made.report

    def test_constraints_hold(self, noise: Any) -> None:
        draw = np.random.default_rng(2)
        start = draw.integers(0, 100, 3000)
        table = pa.table({"start": start, "end": start + draw.integers(0, 50, 3000)})
        rules = ["start <= end", "start >= 10"]
        made = prudent.synthesize(table, constraints=rules, noise=noise, **PRICE).to_pandas()
        assert (made["start"] <= made["end"]).all()
        assert (made["start"] >= 10).all()

    def test_constraints_may_fit_types_that_are_to_be_found(self, tmp_path: Path) -> None:
        """Of a file without types, each column may be of another."""
        file = tmp_path / "t.csv"
        file.write_text("a,b,day\n1,x,2024-01-01\n")
        opened = Source(file, None, None, 1)
        for rule in ("-a < 0 and b = 'x'", "coalesce(a, 0) >= 0 and year(day) > 2000", "b < 'y'"):
            opened.check(rule)
        with pytest.raises(ArgumentError, match="Expected constraints"):
            opened.check("-a < 0 and a like 'x%'")

    def test_the_noise_grows_with_the_rows_of_a_unit(self, noise: Any) -> None:
        who = np.arange(3000) // 3
        table = pa.table({"who": who, "a": np.arange(3000) % 5, "b": np.arange(3000) % 2})
        made = {
            most: prudent.synthesize(table, unit="who", most_rows=most, noise=noise, **PRICE)
            for most in (1, 2)
        }
        assert made[1].data.column_names == ["a", "b"]
        assert made[1].data.num_rows == pytest.approx(1000, abs=100)
        assert made[2].data.num_rows == pytest.approx(2000, abs=200)
        scales = [made[most].marginals[0].noise_scale for most in (1, 2)]
        assert scales[1] == pytest.approx(2 * scales[0])
        assert made[2].marginals[0].moved_by(5) == 10
        assert "removed move all of it by 2 k at most, k changed by twice that" in made[2].report
        assert "not linked" in made[2].report

    def test_intervals_hold_the_counts(self, noise: Any) -> None:
        table = pa.table({"a": ["x"] * 700 + ["y"] * 300})
        made = prudent.synthesize(table, noise=noise, **PRICE)
        (one,) = made.marginals
        found = dict(zip([None, *made.domains[0].keys], one.counts.tolist(), strict=False))
        assert abs(found["x"] - 700) < 3 * one.half_width
        assert one.half_width == pytest.approx(1.96 * one.noise_scale + 0.5)
        assert math.ceil(one.half_width) > 1
        values = made.data["a"].to_pylist()
        cells = [None, *made.domains[0].keys, "(other)"]
        assert one.made.tolist() == [values.count(each) for each in cells]
        assert one.beyond_noise == 0
        assert "synthetic ones outside in 0 %" in made.report
        assert attrs.evolve(one, made=one.made * [1, 2, 1, 1]).beyond_noise == 1 / 4

    @pytest.mark.unhurried
    def test_files_receipt_and_picture(self, tmp_path: Path, noise: Any) -> None:
        pytest.importorskip("matplotlib")
        out, receipt = tmp_path / "made.parquet", tmp_path / "receipt.json"
        columns = ["age", "married"]
        given: dict[str, Any] = {"out": out, "receipt": receipt, "columns": columns}
        made = prudent.synthesize(SALARIES, noise=noise, **given, **PRICE)
        assert pa.parquet.read_table(out).equals(made.data)
        told = json.loads(receipt.read_text(encoding="utf-8"))
        assert told["files"] == {"made.parquet": hashlib.sha256(out.read_bytes()).hexdigest()}
        assert told["asked"]["columns"] == made.data.column_names
        times = [each.get("count", 1) for each in told["event"]["events"]]
        parts = {"size": 1, "keys": 1, "spans": 1, "cuts": 7, "oneway": 2, "select": 1, "tables": 1}
        assert dict(zip(told["asked"]["parts"], times, strict=False)) == parts
        assert len(times) == len(parts) + 1  # and the δ of naming keys
        made.write(tmp_path / "made.csv")
        assert (tmp_path / "made.csv").read_text(encoding="utf-8").count("\n") > 10_000
        made.plot(tmp_path / "made.svg")
        assert (tmp_path / "made.svg").stat().st_size > 1000

    @pytest.mark.unhurried
    def test_it_resembles_the_table(self, noise: Any) -> None:
        real = pa.parquet.read_table(SALARIES).to_pandas()
        columns = ["salary", "salary_1975", "age", "married"]
        given: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "columns": columns, "noise": noise}
        made = prudent.synthesize(SALARIES, **given).to_pandas()
        assert made["salary"].median() == pytest.approx(real["salary"].median(), rel=0.1)
        assert (made["salary"] == 0).mean() == pytest.approx((real["salary"] == 0).mean(), abs=0.02)
        past = ["salary", "salary_1975"]
        assert made[past].corr().iloc[0, 1] == pytest.approx(real[past].corr().iloc[0, 1], abs=0.15)
        ages = made.groupby("married")["age"].mean()
        exact = real.groupby("married")["age"].mean()
        assert ages[True] - ages[False] == pytest.approx(exact[True] - exact[False], abs=3)


@pytest.mark.usefixtures("quick_prices")
def test_a_table_is_another_way_in() -> None:
    keeper, table = Keeper(), prudent.Table(SALARIES, noise=ReproducibleNoise(3))
    chosen: dict[str, Any] = {"columns": ["age", "married"], **PRICE}
    one = attrs.evolve(table, ledger=keeper).where("age > 30").synthesize(**chosen)
    other = prudent.synthesize(SALARIES, where="age > 30", noise=ReproducibleNoise(3), **chosen)
    assert one.to_arrow().equals(other.to_arrow())
    assert len(keeper.charged) == 1
    for unfit in (attrs.evolve(table, read_as="integer"), table.by("married")):
        with pytest.raises(ArgumentError):
            unfit.synthesize(**PRICE)


@pytest.mark.usefixtures("quick_prices")
def test_too_few_rows_are_refused_with_what_would_do() -> None:
    table = pa.table({f"c{place}": [0.5] for place in range(31)})

    def asked(epsilon: float, columns: int, rows: int = 569) -> str:
        """The refusal; of the ledger, where the number of rows is enough."""
        given: dict[str, Any] = {"columns": table.column_names[:columns], "rows": rows}
        keeper = Keeper(refuses=True)
        with pytest.raises((ArgumentError, PermissionError)) as caught:
            prudent.synthesize(table, epsilon=epsilon, delta=1e-6, ledger=keeper, **given)
        return str(caught.value)

    found = re.search(r"epsilon=(\S+) or (\d+) columns would do", asked(1.0, 31))
    assert found
    assert asked(float(found[1]), 31) == asked(1.0, int(found[2])) == "over budget"
    assert "would do" in asked(0.8 * float(found[1]), 31)
    assert "No epsilon" in asked(1.0, 31, rows=3)


@pytest.mark.thorough
@pytest.mark.usefixtures("quick_prices")
def test_the_command_writes_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prudent.cli import main

    monkeypatch.chdir(tmp_path)
    budget = "budget create budget.db --epsilon 5 --delta 1e-5"
    assert main(budget.split()) == 0
    asked = f"synth {SALARIES} --epsilon 5 --delta 1e-5 --out made.parquet --columns age,married"
    asked += " --ledger budget.db --receipt made.json"
    capsys.readouterr()
    assert main([*asked.split(), "--constraint", "age >= 18", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == "released"
    assert set(told["columns"]) == {"age", "married"}
    made = pa.parquet.read_table("made.parquet").to_pandas()
    assert made["age"].min() >= 18
    assert main(asked.split()) == 4  # the budget is spent
