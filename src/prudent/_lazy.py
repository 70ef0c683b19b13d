"""Imports that happen on first use: our own public names, and packages of others that import much.

The stub `__init__.pyi` of a package of ours re-exports every public name with `from module import
name as name`. Type checkers and editors read it as it is; at run time `attach` reads the same
lines, so the two cannot disagree. `defer` reads the `__init__.py` of a package of somebody else in
the same way, where it imports far more than one command needs.
"""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prudent import _extras


def attach(package: str, file: str) -> tuple[list[str], Callable[[str], Any], Callable[[], Any]]:
    """The `__all__`, `__getattr__` and `__dir__` of a package whose stub lists its public names."""
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    homes = dict(_imported(ast.parse(stub)))

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with _extras.needed(f"{package}.{name}"):
            return _found(package, homes[name], name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return sorted(homes), get, names


def defer(package: str) -> None:
    """Run the imports in the `__init__.py` of a package one by one, each when its name is used.

    Whoever imports the package, now or later, finds the same modules and classes in it. A name that
    the imports do not mention runs the whole file. A package is left as it is if it is imported
    already, is not installed, has no source, or does anything but import.
    """
    specification = None if package in sys.modules else importlib.util.find_spec(package)
    loader: Any = specification.loader if specification is not None else None
    source = loader.get_source(package) if hasattr(loader, "get_source") else None
    if specification is None or source is None or not _only_imports(tree := ast.parse(source)):
        return
    module = importlib.util.module_from_spec(specification)
    homes = dict(_imported(tree))
    for home in set(homes.values()):  # the import of a.b.c leaves a.b in a
        if home.startswith(f"{package}."):
            homes.setdefault(home.removeprefix(f"{package}.").partition(".")[0], package)

    def get(name: str) -> Any:
        if name in homes:
            vars(module)[name] = _found(package, homes[name], name)
        else:
            del vars(module)["__getattr__"]  # what the whole file does not bring is nowhere
            loader.exec_module(module)
        return getattr(module, name)

    vars(module).update(__getattr__=get, __dir__=lambda: sorted({*vars(module), *homes}))
    sys.modules[package] = module
    parent, _, name = package.rpartition(".")
    if parent:
        setattr(sys.modules[parent], name, module)


def _found(package: str, home: str, name: str) -> Any:
    """A name that a package imports from its home, which may be the package itself."""
    if home == package:
        return importlib.import_module(f"{package}.{name}")
    return getattr(importlib.import_module(home), name)


def _imported(tree: ast.Module) -> list[tuple[str, str]]:
    """Every name that a file imports, and the module that it is from."""
    return [
        (alias.name, node.module)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    ]


def _only_imports(tree: ast.Module) -> bool:
    """Whether a file holds imports of names, under these names, and beside them only constants."""
    for node in tree.body:
        match node:
            case ast.ImportFrom(names=aliases, level=0):
                if any(
                    each.name == "*" or each.asname not in (None, each.name) for each in aliases
                ):
                    return False
            case ast.Expr(value=ast.Constant()) | ast.Assign(value=ast.Constant() | ast.List()):
                pass
            case _:
                return False
    return True
