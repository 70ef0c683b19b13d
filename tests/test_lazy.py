"""A deferred package is the package, only later; and what one command imports is what it needs."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from prudent import _extras, _lazy
from tests import quick

ROOT = Path(__file__).resolve().parents[1]

HEAVY = (
    *("torch", "matplotlib", "pandas", "polars", "scipy", "pyarrow.compute", "pyarrow.parquet"),
    *("dp_accounting.pld", "dp_accounting.rdp", "sqlite3", "ibis.backends.sql.compilers.trino"),
    *("prudent.accounting.pld_accountant", "prudent.budget.ledger", "opendp.prelude"),
    "pydantic",
)
AFTER_A_CHARGE = (
    *("torch", "matplotlib", "pandas", "pydantic", "scipy.stats", "scipy.signal", "scipy.optimize"),
    *("dp_accounting.pld", "dp_accounting.rdp", "absl"),
)


def answer(script: str, *arguments: str, folder: Path | None = None) -> list[str]:
    """The words that a fresh interpreter prints last."""
    found = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | ({} if folder is None else {"PYTHONPATH": path_with(folder)}),
    )
    return found.stdout.splitlines()[-1].split()


def path_with(folder: Path) -> str:
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def loaded(names: tuple[str, ...], *command: str) -> set[str]:
    script = (
        "import sys; from prudent.cli import main; assert main(sys.argv[1:]) == 0\n"
        f"print('', *(set({names!r}) & set(sys.modules)))"
    )
    return set(answer(script, *command))


def test_help_imports_nothing_heavy() -> None:
    assert loaded((*HEAVY, "numpy", "attrs.nothing"), "--help") == set()


@pytest.mark.thorough
def test_a_release_imports_no_accountant_and_no_pandas(tmp_path: Path) -> None:
    pytest.importorskip("ibis", reason="needs the extra `tables`")
    table = tmp_path / "values.csv"
    table.write_text("value\n" + "\n".join(map(str, range(500))) + "\n")
    ask = ("release", "median", str(table), "--column", "value", "--epsilon", "1")
    assert loaded(HEAVY, *ask) == set()
    ledger = str(tmp_path / "budget.db")
    loaded((), "budget", "create", ledger, "--epsilon", "3", "--delta", "1e-6")
    found = loaded((*AFTER_A_CHARGE, "sqlite3"), *ask, "--ledger", ledger)
    assert found == {"sqlite3"}  # so this can fail


@pytest.mark.unhurried
def test_dp_accounting_is_the_same_whoever_imports_it_first() -> None:
    script = (
        "import sys, prudent, dp_accounting as dp\n"
        "light = 'dp_accounting.pld' not in sys.modules\n"
        "from prudent.accounting.events import LaplaceTest\n"
        "event = dp.DpEvent\n"
        "assert light and 'dp_accounting.pld' not in sys.modules\n"
        "names = {}\n"
        "exec('from dp_accounting import *', names)\n"
        "import importlib, dp_accounting.pld\n"
        "whole = importlib.reload(dp)\n"
        "assert whole is dp is sys.modules['dp_accounting'] and names['DpEvent'] is event\n"
        "assert whole.DpEvent is event is dp_accounting.dp_event.DpEvent\n"
        "assert issubclass(LaplaceTest, whole.DpEvent)\n"
        "assert names['pld'] is whole.pld and 'GaussianDpEvent' in dir(dp)\n"
        "assert not hasattr(dp, 'nonsense')\n"
        "print('same')"
    )
    assert answer(script) == ["same"]


@pytest.mark.parametrize(
    ("source", "deferred"),
    [
        ("'''Words.'''\nfrom parcel.first import one\nfrom parcel import second\n", True),
        ("__all__ = ['one']\nfrom parcel.first import one\n", True),
        ("from parcel.first import one\nprint(one)\n", False),
        ("from parcel.first import *\n", False),
        ("from parcel.first import one as two\n", False),
        ("import parcel.first\n", False),
    ],
)
def test_only_a_package_that_does_nothing_but_import_is_deferred(
    tmp_path: Path, source: str, deferred: bool
) -> None:
    package = tmp_path / "parcel"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    (package / "first.py").write_text("one = 1\n")
    (package / "second.py").write_text("two = 2\n")
    script = (
        "import sys; from prudent import _lazy; _lazy.defer('parcel')\n"
        "late = 'parcel' in sys.modules and 'parcel.first' not in sys.modules\n"
        "assert late is (sys.argv[1] == 'True')\n"
        "import parcel\n"
        "assert not late or (parcel.one, parcel.first.one) == (1, 1)\n"
        "assert not hasattr(parcel, 'nonsense')\n"
        "import parcel.second\n"
        "print(parcel.second.two)"
    )
    assert answer(script, str(deferred), folder=tmp_path) == ["2"]


def test_a_package_that_is_there_or_nowhere_is_left_alone() -> None:
    before = sys.modules["pytest"]
    _lazy.defer("pytest")
    _lazy.defer("no_such_package")
    assert sys.modules["pytest"] is before
    assert "no_such_package" not in sys.modules


def blamed(module: str) -> str:
    with pytest.raises(_extras.MissingPackageError) as caught, _extras.needed("It"):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    return str(caught.value)


def test_what_is_missing_is_blamed_on_the_extra_that_holds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    told = "It needs {}, which is not installed: pip install -c constraints.txt {}"
    assert blamed("torch.nn") == told.format("torch", "'.[train]'")
    assert blamed("ibis") == told.format("ibis", "'.[tables]'")
    assert blamed("sklearn") == told.format("sklearn", "'.[estimators]'")
    assert blamed("scipy") == told.format("scipy", ".")
    assert blamed("nonsense") == "It needs nonsense, which is not installed."


def test_outside_a_clone_a_hint_says_where_it_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    told = "It needs torch, which is not installed: in your clone of prudent, pip install "
    for other in (None, b'name = "prudence"\n', b"\xff"):
        if other is not None:
            (tmp_path / "pyproject.toml").write_bytes(other)
        assert blamed("torch") == told + "-c constraints.txt '.[train]'"


def test_every_module_that_is_imported_has_an_extra_to_name() -> None:
    imported = {
        name.partition(".")[0]
        for path in (ROOT / "src").rglob("*.py")
        for name in quick.imported(ast.parse(path.read_text(encoding="utf-8")))
    }
    # A frame of polars comes from who has it; what is ours or Python's is there.
    foreign = imported - sys.stdlib_module_names - {"prudent", "polars"}
    assert "sklearn" in foreign
    assert {name for name in foreign if not _extras.holding(name)} == set()


def test_the_extras_are_those_of_the_package_and_install_what_they_hold() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for_a_clone = {"dev", "docs", "lint", "peers"}
    assert set(_extras.MODULES) == {"", *project["optional-dependencies"]} - for_a_clone
    assert set(_extras.packages("spark")) > set(_extras.packages("tables")) > {"duckdb"}


# In the words of pip, prudent as an index knows it: no path, no file.
_OURS = r"(?<![\w./-])prudent(?:-lab|-verify)?"
ASKS_AN_INDEX = re.compile(rf"pip install [^`\n]*{_OURS}(?![\w./-])|install {_OURS}\[")


@pytest.mark.parametrize(
    ("what", "asks"),
    [
        ("'prudent[tables]'", True),
        ("prudent-verify[signatures]", True),
        ("-U prudent", True),
        ("-c constraints.txt '.[tables]'", False),
        ("dist/prudent-0.1.whl", False),
    ],
)
def test_what_a_package_index_is_asked_for_is_seen(what: str, asks: bool) -> None:
    assert bool(ASKS_AN_INDEX.search(f"pip install {what}")) is asks


def test_no_page_and_no_message_asks_a_package_index_for_prudent() -> None:
    """It is on none: who registers the name there would be installed."""
    folders = ("src", "packages", "tests", "docs", "benchmarks", ".ci", ".github")
    files = [
        *(ROOT / "Makefile", ROOT / "pyproject.toml", *ROOT.glob("*.md")),
        *(path for each in folders for path in (ROOT / each).rglob("*")),
    ]
    kinds = (".py", ".pyi", ".md", ".ipynb", ".toml", ".yml", "")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        if path.suffix in kinds and path.is_file()
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if ASKS_AN_INDEX.search(line)
    ]
    assert found == []


def test_a_module_of_ours_that_is_missing_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError) as caught, _extras.needed("It"):
        import prudent.nonsense  # noqa: F401
    assert not isinstance(caught.value, _extras.MissingPackageError)
