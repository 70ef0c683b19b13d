"""`prudent audit`: what it prints, and what its exit status says."""

import json
from pathlib import Path
from typing import Any

import pytest

from prudent import cli
from prudent.audit import CASES
from prudent.cli.commands.audit import REFUTED, RELEASES
from prudent.release.noise import ReproducibleNoise


def test_every_case_is_a_command() -> None:
    assert list(RELEASES) == list(CASES)


def test_a_claim_that_stands_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    given = "audit count --epsilon 1 --delta 1e-6 --runs 200 --seed 1 --json"
    assert cli.main(given.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"claimed", "lower", "confidence", "share"} <= set(found)
    assert found["claimed"] == 1.0
    assert found["share"] == pytest.approx(found["lower"] / found["claimed"])


@pytest.mark.unhurried
def test_a_refuted_claim_has_an_exit_status_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def silent(self: Any, law: Any, scale: float, size: int) -> list[int]:
        return [0] * size

    monkeypatch.setattr(ReproducibleNoise, "of_value", silent)
    plot = tmp_path / "curve.svg"
    given = f"audit count --runs 30 --seed 1 --plot {plot}"
    assert cli.main(given.split()) == REFUTED
    told = capsys.readouterr().out
    assert "the claim is refuted" in told
    assert plot.exists()


def test_a_wrong_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "ptr", "--epsilon", "-1"]) == 2
    assert capsys.readouterr().err.startswith("--epsilon: expected")
