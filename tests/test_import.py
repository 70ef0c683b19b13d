"""`import prudent` stays light, and every public module has its page in the reference."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "prudent"

HEAVY = ("torch", "ibis", "duckdb", "matplotlib", "dp_accounting", "scipy", "numpy")


def loaded_after(statement: str) -> set[str]:
    """The heavy packages a fresh interpreter has loaded after a statement."""
    script = f"import sys\n{statement}\nprint(*(set({HEAVY!r}) & set(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(answer.stdout.split())


def public_modules() -> list[str]:
    paths = (path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py"))
    names = {path.with_suffix("").parts for path in paths}
    dotted = {".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in names}
    return sorted(name for name in dotted if not re.search(r"\._", name))


def documented_modules() -> set[str]:
    pages = (ROOT / "docs" / "api").glob("*.md")
    lines = (line for page in pages for line in page.read_text(encoding="utf-8").splitlines())
    return {line.removeprefix("::: ").strip() for line in lines if line.startswith("::: ")}


def test_import_prudent_is_light() -> None:
    assert loaded_after("import prudent") == set()


def test_the_light_import_test_can_fail() -> None:
    assert "numpy" in loaded_after("import numpy")


@pytest.mark.parametrize("module", public_modules())
def test_public_module_has_its_place_in_the_reference(module: str) -> None:
    """A page names the module, or the package that holds it (submodules are shown with it)."""
    names = module.split(".")
    holders = {".".join(names[:length]) for length in range(min(2, len(names)), len(names) + 1)}
    assert holders & documented_modules(), (
        f"{module} is in no page of docs/api: add a line '::: {'.'.join(names[:2])}'"
    )
