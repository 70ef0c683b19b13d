"""The packages that each extra installs, and which extra holds one that is missing.

What an extra holds is read from the metadata of the installed distributions, which the build takes
from `pyproject.toml`: there is no second list. Everything that needs an extra asks here, the
commands before they do any work (`prudent.cli.needs`).
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from functools import cache

CORE = ""  # what is installed without any extra

# For people who change prudent, not for those who use it.
_OF_A_CLONE = frozenset({"dev", "docs", "lint", "peers"})
# Distributions of this repository: a clone installs them from their folders, with what they need.
_FOLDERS = {
    "flint": "./packages/verify",
    "prudent-lab": "./packages/lab",
    "prudent-verify": "./packages/verify",
}
_NAME = re.compile(r"(?P<name>[\w.-]+)\s*(?:\[(?P<extras>[^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w.-]+)["']""")
# What brings a module along, where the name of the module does not say so.
_BROUGHT_BY = {
    **dict.fromkeys(("pandas", "pyarrow", "sqlglot"), "ibis-framework"),
    "sklearn": "scikit-learn",
    "tokenizers": "transformers",
    "triton": "torch",
}


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


def check(what: str, extras: Sequence[str]) -> None:
    """Check that all packages of some extras are installed.

    Raises:
        MissingPackageError: naming all that are not, and the extras that hold them.
    """
    absent = {extra: [name for name in packages(extra) if not version(name)] for extra in extras}
    if any(absent.values()):
        names = list(dict.fromkeys(name for each in absent.values() for name in each))
        raise MissingPackageError(what, names, [extra for extra in extras if absent[extra]])


def known() -> list[str]:
    """The extras that users install, and `CORE` first."""
    found = {extra for text in _requires("prudent") for extra in _EXTRA.findall(text)}
    return [CORE, *sorted(found - _OF_A_CLONE)]


@cache
def packages(extra: str) -> tuple[str, ...]:
    """The distributions that an extra asks for by name, each once."""
    found: dict[str, None] = {}
    for name, nested in _asked("prudent", frozenset({extra})):
        if name == "prudent":
            found |= dict.fromkeys(each for inner in nested for each in packages(inner))
        else:
            found[name] = None
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
    """What installs a module, directly or for what it installs: the core, then smaller extras."""
    wanted = _BROUGHT_BY.get(module, _normal(module))
    wholes = {extra: _whole(extra) for extra in known()}
    # ibis is in ibis-framework, dateutil in python-dateutil.
    held = [
        extra
        for extra, names in wholes.items()
        if any(re.search(rf"^{wanted}(-|$)|-{wanted}$", name) for name in names)
    ]
    return sorted(held, key=lambda extra: (extra != CORE, len(wholes[extra])))


def _whole(extra: str) -> set[str]:
    """Everything that an extra installs, as far as the metadata of what is installed reach."""
    todo = [("prudent", frozenset({extra}))]
    seen = set(todo)
    while todo:
        for each in _asked(*todo.pop()):
            if each not in seen:
                seen.add(each)
                todo.append(each)
    return {name for name, _ in seen}


def _asked(package: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """What a distribution asks for with some extras, each with the extras asked of it."""
    for text in _requires(package):
        where = _EXTRA.findall(text)
        required = _NAME.match(text)
        # Without an extra, prudent stands for its core; each other package brings its core along.
        core = package != "prudent" or CORE in extras
        if required and (extras.intersection(where) if where else core):
            inner = (required["extras"] or "").split(",")
            yield _normal(required["name"]), frozenset(filter(None, map(str.strip, inner)))


@cache
def _requires(package: str) -> tuple[str, ...]:
    from importlib import metadata

    try:
        return tuple(metadata.requires(package) or ())
    except metadata.PackageNotFoundError:
        return ()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
