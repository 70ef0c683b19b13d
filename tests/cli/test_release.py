"""`prudent release`: exit codes, JSON, the ledger, and no traceback whatever it is given."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import typer

pytest.importorskip("ibis", reason="needs pip install 'prudent[tables]'")
pytest.importorskip("opendp", reason="needs pip install 'prudent[tables]'")

import pyarrow as pa
import pyarrow.parquet

from prudent.cli import errors, release
from prudent.release import noise, statistics
from prudent.release.budget.ledger import Ledger
from prudent.release.columns import queries as table_queries

SECRET = 918273.625
SAMPLE = np.random.default_rng(2).normal(50.0, 1.0, 4000)
COST = ["--epsilon", "0.5", "--delta", "1e-6"]
PRICELESS = ["--column", "x", "--propose", "0.5"]
MEDIAN = [*PRICELESS, *COST]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command as `prudent` does: its exit status, standard output and standard error."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.add_typer(release.app, name="release")
    command = typer.main.get_command(app)

    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            given = ["release", *arguments]
            status = command.main(args=given, prog_name="prudent", standalone_mode=False)
        except Exception as error:
            status = errors.report(error, command)
        printed = capfd.readouterr()
        return (status if isinstance(status, int) else 0), printed.out, printed.err

    return call


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    table = pa.table(
        {
            "x": SAMPLE,
            "city": np.where(SAMPLE > 49.5, "Oslo", "Bergen"),
            "who": np.arange(len(SAMPLE)) // 2,
            "n": np.where(np.arange(len(SAMPLE)) % 3 == 0, 9, 10),
        }
    )
    pa.parquet.write_table(table, folder / "t.parquet")
    pa.parquet.write_table(pa.table({"x": [SECRET, 1.0], "c": ["a", "b"]}), folder / "few.parquet")
    (folder / "few.csv").write_text(f"x,c\n{SECRET},a\nsecret,b\n1.5,a\n")
    return folder


def test_a_median_is_released(run: Run, files: Path) -> None:
    status, out, err = run("median", str(files / "t.parquet"), *MEDIAN)
    assert status == 0
    value, *_ = out.split()
    assert abs(float(value) - 50.0) < 30.0
    assert "(0.5, 1e-06)-DP for adding or removing one record" in out
    assert "No --ledger" in err


def test_json_has_its_keys(run: Run, files: Path) -> None:
    status, out, _ = run("median", str(files / "t.parquet"), *MEDIAN, "--json")
    answer = json.loads(out)
    assert status == 0
    assert list(answer) == [
        "status", "value", "branch", "noise_scale", "epsilon", "delta", "relation",
    ]  # fmt: skip
    assert answer["relation"] == {"kind": "Relation", "adjacency": "add-remove", "records": 1}
    assert answer["status"] == "released"
    assert answer["branch"] == "robust"
    assert answer["noise_scale"] > 0
    assert (answer["epsilon"], answer["delta"]) == (0.5, 1e-6)


@pytest.mark.parametrize(
    "arguments",
    [
        ["quantile", "--column", "x", "--p", "9/10", "--propose", "0.9"],
        ["iqr", "--column", "x", "--propose", "0.5"],
        ["trimmed-mean", "--column", "x", "--trim", "100", "--propose", "0.5", "--bounds=-9,99"],
        ["median", "--column", "x", "--propose", "0.5", "--unit", "who"],
        ["mode", "--column", "n"],
        ["mode", "--column", "n", "--categories", "9, 10"],
        ["mode", "--column", "city", "--categories", "Oslo,Bergen"],
        ["mode", "--column", "n", "--propose", "0.5"],
    ],
)
def test_every_statistic_is_released(run: Run, files: Path, arguments: list[str]) -> None:
    status, out, err = run(*arguments, str(files / "t.parquet"), *COST, "--json")
    assert status == 0, err
    answer = json.loads(out)
    expected = {"city": "Oslo", "n": 10}.get(arguments[2])
    if expected is not None and "--propose" not in arguments:
        assert answer["value"] == expected
    else:
        assert isinstance(answer["value"], float)


def test_the_answer_is_that_of_an_array(
    run: Run, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same noise, what the command prints is what the library gives for the array."""
    monkeypatch.setattr("prudent.release.mechanism.SecureNoise", lambda: noise.ReproducibleNoise(7))
    _, out, _ = run("median", str(files / "t.parquet"), *MEDIAN, "--json")
    outcome: Any = statistics.median(SAMPLE, propose=0.5, epsilon=0.5, delta=1e-6)
    assert json.loads(out)["value"] == outcome.value


def test_a_refusal_exits_with_3_and_costs_the_same(run: Run, files: Path, tmp_path: Path) -> None:
    book = str(tmp_path / "budget.db")
    Ledger.create(book, epsilon=2.0, delta=1e-5).close()
    arguments = ["median", str(files / "few.parquet"), *MEDIAN, "--ledger", book]
    status, out, err = run(*arguments, "--json")
    assert status == 3
    assert json.loads(out) == {
        "status": "refused",
        "value": None,
        "branch": None,
        "noise_scale": None,
        "epsilon": 0.5,
        "delta": 1e-6,
        "relation": {"kind": "Relation", "adjacency": "add-remove", "records": 1},
    }
    assert err == ""
    status, out, err = run(*arguments)
    assert status == 3
    assert err.startswith("Refused. ")
    assert str(SECRET) not in out + err
    with Ledger.open(book) as ledger:
        assert [charge.label for charge in ledger.history()] == ["median of x"] * 2


def test_over_budget_exits_with_4_before_anything_is_read(
    run: Run, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = str(tmp_path / "budget.db")
    Ledger.create(book, epsilon=0.1, delta=1e-5).close()
    monkeypatch.setattr(
        table_queries, "_answer", lambda _: pytest.fail("read before it was charged")
    )
    arguments = ["median", str(files / "t.parquet"), *MEDIAN, "--ledger", book]
    status, out, err = run(*arguments)
    assert (status, out) == (4, "")
    assert err.count("\n") == 1
    status, out, _ = run(*arguments, "--json")
    assert status == 4
    assert json.loads(out)["status"] == "over budget"
    with Ledger.open(book) as ledger:
        assert not ledger.history()


def test_groups_are_charged_once(run: Run, files: Path, tmp_path: Path) -> None:
    book = str(tmp_path / "budget.db")
    Ledger.create(book, epsilon=2.0, delta=1e-5).close()
    by = ["--by", "city", "--groups", 'Oslo, "Bergen",Tromsø', "--ledger", book]
    status, out, err = run("median", str(files / "t.parquet"), *MEDIAN, *by, "--json")
    assert (status, err) == (0, "")
    answer = json.loads(out)
    assert answer["status"] == "released"
    states = {group: each["status"] for group, each in answer["groups"].items()}
    assert states == {"Oslo": "released", "Bergen": "released", "Tromsø": "refused"}
    with Ledger.open(book) as ledger:
        assert len(ledger.history()) == 1
    status, out, err = run("median", str(files / "t.parquet"), *MEDIAN, *by)
    assert status == 0
    assert out.startswith("Oslo: ")
    assert err.startswith("Tromsø: Refused. ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["median", "no.csv", *MEDIAN], "FILE: expected an existing file, got 'no.csv'."),
        (["median", "t.xlsx", *MEDIAN], "FILE: expected a .parquet, .csv, .tsv or .duckdb file"),
        (["median", *MEDIAN], "FILE: expected a file, or --connect with --table, got nothing."),
        (["median", "T", *PRICELESS, "--epsilon", "x", "--delta", "1e-6"], "--epsilon: expected"),
        (["median", "T", *PRICELESS, "--epsilon", "-1", "--delta", "1e-6"], "--epsilon: expected"),
        (["median", "T", *PRICELESS, "--epsilon", "1", "--delta", "2"], "--delta: expected"),
        (["median", "T", "--column", "y", *MEDIAN[2:]], "--column: expected one of city, n, "),
        (["median", "T", "--column", "city", *MEDIAN[2:]], "got 'city' of type string"),
        (["median", "T", *MEDIAN, "--unit", "y"], "--unit: expected one of"),
        (["median", "T", *MEDIAN, "--by", "city"], "--groups: expected a list that is public"),
        (["median", "T", *MEDIAN, "--groups", "a"], "--by: expected the name of the"),
        (["median", "T", *MEDIAN, "--by", "n", "--groups", "a"], "--groups: expected of type"),
        (["median", "T", *MEDIAN, "--bounds", "1"], "--bounds: expected two numbers low,high"),
        (["median", "T", *MEDIAN, "--bounds", "2,1"], "--bounds: expected a pair"),
        (["median", "T", *MEDIAN, "--ledger", "nowhere.db"], "nowhere.db"),
        (["quantile", "T", *MEDIAN, "--p", "1.5"], "--p: expected"),
        (["median", "T", "--column", "x", "--propose", "0", *COST], "--propose: expected finite"),
        (["mode", "T", "--column", "x", "--propose", "0", *COST], "--propose: expected finite"),
        (["iqr", "T", "--column", "x", "--propose", "1e-9", *COST], "--propose: expected at least"),
        (["median", "T", *MEDIAN, "--bounds", "0,1e15"], "--bounds: expected within"),
        (["trimmed-mean", "T", *MEDIAN, "--trim", "-1"], "--trim: expected"),
        (["mode", "T", "--column", "n", *COST, "--categories", "a"], "--categories: expected of"),
        (["median", "--connect", "postgres://me:secret@127.0.0.1:1/d", "--table", "t", *MEDIAN],
         "Could not connect"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(run: Run, files: Path, arguments: list[str], line: str) -> None:
    given = [str(files / "t.parquet") if each == "T" else each for each in arguments]
    status, out, err = run(*given)
    assert (status, out) == (2, ""), err
    assert err.count("\n") == 1
    assert line in err
    assert "secret" not in err


# --- whatever it is given -------------------------------------------------------------------------

NUMBERS = st.sampled_from(
    [
        *("0.5", "1e-6", "1", "0", "-1", "nan", "inf", "-inf", "1e400", "1e-400", "9" * 400),
        *("", " ", "x", "1/3", "0.5,0.7", "2,1", "-1e308,1e308", "1_0", "\0"),
        "\N{ARABIC-INDIC DIGIT THREE}",
    ]
)
WORDS = st.sampled_from(
    ["x", "c", "X", "", "value", "unit", "member", "x;--", "\N{SNOWMAN}", "a,b"]
)
OPTIONS = st.one_of(
    st.tuples(st.sampled_from(["--propose", "--epsilon", "--delta", "--p", "--trim"]), NUMBERS),
    st.tuples(st.sampled_from(["--column", "--unit", "--by", "--groups", "--categories"]), WORDS),
    st.tuples(st.sampled_from(["--bounds"]), NUMBERS),
    st.tuples(st.sampled_from(["--table", "--connect", "--dataset"]), WORDS),
    st.sampled_from([("--json",), ("--nothing",), ("x",)]),
)
STATISTICS = {
    "median": ["--propose", "0.5"],
    "quantile": ["--propose", "0.5", "--p", "0.25"],
    "iqr": ["--propose", "0.5"],
    "trimmed-mean": ["--propose", "0.5", "--trim", "1"],
    "mode": [],
}
LINES = st.tuples(
    st.sampled_from(sorted(STATISTICS)),
    # Mostly files that are not there: most of what can go wrong does so before data is read.
    st.sampled_from(["few.parquet", "few.csv", *["a.csv", "a.duckdb", "?*.csv", ".csv", ""] * 25]),
    st.lists(OPTIONS, max_size=3),
)


def check_line(
    run: Run, files: Path, line: tuple[str, str, list[tuple[str, ...]]], statuses: list[int]
) -> None:
    """Nothing but the four statuses, one line of error, and no record in it."""
    statistic, name, given = line
    extra = [text for option in given for text in option]
    arguments = [statistic, str(files / name), "--column", "x", *COST, *STATISTICS[statistic]]
    status, out, err = run(*arguments, *extra)
    statuses.append(status)
    assert status in (0, 2, 3), (arguments, extra, err)
    assert "Traceback" not in err
    assert "918273" not in out + err
    assert "secret" not in out + err
    if status == 2:
        assert out == ""
        assert err.count("\n") == 1, err


def fuzz(run: Run, files: Path, examples: int) -> list[int]:
    statuses: list[int] = []

    @hypothesis.settings(
        max_examples=examples, suppress_health_check=list(hypothesis.HealthCheck), deadline=None
    )
    @hypothesis.given(LINES)
    def check(line: tuple[str, str, list[tuple[str, ...]]]) -> None:
        check_line(run, files, line, statuses)

    check()
    return statuses


def test_no_command_line_makes_it_stumble(run: Run, files: Path) -> None:
    statuses = fuzz(run, files, 300)
    assert {2, 3} <= set(statuses)  # both sides of the schema check were reached


@pytest.mark.slow
def test_no_command_line_makes_it_stumble_at_length(run: Run, files: Path) -> None:
    assert {2, 3} <= set(fuzz(run, files, 100_000))


def test_explain_shows_the_queries_and_charges_nothing(
    run: Run, files: Path, tmp_path: Path
) -> None:
    book = str(tmp_path / "budget.db")
    Ledger.create(book, epsilon=0.001, delta=1e-9).close()  # would not allow the release
    arguments = ["median", str(files / "t.parquet"), *MEDIAN, "--ledger", book, "--explain"]
    status, out, err = run(*arguments)
    assert status == 0
    assert out.count("SELECT COUNT(*)") + out.count("SELECT\n  COUNT(*)") >= 1
    assert out.startswith("-- 1 of 4: How many records there are.")
    assert "Nothing was read or charged" in err
    status, out, err = run(*arguments, "--json")
    assert (status, err) == (0, "")
    questions = json.loads(out)["questions"]
    assert [sorted(each) for each in questions] == [["asks", "plan", "sql"]] * 4
    with Ledger.open(book) as ledger:
        assert not ledger.history()
