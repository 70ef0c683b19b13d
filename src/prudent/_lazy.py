"""Public names of a package, listed once in its stub and imported on first use.

The stub `__init__.pyi` re-exports every public name with `from module import name as name`. Type
checkers and editors read it as it is; at run time `attach` reads the same lines, so the two cannot
disagree.
"""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def attach(package: str, file: str) -> tuple[list[str], Callable[[str], Any], Callable[[], Any]]:
    """The `__all__`, `__getattr__` and `__dir__` of a package whose stub lists its public names.

    Args:
        package: The package's `__name__`.
        file: The package's `__file__`; the stub lies beside it.
    """
    homes = _homes(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:  # a package inside this one
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(homes[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return sorted(homes), get, names


def _homes(stub: str) -> dict[str, str]:
    """The module of every name that a stub re-exports."""
    return {
        alias.name: node.module
        for node in ast.parse(stub).body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
        if alias.asname == alias.name
    }
