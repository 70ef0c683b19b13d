"""Each command runs with its own extras alone, and without them says so before any work."""

import re
from pathlib import Path

import pytest

from prudent import _extras
from prudent.cli import command_line, needs
from tests import environments
from tests.cli.conftest import leaves

TABLE = "value,kind\n" + "".join(f"{place},a\n" for place in range(400))
PRICE = ("--noise-multiplier", "1", "--sampling-rate", "0.01", "--steps", "10", "--delta", "1e-5")
ASK = ("values.csv", "--column", "value", "--epsilon", "1")

# The smallest job of every command. One that would take minutes is stopped after its first work,
# by a file that is not there or a number that it cannot take.
JOBS: dict[str, tuple[str, ...]] = {
    "epsilon": (*PRICE, "--test", "none"),
    "calibrate": (*PRICE[2:], "--epsilon", "2", "--test", "none", "--solve", "noise-multiplier"),
    "doctor": ("--json",),
    "sample": ("salaries",),
    **{f"release {name}": ASK for name in ("median", "iqr", "count", "sum", "mean", "variance")},
    "synth": ("values.csv", "--epsilon", "1", "--delta", "1e-6", "--out", "made.csv"),
    "regress": ("value ~ value2", "values.csv", "--epsilon", "1"),
    "release describe": ASK,
    **{f"release {name}": ASK for name in ("deviation", "minimum", "maximum", "count-distinct")},
    **{f"release {name}": (*ASK, "--other", "value") for name in ("ratio", "covariance")},
    "release correlation": (*ASK, "--other", "value"),
    "release weighted-mean": (*ASK, "--weights", "value"),
    "release proportion": (*ASK[:2], "value > 3", *ASK[3:]),
    "release top-k": (*ASK[:2], "kind", *ASK[3:], "--categories", "a,b"),
    "release table": ("values.csv", "--columns", "avg(value)", "--epsilon", "1"),
    "sql": ("SELECT MEDIAN(value) FROM 'values.csv'", "--epsilon", "1"),
    "verify": ("missing.json",),
    "release quantile": (*ASK, "--p", "0.9"),
    "release histogram": (*ASK, "--edges", "0,100,400"),
    "release trimmed-mean": (*ASK, "--trim", "100", "--propose", "10", "--delta", "1e-6"),
    "release mode": (*ASK[:2], "kind", *ASK[3:], "--categories", "a,b", "--delta", "1e-6"),
    "budget create": ("new.db", "--epsilon", "1", "--delta", "1e-6"),
    "budget show": ("new.db",),
    "budget verify": ("new.db",),
    "audit train": ("--steps", "0"),
}


EVERY = list(map(" ".join, leaves(command_line())))
COMMANDS = [name for name in EVERY if name.split()[0] in needs.MODULES]


def job(name: str) -> list[str]:
    return [*name.split(), *JOBS.get(name, ())]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "values.csv").write_text(TABLE)
    return tmp_path


def test_every_command_has_a_module_and_a_line_in_the_table() -> None:
    outer = {*needs.MODULES, *needs.plugins("commands")}
    assert set(needs.NEEDS) >= outer
    assert set(needs.NEEDS) <= {*outer, *EVERY}
    assert {name for name, _ in needs.NEEDS_OF_OPTIONS} <= {*outer, *EVERY}


def test_the_options_of_the_table_exist() -> None:
    whole = command_line()
    for name, option in needs.NEEDS_OF_OPTIONS:
        inside = [each for each in EVERY if f"{each} ".startswith(f"{name} ")]
        for each in inside if name not in EVERY else [name]:
            found = whole
            for word in each.split():
                found = found.commands[word]
            assert option in {parameter.name for parameter in found.params}, (each, option)


def test_every_extra_of_the_table_is_one_of_the_package() -> None:
    named = {extra for extras in needs.NEEDS.values() for extra in extras}
    named |= {extra for extra, _ in needs.NEEDS_OF_OPTIONS.values()}
    assert named <= set(_extras.MODULES)


@pytest.mark.unhurried
def test_without_extras_each_command_names_its_own_before_any_work(folder: Path) -> None:
    """With a file that is not there: what reads it first would complain of that."""
    core = environments.environment(folder / "core")
    wanting = [name for name in COMMANDS if needs.of(name, {})]
    asked = [[word.replace("values.csv", "missing.csv") for word in job(name)] for name in wanting]
    answers = environments.run(core, asked, folder / "work")
    for name, (status, out, err) in zip(wanting, answers, strict=True):
        extras = needs.of(name, {})
        assert (status, out) == (2, ""), (name, err)
        hint = (
            rf"in your clone of prudent, pip install -c constraints.txt '\.\[{','.join(extras)}\]'"
        )
        assert re.fullmatch(rf"prudent {name} needs .* installed: {hint}\n", err), err


def test_an_option_that_needs_more_says_so_before_any_work(folder: Path) -> None:
    core = environments.environment(folder / "core")
    answers = environments.run(
        core,
        [
            ["budget", "create", "postgresql://me@nowhere/db", "--epsilon", "1", "--delta", "1e-6"],
            ["budget", "create", "postgresql://me@nowhere/db", "--help"],
        ],
        folder / "work",
    )
    assert [status for status, _, _ in answers] == [2, 0]
    hint = "not installed: in your clone of prudent, pip install -c constraints.txt '.[{}]'\n"
    assert answers[0][2].startswith("prudent budget create needs ")
    assert answers[0][2].endswith(hint.format("tables"))


def test_a_command_of_a_package_that_is_not_installed_names_it(folder: Path) -> None:
    lab = set(needs.plugins("commands")) or set(needs.LAB)
    assert lab == set(needs.LAB)
    core = environments.environment(folder / "core")
    asked = [[*needs.LAB[:1]], ["paper", "table", "1"], ["verify", "a.json"], ["--help"]]
    *answers, (_, listed, _) = environments.run(core, asked, folder / "work")
    for (status, _, err), home in zip(answers, ("lab", "lab", "verify"), strict=True):
        assert status == 2
        hint = "not installed: in your clone of prudent, pip install -c constraints.txt ./packages/"
        assert err.endswith(f"{hint}{home}\n"), err
    assert "paper" not in listed


@pytest.mark.thorough
def test_help_needs_no_extra(folder: Path) -> None:
    core = environments.environment(folder / "core")
    asked = [["--help"], *([*name.split(), "--help"] for name in COMMANDS)]
    for words, (status, out, _) in zip(
        asked, environments.run(core, asked, folder / "work"), strict=True
    ):
        assert (status, "Usage: prudent" in out) == (0, True), words


SETS = [
    pytest.param(extras, marks=[pytest.mark.slow] if extras else [], id="+".join(extras) or "core")
    for extras in sorted({needs.of(name, {}) for name in COMMANDS})
]


@pytest.mark.thorough
@pytest.mark.parametrize("extras", SETS)
def test_each_command_runs_with_its_own_extras_alone(folder: Path, extras: tuple[str, ...]) -> None:
    alone = environments.environment(folder / "alone", extras)
    # `verify` asks for the checker, which is a distribution of its own.
    names = [name for name in COMMANDS if needs.of(name, {}) == extras and name != "verify"]
    answers = environments.run(alone, [job(name) for name in names], folder / "work")
    for name, (status, _, err) in zip(names, answers, strict=True):
        assert status in (0, 2), (name, err)  # 1 is a bug, or a claim that was refuted
        assert "not installed" not in err, (name, err)
        assert status == 0 or name in STOPPED, (name, err)


STOPPED = {"budget report", "verify", "audit train"}
"""The commands whose job above ends after the first work, with status 2."""
