"""The functions are those of a `Table`: the same answers, signatures that editors can read.

`functions.pyi` is derived from the methods of `Table`; `PRUDENT_TEST_GOLDEN=write` writes it.
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

# --- the same answers -----------------------------------------------------------------------------

OWN: dict[str, dict[str, Any]] = {
    **{name: {"column": "x"} for name in ("median", "iqr", "maximum", "minimum", "count")},
    **{name: {"column": "x"} for name in ("mean", "sum", "variance", "deviation", "histogram")},
    "quantile": {"column": "x", "p": 0.9},
    "quantiles": {"column": "x", "ps": [0.25, 0.75]},
    "search_quantile": {"column": "x", "proposals": [1.0, 10.0], "delta": 1e-6},
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
    return functions.NAMES.get(method, method)


def test_every_statistic_is_here() -> None:
    assert OWN.keys() == {*functions.METHODS}
    public = {*release.statistics.__all__, "table", "search_quantile"} - {"trimmed_sum"}
    assert {_named(each) for each in OWN} == public


@pytest.mark.parametrize("method", OWN)
def test_a_method_is_the_function_of_its_name(method: str, path: Path) -> None:
    facts: dict[str, Any] = {"where": "year = 2024", "unit": "person"}
    facts["per_unit"] = 2 if method == "count_distinct" else None
    own = OWN[method] | {"epsilon": 2.0}
    one = getattr(release, _named(method))(path, noise=ReproducibleNoise(5), **facts, **own)
    table = Table(path, noise=ReproducibleNoise(5), unit="person", per_unit=facts["per_unit"])
    other = getattr(table.where("year = 2024"), method)(**own)
    assert str(one) == str(other)
    assert one.event == other.event if hasattr(one, "event") else one == other


@pytest.mark.parametrize("method", [each for each in OWN if each not in functions.UNGROUPED])
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


class _Book:
    def __init__(self) -> None:
        self.charges = 0

    def charge(self, event: Any, label: str = "", *, delta: float | None = None) -> None:
        self.charges += 1


@pytest.mark.parametrize("method", OWN)
@pytest.mark.parametrize(
    "wrong", [{"unit": "nobody"}, {"where": "nothing = 1"}, {"by": "nothing", "groups": ["a"]}]
)
def test_what_is_wrong_is_said_before_any_charge(method: str, wrong: Any, path: Path) -> None:
    if method in functions.UNGROUPED and "by" in wrong:
        pytest.skip("its groups are its answer")
    book = _Book()
    per_unit = 2 if method == "count_distinct" else None
    table = GroupedTable(path, ledger=book, **({"per_unit": per_unit, "unit": "person"} | wrong))
    if "by" not in wrong:
        table = Table(path, ledger=book, **({"per_unit": per_unit, "unit": "person"} | wrong))
    with pytest.raises((ArgumentError, ValueError)):
        getattr(table, method)(**OWN[method], epsilon=1.0)
    assert book.charges == 0


# --- the stub -------------------------------------------------------------------------------------

_STUB = Path(functions.__file__).with_suffix(".pyi")
_SHORT = "def {name}({head}, *, {more}, **options: Any) -> {returns}: ..."
_HEAD = """# Derived from the methods of `Table` by tests/release/test_functions.py.

"""


def _text() -> str:
    """The signatures of the functions: the arguments of a method and those of the table."""
    source = Path(inspect.getfile(Table)).read_text(encoding="utf-8")
    module = ast.parse(source)
    classes = {each.name: each for each in module.body if isinstance(each, ast.ClassDef)}
    methods = {each.name: each for each in classes["Table"].body if hasattr(each, "args")}
    options: dict[str, str] = {}
    for name in ("Table", "GroupedTable"):
        for each in classes[name].body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                options[each.target.id.lstrip("_")] = ast.unparse(each.annotation)
    imports = [
        ast.unparse(each) for each in module.body if isinstance(each, ast.Import | ast.ImportFrom)
    ]
    lines = [_HEAD, *(each + "\n" for each in imports), "\nBounds: TypeAlias = tuple[Any, Any]\n\n"]
    for method in functions.METHODS:
        lines += _declared(method, methods, options)
    return "".join(lines)


def _declared(method: str, methods: dict[str, Any], options: dict[str, str]) -> list[str]:
    node, name = methods[method], _named(method)
    decorator = node.decorator_list[0] if node.decorator_list else None
    while isinstance(decorator, ast.Call):  # as those of another method
        node = methods[decorator.args[0].id]
        decorator = node.decorator_list[0]
    plain = [
        ast.unparse(ast.arguments([], [arg], None, [], [], None, [default]))
        for arg, default in zip(node.args.args[1:], node.args.defaults, strict=True)
    ]
    named = [
        ast.unparse(ast.arguments([], [], None, [arg], [default], None, []))[3:]
        for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    ]
    own = {key: value for key, value in options.items() if key != "source"}
    if name in functions.UNGROUPED:
        own = {key: value for key, value in own.items() if key not in ("by", "groups")}
    table = [f"{key}: {value}=None" for key, value in own.items()]
    returns = ast.unparse(node.returns)
    if decorator is None:
        every = ", ".join(["data: Any=None", *plain, "*", *named, *table])
        return [f"def {name}({every}) -> {returns}: ...\n"]
    tested = decorator.id == "_tested"
    explicit = [
        "dry_run: Literal[False]=False"
        if each.startswith("dry_run")
        else "propose: None=None"
        if tested and each.startswith("propose")
        else "by: None=None"
        if each.startswith("by:")
        else each
        for each in [*named, *table]
    ]
    head = ", ".join(["data: Any=None", *plain])
    found = [f"@overload\ndef {name}({head}, *, {', '.join(explicit)}) -> {returns}: ...\n"]
    others = [("dry_run: Literal[True]", "Preview")]
    if tested:
        others += [("by: By, propose: object", "Groups[Outcome]"), ("propose: object", "Outcome")]
    others += [("by: By", f"Groups[{returns}]")]
    for more, what in others:
        found.append(
            "@overload\n" + _SHORT.format(name=name, head=head, more=more, returns=what) + "\n"
        )
    return found


def test_the_stub_is_that_of_the_methods() -> None:
    text = _text()
    if os.environ.get("PRUDENT_TEST_GOLDEN") == "write":
        _STUB.write_text(text, encoding="utf-8")
    written, derived = (ast.unparse(ast.parse(each)) for each in (_STUB.read_text("utf-8"), text))
    wanted = {line for line in derived.splitlines() if not line.startswith(("from", "import"))}
    assert wanted == {
        line for line in written.splitlines() if not line.startswith(("from", "import"))
    }
