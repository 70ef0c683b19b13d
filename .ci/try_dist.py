#!/usr/bin/env python3
"""Installs each file of a folder of distributions into an empty environment, and tries it there.

    .ci/try_dist.py dist

What is tried is `prudent --version`, and then what README.md tells a reader to do first with the
command, from an empty folder. Fails if anything does, or if a version is another than that of the
file.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import first_touch

EXTRAS = "tables"  # what the first commands need


def first_commands(page: str) -> list[str]:
    """The commands of the first block of a page that runs `prudent`."""
    for block in first_touch.blocks(page):
        typed = first_touch.commands(block.text) if block.kind == "console" else []
        if own := [command for command in typed if command.startswith("prudent ")]:
            return own
    raise ValueError("The page runs prudent nowhere.")


def try_out(file: Path, commands: list[str]) -> None:
    """Install a wheel or a source archive, and run the commands."""
    version = file.name.removesuffix(".tar.gz").split("-")[1]
    with tempfile.TemporaryDirectory() as around:
        place = Path(around) / "environment"
        venv.create(place, with_pip=True)
        constraints = first_touch.ROOT / "constraints.txt"
        pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
        pip += ["--disable-pip-version-check", "-c", constraints]
        subprocess.run([*pip, f"{file}[{EXTRAS}]"], check=True, cwd=around)
        path = os.pathsep.join((str(place / "bin"), os.environ["PATH"]))
        environment = first_touch.newcomer(Path(around)) | {"PATH": path}
        empty = Path(around) / "empty"
        empty.mkdir()
        for command in ["prudent --version", *commands]:
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
            if command == "prudent --version" and ran.stdout != f"prudent {version}\n":
                raise SystemExit(f"{file.name} installs another version.")


def main(folder: str) -> None:
    """Try every file of the folder."""
    page = (first_touch.ROOT / "README.md").read_text(encoding="utf-8")
    files = sorted(Path(folder).resolve().glob("prudent-*"))
    if [file.suffix for file in files] != [".whl", ".gz"]:
        raise SystemExit(f"Expected a wheel and a source archive in {folder}, got {files}.")
    for file in files:
        try_out(file, first_commands(page))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    main(*sys.argv[1:])
