"""Which test files `make quick` runs: those that need no torch, no
scikit-learn, no server and no other process.

A file says so itself, by what it imports, at its top or in a function, directly or through a
module of `tests`. Nothing is marked by hand, so a new file falls on the right side by itself.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent

SLOW_TO_START = frozenset(
    (
        *("torch", "opacus", "transformers", "peft", "lightning", "flwr", "pyspark"),
        *("subprocess", "multiprocessing", "concurrent", "socket", "http", "playwright"),
        *("matplotlib", "sklearn"),
    )
)
SLOW_ROOMS = frozenset(
    (
        *("prudent.certify", "prudent_lab", "prudent.training", "prudent.tune"),
        *("prudent.audit.training", "prudent.estimators"),
    )
)
_STUB = TESTS.parent / "src" / "prudent" / "__init__.pyi"
HOMES = {  # `prudent.Plan` is imported when it is first used
    alias.asname or alias.name: f"{node.module}.{alias.name}"
    for node in ast.parse(_STUB.read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
OTHER_PROCESSES = frozenset(("tests.browsing", "tests.servers", "tests.fuzz"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Every dotted name that a file imports, asks `importorskip` for, or takes from `prudent`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module="prudent", names=names):
                yield from (HOMES.get(name.name, f"prudent.{name.name}") for name in names)
            case ast.ImportFrom(module=str(source), names=names):
                yield from (f"{source}.{name.name}" for name in names)
            case ast.Attribute(value=ast.Name(id="prudent"), attr=name):
                yield HOMES.get(name, f"prudent.{name}")
            case ast.Call(
                func=ast.Attribute(attr="importorskip"), args=[ast.Constant(value=str(name)), *_]
            ):
                yield name


def _begins(name: str, among: frozenset[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in among)


@functools.cache
def is_quick(path: Path) -> bool:
    """Whether a file, and what it imports of `tests`, stays clear of all that is slow to start."""
    names = set(imported(ast.parse(path.read_text(encoding="utf-8"))))
    if any(_begins(name, SLOW_TO_START | SLOW_ROOMS | OTHER_PROCESSES) for name in names):
        return False
    return all(is_quick(other) for name in names for other in _of_tests(name))


def _of_tests(name: str) -> Iterator[Path]:
    """The file of `tests` that a dotted name is of, if it is."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1) if parts[0] == TESTS.name else ():
        file = TESTS.joinpath(*parts[1:length]).with_suffix(".py")
        if file.exists():
            yield file
            return
