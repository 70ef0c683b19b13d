"""Bad input: status 2 and one line that names the flag. Never a traceback."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import prudent
from prudent._validate import ArgumentError
from prudent.cli.errors import with_flag
from tests.tiers import CHARACTERS, examples

Command = Callable[..., Any]
GOOD = {"noise-multiplier": "1.1", "test": "laplace:1", "delta": "1e-5", "steps": "10"}
PRICE = ["--epsilon=1", "--delta=1e-6"]
ODD_NUMBERS = st.one_of(
    st.sampled_from(
        ["nan", "inf", "-inf", "-0.0", "0", "1e-400", "1e400", "1e308", "1e-12", "", "x"]
    ),
    st.floats().map(repr),
    st.integers(-(10**30), 10**30).map(str),
    st.sampled_from(["9" * 400, "9" * 5000, "1_0", "٣", "0x10", " 1 "]),
)
SENSIBLE_NUMBERS = st.sampled_from(["0.01", "0.3", "0.5", "1", "2", "50"])
NUMBERS = st.one_of(ODD_NUMBERS, SENSIBLE_NUMBERS)
TESTS = st.one_of(
    st.just("none"),
    st.text(CHARACTERS, max_size=8),
    st.builds(
        "{}:{}".format,
        st.sampled_from(["laplace", "gaussian", "discrete-laplace", "discrete-gaussian"]),
        NUMBERS,
    ),
)


def flags(values: dict[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"failure": "0.7"}, "--failure: expected in (0, 0.5), got 0.7."),
        ({"noise-multiplier": "-1"}, "--noise-multiplier: expected in [0.001, 1e+06], got -1.0."),
        ({"noise-multiplier": "x"}, "--noise-multiplier: expected a number, got 'x'."),
        ({"delta": "1.5"}, "--delta: expected in [0, 1], got 1.5."),
        ({"steps": "1.5"}, "--steps: expected a whole number, got '1.5'."),
        ({"steps": "0"}, "--steps: expected in [1, 1e+09], got 0."),
        ({"sampling-rate": "nan"}, "--sampling-rate: expected 0 or in [1e-12, 1], got nan."),
        ({"propose": "-1"}, "--propose: expected 0 or in [0.001, 1000], got -1.0."),
        (
            {"test": "foo"},
            "--test: expected laplace:B, gaussian:S, discrete-laplace:B, discrete-gaussian:S or "
            "none, got 'foo'.",
        ),
        ({"test": "laplace:-2"}, "--test: expected in [0.001, 1e+06], got -2.0."),
        (
            {"reveals": "all"},
            "--reveals: expected one of margin, branch, monotone-branch, got 'all'.",
        ),
        ({"accountant": "gdp"}, "--accountant: expected one of pld, rdp, got 'gdp'."),
        (
            {"records-per-person": "0"},
            "--records-per-person: expected a whole number >= 1, got 0.",
        ),
    ],
)
def test_bad_values_name_their_flag(run: Command, change: dict[str, str], line: str) -> None:
    answer = run("epsilon", *flags(GOOD | change))
    assert answer == (2, "", line + "\n")


@pytest.mark.parametrize(
    ("arguments", "beginning"),
    [
        (["epsilon"], "--delta: expected a value, got nothing."),
        (["sample"], "NAME: expected a value, got nothing. Which table: salaries."),
        (["epsilon", "--steps"], "--steps: expected a value, got nothing."),
        (["epsilon", "--stepz", "3"], "No such option: --stepz. Did you mean --"),
        (["epsilon", "--noise", "3"], "No such option: --noise. Did you mean --noise-multiplier?"),
        (["epsilon", "--qqqq", "3"], "No such option: --qqqq. See prudent epsilon --help."),
        (["epsilon", *flags(GOOD), "--sampling-rate=1/0"], "--sampling-rate: expected a number"),
        (["release", "median", "--groups=a", "--groups", "b"], "--groups: expected one list, as"),
        (["budget", "creat"], "No such command 'creat'. Did you mean 'create'? See prudent bud"),
        (["release", "median", "--column=x", "--propose=1", *PRICE], "FILE: expected a file, or"),
        (["epsilon", *flags(GOOD), "more"], "Got unexpected extra argument"),
        (["calibrat"], "No such command 'calibrat'"),
        (["demo", "--steps=0"], "--steps: expected a whole number >= 1, got 0."),
        (["paper", "figure", "6"], "FIGURE: expected one of 1, 2, 3, 4, 5, got '6'."),
        (["paper", "figure", "one"], "FIGURE: expected one of 1, 2, 3, 4, 5"),
        (["epsilon", "--delta=1e-6"], "--noise-multiplier: expected finite and > 0, got nothing."),
        (
            ["calibrate", "--solve=failure", "--epsilon=1", "--delta=1e-5"],
            "--noise-multiplier: expected finite and > 0, got nothing.",
        ),
        (
            ["calibrate", "--solve=failure", "--epsilon=1", *flags(GOOD | {"test": "none"})],
            "--test: expected other than none to solve for failure, got 'none'.",
        ),
        (
            ["calibrate", "--solve=noise-multiplier", "--epsilon=1e-9", *flags(GOOD)],
            "--epsilon: no noise-multiplier in [0.01, 10000] gives epsilon <= 1e-09",
        ),
        (
            ["calibrate", "--solve=steps", "--epsilon=-1", *flags(GOOD)],
            "--epsilon: expected finite and > 0, got -1.0.",
        ),
    ],
)
def test_bad_commands_say_what_is_wrong(run: Command, arguments: list[str], beginning: str) -> None:
    answer = run(*arguments)
    assert (answer.status, answer.out) == (2, "")
    missing = [name for name in ("duckdb", "matplotlib") if find_spec(name) is None]
    if missing and "not installed" in answer.err:
        pytest.skip(f"needs {', '.join(missing)}: the command says so before it looks further")
    assert answer.err.startswith(beginning)
    assert answer.err.count("\n") == 1


@pytest.mark.unhurried
@examples(30)
@given(
    st.fixed_dictionaries(
        {"noise-multiplier": NUMBERS, "test": TESTS, "delta": NUMBERS},
        optional=dict.fromkeys(("sampling-rate", "steps", "propose", "failure"), NUMBERS),
    ),
    st.sampled_from(["margin", "branch", "monotone-branch"]),
)
def test_whatever_is_given_the_answer_is_a_price_or_one_line(
    run: Command, values: dict[str, str], reveals: str
) -> None:
    answer = run("epsilon", *flags(values), f"--reveals={reveals}")
    if answer.status == 0:
        assert answer.err == ""
        assert answer.out.startswith("ε ≤ ")
    else:
        assert answer.status == 2
        assert answer.err.startswith("--")
        assert answer.err.count("\n") == 1


def test_a_bug_is_reported_as_one(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("prudent.cli.commands.pricing._print_price", broken)
    answer = run("epsilon", *flags(GOOD))
    assert (answer.status, answer.err) == (
        1,
        "A bug in prudent: KeyError. Its text is withheld, since it may quote records; "
        "PRUDENT_TRACEBACK=1 shows it, for the owner of the data only.\n",
    )


def test_what_is_stopped_by_the_keyboard_says_so(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("prudent.cli.commands.pricing._print_price", interrupted)
    assert run("epsilon", *flags(GOOD)) == (130, "", "Stopped.\n")


def test_what_is_stopped_while_it_is_imported_says_so(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "prudent", "--version"]
    environment = os.environ | {"PYTHONPATH": paths}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "Stopped.\n")


OPTIONS = frozenset({"--noise-multiplier", "--delta", "--resume"})


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            ArgumentError("noise_multiplier", "> 0", got=-1),
            "--noise-multiplier: expected > 0, got -1.",
        ),
        (ArgumentError("target_delta", "in [0, 1]", got=2), "--delta: expected in [0, 1], got 2."),
        (ArgumentError("orders", "> 1", got=0), "Expected orders > 1, got 0."),
        (
            ArgumentError("out", "an empty folder", hint="Give resume=True, or fast=True."),
            "Expected out an empty folder. Give --resume, or fast=True.",
        ),
        (
            ArgumentError("delta", "for a test", got=None, hint="Give delta=1e-7, or p=0.5."),
            "--delta: expected for a test, got nothing. Give --delta 1e-7, or p=0.5.",
        ),
        (ValueError("No luck with noise_multiplier."), "No luck with noise_multiplier."),
        (ValueError("Expected delta or noise."), "Expected delta or noise."),
    ],
    ids=str,
)
def test_errors_of_the_library_get_the_name_of_the_flag(error: ValueError, line: str) -> None:
    assert with_flag(error, OPTIONS).line == line


def test_help_teaches_and_needs_nothing_heavy() -> None:
    script = (
        "import sys; from prudent.cli import main; main(['epsilon', '--help']); "
        "print(*{'torch', 'numpy', 'scipy', 'matplotlib', 'dp_accounting.dp_event'} "
        "& set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    *help_text, loaded = answer.stdout.splitlines()
    assert loaded == ""
    assert any("$ prudent epsilon" in line for line in help_text)


def test_version(run: Command) -> None:
    assert run("--version") == (0, f"prudent {prudent.__version__}\n", "")


def test_no_arguments_show_the_commands(run: Command) -> None:
    answer = run()
    assert answer.status == 0
    assert "calibrate" in answer.out
