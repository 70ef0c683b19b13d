"""What Tab offers, asked of the real shells, and that it opens no file."""

import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from prudent.cli import command_line, main

TYPED = {
    "prudent release tri": {"trimmed-mean"},
    "prudent calibrate --solve s": {"steps", "sampling-rate"},
    "prudent audit train --q": {"--quiet"},
    "prudent train --recipe g": {"glyphs-linear"},
    "prudent release median private.parquet --column ''": set(),
}
WORDS = "|".join(sorted(set().union(*TYPED.values())))
IN_BASH = ["prudent calibrate --solve s", "prudent release median private.parquet --column ''"]


def test_the_lists_are_those_of_the_library() -> None:
    pytest.importorskip("torch")
    from prudent.certify.features import NAMES
    from prudent.samples import SAMPLES
    from prudent_lab.commands import completion
    from prudent_lab.corruption import _NAMES
    from prudent_lab.named_datasets import NAMED_DATASETS
    from prudent_lab.recipes import RECIPES

    assert set(completion.CERTIFIABLE) == set(NAMED_DATASETS)
    trainable = {name for name, each in NAMED_DATASETS.items() if each.trainable}
    assert set(completion.DATASETS) == trainable
    assert {name.rstrip(":") for name in completion.CORRUPTIONS} == {"none", *_NAMES}
    assert {name.rstrip(":") for name in completion.FEATURES} == {
        name.removesuffix(":D") for name in NAMES
    }
    assert set(SAMPLES) == {"salaries"}, "as `prudent sample` offers"
    assert set(completion.RECIPES) == set(RECIPES)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a `prudent` to call, and a private file that no key press may open."""
    home = tmp_path_factory.mktemp("home")
    script = home / "prudent"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m prudent "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    (home / "private.parquet").write_text("no table: opening it would fail")
    return home


def told(shell: str, script: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    with monkeypatch.context() as changed:
        changed.setenv("PATH", f"{home}:/usr/bin:/bin")
        changed.setenv("HOME", str(home))
        flags = {"bash": ["--norc"], "fish": ["--no-config"], "zsh": ["-f"]}[shell]
        run = [found, *flags, "-c", script]
        answer = subprocess.run(run, capture_output=True, text=True, cwd=home, check=True)
    return answer.stdout


@pytest.mark.parametrize("typed", TYPED)
def test_what_a_shell_is_answered(
    typed: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As their scripts ask, in this process: the shells below ask less."""
    monkeypatch.chdir(home)
    last = str(len(typed.split()) - 1)
    asked = {
        "bash": {"COMP_WORDS": typed, "COMP_CWORD": last},
        "fish": {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        "zsh": {"_TYPER_COMPLETE_ARGS": typed},
    }
    for shell, variables in asked.items():
        with monkeypatch.context() as changed:
            for name, value in (variables | {"_PRUDENT_COMPLETE": f"complete_{shell}"}).items():
                changed.setenv(name, value)
            with pytest.raises(SystemExit):
                main([])
        shown = capsys.readouterr().out
        offered = set(re.findall(WORDS, shown))
        assert offered == TYPED[typed], shown
        if shell == "bash":
            assert set(shown.split()) == TYPED[typed]


@pytest.mark.thorough
def test_bash(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        f"COMP_WORDS=({typed}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); "
        '_prudent_completion prudent; echo "${COMPREPLY[@]}"'
        for typed in IN_BASH
    ]
    script = "\n".join(["prudent --install-completion >/dev/null; . ~/.bashrc", *lines])
    answers = told("bash", script, home, monkeypatch).splitlines()
    assert [set(line.split()) for line in answers] == [TYPED[typed] for typed in IN_BASH]


def test_nothing_that_names_private_things_is_completed() -> None:
    release = command_line().commands["release"].commands["median"]
    silent = {"column", "by", "groups", "where", "unit", "table", "dataset", "ledger", "source"}
    offered = {each.name for each in release.params if each._custom_shell_complete is not None}
    assert not silent & offered
    assert offered == {"per_unit", "read_as"}
