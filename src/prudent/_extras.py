"""The packages that each extra installs, and which extra holds one that is missing.

Everything that needs an extra asks here, the commands before they do any work
(`prudent.cli.needs`). What an extra installs is read from the metadata of the installed package,
which the build takes from `pyproject.toml`.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec

CORE = ""  # what is installed without any extra

# Distributions of this repository: a clone installs them from their folders, with what they need.
_FOLDERS = {
    "flint": "./packages/verify",
    "prudent-lab": "./packages/lab",
    "prudent-verify": "./packages/verify",
}
_NAME = re.compile(r"(?P<name>[\w.-]+)\s*(?:\[(?P<extras>[^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w.-]+)["']""")
MODULES = {
    CORE: ("attrs", "dp_accounting", "numpy", "rich", "scipy", "typer", "typing_extensions"),
    "tables": ("duckdb", "ibis", "opendp", "pandas", "psycopg", "pyarrow", "sqlglot"),
    "estimators": ("sklearn",),
    "receipts": ("cryptography",),
    "train": ("safetensors", "torch", "triton"),
    "huggingface": ("accelerate", "datasets", "peft", "tokenizers", "transformers"),
    "lightning": ("lightning",),
    "federated": ("flwr",),
    "spark": ("pyspark",),
    "plots": ("matplotlib",),
    "browser": ("playwright",),
}
"""The modules that the extras for users hold, each by the smallest; a test compares them."""


class MissingPackageError(ModuleNotFoundError):
    """A package is not installed; the message names the extra that holds it.

    Attributes:
        packages: What is missing.
    """

    def __init__(self, what: str, packages: Sequence[str], extras: Sequence[str]) -> None:
        """Say what needs packages (a subject), and what installs them: nothing if that is empty."""
        names = " and ".join(filter(None, [", ".join(packages[:-1]), packages[-1]]))
        verb = "is" if len(packages) == 1 else "are"
        named = ",".join(filter(None, extras))
        folders = [_FOLDERS[name] for name in packages if name in _FOLDERS]
        wanted = [f"'.[{named}]'"] if named else ["."] if extras else folders
        # No full stop after a command: it would be copied with it.
        told = f": {installing(wanted)}" if wanted else "."
        super().__init__(
            f"{what} needs {names}, which {verb} not installed{told}", name=packages[0]
        )
        self.packages = tuple(packages)


def installing(wanted: Sequence[str]) -> str:
    """The command that installs parts of a clone where it is printed, in the clone or elsewhere.

    prudent is on no package index: a command that asked one for it could install a stranger's
    package of that name.
    """
    from pathlib import Path

    named = " ".join(wanted)
    pins = "" if "federated" in named else "-c constraints.txt "  # Flower asks for older versions
    command = f"pip install {pins}{named}"
    try:
        here = 'name = "prudent"\n' in Path("pyproject.toml").read_text(encoding="utf-8")
    except (OSError, ValueError):
        here = False
    return command if here else f"in your clone of prudent, {command}"


@contextlib.contextmanager
def needed(what: str) -> Iterator[None]:
    """Import inside the block; where a package is missing, name the extra that holds it.

    Raises:
        MissingPackageError: in place of the ModuleNotFoundError.
    """
    try:
        yield
    except MissingPackageError:
        raise
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if error.name is None or package == "prudent":
            raise
        raise MissingPackageError(what, [package], holding(package)[:1]) from error


def require(what: str, *modules: str) -> None:
    """Raise MissingPackageError unless modules are there, without importing them."""
    with needed(what):
        for name in modules:
            if find_spec(name) is None:
                raise ModuleNotFoundError(name=name)


def check(what: str, extras: Sequence[str]) -> None:
    """Check that all packages of some extras are installed.

    Raises:
        MissingPackageError: naming all that are not, and the extras that hold them.
    """
    absent = {extra: [name for name in packages(extra) if not version(name)] for extra in extras}
    if any(absent.values()):
        names = list(dict.fromkeys(name for each in absent.values() for name in each))
        raise MissingPackageError(what, names, [extra for extra in extras if absent[extra]])


@cache
def packages(extra: str) -> tuple[str, ...]:
    """The distributions that an extra asks for by name, each once."""
    from importlib import metadata

    found: dict[str, None] = {}
    try:
        requirements = metadata.requires("prudent") or ()
    except metadata.PackageNotFoundError:
        requirements = ()
    for text in requirements:
        where, required = _EXTRA.findall(text), _NAME.match(text)
        if required and (extra in where if where else extra == CORE):
            name = re.sub(r"[-_.]+", "-", required["name"]).lower()
            inner = filter(None, map(str.strip, (required["extras"] or "").split(",")))
            own = (each for one in inner for each in packages(one)) if name == "prudent" else [name]
            found |= dict.fromkeys(own)
    return tuple(found)


@cache
def version(package: str) -> str | None:
    """The version of an installed distribution; None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def holding(module: str) -> list[str]:
    """The extra that installs a module; empty if none does."""
    return [extra for extra, modules in MODULES.items() if module in modules]
