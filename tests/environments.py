"""Environments with some extras of prudent and nothing else, made in a moment.

A folder of links to the distributions that the extras install, taken from where the tests run, is
a whole environment for an interpreter without a site folder: what is not linked is not installed,
for imports and for the metadata of packages alike.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import prudent

SCRIPT = """
import contextlib, io, json, sys
from prudent.cli import main
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


def environment(folder: Path, extras: Iterable[str] = ()) -> Path:
    """Make a folder that holds what prudent and these extras install, by links."""
    folder.mkdir(parents=True)
    held = [metadata.distribution("prudent"), *installed(extras)]
    owners = _owners()
    (folder / "prudent").symlink_to(Path(prudent.__file__).parent)
    for own in Path(str(held[0].locate_file(""))).glob("prudent-*.dist-info"):
        (folder / own.name).symlink_to(own)
    for each in held:
        for file in {_linked(file, owners) for file in each.files or ()} - {None}:
            target, link = Path(str(each.locate_file(file))), folder / file
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to(target.resolve() if target.is_dir() else target)
    return folder


def run(folder: Path, commands: Sequence[Sequence[str]], cwd: Path) -> list[tuple[int, str, str]]:
    """Status, output and errors of each command, all in one process of an environment."""
    kept = {name: os.environ[name] for name in ("PATH", "PRUDENT_DATA") if name in os.environ}
    answer = subprocess.run(
        [_interpreter(), "-S", "-c", SCRIPT, json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=kept | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "HOME": str(cwd)},
    )
    assert answer.returncode == 0, answer.stderr
    return [tuple(json.loads(line)) for line in answer.stdout.splitlines()]


def _interpreter() -> str:
    """The interpreter below a virtual environment, which knows nothing of its packages."""
    return str(getattr(sys, "_base_executable", sys.executable))


@functools.cache
def _owners() -> dict[str, set[str]]:
    """The distributions that have files below each name at the top of an environment."""
    owners: dict[str, set[str]] = {}
    for each in metadata.distributions():
        for top in {file.parts[0] for file in each.files or ()}:
            owners.setdefault(top, set()).add(each.name)
    return owners


def _linked(file: Any, owners: dict[str, set[str]]) -> Path | None:
    """What to link for a file: the folder at the top, or below it if others share that."""
    if file.parts[0] in ("..", "__pycache__") or file.suffix == ".pth":
        return None
    depth = 1 if len(owners[file.parts[0]]) == 1 else 2
    return Path(*file.parts[:depth])


def installed(
    extras: Iterable[str], beside: Iterable[tuple[str, str]] = ()
) -> list[metadata.Distribution]:
    """All that prudent with these extras, and packages beside it, bring along, as pip would."""
    todo = [*(("prudent", extra) for extra in ("", *extras)), *beside]
    seen, found = set(todo), {}
    while todo:
        name, extra = todo.pop()
        for text in metadata.requires(name) or ():
            need = Requirement(text)
            if need.marker is not None and not need.marker.evaluate({"extra": extra}):
                continue
            asked = canonicalize_name(need.name)
            if asked not in found:
                found[asked] = metadata.distribution(asked)
            for each in {(asked, inner) for inner in ("", *need.extras)} - seen:
                seen.add(each)
                todo.append(each)
    found.pop("prudent", None)
    return list(found.values())
