"""The functions are those of a `Table`: the same answers, signatures that editors can read.

`functions.pyi` is derived from the declarations; `PRUDENT_TEST_GOLDEN=write` writes it.
"""

import ast
import inspect
import os
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

pytest.importorskip("duckdb")
pytest.importorskip("ibis")

import pandas as pd

import prudent
from prudent import ArgumentError, release
from prudent.release import functions
from prudent.release.data_table import GroupedTable, Table
from prudent.release.noise import ReproducibleNoise
from prudent.release.outcome import Groups, Refused, Released
from prudent.release.request import Request
from tests.release.recording import Book

# --- the same answers -----------------------------------------------------------------------------

OWN: dict[str, dict[str, Any]] = {
    **{name: {"column": "x"} for name in ("median", "iqr", "maximum", "minimum", "count")},
    **{name: {"column": "x"} for name in ("mean", "sum", "variance", "deviation", "histogram")},
    "quantile": {"column": "x", "p": 0.9},
    "quantiles": {"column": "x", "ps": [0.25, 0.75]},
    "certify_quantile": {"column": "x", "high": 60.0},
    "count_distinct": {"column": "city"},
    "proportion": {"column": "x > 50"},
    **{name: {"column": "x", "other": "y"} for name in ("ratio", "covariance", "correlation")},
    "weighted_mean": {"column": "x", "weights": "y", "largest_weight": 9.0},
    "mode": {"column": "city", "delta": 1e-6},
    "trimmed_mean": {"column": "x", "trim": 200, "propose": 5.0, "delta": 1e-6},
    "top_k": {"column": "city", "k": 1, "delta": 1e-6},
    "describe": {"column": "x"},
    "ask": {"questions": {"x": ["median", "count"]}},
}


def _frame(rows: int = 2_000) -> pd.DataFrame:
    draws = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "x": draws.normal(50, 9, rows),
            "y": draws.uniform(1, 9, rows),
            "year": draws.integers(2023, 2025, rows),
            "city": draws.choice(["Oslo", "Rome"], rows, p=[0.7, 0.3]),
            "person": np.arange(rows) // 2,
        }
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("table") / "visits.parquet"
    _frame().to_parquet(file)
    return file


def _named(method: str) -> str:
    return functions.STATISTICS[method].make.__name__


UNGROUPED = [name for name, each in functions.STATISTICS.items() if not each.grouped]


def test_every_statistic_is_here() -> None:
    assert OWN.keys() == functions.STATISTICS.keys()
    public = {*release.statistics.__all__, "table"}
    assert {_named(each) for each in OWN} == public


KINDS = ("median", "count_distinct", "weighted_mean", "trimmed_mean", "top_k", "describe", "ask")
"""Methods with different columns, options and answers; all are made by `functions.Declared`."""


@pytest.mark.parametrize("method", KINDS)
def test_a_method_is_the_function_of_its_name(method: str, path: Path) -> None:
    facts: dict[str, Any] = {"where": "year = 2024", "unit": "person"}
    facts["per_unit"] = 2 if method == "count_distinct" else None
    own = OWN[method] | {"epsilon": 2.0}
    one = getattr(release, _named(method))(path, noise=ReproducibleNoise(5), **facts, **own)
    table = Table(path, noise=ReproducibleNoise(5), unit="person", per_unit=facts["per_unit"])
    other = getattr(table.where("year = 2024"), method)(**own)
    assert str(one) == str(other)
    assert one.event == other.event if hasattr(one, "event") else one == other


@pytest.mark.parametrize("method", [each for each in KINDS if each not in UNGROUPED])
def test_a_method_by_groups_is_the_function_with_by(method: str, path: Path) -> None:
    own = OWN[method] | {"epsilon": 4.0}
    facts: dict[str, Any] = {"by": "city", "groups": ["Oslo", "Rome"]}
    if method in ("count_distinct", "mode"):
        own = own | {"column": "year"}
    one = getattr(release, _named(method))(path, noise=ReproducibleNoise(5), **facts, **own)
    table = Table(path, noise=ReproducibleNoise(5)).by("city", groups=["Oslo", "Rome"])
    assert str(one) == str(getattr(table, method)(**own))


def test_two_conditions_hold_together(path: Path) -> None:
    table = Table(path, noise=ReproducibleNoise(1))
    both = table.where("year = 2024").where("x > 50 OR x < 40").count(epsilon=50)
    frame = _frame()
    kept = (frame.year == 2024) & ((frame.x > 50) | (frame.x < 40))
    assert both.value == pytest.approx(int(kept.sum()), abs=3)
    mixed = table.where("year = 2024").where(lambda rows: rows.x > 50).count(epsilon=50)
    assert mixed.value == pytest.approx(int(((frame.year == 2024) & (frame.x > 50)).sum()), abs=3)


def test_sql_asks_the_rows_of_the_table(path: Path) -> None:
    table = Table(path, noise=ReproducibleNoise(1)).where("year = 2024")
    asked = table.sql("SELECT count(*) AS n FROM visits WHERE x > 50", epsilon=50)
    frame = _frame()
    assert asked["n"].value == pytest.approx(
        int(((frame.year == 2024) & (frame.x > 50)).sum()), abs=3
    )
    assert table.sql("SELECT count(*) FROM t", epsilon=1, dry_run=True).epsilon == 1
    with pytest.raises(ArgumentError, match="GROUP BY"):
        table.by("city").sql("SELECT count(*) FROM t", epsilon=1)


# --- a value that says what is public, and no more ------------------------------------------------


def test_a_table_is_a_value(path: Path) -> None:
    table = Table(path, unit="person")
    other = table.where("year = 2024")
    assert other is not table
    assert "where" not in repr(table)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        table.unit = "city"  # type: ignore[misc]


def test_the_text_of_a_table_quotes_no_record() -> None:
    assert repr(Table(["Ann", "Bob"], read_as="date")) == "Table(<list>, read_as='date')"
    shown = repr(Table(pd.DataFrame({"name": ["Ann"]}), unit="name").by("name", groups=["a"]))
    assert shown == "GroupedTable(<DataFrame>, unit='name', by='name', groups=['a'])"
    secret = repr(Table(connect="postgres://me:hunter2@db/hr", table="salaries"))
    assert "hunter2" not in secret
    assert "salaries" in secret


def test_the_columns_are_declared_facts(path: Path, tmp_path: Path) -> None:
    assert Table(path).columns["x"] == "float64"
    text = tmp_path / "visits.csv"
    text.write_text("x,city\n1,Oslo\n")
    assert Table(text).columns == {"x": "undeclared", "city": "undeclared"}


# --- charges --------------------------------------------------------------------------------------


@pytest.mark.unhurried
def test_a_ledger_is_charged_by_its_location(path: Path, tmp_path: Path) -> None:
    place = tmp_path / "budget.db"
    with prudent.Ledger(place, epsilon=1.0, delta=1e-6):
        pass
    table = Table(path, ledger=place)
    table.median("x", epsilon=0.25)
    table.by("city", groups=["Oslo"]).mean("x", epsilon=0.25)
    table.count(epsilon=0.25, dry_run=True)
    with prudent.Ledger(place) as ledger:
        assert len(ledger.history()) == 2
    with pytest.raises(release.OverBudgetError):
        table.count(epsilon=0.75)


WRONG: list[Any] = [{"where": "nothing = 1"}, {"by": "nothing", "groups": ["a"]}]


@pytest.mark.parametrize(
    ("method", "wrong"),
    [*((method, {"unit": "nobody"}) for method in OWN), *(("median", each) for each in WRONG)],
)
def test_what_is_wrong_is_said_before_any_charge(method: str, wrong: Any, path: Path) -> None:
    book = Book()
    per_unit = 2 if method == "count_distinct" else None
    table = GroupedTable(path, ledger=book, **({"per_unit": per_unit, "unit": "person"} | wrong))
    if "by" not in wrong:
        table = Table(path, ledger=book, **({"per_unit": per_unit, "unit": "person"} | wrong))
    with pytest.raises((ArgumentError, ValueError)):
        getattr(table, method)(**OWN[method], epsilon=1.0)
    assert not book.charges


# --- the stub -------------------------------------------------------------------------------------

_STUB = Path(functions.__file__).with_suffix(".pyi")
_MARK = "# --- derived by tests/release/test_functions.py: what stands below is written there ---"


def _text() -> str:
    """The signatures of the functions and methods, from the declarations and the requests' fields.

    Names and types are those of the sources: at run time an alias has lost its name.
    """
    tree = ast.parse(Path(functions.__file__).read_text("utf-8"))
    makes = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    request = ast.parse(Path(inspect.getfile(Request)).read_text("utf-8"))
    (fields,) = (each for each in request.body if getattr(each, "name", "") == "Request")
    options = {
        each.target.id: _parameter(each.target.id, each.annotation, each.value)
        for each in fields.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    texts, methods = [], []
    for method, each in functions.STATISTICS.items():
        name = each.make.__name__
        arguments = makes[name].args
        own = {
            arg.arg: _parameter(arg.arg, arg.annotation, default)
            for arg, default in [
                *zip(arguments.args, arguments.defaults, strict=True),
                *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
            ]
        }
        known = {column: f"{column}: str | None = None" for column in each.columns} | options | own
        returns = each.returns if isinstance(each.returns, str) else _type(each.returns)
        kind = "tested" if "propose" in each.options and returns == "Released" else "answers"
        kind = "ungrouped" if returns in ("ReleasedTable", "Groups[Released]") else kind
        names = list(inspect.signature(getattr(Table, method)).parameters)[1:]
        placed = len(each.columns) + sum(name in ("k", "questions") for name in names)
        head = ", ".join(known[name] for name in names[:placed])
        more = ", ".join(known[name] for name in names[placed:])
        first = f"data: Any = None, {head}".removesuffix(", ")
        table = "**table: Unpack[_OfTable]"
        texts.append(
            f"@_{kind}_of_any\ndef {name}({first}, *, {more}, {table}) -> {returns}: ...\n"
        )
        mine = f"self, {head}".removesuffix(", ")
        methods.append(f"    @_{kind}\n    def {method}({mine}, *, {more}) -> {returns}: ...\n")
    return "".join(texts) + "\nclass StatisticMethods(_Methods):\n" + "".join(methods)


def _type(returns: Any) -> str:
    names = {Released | Refused: "Outcome", Groups[Released]: "Groups[Released]"}
    return names.get(returns) or returns.__name__


def _parameter(name: str, annotation: Any, default: Any) -> str:
    text = f"{name}: {ast.unparse(annotation)}".replace("'Questions | None'", "Questions | None")
    return text if default is None else f"{text} = {ast.unparse(default)}"


def test_the_stub_is_that_of_the_declarations() -> None:
    written, text = _STUB.read_text("utf-8"), _text()
    if os.environ.get("PRUDENT_TEST_GOLDEN") == "write":
        head = written.partition(_MARK)[0]
        _STUB.write_text(f"{head}{_MARK}\n\n{text}", encoding="utf-8")
    derived = ast.unparse(ast.parse(_STUB.read_text("utf-8").partition(_MARK)[2]))
    assert derived == ast.unparse(ast.parse(text))


def test_an_argument_has_the_names_default_and_type_of_its_declaration() -> None:
    median = inspect.signature(prudent.Table.median)
    assert list(median.parameters)[:4] == ["self", "column", "epsilon", "delta"]
    assert median.parameters["confidence"].default == 0.95
    trimmed = inspect.signature(prudent.Table.trimmed_mean).parameters["propose"]
    assert trimmed.default is inspect.Parameter.empty
    assert "propose" in str(prudent.median.__doc__)
    with pytest.raises(TypeError, match="epsilom"):
        prudent.Table([1.0]).median(epsilon=1.0, epsilom=1.0)  # type: ignore[call-overload]
