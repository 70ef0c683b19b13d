#!/usr/bin/env python3
"""Does what README.md and docs/index.md tell a newcomer, word for word, on a fresh clone.

    .ci/first_touch.py [PAGE ...]

Each page gets a new clone of HEAD and no active environment. Its console blocks run in their order
in one shell, so that what one line installs or activates holds for the next; then, in the same
shell, its Python blocks as one script, and the first commands of its table "Start here". Nothing is
left out, `make test` least of all: here alone it runs with nothing else installed. Only the exit
status counts: private answers differ from run to run. What cannot run may not be on these pages.
They are followed side by side, and each is reported when it is done.
"""

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/index.md")

_FENCE = re.compile(
    r"^(?P<indent>[ \t]*)```[ \t]*(?P<kind>console|python)\b[^\n]*\n"
    r"(?P<body>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_TABLE = re.compile(
    r"^## Start here\n\n\|[^|\n]*\| first command \|[^\n]*\n\|[-|]+\n(?P<rows>(?:\|[^\n]*\n)+)",
    re.MULTILINE,
)
_COMMAND = re.compile(r"`([^`]+)`")


class Block(NamedTuple):
    """A fenced block: its kind, the page's line on which it begins, and its text."""

    kind: str
    line: int
    text: str


def blocks(page: str) -> list[Block]:
    """The console and Python blocks of a page, in their order."""
    return [
        Block(
            found["kind"],
            page.count("\n", 0, found.start("body")) + 1,
            textwrap.dedent(found["body"]),
        )
        for found in _FENCE.finditer(page)
    ]


def commands(console: str) -> list[str]:
    """What a reader types of a console block.

    Lines that begin with `$ ` are commands, each with the lines that its backslashes continue it
    on, and the rest is what they print. Where no line does, every line is a command.
    """
    typed: list[str] = []
    continued = False
    prompts = any(line.startswith("$ ") for line in console.splitlines())
    for line in console.splitlines():
        if continued:
            typed[-1] += "\n" + line
        elif line.startswith("$ ") or (line.strip() and not prompts):
            typed.append(line.removeprefix("$ "))
        else:
            continue
        continued = line.endswith("\\")
    return typed


def first_commands(page: str) -> list[str]:
    """The cells "first command" of the table "Start here", as they are written; often none."""
    table = _TABLE.search(page)
    return [row.split("|")[2].strip() for row in table["rows"].splitlines()] if table else []


def script(name: str, page: str) -> str:
    """One shell script that does all that a page says, and stops at the first failure."""
    found = blocks(page)
    lines = ["set -eo pipefail", "TIMEFORMAT='   took %R s, %U + %S processor seconds'"]
    for block in found:
        for command in commands(block.text) if block.kind == "console" else ():
            lines += _run(f"{name}, line {block.line}", command.partition("  #")[0].strip())
    code = "".join(
        f"print('== {name}, line {block.line}: Python', flush=True)\n{block.text}\n"
        for block in found
        if block.kind == "python"
    )
    if code:
        lines += [f"printf %s {_quoted(code)} >page.py", "time { python page.py\n}"]
    for cell in first_commands(page):
        if command := _COMMAND.fullmatch(cell):  # else a link to a block, which has run
            lines += _run(f"{name}, Start here", command[1])
    return "\n".join(lines) + "\n"


def _run(where: str, command: str) -> list[str]:
    return [f"echo {_quoted(f'== {where}: {command}')}", f"time {{ {command}\n}}"]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def newcomer(home: Path) -> dict[str, str]:
    """This environment without what a newcomer does not have; pip stays configured as it is."""
    made = ("PRUDENT_", "CONDA_", "MAKE", "PYTEST_", "HYPOTHESIS_")
    own = {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in own and not name.startswith(made)
    }
    if active := os.environ.get("VIRTUAL_ENV"):
        folders = kept.get("PATH", "").split(os.pathsep)
        kept["PATH"] = os.pathsep.join(each for each in folders if not each.startswith(active))
    kept.setdefault("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "MPLCONFIGDIR"):
        kept[name] = str(home / name.lower())
    return kept


def follow(name: str, page: str, folder: Path, home: Path) -> int:
    """Do what a page says in a folder; returns the exit status of what failed, or 0."""
    done = subprocess.run(
        ["bash", "-c", script(name, page)],
        cwd=folder,
        env=newcomer(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        text += f"{name}: what it says fails, with exit status {done.returncode}.\n"
    sys.stdout.write(text)  # at once: another page may be reporting
    sys.stdout.flush()
    return done.returncode


def followed(name: str) -> int:
    """Follow a page on a new clone; returns the exit status of what failed, or 0."""
    with tempfile.TemporaryDirectory() as around:
        clone = Path(around) / "prudent"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        page = (clone / name).read_text(encoding="utf-8")
        return follow(name, page, clone, Path(around))


def main(names: list[str]) -> int:
    """Follow all pages; returns the first exit status that is not 0."""
    with ThreadPoolExecutor() as pool:
        return next(filter(None, list(pool.map(followed, names or PAGES))), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
