"""Sixty forgeries, each of which is refused for a reason that is its own."""

import copy
import hashlib
import json

import numpy as np
import pytest

import prudent
from tests.verification.test_bindings import changed, charged, linked, records_of, run
from tests.verification.test_forgeries import repeated, sampled, sealed, several

pytest.importorskip("flint")
from prudent_verify import ReceiptError, Standing, verify

__all__ = ["charged"]

GAUSSIAN = {"kind": "GaussianDpEvent", "noise_multiplier": 2.0}
LAPLACE = {"kind": "LaplaceDpEvent", "noise_multiplier": 2.0}
PTR = {
    "kind": "ProposeTestReleaseDpEvent",
    "noise_multiplier": "inf",
    "propose": 0.0,
    "test": {"kind": "LaplaceTest", "scale": 2.0},
    "failure": 1e-8,
    "robust_noise_multiplier": 3.0,
    "reveals": "branch",
}
COUNTED = {"kind": "DiscreteLaplaceDpEvent", "noise_parameter": 0.4, "sensitivity": 1}
CERTIFIED = ("released", "certificate")
PRICE, UNIT, LEDGER, FILE = "price", "unit", "ledger", "file"
CERTIFICATE, REQUEST, ANSWER, BUDGET = "certificate", "request", "answer", "budget"


def free(event, epsilon, delta=0.0, **more):
    """A release of this event and price that no ledger was charged for."""

    def make(own, _):
        plain = {"event": event, "epsilon": epsilon, "delta": delta, "ledger": None}
        return own | plain | {"asked": {"unit": None}, "released": {}} | more

    return make


def at(*changes, ledger=True):
    """A charged release with some fields changed."""

    def make(own, _):
        found = changed(own, *((place, value(own)) for place, value in changes))
        return found if ledger else found | {"ledger": None}

    return make


def set_to(value):
    return lambda _: value


def row(number, old, new):
    """A charged release with other words in a row, linked anew."""

    def make(own, _):
        records = records_of(own)
        assert old in records[number]
        records[number] = records[number].replace(old, new, 1)
        return linked(own, *records)

    return make


def priced(factor):
    """A charge at some times the price that is claimed."""

    def make(own, _):
        first, *rest = records_of(own)
        fields = json.loads(first)
        fields["price"]["epsilon"] *= factor
        return linked(own, json.dumps(fields, sort_keys=True, separators=(",", ":")), *rest)

    return make


def one_of(*events):
    return {"kind": "WorstOfDpEvent", "events": list(events)}


def answered(**changes):
    """An answer with other fields, or with more, that no ledger was charged for."""
    return at((("released",), lambda own: own["released"] | changes), ledger=False)


def certified(**changes):
    return at((CERTIFIED, lambda own: own["released"]["certificate"] | changes), ledger=False)


def plan(**changes):
    """A run whose plan is another one than was paid for."""

    def make(_, __):
        return changed(
            run(), *(((("asked", "plan", name)), each) for name, each in changes.items())
        )

    return make


def of_run(*changes):
    return lambda _, __: changed(run(), *changes)


FORGERIES = {
    # Prices.
    "a hundredth of epsilon": (free(LAPLACE, 0.005), PRICE, "At least ε = 0.5"),
    "a thousandth less": (free(LAPLACE, 0.4995), PRICE, "At least ε = 0.5"),
    "a millionth less": (free(LAPLACE, 0.4999995), PRICE, "At least ε = 0.5"),
    "a gaussian a thousandth less": (free(GAUSSIAN, 2.2518, 1e-6), PRICE, "At least ε = 2.254"),
    "a gaussian without delta": (free(GAUSSIAN, 9.0), PRICE, "No pure ε"),
    "two for one": (free(several(LAPLACE, LAPLACE), 0.5), PRICE, "At least ε = 1"),
    "a thousand for one": (free(repeated(LAPLACE, 1000), 0.5), PRICE, "At least ε = 500"),
    "sampling at rate one": (free(sampled(LAPLACE, 1.0), 0.1), PRICE, "At least ε = 0.5"),
    "sampling twice at rate one": (
        free(sampled(sampled(GAUSSIAN, 1.0), 1.0), 1.0, 1e-6),
        PRICE,
        "At least ε = 2.254",
    ),
    "a test for nothing": (free(PTR, 0.01, 1e-6), PRICE, "At least ε"),
    "a delta below the failure": (free(PTR, 3.0, 1e-9), PRICE, "ε = 3"),
    "replaced for the price of added": (
        free(LAPLACE, 0.5, relation={"kind": "Relation", "adjacency": "replace-one", "records": 1}),
        PRICE,
        "At least ε = 1",
    ),
    "ten records for the price of one": (
        free(LAPLACE, 0.5, relation={"kind": "Relation", "adjacency": "add-remove", "records": 10}),
        PRICE,
        "At least ε = 5",
    ),
    "concentrated beyond all orders": (
        free({"kind": "ZCDpEvent", "rho": 1e300, "xi": 0}, 0.0, 1e-6),
        PRICE,
        "No order shows",
    ),
    "rounded to nothing": (free(LAPLACE, 0.0), PRICE, "At least ε = 0.5"),
    "a large delta": (free(LAPLACE, 0.1, 0.01), PRICE, "δ is large"),
    "an infinite epsilon": (free(LAPLACE, "inf"), PRICE, "no finite ε"),
    "a concentrated half": (
        free({"kind": "ZCDpEvent", "rho": 0.5, "xi": 0}, 1.0, 1e-6),
        PRICE,
        "coarser than the claim's proof",
    ),
    # Events that cannot be read.
    "noise of nothing": (
        free(LAPLACE | {"noise_multiplier": 0.0}, 0.5),
        PRICE,
        "a number in (0, 1e+300]",
    ),
    "noise below nothing": (
        free(LAPLACE | {"noise_multiplier": -2.0}, 0.5),
        PRICE,
        "a number in (0",
    ),
    "noise in words": (free(LAPLACE | {"noise_multiplier": "much"}, 0.5), PRICE, "a number in (0"),
    "noise that is true": (
        free(LAPLACE | {"noise_multiplier": True}, 1.0),
        PRICE,
        "a number in (0",
    ),
    "an unknown kind": (free({"kind": "QuantumDpEvent"}, 0.1), PRICE, "are not known here"),
    "no protection": (free({"kind": "NonPrivateDpEvent"}, 0.1), PRICE, "without protection"),
    "nothing at all": (free({"kind": "NoOpDpEvent"}, 0.0), PRICE, "accounts for no answer"),
    "an empty list": (free(several(), 0.0), PRICE, "nothing is noise"),
    "half a run": (free(repeated(LAPLACE, 0.5), 0.25), PRICE, "whole numbers"),
    "a rate above one": (free(sampled(LAPLACE, 2.0), 0.5), PRICE, "a number in (0, 1]"),
    "a field more": (free(LAPLACE | {"note": "safe"}, 0.5), PRICE, "exactly the fields"),
    "a test that is none": (free(PTR | {"test": LAPLACE}, 3.0, 1e-6), PRICE, "a test of a margin"),
    "a failure of a half": (free(PTR | {"failure": 0.5}, 3.0, 1e-6), PRICE, "a number in (0, 0.5)"),
    "another revelation": (free(PTR | {"reveals": "none"}, 3.0, 1e-6), PRICE, "kind of revealing"),
    # Units and requests.
    "a person for a record": (at((("unit",), set_to("person"))), UNIT, "for which was asked"),
    "a record for a person": (
        at((("asked", "unit"), set_to("person")), ledger=False),
        UNIT,
        "for which was asked",
    ),
    "two prices": (at((("asked", "epsilon"), set_to(0.4)), ledger=False), PRICE, "two of epsilon"),
    "two deltas": (at((("released", "delta"), set_to(1e-9)), ledger=False), PRICE, "two of delta"),
    "a release with a plan": (
        at((("asked", "plan"), set_to({})), ledger=False),
        REQUEST,
        "of another kind",
    ),
    "twenty steps for one": (plan(steps=20), REQUEST, "another event"),
    "a higher rate": (plan(sampling_rate=0.2), REQUEST, "another event"),
    "turns": (plan(num_bands=4), REQUEST, "another event"),
    "held-out records": (
        plan(held_out={"every": 1, "noise_multiplier": 1.0}),
        REQUEST,
        "another event",
    ),
    "something before": (plan(before=LAPLACE), REQUEST, "another event"),
    "no plan": (of_run((("asked",), {"unit": None})), REQUEST, "cannot be read"),
    # Certificates.
    "two records more": (
        at(
            ((*CERTIFIED, "needed"), lambda own: own["released"]["certificate"]["needed"] + 2),
            ((*CERTIFIED, "withstands"), lambda own: own["released"]["certificate"]["needed"] + 1),
            ledger=False,
        ),
        CERTIFICATE,
        "the released numbers show",
    ),
    "withstanding all that is needed": (
        at(
            ((*CERTIFIED, "withstands"), lambda own: own["released"]["certificate"]["needed"]),
            ledger=False,
        ),
        CERTIFICATE,
        "do not follow",
    ),
    "more confidence": (
        at(((*CERTIFIED, "confidence"), set_to(0.99999)), ledger=False),
        CERTIFICATE,
        "the released numbers show",
    ),
    "certainty": (
        at(((*CERTIFIED, "confidence"), set_to(1.0)), ledger=False),
        CERTIFICATE,
        "no numbers of a certificate",
    ),
    "another noise": (
        at(((*CERTIFIED, "epsilon"), set_to(100.0)), ledger=False),
        CERTIFICATE,
        "no noise of its scale",
    ),
    "noise of another event": (
        at(
            (("event",), lambda own: one_of(own["event"], COUNTED)),
            ((*CERTIFIED, "epsilon"), set_to(0.4)),
            ledger=False,
        ),
        CERTIFICATE,
        "no noise of its scale",
    ),
    "no basis": (
        at(((*CERTIFIED, "basis"), set_to(None)), ledger=False),
        CERTIFICATE,
        "not in the receipt",
    ),
    "a narrower interval": (
        at(
            ((*CERTIFIED, "low"), lambda own: own["released"]["value"] - 1.0),
            ((*CERTIFIED, "high"), lambda own: own["released"]["value"] + 1.0),
            ledger=False,
        ),
        CERTIFICATE,
        "not as wide as what was asked",
    ),
    "another value": (
        at((("released", "value"), lambda own: own["released"]["value"] + 500), ledger=False),
        CERTIFICATE,
        "not about the answer",
    ),
    "an interval in words": (certified(low="a", high="b"), CERTIFICATE, "cannot be read"),
    "an interval of dates": (
        certified(low="1999-01-01", high="1999-01-02"),
        CERTIFICATE,
        "not about the answer",
    ),
    "no value beside it": (answered(value=None, interval=None), CERTIFICATE, "cannot be read"),
    "a value in words": (answered(value="50", interval=None), CERTIFICATE, "cannot be read"),
    "one that was not asked for": (
        at((("asked", "parts"), set_to([])), ledger=False),
        CERTIFICATE,
        "none was asked for",
    ),
    "one in words": (
        answered(certificate="withstands a million records"),
        CERTIFICATE,
        "not in the receipt",
    ),
    "one of slopes by another name": (
        answered(robustness={"records": 10**6, "tolerance": 0.1, "confidence": 0.99}),
        CERTIFICATE,
        "not in the receipt",
    ),
    "two in a group": (
        at(
            (("asked", "groups"), set_to(["a"])),
            (("released",), lambda own: {"a": [own["released"], own["released"]]}),
            ledger=False,
        ),
        CERTIFICATE,
        "paid for once",
    ),
    # Ledgers, answers and files.
    "a field that looks like another": (  # with a Cyrillic letter
        answered(сertificate={"records": 10**6}),
        REQUEST,
        "other fields",
    ),
    "an exact answer": (answered(status="exact"), REQUEST, "another status"),
    "an answer that was not paid for": (
        at((("event",), lambda own: own["event"]["events"][1]), ledger=False),
        REQUEST,
        "a mechanism that is not in the event",
    ),
    "a cheaper answer in a group": (
        at((("released",), lambda own: {"a": own["released"] | {"epsilon": 1e-3}}), ledger=False),
        REQUEST,
        "another price",
    ),
    "another answer": (lambda own, other: own | {"released": other["released"]}, ANSWER, "another"),
    "another charge": (lambda own, other: own | {"ledger": other["ledger"]}, ANSWER, "another one"),
    "other details": (row(0, '"epsilon":0.5', '"epsilon":0.9'), LEDGER, "what was asked"),
    "a dearer charge": (priced(9), LEDGER, "another price"),
    "a cheaper charge": (priced(0.99), LEDGER, "its event takes at least ε = 0.499999"),
    "another data set": (
        at((("ledger", "dataset"), set_to("other"))),
        LEDGER,
        "a ledger of these data",
    ),
    "a row unlinked": (at((("ledger", "before"), set_to("0" * 64))), LEDGER, "does not fit"),
    "another head": (at((("ledger", "head"), set_to("0" * 64))), LEDGER, "do not end at its head"),
    "a refused answer": (
        lambda own, _: linked(own, records_of(own)[0], '{"charge":1,"dataset":"default"}'),
        LEDGER,
        "cannot be read",
    ),
    "another filter": (
        at((("asked", "parts"), set_to([{"where": "age > 3"}]))),
        LEDGER,
        "what was asked",
    ),
    "a spent budget": (
        at((("context", "budget", "epsilon"), set_to(0.1))),
        BUDGET,
        "more was spent than its limit",
    ),
    "a budget for others": (
        at((("context", "budget", "relation", "records"), set_to(0))),
        BUDGET,
        "cannot be read",
    ),
    "two sources of noise": (
        at((("context", "randomness"), set_to("dice"))),
        "noise",
        "two sources",
    ),
    "seeded noise": (at((("predictable",), set_to(True))), "noise", "was seeded"),
    "no files": (of_run((("released",), {"files": {"model.pt": "0" * 64}})), FILE, "not those"),
    **{
        f"a file called {name[:9]!r}": (
            of_run((("files",), {name: "0" * 64}), (("released",), {"files": {name: "0" * 64}})),
            FILE,
            "another folder",
        )
        for name in ("../model.pt", "", ".", "..", "/model.pt", "a\0b", "..\\model.pt", "x" * 300)
    },
}


def test_there_are_sixty():
    assert len(FORGERIES) >= 60


@pytest.mark.parametrize(("make", "claim", "reason"), FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forgery_is_refused_for_its_reason(charged, make, claim, reason, tmp_path):
    path = tmp_path / "forged.json"
    path.write_text(sealed(make(*map(copy.deepcopy, charged))))
    found = verify(path)
    assert found.status in (1, 2)
    refused = [each for each in found.findings if each.standing is Standing.FAILED or each.decisive]
    assert any(each.claim == claim and reason in each.words for each in refused), found.lines()


UNREADABLE = {
    "no relation": {"relation": {}},
    "a relation of no records": {
        "relation": {"kind": "Relation", "adjacency": "add-remove", "records": 0}
    },
    "a price in words": {"epsilon": "small"},
    "a negative price": {"epsilon": -1.0},
    "a kind of its own": {"kind": "miracle"},
    "a field of its own": {"trusted": True},
    "half a signature": {"signature": {"key": "0" * 64}},
    "a context of its own": {"context": {"trusted": True}},
    "a later format": {"format": 99},
    "data in words": {"context": {"data": "public"}},
    "data of its own kind": {"context": {"data": {"verdict": "verified by everyone"}}},
    "data inside data": {"context": {"data": {"schema": {"a": 1}}}},
    "a budget in words": {"context": {"budget": "all of it"}},
    "a program in words": {"context": {"program": "the best"}},
}


@pytest.mark.parametrize("change", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_is_no_receipt_is_none(charged, change, tmp_path):
    path = tmp_path / "forged.json"
    path.write_text(sealed(charged[0] | change))
    with pytest.raises(ReceiptError):
        verify(path)


@pytest.mark.thorough
def test_a_run_is_bound_to_its_model_by_the_ledger(tmp_path):
    """The ledger notes the digest of the parameters and files that a run released."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "run" / "receipt.json"
    aggregation = prudent.Sum(clip=1.0, noise_multiplier=4.0)
    plan_ = prudent.Plan(sampling_rate=0.1, steps=2, aggregation=aggregation, expected_batch=20)
    features = torch.as_tensor(np.random.default_rng(0).normal(size=(200, 3)), dtype=torch.float32)
    labels = (features[:, 0] > 0).long()
    reporting = prudent.Reporting(out=path.parent, progress=False)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    with prudent.Ledger(tmp_path / "budget.db", epsilon=5.0, delta=1e-5) as ledger:
        given = {"reporting": reporting, "delta": 1e-5, "ledger": ledger, "lr": 0.1}
        prudent.fit(plan_, torch.nn.Linear(3, 2), loss, (features, labels), **given)
        assert [charge.outcome for charge in ledger.history()] == [{"released": 1}]
    found = verify(path)
    assert found.status == 0, found.lines()
    assert "the ledger notes this one." in [each.words for each in found.findings]
    content = json.loads(path.read_text())
    (name,) = content["files"]
    assert content["files"][name] == hashlib.sha256((path.parent / name).read_bytes()).hexdigest()
    for files in ({}, {name: "0" * 64}):
        forged = content | {"files": files, "released": content["released"] | {"files": files}}
        path.write_text(sealed(forged))
        assert "the ledger notes another one." in [each.words for each in verify(path).findings]
        assert verify(path).status == 1
