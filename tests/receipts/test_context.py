"""What an auditor asks for besides the claims: data, program, randomness and budget."""

import json

import attrs
import numpy as np
import pytest

import prudent
from prudent._validate import ArgumentError
from prudent.cli import main
from prudent.receipts import keys, pages
from prudent.receipts.receipt import Receipt

pytest.importorskip("flint")
pytest.importorskip("cryptography")

VALUES = np.arange(500.0)
DECLARED = {"schema": "salary: float64", "snapshot": "2026-11-01", "digest": "0" * 64}


@pytest.fixture
def receipt(tmp_path, monkeypatch):
    """The path of a signed receipt with all that can be declared, charged to a ledger."""
    monkeypatch.setenv("PRUDENT_KEYS", str(tmp_path / "keys"))
    keys.make("me")
    path = tmp_path / "answer.json"
    target = prudent.ReceiptFile(path, sign="me", declared=DECLARED)
    with prudent.Ledger(tmp_path / "budget.db", epsilon=2.0, delta=1e-6) as ledger:
        prudent.median(VALUES, epsilon=0.25, ledger=ledger)
        prudent.median(VALUES, epsilon=0.5, ledger=ledger, receipt=target)
    return path


@pytest.mark.unhurried
def test_a_receipt_says_what_an_auditor_asks(receipt):
    context = Receipt.read(receipt)[0].context
    assert context["data"] == DECLARED
    assert context["randomness"] == "the operating system"
    limits = context["budget"]
    assert (limits["epsilon"], limits["delta"]) == (2.0, 1e-6)
    assert limits["relation"]["adjacency"] == "add-remove"


def test_the_checklist_answers_what_a_receipt_can(receipt, tmp_path, capsys):
    place = tmp_path / "list.md"
    assert main(["verify", str(receipt), "--signer", "me", "--checklist", str(place)]) == 0
    told = capsys.readouterr().out
    assert "its owner declares: snapshot: 2026-11-01" in told
    assert "assumed: budget: ε = 0.75 of 2 was spent with this charge" in told
    rows = [line.split(" | ") for line in place.read_text().splitlines() if "|" in line]
    answers = {row[0].strip("| "): row[1].strip("| ") for row in rows}
    assert answers["Flavour"] == "pure ε-DP"
    assert answers["Consent and data minimisation"] == pages.YOURS  # a receipt cannot know
    assert answers["Was the claim checked by other code?"].startswith("Verified: ε = 0.5")
    assert answers["Data: keyed digest (declared)"] == DECLARED["digest"]
    assert "ε = 2, δ = 1e-06" in answers["Limit of the budget, and what was spent"]


def test_the_export_has_the_fields_of_registries(receipt, tmp_path):
    export = tmp_path / "registry.json"
    assert main(["verify", str(receipt), "--signer", "me", "--export", str(export)]) == 0
    found = json.loads(export.read_text())
    loss = found["privacy_loss"]
    assert loss["parameters"] == {"epsilon": 0.5, "delta": 0.0}
    assert found["dp_flavor"] == "pure DP"
    assert found["data_curator"] is None  # a receipt cannot know
    assert found["released"] == Receipt.read(receipt)[0].plain()["released"]
    assert found["evidence"]["check"].startswith("Verified: ε = 0.5")
    assert found["implementation"]["data"] == DECLARED
    questions = {name: each for part in found["checklist"].values() for name, each in part.items()}
    assert questions["Data: keyed digest (declared)"] == DECLARED["digest"]
    assert "ε = 2, δ = 1e-06" in questions["Limit of the budget, and what was spent"]


def test_a_digest_of_data_takes_the_key(tmp_path, monkeypatch):
    monkeypatch.setenv("PRUDENT_KEYS", str(tmp_path / "keys"))
    keys.make("me"), keys.make("other")
    data = tmp_path / "data.csv"
    data.write_text("salary\n1\n")
    mine = keys.data_digest(data, "me")
    assert mine == keys.data_digest(data, "me") != keys.data_digest(data, "other")
    data.write_text("salary\n2\n")
    assert mine != keys.data_digest(data, "me")


@pytest.mark.parametrize(
    "declared", [{"mean": "3.5"}, {"schema": 3}, ["schema"], {"schema": "x" * 10_001}]
)
def test_only_known_texts_are_declared(tmp_path, declared):
    with pytest.raises(ArgumentError):
        prudent.ReceiptFile(tmp_path / "answer.json", declared=declared)


@pytest.mark.unhurried
def test_a_receipt_without_context_keeps_its_digest(receipt):
    made = attrs.evolve(Receipt.read(receipt)[0], context={})
    assert "context" not in made.plain()
    assert "a source that is not named" in pages.checklist(made, "Verified.")
