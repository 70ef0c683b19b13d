"""`import prudent` stays light; every public name has its place in the reference."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import prudent

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "prudent"

PACKAGES = [name for name in prudent.__all__ if (PACKAGE / name).is_dir()]
NAMES = sorted(set(prudent.__all__) - set(PACKAGES))

HEAVY = ("torch", "ibis", "duckdb", "matplotlib", "dp_accounting.dp_event", "scipy", "numpy")


def loaded_after(statement: str) -> set[str]:
    """The heavy packages a fresh interpreter has loaded after a statement."""
    script = f"import sys\n{statement}\nprint(*(set({HEAVY!r}) & set(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(answer.stdout.split())


def documented_names() -> set[str]:
    """The last parts of what the pages show: `::: prudent.release.median`, `members: [A, B]`."""
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md")]
    members = [found for page in pages for found in re.findall(r"members: \[(.+)\]", page)]
    shown = {name for page in pages for name in re.findall(r"^::: \S+\.(\w+)$", page, re.M)}
    return shown.union(*(each.split(", ") for each in members))


def exported(room: str, home: Path = PACKAGE) -> list[str]:
    """`__all__` of a package, from its source: federated needs Flower to be imported."""
    stub = home / room / "__init__.pyi"
    if stub.exists():
        return re.findall(r" as (\w+)$", stub.read_text(encoding="utf-8"), re.MULTILINE)
    tree = ast.parse((home / room / "__init__.py").read_text(encoding="utf-8"))
    (names,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return list(ast.literal_eval(names))


def source(module: str) -> str:
    path = PACKAGE.parent.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    stub = path.with_suffix(".pyi")  # lists the names that a package imports on first use
    path = stub if stub.exists() and path.name == "__init__.py" else path
    return path.read_text(encoding="utf-8")


def defining_module(module: str, name: str) -> str:
    """Where a name comes from, along the imports of packages."""
    for node in ast.walk(ast.parse(source(module))):
        match node:
            case ast.ImportFrom(module=str(origin), names=aliases) if origin.startswith("prudent"):
                if any(name == (alias.asname or alias.name) for alias in aliases):
                    return defining_module(origin, name)
    return module


def docstring(code: str, name: str) -> str | None:
    """What a module says of a class, function or constant; the reference shows nothing without."""
    body = ast.parse(code).body
    for node, below in zip(body, [*body[1:], None], strict=True):
        match node, below:
            case (ast.ClassDef() | ast.FunctionDef(), _) if node.name == name:
                return ast.get_docstring(node)
            case (
                ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if found == name:
                return text
    return None


def test_import_prudent_is_light() -> None:
    assert loaded_after("import prudent") == set()


def test_the_light_import_test_can_fail() -> None:
    assert "numpy" in loaded_after("import numpy")


def test_every_public_name_is_that_of_its_module() -> None:
    """The stub is what users' editors read; what it lists must be there."""
    for name in PACKAGES:
        assert getattr(prudent, name) is importlib.import_module(f"prudent.{name}")
    for name in NAMES:
        home = importlib.import_module(defining_module("prudent", name))
        assert getattr(prudent, name) is getattr(home, name)
    assert set(prudent.__all__) <= set(dir(prudent))


@pytest.mark.parametrize("room", ["accounting", "estimators", "training"])
def test_a_package_of_users_is_there_once_prudent_is_imported(room: str) -> None:
    """As in `relation=prudent.accounting.ZERO_OUT`, also where nothing else imported it before."""
    assert prudent.__getattr__(room) is importlib.import_module(f"prudent.{room}")


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="module 'prudent' has no attribute 'medain'"):
        _ = prudent.medain


def reference() -> dict[tuple[str, str], list[str]]:
    """The names on the pages of the reference, by their package: `prudent.training.adapters.…`."""
    found: dict[tuple[str, str], list[str]] = {}
    for page in (ROOT / "docs" / "api").glob("[!i]*.md"):
        text = page.read_text(encoding="utf-8")
        for top, package, name in re.findall(r"^::: (\w+)\.([\w.]+)\.(\w+)$", text, re.MULTILINE):
            found.setdefault((top, package), []).append(name)
    return found


@pytest.mark.parametrize(("top", "package"), sorted(reference()))
def test_the_reference_lists_the_public_names_of_a_package(top: str, package: str) -> None:
    """Each once."""
    home = PACKAGE if top == "prudent" else ROOT / "packages/lab/src" / top
    names = exported(package.replace(".", "/"), home)
    assert sorted(reference()[top, package]) == sorted(names)


def test_the_reference_holds_every_package_of_users() -> None:
    assert {package for _, package in reference()} == {
        *("accounting", "audit", "certify", "corruption", "estimators", "release", "training"),
        *("synth", "training.adapters.federated", "tune"),
    }


def test_the_reference_opens_with_what_is_called() -> None:
    """Not with an abstract class, a protocol or an alias of a type."""
    first = {
        page.stem: re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)[0]
        for page in (ROOT / "docs" / "api").glob("[!i]*.md")
    }
    assert first["release"] == "prudent.release.Table"
    assert first["training"] == "prudent.training.fit"
    assert first["accounting"] == "prudent.accounting.PldAccountant"


@pytest.mark.parametrize("name", NAMES)
def test_public_name_has_its_place_in_the_reference(name: str) -> None:
    module = defining_module("prudent", name)
    assert name in documented_names(), f"{name} is on no page of docs/api"
    made = module == "prudent.release.functions"  # of methods; docs/reference.py shows their text
    said = getattr(prudent, name).__doc__ if made else docstring(source(module), name)
    assert said, f"{module}.{name} has no docstring, so its page leaves it out"


@pytest.mark.parametrize("code", ["class A: ...", "def A(): ...", "A = 1", "B = 1\n'Of B.'"])
def test_a_name_without_a_docstring_is_noticed(code: str) -> None:
    assert not docstring(code, "A")


@pytest.mark.parametrize(
    "code",
    ["class A:\n    'Of A.'", "def A():\n    'Of A.'", "A = 1\n'Of A.'", "A: int = 1\n'Of A.'"],
)
def test_the_docstring_of_a_name_is_found(code: str) -> None:
    assert docstring(code, "A") == "Of A."
