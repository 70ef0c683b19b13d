"""The list of the second tier names tests that are there."""

import ast
from pathlib import Path

from tests.thorough import LIST, THOROUGH

ROOT = Path(__file__).resolve().parents[1]


def functions(path: Path) -> set[str]:
    """The tests of a file, those of a class as `Class::test`, its own and inherited ones."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (each for each in node.body if isinstance(each, ast.FunctionDef))
            found |= {f"{node.name}::{each.name}" for each in inner}
    return found


def stale(listed: str) -> bool:
    file, _, name = listed.partition("[")[0].partition("::")
    path = ROOT / file
    return not path.exists() or name not in functions(path)


def test_no_line_of_the_list_is_stale() -> None:
    assert [line for line in sorted(THOROUGH) if stale(line)] == []
    assert stale("tests/test_thorough.py::test_that_went_away")
    assert not stale("tests/test_thorough.py::test_no_line_of_the_list_is_stale[case]")


def test_the_list_is_sorted() -> None:
    lines = LIST.read_text(encoding="utf-8").splitlines()[1:]
    assert lines == sorted(set(lines))
