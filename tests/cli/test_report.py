"""`prudent budget report`: the kinds of file it writes."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from prudent._validate import ArgumentError
from prudent.budget.ledger import Ledger
from prudent.cli.commands.budget import report


def run(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(report)
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "budget.db"
    Ledger.create(path, epsilon=1.0, delta=1e-6).close()
    return path


def test_the_ending_of_a_file_says_how_it_is_written(ledger: Path, tmp_path: Path) -> None:
    found = {}
    for ending in ("html", "md", "json"):
        out = tmp_path / f"report.{ending}"
        assert "Wrote" in run(ledger, "--out", out).stdout
        found[ending] = out.read_text("utf-8")
    assert found["html"].startswith("<!doctype html>")
    assert found["md"].startswith("# Privacy report of default")
    assert json.loads(found["json"])["integrity"]["intact"]
    assert run(ledger).stdout.strip() == found["md"].strip()
    assert json.loads(run(ledger, "--json").stdout) == json.loads(found["json"])


def test_another_ending_is_refused(ledger: Path, tmp_path: Path) -> None:
    refused = run(ledger, "--out", tmp_path / "report.pdf")
    assert refused.exit_code != 0
    assert not (tmp_path / "report.pdf").exists()


def test_a_digest_of_a_ledger_is_not_ignored_beside_receipts(tmp_path: Path) -> None:
    result = run(tmp_path / "receipt.json", "--digest", "00")
    assert isinstance(result.exception, ArgumentError)
    assert result.exception.argument == "digest"
