"""The house rule: data flows one way, and no import goes back (docs/architecture.md)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.sources import dotted

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "prudent"
LAB = ROOT / "packages/lab/src/prudent_lab"
VERIFY = ROOT / "packages/verify/src/prudent_verify"

GROUND = {
    "_extras",
    "_files",
    "_fingerprint",
    "_formats",
    "_lazy",
    "_progress",
    "_rounding",
    "_torch_private",
    "_validate",
    "_warning",
}

# Which rooms of the house each room may import from; a room may always import from itself.
MAY_IMPORT = {
    "_extras": set[str](),
    "_files": {"_validate"},
    "_fingerprint": set[str](),
    "_formats": {"_validate"},
    "_lazy": {"_extras"},
    "_progress": set[str](),
    "_rounding": set[str](),
    "_torch_private": set[str](),
    "_validate": set[str](),
    "_warning": set[str](),
    "accounting": GROUND,
    "records": GROUND,
    "samples": GROUND,
    "budget": GROUND | {"accounting", "receipts"},
    "receipts": GROUND | {"accounting"},
    "release": GROUND | {"accounting", "budget", "receipts", "records"},
    # The one object for a table, from which a synthetic one is asked as well.
    "release/data_table.py": GROUND | {"accounting", "budget", "receipts", "release", "synth"},
    "estimators": GROUND | {"accounting", "budget", "receipts", "records", "release"},
    "synth": GROUND | {"accounting", "budget", "estimators", "receipts", "release"},
    "training": GROUND | {"accounting", "budget", "receipts", "records"},
    "tune": GROUND
    | {"accounting", "budget", "estimators", "receipts", "records", "release", "training"},
    "certify": GROUND | {"accounting", "budget", "receipts", "records", "release"},
    "audit": GROUND | {"accounting", "records", "training"},
    "cli": GROUND
    | {"accounting", "audit", "budget", "certify", "estimators", "prudent", "records"}
    | {"receipts", "release", "samples", "synth", "training", "tune"},
    "__init__": GROUND
    | {"accounting", "audit", "budget", "certify", "estimators", "receipts", "release"}
    | {"synth", "training", "tune"},
    "__main__": {"cli"},
}

# Distributions of their own, which the core may not need; `prudent verify` runs one if it is there.
OTHER_PACKAGES = {"prudent_lab", "prudent_verify", "tools"}
DELEGATED = {("prudent_verify", "cli/commands/checks.py")}

# Known before any room is entered.
FREE = {"prudent.__version__"}

# Accounting is for everyone, so it stays installable without a training or a table stack.
HEAVY = {"torch", "opacus", "ibis", "duckdb", "polars", "pandas", "matplotlib"}

# What torch keeps private may change with any version, so one module imports it.
PRIVATE_DOOR = "_torch_private.py"

SOURCES = sorted({*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")})
EVERY = [path for package in (PACKAGE, LAB, VERIFY) for path in package.rglob("*.py")]
ROOMS = sorted({path.relative_to(PACKAGE).parts[0] for path in SOURCES})


def imported_names(tree: ast.AST, module: list[str]) -> Iterator[str]:
    """Every dotted name a module imports, wherever it does so, lazily or not.

    Args:
        tree: The parsed module.
        module: Its package as a list of names, against which relative imports are resolved.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=source, names=aliases, level=level):
                base = module[: len(module) - level + 1] if level else []
                prefix = ".".join([*base, *([source] if source else [])])
                yield from (f"{prefix}.{alias.name}" for alias in aliases)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def room_of(name: str) -> str:
    """The room a dotted name inside `prudent` belongs to; "prudent" is the front door itself."""
    first = name.split(".")[1] if "." in name else ""
    known = set(MAY_IMPORT) | {Path(room).stem for room in ROOMS}
    return first if first in known else "prudent"


def violations(source: str, path: Path) -> list[str]:
    """What a module imports against the house rule; `path` is relative to the package."""
    inner = "/".join(path.parts[:2])
    room = inner if inner in MAY_IMPORT else Path(path.parts[0]).stem
    if room not in MAY_IMPORT:
        return [f"{path}: {room} is not a room of the house; give it a place in MAY_IMPORT"]
    found = []
    for name in imported_names(ast.parse(source), ["prudent", *path.parts[:-1]]):
        top = name.split(".")[0]
        if top in OTHER_PACKAGES and (top, path.as_posix()) not in DELEGATED:
            found.append(f"{path}: prudent may not import {name}")
        if top == "prudent" and name not in FREE and room_of(name) not in MAY_IMPORT[room] | {room}:
            found.append(f"{path}: {room} may not import {name}")
        if room == "accounting" and top in HEAVY:
            found.append(f"{path}: accounting may not import {name}")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_no_import_goes_back(room: str) -> None:
    start = PACKAGE / room
    modules = [path for path in SOURCES if path == start or start in path.parents]
    found = [
        line
        for module in modules
        for line in violations(module.read_text(encoding="utf-8"), module.relative_to(PACKAGE))
    ]
    assert not found, "\n".join(found)


@pytest.mark.thorough
def test_an_analyst_never_imports_the_lab() -> None:
    script = (
        "import sys, prudent; from prudent.cli import main;"
        "[main([*words.split(), '--help']) for words in ('release median', 'epsilon', 'budget')];"
        "import prudent.certify; prudent.median, prudent.fit;"
        "sys.exit(any(name.startswith(('prudent_lab', 'prudent_verify')) for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def outside(source: str, path: Path) -> list[str]:
    """What a module of another distribution imports against its rule."""
    names = list(imported_names(ast.parse(source), list(path.parts[:-1])))
    if path.parts[0] == VERIFY.name:
        return [name for name in names if name.split(".")[0] in ("prudent", "prudent_lab")]
    if path.parts[1] == "commands":
        return []
    return [name for name in names if name.startswith(("prudent.cli", "prudent_lab.commands"))]


@pytest.mark.parametrize("package", [LAB, VERIFY], ids=lambda path: path.name)
def test_the_other_packages_import_what_they_may(package: Path) -> None:
    """The checker nothing of what it checks, and experiments nothing of the command line."""
    for path in package.rglob("*.py"):
        name = path.relative_to(package.parent)
        assert outside(path.read_text(encoding="utf-8"), name) == [], name


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("prudent_verify/checks.py", "from prudent._files import sha256"),
        ("prudent_verify/checks.py", "def late():\n    import prudent"),
        ("prudent_lab/corruption/__init__.py", "from prudent import cli"),
        ("prudent_lab/paper/figures.py", "from prudent.cli import main"),
    ],
)
def test_the_rule_catches_what_another_package_may_not_import(path: str, source: str) -> None:
    assert outside(source, Path(path))
    assert not outside("from prudent_verify import laws", Path("prudent_verify/checks.py"))
    assert not outside("from prudent.cli import options", Path("prudent_lab/commands/train.py"))


def private_names(source: str) -> list[str]:
    """What a module uses of torch's private names, by import or as attributes."""
    tree = ast.parse(source)
    used = {*imported_names(tree, [])} | {
        dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }
    return sorted(
        name
        for name in used
        if name.startswith(("torch.", "nn.", "functional."))
        and (
            name.startswith("torch.fx.experimental")
            or any(part.startswith("_") and not part.endswith("__") for part in name.split("."))
        )
    )


@pytest.mark.parametrize("room", ROOMS)
def test_one_module_uses_what_torch_keeps_private(room: str) -> None:
    start = PACKAGE / room
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in SOURCES
        if (path == start or start in path.parents) and path.name != PRIVATE_DOOR
        if "torch" in (source := path.read_text(encoding="utf-8"))
        if (names := private_names(source))
    }
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "from torch.utils import _pytree as pytree",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "def late():\n    import torch._inductor as compiler",
        "import torch\ntorch._foreach_lerp_([], [], 0.5)",
        "from torch import nn\nnn.modules.batchnorm._NormBase",
    ],
)
def test_the_rule_catches_private_names_of_torch(source: str) -> None:
    assert private_names(source)
    assert not private_names("import torch\nfrom torch import nn\ntorch.__version__")


@pytest.mark.parametrize(
    "module",
    [
        *("classifier", "counts", "features/__init__"),
    ],
)
def test_the_core_of_certificates_needs_no_experiments(module: str) -> None:
    tree = ast.parse((PACKAGE / "certify" / f"{module}.py").read_text(encoding="utf-8"))
    at_once = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = imported_names(ast.Module(at_once, []), ["prudent", "certify"])
    assert not [name for name in names if name.startswith(("prudent_lab", "torch"))]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("accounting/events.py", "from prudent.training import Plan"),
        ("accounting/events.py", "from ..training import Plan"),
        ("accounting/events.py", "import prudent.release.margins"),
        ("accounting/events.py", "from prudent import PldAccountant"),
        ("accounting/events.py", "def late():\n    import torch"),
        ("training/plan.py", "from prudent_lab.corruption import RandomLabelFlip"),
        ("training/step.py", "from prudent.certify import CertifiedClassifier"),
        ("training/adapters/federated/strategy.py", "from prudent_lab.corruption import Mimic"),
        ("training/gradients/layers.py", "from ...release import median"),
        ("release/outcome.py", "import importlib\nimportlib.import_module('prudent_lab.paper')"),
        ("release/noise.py", "from prudent.audit import audit"),
        ("training/step.py", "from prudent.audit.training import white_box"),
        ("certify/classifier.py", "from prudent.audit import audit"),
        ("certify/features/__init__.py", "from tools.feature_files import landmarks"),
        ("records/reader.py", "from prudent.training.keystream import Key"),
        ("cli/commands/release.py", "import prudent_verify"),
        ("cli/commands/checks.py", "from prudent_lab.named_datasets import NAMED_DATASETS"),
        ("cli/commands/release.py", "def late():\n    from prudent_lab import datasets"),
        ("_validate.py", "from prudent.accounting import events"),
        ("__init__.py", "from .cli import main"),
        ("__init__.pyi", "from prudent.cli import main as main"),
        ("attic/box.py", "import math"),
    ],
)
def test_the_rule_catches_an_import_that_goes_back(path: str, source: str) -> None:
    assert violations(source, Path(path))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("accounting/loss.py", "from prudent import _validate\nfrom .events import Reveals"),
        ("_formats.py", "from prudent import __version__"),
        (
            "accounting/loss.py",
            "import numpy as np\nfrom prudent.accounting.losses.pairs import Pair",
        ),
        ("training/gradients/layers.py", "import torch\nfrom ...accounting import events"),
        ("training/adapters/federated/release.py", "from prudent.training.plan import Plan"),
        ("cli/commands/checks.py", "import importlib\nimportlib.import_module('prudent_verify')"),
        ("cli/__init__.py", "from prudent.release import median\nfrom prudent import Plan"),
    ],
)
def test_the_rule_allows_an_import_that_goes_forward(path: str, source: str) -> None:
    assert violations(source, Path(path)) == []


def at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The imports that run when a module is imported."""
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield node
            case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
                continue
            case ast.If(body=inner) | ast.Try(body=inner) | ast.With(body=inner):
                yield from at_import(inner)


def graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Which modules each module imports when it is imported itself."""
    found: dict[str, set[str]] = {}
    for module, source in sources.items():
        tree = ast.Module(list(at_import(ast.parse(source).body)), [])
        names = (name for name in imported_names(tree, []) if name != module)
        nearest = (name if name in sources else name.rpartition(".")[0] for name in names)
        found[module] = {name for name in nearest if name in sources and name != module}
    return found


def test_no_module_is_imported_in_a_circle() -> None:
    sources = {}
    for path in EVERY:
        home = next(each for each in (PACKAGE, LAB, VERIFY) if each in path.parents)
        name = ".".join(path.relative_to(home.parent).with_suffix("").parts)
        sources[name.removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    TopologicalSorter(graph(sources)).prepare()
    planted = {"prudent.a": "from prudent.b import c", "prudent.b": "import prudent.a"}
    with pytest.raises(CycleError):
        TopologicalSorter(graph(planted)).prepare()


# The most lines that the Python files of each room, and of the other distributions, may have
# together. More lines are more to keep true: raising a number is a commit that says why.
MOST_LINES = {
    "prudent": 1_480,  # the modules beside the rooms
    "accounting": 5_995,
    "audit": 1_725,
    "budget": 2_815,
    "certify": 1_555,
    "cli": 3_410,
    "estimators": 4_070,
    "receipts": 905,
    "records": 1_235,
    "release": 16_165,
    "samples": 80,
    "synth": 1_345,
    "training": 16_625,
    "tune": 1_420,
    "prudent_lab": 8_970,
    "prudent_verify": 2_865,
}


def lines_of_rooms(files: dict[Path, str]) -> dict[str, int]:
    """The lines of each room; files are named from the folder that holds their distribution."""
    found: dict[str, int] = {}
    for path, source in files.items():
        inside = path.parts[0] == PACKAGE.name and len(path.parts) > 2
        room = path.parts[1 if inside else 0]
        found[room] = found.get(room, 0) + source.count("\n")
    return found


def overgrown(files: dict[Path, str]) -> list[str]:
    """The rooms with more lines than they may have, or without a number."""
    return [
        f"{room} has {lines:,} lines, and may have {MOST_LINES.get(room, 0):,}"
        for room, lines in sorted(lines_of_rooms(files).items())
        if lines > MOST_LINES.get(room, 0)
    ]


def test_no_room_grows() -> None:
    files = {}
    for path in EVERY:
        home = next(each for each in (PACKAGE, LAB, VERIFY) if each in path.parents)
        files[path.relative_to(home.parent)] = path.read_text(encoding="utf-8")
    actual = lines_of_rooms(files)
    assert not overgrown(files), (
        f"{'; '.join(overgrown(files))}. Delete lines of the room, or raise its number in "
        f"MOST_LINES in a commit that says why. All rooms now: {dict(sorted(actual.items()))}"
    )
    assert set(actual) == set(MOST_LINES), "a room that is gone has no number"


@pytest.mark.parametrize(
    ("path", "room"),
    [
        ("prudent/audit/result.py", "audit"),
        ("prudent/training/run/fit.py", "training"),
        ("prudent/_files.py", "prudent"),
        ("prudent_lab/paper/grid.py", "prudent_lab"),
        ("prudent/attic/box.py", "attic"),  # no room of the house, so it may have no line
    ],
)
def test_the_rule_catches_a_room_that_grows(path: str, room: str) -> None:
    allowed = MOST_LINES.get(room, 0)
    (found,) = overgrown({Path(path): "\n" * (allowed + 1)})
    assert found.startswith(f"{room} has {allowed + 1:,} lines")
    assert not overgrown({Path(path): "\n" * allowed})


MOST_MODULES = 12


def test_a_folder_holds_what_a_person_can_keep_in_mind() -> None:
    for folder in {path.parent for path in EVERY}:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        name = folder.relative_to(ROOT).as_posix()
        assert len(modules) <= MOST_MODULES, name


def defined_twice(source: str) -> list[str]:
    """The names that a module binds more than once, of which the first would be forgotten."""
    found: list[str] = []
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=targets):
                found += [each.id for each in targets if isinstance(each, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                found.append(name)
            case (
                ast.FunctionDef(name=name, decorator_list=decorators)
                | ast.ClassDef(name=name, decorator_list=decorators)
            ) if not any("overload" in ast.unparse(each) for each in decorators):
                found.append(name)
    return sorted({name for name in found if found.count(name) > 1})


def test_no_name_of_a_module_is_bound_twice() -> None:
    """Where two modules became one, a constant of the second once replaced that of the first."""
    found = {
        path.relative_to(ROOT).as_posix(): names
        for path in EVERY
        if (names := defined_twice(path.read_text(encoding="utf-8")))
    }
    assert not found
    assert defined_twice("_ROWS = 512\ndef f(): ...\n_ROWS: int = 4000") == ["_ROWS"]
