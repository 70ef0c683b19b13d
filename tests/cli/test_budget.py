"""`prudent budget`: what it prints, and the status it exits with."""

import json
import re
import sqlite3
from pathlib import Path
from typing import get_args

import dp_accounting as dp
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from typer.testing import CliRunner, Result

from prudent._rounding import rounded_up
from prudent._validate import ArgumentError
from prudent.accounting.relations import Adjacency
from prudent.budget.ledger import Ledger
from prudent.cli import options
from prudent.cli.commands.budget import app
from prudent.release.ptr import ProposeTestReleaseMechanism


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "budget.db"
    assert run("create", path, "--epsilon", 1, "--delta", 1e-6).exit_code == 0
    with Ledger.open(path) as opened:
        opened.charge(dp.GaussianDpEvent(20.0), "mean of [bold]age")
        opened.charge(dp.LaplaceDpEvent(50.0), "count")
    return path


def test_create_says_what_was_created(tmp_path: Path) -> None:
    arguments = ("create", tmp_path / "b.db", "--epsilon", 2, "--delta", 1e-5, "--json")
    answer = json.loads(run(*arguments).stdout)
    assert (answer["epsilon"], answer["delta"]) == (2.0, 1e-5)
    assert (answer["spent"], answer["charges"], answer["dataset"]) == (0.0, 0, "default")
    assert run("show", tmp_path / "b.db", "--charges").stdout == "Nothing was charged yet.\n"


def test_show(ledger: Path) -> None:
    answer = json.loads(run("show", ledger, "--json").stdout)
    assert set(answer) == {
        *("dataset", "epsilon", "delta", "spent", "remaining", "fits", "charges"),
        *("digest", "relation", "epsilon_per_record", "delta_per_record", "data", "offers"),
    }
    assert answer["spent"] + answer["remaining"] == pytest.approx(1.0)
    table = " ".join(run("show", ledger).stdout.split())
    assert f"ε = {rounded_up(answer['spent'])}" in table
    assert "Gaussian noise with multiplier" in table
    first, other, *_ = [
        f"{offer['count']} at ε = {offer['epsilon']:g}" for offer in answer["offers"]
    ]
    assert f"still fits {first.replace(' at', ' release at')}, or {other}" in table


def test_what_a_budget_protects_is_shown(tmp_path: Path) -> None:
    path, budget = tmp_path / "people.db", ("--epsilon", 1, "--delta", 1e-6)
    answer = run(
        "create", path, *budget, "--relation=replace-one", "--records-per-person", 5, "--json"
    )
    assert json.loads(answer.stdout)["relation"] == {"adjacency": "replace-one", "records": 5}
    table = " ".join(run("show", path).stdout.split())
    assert "protects replacing up to 5 records (the number of records is public)" in table
    assert re.search(r"for one record ε = 0\.10*, δ = 6\.12\d*e-08", table)
    plain = " ".join(run("create", tmp_path / "records.db", *budget).stdout.split())
    assert "protects adding or removing one record" in plain
    assert "for one record" not in plain


def test_an_unknown_relation_is_an_error_in_one_line(tmp_path: Path) -> None:
    budget = ("--epsilon", "1", "--delta", "1e-6", "--relation", "none")
    answer = run("create", tmp_path / "b.db", *budget)
    assert answer.exit_code == 2
    for name in ("'add-remove'", "'zero-out'", "'replace-one'"):
        assert name in answer.stderr
    assert list(get_args(options.RelationName)) == [each.value for each in Adjacency]


def test_history_has_one_line_for_each_charge(tmp_path: Path) -> None:
    path = tmp_path / "budget.db"
    details = {"statistic": "median", "column": "pay", "mechanism": "ptr", "proposal": 500.0}
    with Ledger(path, epsilon=1.0, delta=1e-6) as opened:
        mechanism = ProposeTestReleaseMechanism.calibrate(propose=500.0, epsilon=0.1, delta=1e-7)
        event = mechanism.event
        asked = {**details, "groups": ["a", "b"], "unit": "person", "epsilon": 0.1}
        charge = opened.charge(event, "median of pay", delta=1e-7, details=asked)
        opened.record_outcome(charge, {"released": 1, "refused": 1})
        opened.charge(DiscreteLaplaceDpEvent(0.1, 1), "count")
    lines = [
        re.split(r"  +", line.strip())
        for line in run("show", path, "--charges").stdout.splitlines()
    ]
    header, _, first, second = [line for line in lines if line != [""]]
    assert header[2:] == ["release", "groups", "unit", "ε", "δ", "outcome", "ε spent"]
    assert first[2:-1] == [
        *("median of pay: ptr, proposal 500", "2: a, b", "person"),
        *("0.1", "1e-07", "1 released, 1 refused"),
    ]
    assert second[3:-1] == ["0.1", "0", "unknown"]
    plain, _ = json.loads(run("show", path, "--json", "--charges").stdout)
    assert plain["outcome"] == {"released": 1, "refused": 1}
    assert {**asked, "delta": 1e-7}.items() <= plain.items()


def test_a_second_ledger_for_the_same_data_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRUDENT_LEDGERS", str(tmp_path / "list"))
    budget = ("--epsilon", 1, "--delta", 1e-6, "--data", "salaries")
    assert "salaries" in run("create", tmp_path / "a.db", *budget).stdout
    refused = run("create", tmp_path / "b.db", *budget)
    assert "salaries already has a budget" in str(refused.exception)
    assert str(refused.exception).count("another") == 1  # the command line puts its flag there
    assert run("create", tmp_path / "b.db", *budget, "--another").exit_code == 0


def test_history(ledger: Path) -> None:
    first, second = json.loads(run("show", ledger, "--json", "--charges").stdout)
    assert (first["sequence"], first["label"]) == (1, "mean of [bold]age")
    assert second["event"] == {"kind": "LaplaceDpEvent", "noise_multiplier": 50.0}
    assert 0 < first["spent"] < second["spent"]
    table = run("show", ledger, "--charges").stdout
    assert "[bold]age" in table
    assert "Laplace" in table


@pytest.mark.parametrize("scale", [20.0, 23.0, 31.0])
def test_no_less_is_shown_as_spent_than_is(tmp_path: Path, scale: float) -> None:
    """Rounded to the nearest digit, about half of these would be."""
    path = tmp_path / "budget.db"
    with Ledger(path, epsilon=1.0, delta=1e-6) as opened:
        for multiplier in (scale, 1.1 * scale):
            charge = opened.charge(dp.GaussianDpEvent(multiplier))
            lines = [line.split() for line in run("show", path).stdout.splitlines()]
            shown = {words[0]: float(words[-1]) for words in lines if "=" in words[:3]}
            assert charge.spent <= shown["spent"] < charge.spent * 1.001
            *_, last = (
                line for line in run("show", path, "--charges").stdout.splitlines() if line.strip()
            )
            assert charge.spent <= float(last.split()[-1]) < charge.spent * 1.001


def test_verify(ledger: Path) -> None:
    digest = json.loads(run("show", ledger, "--json").stdout)["digest"]
    answer = run("verify", ledger, "--digest", digest, "--json")
    assert answer.exit_code == 0
    assert json.loads(answer.stdout) == {"verified": True, "charges": 2, "digest": digest}
    assert "Charges: 2;" in run("verify", ledger).stdout
    lost = run("verify", ledger, "--digest", "f" * 64, "--json")
    assert lost.exit_code == 1
    assert json.loads(lost.stdout)["verified"] is False


def test_verify_exits_with_one_when_a_row_was_edited(ledger: Path) -> None:
    connection = sqlite3.connect(ledger)
    connection.execute("DROP TRIGGER prudent_ledger_no_update")
    connection.execute(
        "UPDATE prudent_ledger SET record = replace(record, '20.0', '90.0') WHERE sequence = 1"
    )
    connection.commit()
    connection.close()
    answer = run("verify", ledger)
    assert answer.exit_code == 1
    assert answer.stderr.startswith(
        "Row 1 is not as it was written: its hash does not match. Release nothing more"
    )


def test_history_fits_into_a_terminal_of_80_columns_without_breaking_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["trimmed mean", "earned_1975", "propose-test-release", "proposal 0.903694", "released"]
    details = {"statistic": words[0], "column": words[1], "mechanism": words[2]}
    with Ledger(tmp_path / "b.db", epsilon=1.0, delta=1e-6) as ledger:
        asked = {**details, "proposal": 0.9036935023808407, "epsilon": 0.2}
        ledger.record_outcome(
            ledger.charge(DiscreteLaplaceDpEvent(0.2, 1), details=asked), words[4]
        )
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    shown = re.sub(r"\x1b\[\d*m", "", run("show", tmp_path / "b.db", "--charges").stdout)
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert [word for word in words if word not in shown] == []


@pytest.mark.parametrize("command", ["show", "report", "verify"])
def test_a_missing_ledger_is_an_error_in_one_line(tmp_path: Path, command: str) -> None:
    answer = run(command, tmp_path / "none.db")
    assert isinstance(answer.exception, ValueError)
    assert "does not exist; create it, for example with `prudent budget create" in str(
        answer.exception
    )
    assert "\n" not in str(answer.exception)
    assert not (tmp_path / "none.db").exists()


def test_the_ending_of_a_file_says_how_a_report_is_written(ledger: Path, tmp_path: Path) -> None:
    found = {}
    for ending in ("html", "md", "json"):
        out = tmp_path / f"report.{ending}"
        assert "Wrote" in run("report", ledger, "--out", out).stdout
        found[ending] = out.read_text("utf-8")
    assert found["html"].startswith("<!doctype html>")
    assert found["md"].startswith("# Privacy report of default")
    assert json.loads(found["json"])["integrity"]["intact"]
    assert run("report", ledger).stdout.strip() == found["md"].strip()
    assert json.loads(run("report", ledger, "--json").stdout) == json.loads(found["json"])


def test_a_report_with_another_ending_is_refused(ledger: Path, tmp_path: Path) -> None:
    refused = run("report", ledger, "--out", tmp_path / "report.pdf")
    assert refused.exit_code != 0
    assert not (tmp_path / "report.pdf").exists()


def test_a_digest_of_a_ledger_is_not_ignored_beside_receipts(tmp_path: Path) -> None:
    result = run("report", tmp_path / "receipt.json", "--digest", "00")
    assert isinstance(result.exception, ArgumentError)
    assert result.exception.argument == "digest"
