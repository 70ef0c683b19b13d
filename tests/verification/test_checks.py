"""Receipts of every kind: verified as they are, refuted once a field that matters is changed."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import prudent
from prudent.receipts import keys
from prudent.receipts import receipt as receipts
from prudent.receipts.receipt import Receipt

pytest.importorskip("flint")
pytest.importorskip("cryptography")
from prudent_verify import ReceiptError, Standing, verify
from prudent_verify import receipt as own_reader
from prudent_verify.events import parsed
from tests.verification.conftest import other, places_of

VALUES = np.arange(2000.0)


@pytest.fixture
def key(tmp_path, monkeypatch):
    monkeypatch.setenv("PRUDENT_KEYS", str(tmp_path / "keys"))
    return keys.make("me")


def pure(path, ledger):
    prudent.median(VALUES, epsilon=0.5, certify=40.0, ledger=ledger, receipt=path)


def proposed(path, ledger):
    given = {"propose": 5.0, "certify": 40.0, "delta": 1e-6}
    prudent.median(VALUES, epsilon=1.0, ledger=ledger, receipt=path, **given)


def gaussian(path, ledger):
    from prudent.release import Distribution

    given = {"bounds": (0, 2000), "distribution": Distribution.GAUSSIAN, "delta": 1e-6}
    prudent.mean(VALUES, epsilon=1.0, ledger=ledger, receipt=path, **given)


def classifier(path, ledger):
    records = np.random.default_rng(0).normal(size=(200, 4))
    given = {"landmarks": 8, "ledger": ledger, "receipt": path}
    from prudent.certify import CertifiedClassifier

    CertifiedClassifier(1.0, 2, **given).fit(records, records[:, 0] > 0)


def model(path, ledger):
    from prudent.estimators import LinearRegression

    features = np.random.default_rng(0).normal(size=(3000, 2))
    LinearRegression(epsilon=2.0, ledger=ledger).fit(features, features[:, 0], receipt=path)


def training(path, ledger):
    import torch
    from torch import nn

    aggregation = prudent.Sum(clip=1.0, noise_multiplier=4.0)
    plan = prudent.Plan(sampling_rate=0.1, steps=20, aggregation=aggregation, expected_batch=20)
    features = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    labels = (features[:, 0] > 0).long()
    reporting = prudent.Reporting(out=path.parent / "run", receipt=path, progress=False)
    loss = nn.CrossEntropyLoss(reduction="none")
    given = {"reporting": reporting, "delta": 1e-5, "ledger": ledger, "lr": 0.1}
    prudent.fit(plan, nn.Linear(3, 2), loss, (features, labels), **given)


def scored(setting, folder):
    from prudent.tune import Scored

    return Scored(setting["x"], None)


def tuning(path, ledger):
    import dp_accounting as dp

    from prudent.tune import Candidate, Geometric, tune

    event = dp.ComposedDpEvent([dp.GaussianDpEvent(8.0), dp.LaplaceDpEvent(40.0)])
    candidate = Candidate(scored, event)
    given = {"trials": Geometric(4), "delta": 1e-6, "ledger": ledger, "receipt": path}
    tune(candidate, lambda trial: trial.float("x", 0.0, 1.0), **given)


KINDS = [pure, proposed, gaussian, classifier, model, training, tuning]
QUICK = [pure, proposed, gaussian, classifier]
SLOWER = [pytest.param(kind, marks=pytest.mark.thorough) for kind in KINDS if kind not in QUICK]


@pytest.fixture
def receipt(request, tmp_path):
    """A receipt of one kind, with its ledger."""
    path = tmp_path / "answer.json"
    with prudent.Ledger(tmp_path / "budget.db", epsilon=5.0, delta=1e-5) as ledger:
        request.param(path, ledger)
    return path


def every(kind):
    def name(make):
        return make.__name__

    return pytest.mark.parametrize("receipt", kind, indirect=True, ids=name)


@every([*QUICK, *SLOWER])
def test_receipts_are_verified(receipt):
    found = verify(receipt)
    assert found.status == 0, found.lines()
    proved = {each.claim for each in found.findings if each.standing is Standing.PROVED}
    assert {"digest", "ledger", "price"} <= proved


@every([pure, gaussian])
def test_a_changed_field_is_noticed(receipt, editing):
    """Whatever it is; only the signature, which is absent, is no part of what is sealed."""
    made = editing(receipt)
    places = [place for place in places_of(made.content) if place[0] not in ("format", "signature")]
    assert len(places) > 40
    for place in places:
        assert fails(made.edited(place, other, sealed=False)), place


def fails(path):
    """Whether a receipt is refuted, or is none any more."""
    try:
        return verify(path).status == 1
    except ReceiptError:
        return True


SEALED = {
    "less noise": (("event", "events", 1, "noise_parameter"), lambda x: x * 1.1),
    "a larger range": (("event", "events", 0, "events", 0, "epsilon"), lambda x: x * 1.1),
    "no composition": (("event", "events"), lambda x: x[:1]),
    "its noise": (("released", "certificate", "basis", "noisy"), lambda x: x - 5),
    "another price": (("released", "epsilon"), lambda x: x / 2),
    "a theorem": (("theorems", 0, "theorem"), lambda x: "another"),
    "no theorems": (("theorems",), lambda x: []),
    "an outcome": (("ledger", "rows", 1, "record"), lambda x: x.replace("released", "refused")),
    "a file": (("files",), lambda x: {"answer.json": "0" * 64}),
}


@every([pure])
@pytest.mark.parametrize("change", SEALED.values(), ids=SEALED.keys())
def test_a_false_claim_is_refuted_though_its_digests_fit(receipt, change, editing):
    """Whoever edits a receipt can compute digests, too."""
    assert verify(editing(receipt).edited(*change, sealed=True)).status == 1


TEST = ("event", "events", 0, "events", 0)


@every([proposed])
@pytest.mark.parametrize(
    "change",
    [
        (("epsilon",), lambda x: x * 0.98),
        (("delta",), lambda x: x / 2),
        ((*TEST, "test", "scale"), lambda x: x * 0.9),
        ((*TEST, "failure"), lambda x: x * 10),
    ],
    ids=["epsilon", "delta", "test", "failure"],
)
def test_a_false_price_of_a_test_is_refuted(receipt, change, editing):
    assert verify(editing(receipt).edited(*change, sealed=True)).status == 1


@pytest.mark.thorough
@every([training, tuning])
@pytest.mark.parametrize("name", ["epsilon", "delta"])
def test_a_false_price_of_a_run_is_refuted(receipt, name, editing):
    change = {"epsilon": lambda x: x * 0.97, "delta": lambda x: x / 2}[name]
    made = editing(receipt)
    made.content["asked"].pop("delta", None)
    assert verify(made.edited((name,), change, sealed=True)).status == 1


@pytest.mark.unhurried
def test_a_false_certificate_of_slopes_is_refuted(tmp_path):
    """It is computed again from the noisy gradient and curvature beside it."""
    from prudent.estimators import LinearRegression
    from prudent_verify.certificates import problem_of

    path = tmp_path / "answer.json"
    features = np.random.default_rng(0).normal(size=(8000, 2))
    fitted = LinearRegression(epsilon=4.0, delta=1e-6, certify=0.5)
    fitted.fit(features, features[:, 0], receipt=path)
    receipt = Receipt.read(path)[0]
    (found,) = receipt.certificates()
    event = parsed(receipt.event)
    assert found["records"] == fitted.certificate_.records > 0
    assert problem_of(found, event) is None
    basis = found["basis"]
    less_noise = basis | {"multipliers": [each / 2 for each in basis["multipliers"]]}
    less_hidden = basis | {"hidden": basis["hidden"] / 2}
    for edit in (
        {"records": found["records"] + 1},
        {"confidence": 1 - 1e-12},
        {"tolerance": found["tolerance"] / 1.1},
        {"basis": less_noise},
        {"basis": less_hidden},
    ):
        assert problem_of({**found, **edit}, event) is not None, edit
    with pytest.raises(ValueError, match="two matrices"):
        problem_of({**found, "basis": basis | {"root": basis["root"][:1]}}, event)
    with pytest.raises(ValueError, match="made of numbers"):
        problem_of({**found, "basis": basis | {"gradient": [*map(str, basis["gradient"])]}}, event)


def test_a_signature_binds_every_field(tmp_path, key, editing):
    from prudent.cli import main

    path = tmp_path / "answer.json"
    prudent.count(VALUES, epsilon=1.0, receipt=prudent.ReceiptFile(path, sign="me"))
    assert verify(path, signer=key).status == 0
    assert verify(path, signer=keys.folder() / "me.pub").status == 0
    assert main(["verify", str(path), "--signer", "me"]) == 0
    with pytest.raises(ValueError, match="signer"):
        verify(path, signer="me")
    assert verify(path, signer="0" * 64).status == 1
    edit = (("released", "value"), lambda value: value + 1)
    assert verify(editing(path).edited(*edit, sealed=True)).status == 1


def test_a_receipt_without_a_signature_has_no_signer(tmp_path, key):
    path = tmp_path / "answer.json"
    prudent.count(VALUES, epsilon=1.0, receipt=path)
    assert verify(path, signer=key).status == 1


def test_secret_keys_are_for_their_owner(key, tmp_path):
    secret = tmp_path / "keys" / "me.key"
    assert secret.stat().st_mode & 0o077 == 0
    assert keys.public_keys() == {"me": key}
    with pytest.raises(ValueError, match="one that has no key yet"):
        keys.make("me")
    for name in ("", ".", "../me", "a/b", "a\0b", "\ud800", "a" * 65, None):
        with pytest.raises(ValueError, match="letters, digits"):
            keys.make(name)
    assert keys.public_keys() == {"me": key}


def test_nothing_is_charged_if_a_receipt_cannot_be_written(tmp_path):
    with prudent.Ledger(tmp_path / "budget.db", epsilon=1.0, delta=1e-5) as ledger:
        for bad in (tmp_path, prudent.ReceiptFile(tmp_path / "a.json", sign="nobody")):
            with pytest.raises(ValueError, match=r"receipt|key"):
                prudent.count(VALUES, epsilon=0.1, ledger=ledger, receipt=bad)
        assert ledger.spent == 0


@pytest.mark.parametrize("kind", [*QUICK, *SLOWER])
def test_no_kind_is_charged_if_its_receipt_cannot_be_written(kind, tmp_path):
    (tmp_path / "folder").mkdir()
    with prudent.Ledger(tmp_path / "budget.db", epsilon=5.0, delta=1e-5) as ledger:
        with pytest.raises(ValueError, match="receipt"):
            kind(tmp_path / "folder", ledger)
        assert ledger.spent == 0


def test_what_is_no_receipt_is_refused(tmp_path):
    path = tmp_path / "answer.json"
    for text in ("", "{}", "[]", '{"format": 1}', '{"format": 1, "digest": 3, "epsilon": 1}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"receipt|format"):
            verify(path)


def test_an_event_without_a_proof_here_is_not_verified(tmp_path, editing):
    path = tmp_path / "answer.json"
    prudent.count(VALUES, epsilon=1.0, receipt=path)
    changed = editing(path).edited(("event", "kind"), lambda kind: "SomeDpEvent", sealed=True)
    assert Receipt.read(changed)[0].event["kind"] == "SomeDpEvent"
    standings = {each.claim: each.standing for each in verify(changed).findings}
    assert standings["price"] is Standing.UNCHECKED


ALONE = """
    import socket, sys

    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("prudent", "dp_accounting"):
                raise ImportError(f"{name} is blocked")

    def refuse(*arguments, **options):
        raise OSError("no network")

    sys.meta_path.insert(0, Blocked())
    socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
    from prudent_verify.__main__ import main
    sys.exit(main(sys.argv[1:]))
"""


@every([pure, *(pytest.param(kind, marks=pytest.mark.thorough) for kind in KINDS[1:])])
def test_neither_prudent_nor_a_network_is_needed(receipt):
    command = [sys.executable, "-c", textwrap.dedent(ALONE), str(receipt)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "proved: price: ε = " in done.stdout


def test_the_command_line_says_what_it_found(tmp_path, capsys):
    from prudent.cli import main

    path = tmp_path / "answer.json"
    prudent.count(VALUES, epsilon=1.0, receipt=path)
    assert main(["verify", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "verified"
    path.write_text(path.read_text().replace('"epsilon": 1.0', '"epsilon": 0.5'))
    assert main(["verify", str(path)]) == 1
    assert capsys.readouterr().out.startswith("Refuted")
    path.write_text("nothing")
    assert main(["verify", str(path)]) == 2
    path.unlink()
    assert main(["verify", str(path)]) == 2
    assert capsys.readouterr().err.endswith("answer.json: No such file or directory.\n")


def test_the_checker_has_a_command_of_its_own(tmp_path, capsys, monkeypatch):
    from prudent_verify.__main__ import main

    path = tmp_path / "answer.json"
    prudent.count(VALUES, epsilon=1.0, receipt=path)
    assert main([str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "verified"
    assert main([str(path), "--signer", "nobody"]) == 2
    path.write_text(path.read_text().replace('"unit": "record"', '"unit": "\\u001b[2J"'))
    assert main([str(path)]) == 1
    told = capsys.readouterr().out
    assert told.startswith("Refuted")
    assert "\x1b" not in told
    for text in ("nothing", '{"format": 99}'):
        path.write_text(text)
        assert main([str(path)]) == 2
    path.unlink()
    assert main([str(path)]) == 2
    monkeypatch.setattr("prudent_verify.__main__.verify", lambda *_, **__: {}["planted"])
    assert main([str(path)]) == 3
    assert "planted" not in capsys.readouterr().err


def test_a_signature_that_cannot_be_checked_verifies_nothing(tmp_path, key, monkeypatch):
    path = tmp_path / "answer.json"
    prudent.count(VALUES, epsilon=1.0, receipt=prudent.ReceiptFile(path, sign="me"))
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    assert verify(path).status == 2


def test_without_the_checker_the_command_says_how_to_install_it(tmp_path, capsys, monkeypatch):
    from prudent.cli import main

    monkeypatch.setitem(sys.modules, "prudent_verify", None)
    assert main(["verify", str(tmp_path / "answer.json")]) == 2
    assert capsys.readouterr().err.endswith(" ./packages/verify\n")


def test_both_readers_read_alike(tmp_path):
    """The checker shares no code with the program: what they say of a file is compared instead."""
    path = tmp_path / "answer.json"
    prudent.median(VALUES, epsilon=0.5, certify=40.0, receipt=path)
    theirs, noted = Receipt.read(path)
    own, also = own_reader.read(own_reader.load(path), path)
    assert noted == also == theirs.digest == own.digest
    assert own.part_digests() == theirs.expected_digests()
    assert own_reader.KINDS == receipts.KINDS
    for name in ("_EVENTS", "_PTR", "_CERTIFICATES"):
        assert getattr(own_reader, name) == getattr(receipts, name)
    assert own_reader.theorems_of(parsed(own.event), own) == receipts.theorems_of(own.event, theirs)


def test_a_bug_of_the_check_refutes_nothing(tmp_path, capsys, monkeypatch):
    from prudent.cli import main

    def broken(*_):
        raise KeyError("planted")

    path = tmp_path / "answer.json"
    prudent.count(VALUES, epsilon=1.0, receipt=path)
    monkeypatch.setattr("prudent_verify.checks._ledger", broken)
    assert main(["verify", str(path)]) == 3
    told = capsys.readouterr()
    assert told.err.startswith("Could not check the receipt")
    assert "planted" not in told.out + told.err


@pytest.mark.parametrize("make", [pure, classifier, *SLOWER[-2:]])
@pytest.mark.parametrize("failing", ["plain_value", "theorems_of"])
def test_an_answer_outlives_a_receipt_that_fails(make, failing, tmp_path, monkeypatch):
    """It is released and charged: a bug of the receipt may not take it away, nor quote it."""

    def broken(*_):
        raise RuntimeError("secret")

    monkeypatch.setattr(f"prudent.receipts.making.{failing}", broken)
    path = tmp_path / "answer.json"
    with prudent.Ledger(tmp_path / "budget.db", epsilon=5.0, delta=1e-5) as ledger:
        with pytest.warns(UserWarning, match="The receipt could not be written") as told:
            make(path, ledger)
        assert "secret" not in str(told[0].message)
        assert ledger.spent > 0
    assert not path.exists()


def test_a_checklist_says_what_is_open(tmp_path):
    from prudent.cli import main

    path, out = tmp_path / "answer.json", tmp_path / "checklist.md"
    prudent.count(VALUES, epsilon=1.0, receipt=path)
    assert main(["verify", str(path), "--checklist", str(out)]) == 0
    text = out.read_text()
    assert "| Privacy parameters | ε = 1, δ = 0 |" in text
    assert "adding or removing one record" in text
    assert text.count("yours to answer") >= 8


def test_an_officer_gets_a_page_of_receipts(tmp_path, capsys):
    from prudent.cli import main

    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path in paths:
        prudent.count(VALUES, epsilon=0.5, receipt=path)
    for name in ("page.md", "page.html", "page.json"):
        assert main(["budget", "report", *paths, "--out", str(tmp_path / name)]) == 0
        assert "Verified" in (tmp_path / name).read_text() or name == "page.json"
    assert main(["budget", "report", *paths]) == 0
    assert "at most ε = 1 at δ = 0, by adding up" in capsys.readouterr().out
