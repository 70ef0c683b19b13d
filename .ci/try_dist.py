#!/usr/bin/env python3
"""Installs each file of a folder of distributions into an empty environment, and tries it there.

    .ci/try_dist.py dist

What is tried of prudent is `prudent --version`, and then what README.md tells a reader to do first
with the command, from an empty folder; of the other packages their first command. Fails if anything
does, if a version is another than that of the file, or if prudent alone brings what it need not.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import first_touch

EXTRAS = "tables"  # what the first commands need
UNASKED = (
    "torch",
    "matplotlib",
    "prudent-lab",
    "prudent-verify",
)  # what prudent alone must not bring


LISTED = """
import sys
from importlib import metadata
print(metadata.version(sys.argv[1]))
there = {each.name.lower().replace("_", "-") for each in metadata.distributions()}
print(*there.intersection(sys.argv[2:]))
"""


def first_commands(page: str) -> list[str]:
    """The commands of the first block of a page that runs `prudent`."""
    for block in first_touch.blocks(page):
        typed = first_touch.commands(block.text) if block.kind == "console" else []
        if own := [command for command in typed if command.startswith("prudent ")]:
            return own
    raise ValueError("The page runs prudent nowhere.")


def try_out(
    file: Path, commands: list[str], *, extras: str = "", beside: Path | None = None
) -> None:
    """Install a wheel or a source archive, and what it needs beside it, and run the commands."""
    name, version = file.name.removesuffix(".tar.gz").split("-")[:2]
    with tempfile.TemporaryDirectory() as around:
        place = Path(around) / "environment"
        venv.create(place, with_pip=True)
        constraints = first_touch.ROOT / "constraints.txt"
        pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
        pip += ["--disable-pip-version-check", "-c", constraints]
        subprocess.run(
            [*pip, f"{file}{extras}", *([beside] if beside else [])], check=True, cwd=around
        )
        listed = [place / "bin" / "python", "-c", LISTED, name, *UNASKED]
        told = subprocess.run(listed, check=True, cwd=around, stdout=subprocess.PIPE, text=True)
        found, *unasked = told.stdout.split()
        if found != version or (name == "prudent" and unasked):
            raise SystemExit(f"{file.name} installs version {found}, and {unasked}.")
        path = os.pathsep.join((str(place / "bin"), os.environ["PATH"]))
        environment = first_touch.newcomer(Path(around)) | {"PATH": path}
        empty = Path(around) / "empty"
        empty.mkdir()
        for command in commands:
            print(f"== {file.name}: {command}")
            ran = subprocess.run(
                ["bash", "-c", command],
                cwd=empty,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            print(ran.stdout, end="")


def main(folder: str) -> None:
    """Try every file of the folder."""
    page = (first_touch.ROOT / "README.md").read_text(encoding="utf-8")
    place = Path(folder).resolve()
    files = [*sorted(place.glob("prudent-*")), *sorted(place.glob("prudent_*"))]
    if [file.suffix for file in files] != [".whl", ".gz", ".whl", ".whl"]:
        raise SystemExit(f"Expected wheels and a source archive in {folder}, got {files}.")
    wheel, archive, lab, verify = files
    for file in (wheel, archive):
        try_out(file, ["prudent --version", *first_commands(page)], extras=f"[{EXTRAS}]")
    try_out(wheel, ["prudent epsilon --noise-multiplier 5 --test none --delta 1e-6"])
    try_out(verify, ["prudent-verify --help"])
    try_out(lab, ["prudent train --recipe list", "prudent paper table 1"], beside=wheel)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    main(*sys.argv[1:])
