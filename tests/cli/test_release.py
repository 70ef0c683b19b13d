"""`prudent release`: exit codes, JSON, the ledger, and no traceback whatever it is given."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="needs the extra `tables`")

import pyarrow as pa
import pyarrow.parquet

from prudent.budget.ledger import Ledger
from prudent.cli import errors
from prudent.cli.commands import release
from prudent.release import noise, statistics
from prudent.release.columns import queries

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


def test_json_has_its_keys(run: Run, files: Path) -> None:
    status, out, _ = run("median", str(files / "t.parquet"), *MEDIAN, "--json")
    answer = json.loads(out)
    assert status == 0
    assert list(answer) == [
        "status", "value", "interval", "mechanism", "branch", "noise_scale", "epsilon", "delta",
        "notes", "protected", "relation",
    ]  # fmt: skip
    assert answer["mechanism"] == "propose-test-release"
    assert answer["interval"][0] < answer["value"] < answer["interval"][1]
    assert answer["relation"] == {"kind": "Relation", "adjacency": "add-remove", "records": 1}
    assert answer["status"] == "released"
    assert answer["branch"] == "robust"
    assert answer["noise_scale"] > 0
    assert (answer["epsilon"], answer["delta"]) == (0.5, 1e-6)


@pytest.mark.unhurried
@pytest.mark.usefixtures("same_draws")
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


@pytest.mark.usefixtures("same_draws")
def test_a_median_needs_no_proposal_and_no_delta(run: Run, files: Path) -> None:
    asked = ["median", str(files / "t.parquet"), "--column", "x", "--epsilon", "0.3"]
    status, out, _ = run(*asked, "--json")
    answer = json.loads(out)
    assert status == 0
    assert (answer["status"], answer["mechanism"]) == ("released", "exponential")
    assert (answer["epsilon"], answer["delta"]) == (0.3, 0)
    low, high = answer["interval"]
    assert low <= answer["value"] <= high
    assert abs(answer["value"] - np.median(SAMPLE)) < 0.5
    status, out, err = run(*asked)
    assert "No --ledger" in err
    assert "(exponential, 95% interval " in out
    assert "(0.3, 0)-DP for adding or removing one record" in out


@pytest.mark.unhurried
@pytest.mark.usefixtures("same_draws")
@pytest.mark.parametrize(
    ("arguments", "truth", "near"),
    [
        (["quantile", "--p", "0.9"], np.quantile(SAMPLE, 0.9), 0.5),
        (["iqr"], np.diff(np.quantile(SAMPLE, [0.25, 0.75]))[0], 0.5),
        (["count"], 4000, 40),
        (["sum", "--bounds", "0,100"], SAMPLE.sum(), 2000),
        (["sum"], SAMPLE.sum(), 5000),
        (["mean"], 50.0, 1.0),
        (["mean", "--bounds", "0,100"], 50.0, 1.0),
        (["variance"], 1.0, 60.0),  # the private bounds are wide now and then
        (["median", "--where", "city = 'Bergen' OR x > 51"], np.nan, 0),
        (["mean", "--unit", "who", "--per-unit", "max"], 50.56, 1.0),
        (["count", "--unit", "who", "--per-unit", "2"], 4000, 80),
    ],
)
def test_what_needs_no_delta(run: Run, files: Path, arguments, truth, near) -> None:
    given = [str(files / "t.parquet"), "--column", "x", "--epsilon", "1", "--json"]
    status, out, err = run(*arguments, *given)
    assert status == 0, err
    answer = json.loads(out)
    assert (answer["status"], answer["epsilon"], answer["delta"]) == ("released", 1.0, 0)
    assert np.isnan(truth) or abs(answer["value"] - truth) < near
    assert len(answer["interval"]) == 2
    if "--per-unit" in arguments:
        assert answer["notes"][0].startswith("Each who counts with")


def test_several_quantiles(run: Run, files: Path) -> None:
    given = [str(files / "t.parquet"), "--column", "x", "--epsilon", "2"]
    status, out, _ = run("quantile", *given, "--p", "0.25,1/2,0.75", "--json")
    answer = json.loads(out)
    assert status == 0
    assert answer["mechanism"] == "exponential"
    np.testing.assert_allclose(answer["values"], np.quantile(SAMPLE, [0.25, 0.5, 0.75]), atol=0.3)
    assert len(answer["intervals"]) == 3
    status, out, _ = run("quantile", *given, "--p", "0.25,0.5")
    assert out.count("(exponential") == 2


@pytest.mark.thorough
@pytest.mark.usefixtures("same_draws")
def test_a_description(run: Run, files: Path) -> None:
    given = [str(files / "t.parquet"), "--column", "x", "--epsilon", "2"]
    status, out, _ = run("describe", *given, "--json")
    answer = json.loads(out)
    assert status == 0
    assert {"count", "mean", "deviation", "quantiles", "intervals"} <= answer.keys()
    assert abs(answer["quantiles"]["0.5"] - 50) < 1
    status, out, _ = run("describe", *given)
    assert out.startswith("count")
    assert "0.5-quantile" in out


@pytest.mark.thorough
def test_a_histogram(run: Run, files: Path) -> None:
    given = [str(files / "t.parquet"), "--column", "x", "--epsilon", "1"]
    edges = ["--edges", "46,49,50,51,54"]
    status, out, err = run("histogram", *given, *edges, "--json")
    assert status == 0, err
    answer = json.loads(out)
    counted, _ = np.histogram(SAMPLE, [46, 49, 50, 51, 54])
    np.testing.assert_allclose(answer["counts"], counted, atol=20)
    status, out, _ = run("histogram", *given, "--bins", "8")
    assert status == 0
    bars = [line.index("█") for line in out.splitlines() if "█" in line]
    assert bars
    assert len(set(bars)) == 1  # they start below one another
    for wrong, line in (
        (["--edges", "2,1"], "--edges: expected two or more values in ascending order"),
        (["--bins", "0"], "--bins: expected"),
    ):
        status, out, err = run("histogram", *given, *wrong)
        assert (status, out) == (2, "")
        assert err.startswith(line)


@pytest.mark.unhurried
def test_private_groups(run: Run, files: Path, tmp_path: Path) -> None:
    book = str(tmp_path / "budget.db")
    Ledger.create(book, epsilon=2.0, delta=1e-5).close()
    given = [str(files / "t.parquet"), "--column", "x", "--by", "city", "--groups", "private"]
    status, out, err = run(
        "median", *given, "--epsilon", "1", "--ledger", book, "--json", *COST[2:]
    )
    assert (status, err) == (0, "")
    answer = json.loads(out)
    assert sorted(answer["groups"]) == ["Bergen", "Oslo"]
    assert (answer["epsilon"], answer["delta"]) == (1.0, 1e-6)
    with Ledger.open(book) as ledger:
        (charge,) = ledger.history()
        assert charge.details.groups == "private"
    status, out, err = run("median", *given, "--epsilon", "1")
    assert (status, out) == (2, "")
    assert err.startswith("--delta: expected for groups or categories that are found privately")


def test_where_no_group_is_found_the_price_is_told(run: Run, tmp_path: Path) -> None:
    table = pa.table({"x": [1.0, 2.0], "city": ["Oslo", "Bergen"]})
    pa.parquet.write_table(table, tmp_path / "few.parquet")
    given = ["--by", "city", "--groups", "private", "--epsilon", "0.1", "--delta", "1e-9"]
    asked = ["count", str(tmp_path / "few.parquet"), *given]
    status, out, err = run(*asked)  # a group of one record is found with probability 1e-9
    assert (status, out) == (3, "(0.1, 1e-09)-DP for adding or removing one record\n")
    assert err.startswith("No group was found that has enough records")
    answer = json.loads(run(*asked, "--json")[1])
    assert (answer["status"], answer["epsilon"], answer["delta"]) == ("refused", 0.1, 1e-9)


def test_a_quantile_is_named_by_its_decimals(run: Run, files: Path) -> None:
    given = [str(files / "t.parquet"), "--column", "x", "--epsilon", "0.5", "--dry-run"]
    assert run("quantile", *given, "--p", "0.9")[1].startswith("0.9-quantile by exponential")
    assert run("quantile", *given, "--p", "0.5")[1].startswith("median by exponential")


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        (["median", "--column", "x"], ("interval",)),
        (["quantile", "--column", "x", "--p", "0.4,0.5"], ("intervals",)),
        (["describe", "--column", "x"], ("intervals", "0.5")),
        (["table", "--columns", "median(x)"], ("answers", "median(x)", "interval")),
    ],
    ids=lambda each: each[0],
)
def test_an_interval_may_be_left_out(
    run: Run, files: Path, asked: list[str], where: tuple[str, ...]
) -> None:
    name, *given = asked
    told = []
    for confidence in ("0.95", "0"):
        cost = ["--epsilon", "3", "--confidence", confidence, "--json"]
        status, out, _ = run(name, str(files / "t.parquet"), *given, *cost)
        assert status == 0
        found = json.loads(out)
        for key in where:
            found = found.get(key)
        told.append(found)
    assert told[0] not in (None, [None, None])
    assert told[1] in (None, [None, None])


@pytest.mark.usefixtures("same_draws")
def test_a_certificate(run: Run, files: Path) -> None:
    given = [str(files / "t.parquet"), "--column", "x", "--epsilon", "1"]
    status, out, _ = run("median", *given, "--certify", "0.5", "--json")
    answer = json.loads(out)
    assert status == 0
    found = answer["certificate"]
    assert found["withstands"] == found["needed"] - 1 > 500
    assert answer["epsilon"] == 1.0
    status, out, _ = run("median", *given, "--certify", "0.5")
    assert "records must be added or removed before the exact statistic of the data leaves [" in out
    status, out, _ = run("quantile", *given, "--p", "0.5", "--high", "51")
    assert status == 0
    assert "before the exact statistic of the data exceeds 51" in out
    status, out, _ = run("mode", *given, *COST[2:], "--column", "city", "--certify", "0")
    assert "of the data is no longer Oslo" in out
    status, out, err = run("quantile", *given, "--p", "0.5", "--low", "2", "--high", "1")
    assert (status, out) == (2, "")
    assert err.startswith("--low: expected at most high, and at least one of the two")


def test_a_dry_run(run: Run, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_answers", lambda _: pytest.fail("read in a dry run"))
    book = str(tmp_path / "budget.db")
    Ledger.create(book, epsilon=0.001, delta=1e-9).close()  # would not allow the release
    given = [str(files / "t.parquet"), "--ledger", book, "--dry-run"]
    status, out, err = run("median", *given, "--column", "x", "--epsilon", "0.5")
    assert status == 0
    assert out.startswith("median by exponential: ε = 0.5\nrank: within ")
    assert "Nothing was read or charged" in err
    status, out, err = run("median", *given, *MEDIAN, "--json")
    assert (status, err) == (0, "")
    preview = json.loads(out)
    assert (preview["status"], preview["mechanism"]) == ("preview", "propose-test-release")
    assert preview["threshold"] > 0
    tight = ["--column", "x", "--trim", "3", "--propose", "1", *COST]
    status, out, _ = run("trimmed-mean", *given, *tight)
    assert "It will almost surely be refused" in out
    with Ledger.open(book) as ledger:
        assert not ledger.history()


@pytest.mark.unhurried
def test_dates(run: Run, tmp_path: Path) -> None:
    days = np.datetime64("2024-03-01") + np.arange(2000) % 40
    (tmp_path / "d.csv").write_text("d\n" + "\n".join(map(str, days)))
    pa.parquet.write_table(pa.table({"d": days}), tmp_path / "d.parquet")
    for file, read_as in (("d.parquet", []), ("d.csv", ["--read-as", "date"])):
        given = [str(tmp_path / file), "--column", "d", "--epsilon", "2", *read_as]
        status, out, err = run("median", *given, "--json")
        assert status == 0, err
        assert json.loads(out)["value"][:8] == "2024-03-"
        status, out, err = run(
            "median", *given, "--bounds", "2024-01-01,2024-12-31", "--certify", "2"
        )
        assert status == 0, err
        assert "of the data leaves [2024-03-" in out
        status, out, _ = run("iqr", *given, "--json")
        assert json.loads(out)["value"] % 86400 == 0  # whole days, in seconds
    status, out, err = run("quantile", *given, "--p", "0.5", "--high", "never")
    assert err.startswith("--high: expected a date, got 'never'")


@pytest.mark.unhurried
def test_text_in_a_csv_file_is_said_to_be_no_value(run: Run, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("d\n" + "\n".join(["2024-03-01"] * 500))
    given = ["median", str(tmp_path / "d.csv"), "--column", "d", "--epsilon", "2"]
    assert "--read-as" in run(*given)[2]
    assert "--read-as" not in run(*given, "--read-as", "date")[2]


def test_the_answer_is_that_of_an_array(
    run: Run, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same noise, what the command prints is what the library gives for the array."""
    monkeypatch.setattr("prudent.release.noise.SecureNoise", lambda: noise.ReproducibleNoise(7))
    _, out, _ = run("median", str(files / "t.parquet"), *MEDIAN, "--json")
    outcome: Any = statistics.median(SAMPLE, propose=0.5, epsilon=0.5, delta=1e-6)
    assert json.loads(out)["value"] == outcome.value


def test_a_refusal_exits_with_3_and_costs_the_same(run: Run, files: Path, tmp_path: Path) -> None:
    book = str(tmp_path / "budget.db")
    Ledger.create(book, epsilon=2.0, delta=1e-5).close()
    arguments = ["median", str(files / "few.parquet"), *MEDIAN, "--ledger", book]
    status, out, err = run(*arguments, "--json")
    assert status == 3
    answer = json.loads(out)
    (note,) = answer.pop("notes")
    assert "Leave the proposal out" in note
    assert answer == {
        "status": "refused",
        "value": None,
        "interval": None,
        "mechanism": "propose-test-release",
        "branch": None,
        "noise_scale": None,
        "epsilon": 0.5,
        "delta": 1e-6,
        "relation": {"kind": "Relation", "adjacency": "add-remove", "records": 1},
        "protected": "record",
    }
    assert err == ""
    status, out, err = run(*arguments)
    assert status == 3
    assert err.startswith("Refused. ")
    assert str(SECRET) not in out + err
    with Ledger.open(book) as ledger:
        assert [charge.label for charge in ledger.history()] == ["median of x"] * 2


def test_where_all_of_several_answers_are_refused_the_status_is_3(run: Run, files: Path) -> None:
    given = ["table", str(files / "few.parquet"), "--epsilon", "0.1", "--delta", "1e-6"]
    status, out, _ = run(*given, "--columns", "mode(x)", "--json")
    assert (status, json.loads(out)["status"]) == (3, "refused")
    status, out, err = run(*given, "--columns", "mode(x)")
    assert status == 3
    assert err.startswith("mode(x): Refused. ")
    status, out, _ = run(*given, "--columns", "mode(x),count(*)", "--json")
    assert (status, json.loads(out)["status"]) == (0, "released")


def test_a_comma_or_a_bracket_in_quotes_separates_no_questions(run: Run, files: Path) -> None:
    asked = """count(*) FILTER (WHERE city IN ('Oslo', '(', ','))"""
    given = ["table", str(files / "t.parquet"), *COST[:2], "--columns"]
    status, out, err = run(*given, f"{asked},count(*)", "--json")
    assert status == 0, err
    assert len(json.loads(out)["answers"]) == 2


def test_over_budget_exits_with_4_before_anything_is_read(
    run: Run, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = str(tmp_path / "budget.db")
    Ledger.create(book, epsilon=0.1, delta=1e-5).close()
    monkeypatch.setattr(queries, "_answers", lambda _: pytest.fail("read before it was charged"))
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
        (["median", "T", "--column", "y", *MEDIAN[2:]], "--column: unknown column 'y'"),
        (["median", "T", "--column", "city", *MEDIAN[2:]], "got 'city', which holds text"),
        (["median", "T", *MEDIAN, "--unit", "y"], "--unit: unknown column 'y'"),
        (["median", "T", *MEDIAN, "--by", "city"], "--groups: expected a list that is public"),
        (["median", "T", *MEDIAN, "--groups", "a"], "--by: expected the name of the"),
        (["median", "T", *MEDIAN, "--by", "n", "--groups", "a"], "--groups: expected of type"),
        (["median", "T", *MEDIAN, "--bounds", "1"], "--bounds: expected two numbers low,high"),
        (["median", "T", *MEDIAN, "--bounds", "2,1"], "--bounds: expected a pair"),
        (["median", "T", *MEDIAN, "--ledger", "nowhere.db"], "nowhere.db"),
        (["quantile", "T", *MEDIAN, "--p", "1.5"], "--p: expected"),
        (["median", "T", "--column", "x", "--propose", "0", *COST], "--propose: expected finite"),
        (["iqr", "T", "--column", "x", "--propose", "0", *COST], "--propose: expected finite"),
        (["iqr", "T", "--column", "x", "--propose", "1e-9", *COST], "--propose: expected at least"),
        (["median", "T", *MEDIAN, "--bounds", "0,1e15"], "--bounds: expected within"),
        (["trimmed-mean", "T", *MEDIAN, "--trim", "-1"], "--trim: expected"),
        (["median", "T", "--column", "x", *COST[:2], "--propose", "1"], "--delta: expected for a"),
        (["median", "T", *MEDIAN, "--per-unit", "2"], "--per-unit: expected only with unit"),
        (["median", "T", *MEDIAN, "--unit", "who", "--per-unit", "2"],
         "--per-unit: expected one value per unit for a release that is tested first"),
        (["median", "T", "--column", "x", *COST[:2], "--unit", "who", "--per-unit", "2",
          "--certify", "1"], "--per-unit: expected one value per unit for a certificate"),
        (["median", "T", *MEDIAN, "--unit", "who", "--per-unit", "best"],
         "--per-unit: expected one of"),
        (["count", "T", "--column", "x", *COST, "--bounds", "0,9"],
         "--bounds: expected none for a count, got (0.0, 9.0)"),
        (["median", "T", *MEDIAN, "--certify", "-1"], "--certify: expected"),
        (["iqr", "T", "--column", "x", *COST[:2], "--certify", "1"], "--certify: expected with"),
        (["median", "T", *MEDIAN, "--where", "x = max(x)"], "--where: expected"),
        (["median", "T", *MEDIAN, "--parquet", "/"], "--parquet: expected a file to write, got"),
        (["histogram", "T", "--column", "x", *COST[:2], "--edges", "1,nan"],
         "--edges: expected a number, got 'nan'."),
        (["ratio", "T", "--column", "x", "--other", "city", *COST[:2]],
         "--other: expected a column of numbers"),
        (["median", "T", *MEDIAN, "--receipt", "r.json", "--sign", "nobody"],
         "--sign: expected the name of a key"),
        (["proportion", "T", "--column", "x > 50", "--unit", "who", "--per-unit", "count",
          *COST[:2]], "--per-unit: expected a rule such as mean"),
        (["median", "T", *MEDIAN, "--where", "y = 1"], "--where: unknown column 'y'"),
        (["quantile", "T", "--column", "x", *COST[:2], "--p", "0.5,2"], "--p: expected"),
        (["mode", "T", "--column", "n", *COST, "--categories", "a"], "--categories: expected of"),
        (["median", "T", *COST], "--column: expected one of city, n, "),
        (["median", "T", "--column", "city", *COST], "Of text, ask for a count, a mode, the most"),
        (["count", "T", *COST[:2], "--delta", "2"], "--delta: expected in [0, 0.5), got 2.0."),
        (["count", "T", *COST, "--dataset", "b"], "--dataset: expected only with a ledger, got"),
        (["top-k", "T", "--column", "city", *COST[:2]], "--delta: expected for groups or categ"),
        (["count", "T", "--by", "city", *COST], "or give --groups private and delta."),
        (["count", "--connect", "mysql://me:secret@h/d", "--table", "t", *COST],
         "--connect: expected a table in DuckDB, PostgreSQL or Spark, got mysql. Export it"),
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
