"""`prudent audit train`: what it prints, and what its exit status says."""

import json

import pytest

pytest.importorskip("torch", reason="training needs the extra `train`")
from prudent import cli
from prudent.cli.commands.audit import REFUTED

pytestmark = pytest.mark.usefixtures("same_draws")

PEOPLE = "--records-per-person 3 --runs 4000"


def audit(text, *, method="white-box"):
    return cli.main(["audit", "train", "--method", method, *text.split()])


def test_an_honest_plan_stands(capsys, tmp_path):
    plot = tmp_path / "curve.svg"
    given = f"--noise-multiplier 1 --delta 0.01 --runs 4000 --json --plot {plot}"
    assert audit(given) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"claimed", "lower", "confidence", "share"} <= set(found)
    assert 0.4 < found["share"] < 1
    assert plot.exists()


@pytest.mark.parametrize(
    ("method", "given", "status", "told"),
    [
        ("white-box", "1 --delta 0.01 --epsilon 0.3 --runs 4000", REFUTED, "refuted"),
        ("white-box", f"1 --delta 0.01 --epsilon 0.3 {PEOPLE}", REFUTED, "refuted"),
        ("white-box", f"1 --delta 0.01 --epsilon 2.4 {PEOPLE}", 0, ""),
        ("one-run", "0.5 --delta 1e-5 --epsilon 0.5 --runs 500", REFUTED, "with 500 canaries"),
    ],
)
def test_a_claim_below_the_price_is_refuted(capsys, method, given, status, told):
    assert audit(f"--noise-multiplier {given}", method=method) == status
    assert told in capsys.readouterr().out


def test_the_noise_of_a_claim_is_solved_for(capsys):
    assert audit("--epsilon 1 --delta 0.01 --runs 2000 --json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exact"] == pytest.approx(1, abs=1e-2)


@pytest.mark.parametrize(
    ("method", "given", "flag"),
    [
        ("white-box", "", "--noise-multiplier"),
        ("one-run", "--noise-multiplier 1 --plot curve.svg", "--plot"),
        ("one-run", "--noise-multiplier 1 --records-per-person 3", "--records-per-person"),
        ("one-run", "--noise-multiplier 1 --test gaussian:4", "plan"),
        ("black-box", "--noise-multiplier 1", "--method"),
    ],
)
def test_what_cannot_be_audited_is_refused(capsys, method, given, flag):
    assert audit(given, method=method) == 2
    assert flag in capsys.readouterr().err
