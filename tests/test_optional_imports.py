"""A test file that needs an extra skips before it imports it: `make test` installs three of them.

Read off the sources, because whoever has every extra installed sees no failure.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests import environments
from tests.sources import dotted

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT, ROOT / "src", *sorted(ROOT.glob("packages/*/src")))
SKIPPED = "skipped"


def of_make_test() -> list[str]:
    found = re.search(r"^TEST_EXTRAS \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found
    return found[1].split("+")


@cache
def installed_by_make_test() -> frozenset[str]:
    """The modules that can be imported where the extras of `make test` alone are installed."""
    extras = of_make_test()
    assert (
        "lab" in extras
    )  # the Makefile's word for a package of its own; the other is always there
    beside = [("prudent-lab", ""), ("prudent-verify", ""), ("prudent-verify", "signatures")]
    found = environments.installed({*extras} - {"lab"}, beside)
    held = {canonicalize_name(each.name) for each in found}
    owners = metadata.packages_distributions()
    return frozenset(
        module for module, names in owners.items() if held & set(map(canonicalize_name, names))
    )


def steps(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that an import runs, in their order; not what is tried or for types alone."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                continue
            case ast.If(test=test, body=inner, orelse=other):
                yield from () if dotted(test).endswith("TYPE_CHECKING") else steps(inner)
                yield from steps(other)
            case ast.ClassDef(body=inner) | ast.With(body=inner) | ast.For(body=inner):
                yield from steps(inner)
            case ast.Try():
                yield from steps([*node.orelse, *node.finalbody])
            case _:
                yield node


def asked_first(node: ast.stmt) -> Iterator[str]:
    """The modules without which a statement skips the file."""
    for each in ast.walk(node):
        match each:
            case ast.Call(
                func=ast.Attribute(attr="importorskip"), args=[ast.Constant(value=str(name)), *_]
            ):
                yield name


def imported(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (each.name for each in names)
        case ast.ImportFrom(module=str(source), names=names, level=0):
            for each in names:
                yield f"{source}.{each.name}"


@cache
def sources(name: str) -> list[Path]:
    """Our own files that the import of a dotted name runs, and of a listed name its home."""
    return list(_sources(name))


def _sources(name: str) -> Iterator[Path]:
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        for base in SOURCES:
            place = base.joinpath(*parts[:length])
            yield from filter(Path.is_file, (place.with_suffix(".py"), place / "__init__.py"))
            stub = place / "__init__.pyi"
            home = homes(stub).get(parts[-1]) if length == len(parts) - 1 else None
            if home not in (None, name):
                yield from sources(home)


@cache
def homes(stub: Path) -> dict[str, str]:
    """Where each public name of a package is defined: it is imported when it is first used."""
    if not stub.is_file():
        return {}
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def stopped(path: Path, has: Callable[[str], bool], ends: dict[Path, str | None]) -> str | None:
    """What ends the import of a file: `SKIPPED`, or the module that is missing; None if nothing.

    Files of which it is known are in `ends`.
    """
    if path not in ends:
        ends[path] = None  # a file that is being imported is not imported again
        ends[path] = _stopped(path, has, ends)
    return ends[path]


def _stopped(path: Path, has: Callable[[str], bool], ends: dict[Path, str | None]) -> str | None:
    for node in steps(ast.parse(path.read_text(encoding="utf-8")).body):
        if not all(has(name.partition(".")[0]) for name in asked_first(node)):
            return SKIPPED
        for name in imported(node):
            own = sources(name)
            for each in own:
                if found := stopped(each, has, ends):
                    return found
            if not own and not has(name.partition(".")[0]):
                return name
    return None


@pytest.mark.unhurried
def test_no_test_file_imports_what_make_test_does_not_install() -> None:
    try:
        installed = installed_by_make_test()
    except metadata.PackageNotFoundError as error:
        pytest.skip(f"needs the extras of `make test`: {error}")
    own = {"prudent", "prudent_lab", "prudent_verify", "tests", "benchmarks", "tools"}
    known = installed | sys.stdlib_module_names | own
    assert "torch" in known
    assert "huggingface_hub" not in known
    ends: dict[Path, str | None] = {}
    found = {
        str(path.relative_to(ROOT)): stopped(path, known.__contains__, ends)
        for path in sorted(ROOT.glob("tests/**/*.py"))
        if path.name.startswith("test_") or path.name == "conftest.py"
    }
    assert len(found) > 100
    assert SKIPPED in found.values()
    assert {name: why for name, why in found.items() if why not in (None, SKIPPED)} == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import pytest\nimport absent.part\n", "absent.part"),
        ("import pytest\npytest.importorskip('absent')\nimport absent\n", SKIPPED),
        ("import pytest\nimport absent\npytest.importorskip('absent')\n", "absent"),
        ("import pytest\nit = pytest.importorskip('absent.part')\nimport other\n", SKIPPED),
        ("import pytest\npytest.importorskip('pytest')\nfrom absent import one\n", "absent.one"),
        ("try:\n    import absent\nexcept ImportError:\n    absent = None\n", None),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import absent\n", None),
        ("import sys\nif sys.platform == 'linux':\n    import absent\n", "absent"),
        ("def test() -> None:\n    import absent\n", None),
        ("from prudent.estimators import LinearRegression\n", "sklearn.base.RegressorMixin"),
        (
            "from prudent.training.adapters.huggingface import PrivateTrainer\n",
            "transformers.Trainer",
        ),
        ("from tests import servers\n", None),
    ],
)
def test_an_import_that_would_fail_is_seen(
    source: str, expected: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(source)
    known = sys.stdlib_module_names | {"pytest", "prudent", "tests", "numpy", "attrs", "torch"}
    known |= {"dp_accounting", "scipy", "typing_extensions", "packaging", "hypothesis", "rich"}
    assert stopped(path, known.__contains__, {}) == expected
