"""True receipts with one part from elsewhere: they contradict themselves, and none is verified."""

import copy
import datetime
import hashlib
import json

import attrs
import dp_accounting as dp
import numpy as np
import pyarrow
import pytest

import prudent
from prudent import release
from prudent.cli import main
from prudent.receipts.making import receipt_of
from tests.verification.conftest import other, places_of
from tests.verification.test_forgeries import best_of, repeated, sampled, sealed, several

pytest.importorskip("flint")
from prudent_verify import ReceiptError, verify

LAPLACE = {"kind": "LaplaceDpEvent", "noise_multiplier": 2.0}
NOTHING = {"kind": "NoOpDpEvent"}
SURE = {"kind": "DiscreteLaplaceDpEvent", "noise_parameter": 1000.0, "sensitivity": 1}


@pytest.fixture(scope="module")
def charged(tmp_path_factory):
    """An answer with a certificate that a ledger was charged for, and another answer."""
    folder = tmp_path_factory.mktemp("charged")
    with prudent.Ledger(folder / "budget.db", epsilon=9.0, delta=1e-5) as ledger:
        for name, epsilon in (("a.json", 0.5), ("b.json", 0.5)):
            values = np.arange(20_000) / 10 + (name == "b.json")  # far from all noise
            given = {"certify": 40.0, "ledger": ledger, "receipt": folder / name}
            prudent.median(values, epsilon=epsilon, **given)
    return [json.loads((folder / name).read_text()) for name in ("a.json", "b.json")]


@pytest.fixture
def status_of(tmp_path):
    def status(content, **options):
        path = tmp_path / "forged.json"
        path.write_text(sealed(content))
        try:
            return verify(path, **options).status
        except ReceiptError:
            return 2

    return status


def changed(content, *changes):
    """A copy with some fields changed, each named by its place."""
    content = copy.deepcopy(content)
    for place, value in changes:
        inside = content
        for name in place[:-1]:
            inside = inside[name]
        inside[place[-1]] = value
    return content


def linked(content, *records):
    """A copy whose ledger has these rows, linked anew."""
    last, rows = content["ledger"]["before"], []
    for record in records:
        last = hashlib.sha256(f"{last}\n{record}".encode()).hexdigest()
        rows.append({"record": record, "digest": last})
    return content | {"ledger": content["ledger"] | {"rows": rows, "head": last}}


def records_of(content):
    return [row["record"] for row in content["ledger"]["rows"]]


NOISELESS = {
    "the worst of nothing": {"kind": "WorstOfDpEvent", "events": [NOTHING]},
    "the worst of nothing and of noise": {"kind": "WorstOfDpEvent", "events": [NOTHING, LAPLACE]},
    "nothing beside noise": several(LAPLACE, NOTHING),
    "nothing in a sample": sampled(NOTHING, 0.5),
    "nothing, many times": repeated(NOTHING, 5),
    "an empty composition in another": several(LAPLACE, several()),
    "no runs beside noise": several(LAPLACE, repeated(SURE, 0)),
    "the best of nothing": best_of(NOTHING, 2.0, 1.0),
    "an allocation of nothing": {"kind": "RandomAllocationDpEvent", "event": NOTHING, "steps": 5},
    "a field that is not known": LAPLACE | {"noise": 5.0},
    "an event in a leaf": LAPLACE | {"event": SURE},
}


@pytest.mark.parametrize("event", NOISELESS.values(), ids=NOISELESS.keys())
def test_an_event_without_noise_pays_for_nothing(charged, event, status_of):
    for epsilon, delta in ((0.0, 0.0), (0.5, 0.0), (0.5, 1e-6)):
        forged = charged[0] | {"event": event, "epsilon": epsilon, "delta": delta, "ledger": None}
        forged |= {"released": {"every salary": [1.0, 2.0]}}
        forged["asked"] = {"unit": None}
        assert status_of(forged) == 2


UNPAID = {
    "run no times": (repeated(SURE, 0), 0.0),
    "on a sample": (sampled(SURE, 1e-9), 1e-6),
    "of a candidate that is seldom run": (
        {"kind": "BinomialSelectionDpEvent", "event": SURE, "draws": 1, "probability": 1e-9},
        1e-6,
    ),
    "of another sensitivity": (SURE | {"noise_parameter": 0.1, "sensitivity": 2}, 0.0),
}


@pytest.mark.parametrize(("noise", "delta"), UNPAID.values(), ids=UNPAID.keys())
def test_a_certificate_takes_noise_that_was_paid_for(charged, noise, delta, status_of):
    certificate = {"needed": 423, "withstands": 422, "confidence": 0.999999999}
    certificate |= {"epsilon": noise.get("noise_parameter", 1000.0)}
    certificate |= {"basis": {"kind": "distance", "noisy": 424}}
    forged = changed(
        charged[0] | {"ledger": None, "delta": delta},
        (("event",), noise if delta else several(LAPLACE, noise)),
        (("released", "delta"), delta),
    )
    forged["released"]["certificate"] |= certificate
    assert status_of(forged) in (1, 2)


def test_noise_pays_for_one_certificate(charged, status_of):
    content = charged[0] | {"ledger": None}
    assert status_of(content) == 0
    more = copy.deepcopy(content["released"]["certificate"])
    more["basis"]["noisy"] += 5000
    more |= {"needed": more["needed"] + 5000, "withstands": more["withstands"] + 5000}
    assert status_of(changed(content, (("released", "others"), {"certificate": more}))) == 1


SQL = "SELECT QUANTILE(v, {}), COUNT(*) FROM data"
ASKED = {
    "a quantile": ("sql", {"query": SQL.format(0.5)}, {"query": SQL.format(0.9)}),
    "a trim": ("trimmed_mean", {"trim": 4}, {"trim": 5}),
    "edges": ("histogram", {"edges": [0, 5, 10]}, {"edges": [0, 6, 10]}),
    "categories": ("mode", {"categories": [1, 2]}, {"categories": [1, 3]}),
    "probabilities": ("quantiles", {"ps": [0.25, 0.5]}, {"ps": [0.25, 0.9]}),
    "an interval": ("certify_quantile", {"low": 1.0, "high": 8.0}, {"low": 2.0, "high": 8.0}),
}


@pytest.mark.parametrize(("name", "one", "two"), ASKED.values(), ids=ASKED.keys())
def test_a_request_holds_all_that_its_statistic_takes(name, one, two, tmp_path):
    """Else a charge for one is a charge for the other, and a receipt does not say which it is."""
    data, asked = pyarrow.table({"v": np.arange(300.0) % 11}), []
    common = {"epsilon": 9.0, "delta": 1e-6, "receipt": tmp_path / "a.json"}
    common |= {} if name == "sql" else {"column": "v"}
    common |= {"propose": 1.0, "bounds": (0, 10)} if name == "trimmed_mean" else {}
    for own in (one, two):
        given = {"data": data, **common, **own}
        query = [given.pop("query")] if name == "sql" else []
        getattr(release, name)(*query, **given)
        asked.append(json.loads((tmp_path / "a.json").read_text())["asked"])
        assert verify(tmp_path / "a.json").status == 0
    assert asked[0] != asked[1]


UNITS = {
    "the unit": [(("unit",), "person")],
    "the unit and what was asked": [(("unit",), "person"), (("asked", "unit"), "person")],
    "asked alone": [(("asked", "unit"), "person")],
}


@pytest.mark.parametrize("changes", UNITS.values(), ids=UNITS.keys())
def test_a_charge_for_records_protects_no_person(charged, changes, status_of):
    for head in (None, charged[0]["ledger"]["head"]):
        assert status_of(charged[0], head=head) == 0
        assert status_of(changed(charged[0], *changes), head=head) == 1


def twice(record):
    """A row in which the price stands twice, the honest one last."""
    return record.replace('"price":', '"price":{"delta":0.0,"epsilon":0.001},"price":')


LEDGERS = {
    "nothing asked": lambda own, _: own | {"asked": {}},
    "less asked": lambda own, _: changed(own, (("asked", "statistic"), None)),
    "a value": lambda own, _: changed(own, (("released", "value"), own["released"]["value"] + 1)),
    "a status": lambda own, _: changed(own, (("released", "status"), "refused")),
    "a note": lambda own, _: changed(own, (("released", "notes"), ["exact"])),
    "a relation of the same price": lambda own, _: changed(
        own, (("relation", "adjacency"), "zero-out")
    ),
    "a kind": lambda own, _: own | {"kind": "model"},
    "a field twice": lambda own, _: linked(own, twice(records_of(own)[0]), *records_of(own)[1:]),
    "spaces in a row": lambda own, _: linked(
        own, records_of(own)[0].replace(",", ", ", 1), *records_of(own)[1:]
    ),
    "the outcome of another": lambda own, other: linked(
        own, records_of(own)[0], records_of(other)[1]
    ),
    "no outcome": lambda own, _: linked(own, records_of(own)[0]),
    "no such charge": lambda own, _: linked(own, records_of(own)[1]),
    "a row left out": lambda own, other: linked(
        own, records_of(own)[0], records_of(other)[0], records_of(own)[1]
    ),
    "an event of other types": lambda own, _: linked(
        own,
        records_of(own)[0].replace('"sensitivity":1', '"sensitivity":1.0'),
        *records_of(own)[1:],
    ),
    "more in the ledger": lambda own, _: changed(own, (("ledger", "spent"), 0.0)),
    "no certificate": lambda own, _: changed(own, (("released", "certificate"), None)),
}


@pytest.mark.parametrize("change", LEDGERS.values(), ids=LEDGERS.keys())
def test_a_ledger_binds_request_and_answer(charged, change, status_of):
    wanted = 2 if change is LEDGERS["no outcome"] else 1
    assert status_of(change(*map(copy.deepcopy, charged))) == wanted


INTERVALS = {
    "empty": lambda value: {"low": value + 40, "high": value - 40},
    "without the value": lambda value: {"low": value + 100, "high": value + 180},
    "not about the value": lambda value: {"low": value - 79, "high": value + 1},
    "one end": lambda value: {"low": None},
    "no ends": lambda value: {"low": None, "high": None},
    "another field": lambda value: {"for": "every statistic"},
}


@pytest.mark.parametrize("change", INTERVALS.values(), ids=INTERVALS.keys())
def test_an_interval_is_the_one_that_was_asked_for(charged, change, status_of):
    forged = copy.deepcopy(charged[0]) | {"ledger": None}
    forged["released"]["certificate"] |= change(forged["released"]["value"])
    assert status_of(forged) == 1


PLACES = {
    "renamed": lambda one: {"robustness": one},
    "in a list": lambda one: {"certificate": [one]},
    "in a list of another name": lambda one: {"proofs": [[one]]},
    "inside another": lambda one: {"certificate": one | {"certificate": one}},
    "in a field of its own": lambda one: {"certificate": {"best": one}},
    "as everything": lambda one: one,
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_a_certificate_is_found_wherever_it_is(charged, place, status_of):
    forged = copy.deepcopy(charged[0]) | {"ledger": None}
    false = forged["released"].pop("certificate") | {"needed": 10**6, "withstands": 10**6 - 1}
    forged["released"] = place(false)
    assert status_of(forged) in (1, 2)


def rewritten(content, index, **changes):
    """A copy in which a row of the ledger has other fields, linked anew."""
    records = records_of(content)
    row = json.loads(records[index])
    row |= changes
    records[index] = json.dumps(row, sort_keys=True, separators=(",", ":"))
    return linked(content, *records)


ROWS = {
    "the label of another statistic": (0, {"label": "mean"}),
    "the label of a run": (0, {"label": "training run 0123456789abcdef"}),
    "no label": (0, {"label": ""}),
    "less spent than nothing": (0, {"spent": -1.0}),
    "more spent than the limit": (0, {"spent": 100.0}),
    "spent without end": (0, {"spent": "inf"}),
    "another delta": (0, {"delta": 1e-6}),
    "a price four times as high": (0, {"price": {"delta": 0.0, "epsilon": 2.0}}),
    "a price of nothing": (0, {"price": {"delta": 0.0, "epsilon": 0.0}}),
    "a price a millionth too low": (0, {"price": {"delta": 0.0, "epsilon": 0.4999995}}),
    "a price at another delta": (0, {"price": {"delta": 0.9, "epsilon": 0.0}}),
    "a price at no delta": (0, {"price": {"delta": True, "epsilon": 0.5}}),
    "a price in words": (0, {"price": {"delta": 0.0, "epsilon": "small"}}),
    "a price as text": (0, {"price": {"delta": 1e-5, "epsilon": "0.5"}}),
    "a price that is true": (0, {"price": {"delta": 1e-5, "epsilon": True}}),
    "spent as text": (0, {"spent": "0.5"}),
    "spent that is true": (0, {"spent": True}),
    "a price that is no number": (0, {"price": {"delta": 0.0, "epsilon": "nan"}}),
    "details of another column": (0, {"details": {"column": "age", "request": "0" * 64}}),
    "no details": (0, {"details": {}}),
    "a place before the first": (0, {"sequence": 0}),
    "another data set": (0, {"dataset": "other"}),
    "a refusal": (1, {"outcome": {"refused": 1}}),
    "a release and a refusal": (1, {"outcome": {"refused": 1, "released": 1}}),
    "no outcome": (1, {"outcome": {}}),
    "another answer": (1, {"answer": "0" * 64}),
    "a charge of nothing": (1, {"charge": None}),
    "a time": (1, {"time": "2030-01-01T00:00:00.000+00:00"}),
    "a skipped row": (1, {"sequence": 7}),
    "a number that is a double": (0, {"sequence": 1.0}),
    "a number that is true": (0, {"sequence": True}),
    "a charge that is a double": (1, {"charge": 1.0}),
    "outcomes in a list": (1, {"outcome": ["released"]}),
    "no releases": (1, {"outcome": {"released": 0}}),
}


@pytest.mark.parametrize("change", ROWS.values(), ids=ROWS.keys())
def test_rows_that_contradict_the_receipt_are_refused(charged, change, status_of):
    index, fields = change
    assert status_of(rewritten(charged[0], 0)) == 0
    assert status_of(rewritten(charged[0], index, **fields)) == 1


def among_others(content, event, **price):
    """A copy with the charge of another release between that of its own and the outcome."""
    charge, outcome = records_of(content)
    between = json.loads(charge) | {"sequence": 2, "event": event, "label": "other"}
    records = [
        charge,
        *(
            json.dumps(each, sort_keys=True, separators=(",", ":"))
            for each in (
                between | {"price": {"delta": 0.0} | price},
                json.loads(outcome) | {"sequence": 3},
            )
        ),
    ]
    return linked(content, *records)


def test_a_row_of_another_release_has_its_price_too(charged, status_of):
    """At the δ of the budget, and for one record, as a ledger prices what was told no other."""
    assert status_of(among_others(charged[0], LAPLACE, epsilon=0.5)) == 0
    assert status_of(among_others(charged[0], LAPLACE, epsilon=0.4)) == 1
    gaussian = {"kind": "GaussianDpEvent", "noise_multiplier": 4.0}
    assert status_of(among_others(charged[0], gaussian, epsilon=0.93, delta=1e-5)) == 0
    assert status_of(among_others(charged[0], gaussian, epsilon=0.9, delta=1e-5)) == 1
    assert status_of(among_others(charged[0], gaussian, epsilon=0.9, delta=2e-5)) == 1
    assert status_of(among_others(charged[0], gaussian, epsilon=9.0, delta=0.0)) == 1
    early = among_others(charged[0], gaussian, epsilon=0.93, delta=1e-5)
    del early["context"]
    assert status_of(early) == 0  # from before the limits of the budget stood in a receipt


def test_a_price_that_cannot_be_shown_is_said_to_be_so(charged, tmp_path):
    path = tmp_path / "receipt.json"
    step = {"kind": "GaussianDpEvent", "noise_multiplier": 8.0}
    for event, price in (
        ({"kind": "RandomAllocationDpEvent", "event": step, "steps": 10}, 0.1),
        ({"kind": "NonPrivateDpEvent"}, "inf"),
    ):
        path.write_text(sealed(among_others(charged[0], event, epsilon=price, delta=1e-5)))
        found = verify(path)
        assert found.status == 0
        words = [each.words for each in found.findings if each.claim == "ledger"]
        assert any("was not shown" in each for each in words) == (price != "inf")


ANSWERS = {
    "refused, with a value": {"status": "refused"},
    "an interval elsewhere": {"interval": [1e6, 2e6]},
    "an interval from its end": {"interval": [1e6, -1e6]},
    "an interval of three": {"interval": [0.0, 1.0, 2.0]},
}


@pytest.mark.parametrize("change", ANSWERS.values(), ids=ANSWERS.keys())
def test_answers_that_contradict_themselves_are_refused(charged, change, status_of):
    own = charged[0] | {"ledger": None}
    assert status_of(own) == 0
    assert status_of(own | {"released": own["released"] | change}) == 1


def test_a_certificate_has_the_confidence_that_was_asked_for(charged, status_of):
    forged = copy.deepcopy(charged[0]) | {"ledger": None}
    forged["released"]["certificate"]["confidence"] = 0.5  # which the noise shows all the more
    assert status_of(forged) == 1


def test_a_certificate_is_that_of_its_own_part(tmp_path, status_of):
    path, rows = tmp_path / "a.json", np.arange(20_000)
    data = pyarrow.table({"x": rows / 10, "k": rows % 9 + 0.0})
    wide = prudent.Ask("median", "x", certify=90.0)
    near = prudent.Ask("median", "k", certify=4.0, confidence=0.9)
    prudent.table(data, [wide, near], epsilon=2.0, receipt=path)
    own = json.loads(path.read_text())
    assert status_of(own) == 0
    value = own["released"]["answers"][1]["value"]
    place = "released", "answers", 1, "certificate"
    for name, change in (
        ("width", {"low": value - 90.0, "high": value + 90.0}),
        ("confidence", {"confidence": 0.95, "needed": 1, "withstands": 0}),
    ):
        odd = own["released"]["answers"][1]["certificate"] | change
        assert status_of(changed(own, (place, odd))) == 1, name
    first = own["released"]["answers"][:1]
    assert status_of(own | {"released": {"answers": first}}) == 1
    beside = own["released"] | {"proof": own["released"]["answers"][0]["certificate"]}
    assert status_of(own | {"released": beside}) == 1


DAYS = np.datetime64("2020-01-01") + np.arange(600)
TABLE = pyarrow.table(
    {"x": np.arange(600.0), "k": [1, 2] * 300, "city": ["a", "b"] * 300, "day": DAYS}
)
WIDE = {"certify": 90.0, "epsilon": 1.0}
BOTH = [prudent.Ask("median", "x", certify=90.0), prudent.Ask("median", "k", certify=4)]
HONEST = {
    "of dates": lambda **to: prudent.median(
        TABLE, "day", epsilon=1.0, certify=datetime.timedelta(days=20, hours=5), **to
    ),
    "of a boolean": lambda **to: prudent.mode(
        pyarrow.table({"k": [True] * 90}), "k", epsilon=1.0, certify=True, delta=1e-7, **to
    ),
    "of numbers as categories": lambda **to: prudent.mode(
        TABLE, "k", epsilon=1.0, certify=True, delta=1e-7, **to
    ),
    "of groups by number": lambda **to: prudent.median(
        TABLE, "x", by="k", groups=[1, 2], **WIDE, **to
    ),
    "of several": lambda **to: prudent.table(TABLE, BOTH, epsilon=2.0, **to),
    "of several by group": lambda **to: prudent.table(
        TABLE, BOTH, by="city", groups=["a", "b"], epsilon=2.0, **to
    ),
    "of ends": lambda **to: prudent.Table(TABLE).certify_quantile(
        "x", p=0.5, epsilon=0.5, high=550.0, **to
    ),
    "of a summary": lambda **to: prudent.describe(TABLE, epsilon=2.0, **to),
    "of a synthetic table": lambda **to: prudent.Table(TABLE.select(["x", "city"])).synthesize(
        epsilon=2.0, delta=1e-6, **to
    ),
    "of bins": lambda **to: prudent.histogram(TABLE, "x", edges=[0, 300, 600], epsilon=1.0, **to),
}


@pytest.mark.parametrize("make", HONEST.values(), ids=HONEST.keys())
def test_true_receipts_of_every_shape_are_verified(make, tmp_path):
    make(receipt=tmp_path / "a.json")
    found = verify(tmp_path / "a.json")
    assert found.status == 0, found.lines()


def test_groups_and_files_are_those_of_the_request(tmp_path, status_of):
    data = {"x": np.arange(60.0), "city": ["a", "b", "c"] * 20}
    given = {"epsilon": 1.0, "by": "city", "receipt": tmp_path / "a.json"}
    prudent.count(pyarrow.table(data), "x", groups=["a", "b"], **given)
    own = json.loads((tmp_path / "a.json").read_text())
    assert status_of(own) == 0
    assert status_of(changed(own, (("released", "c"), own["released"]["a"]))) == 1
    assert status_of(own | {"files": {"data.csv": "0" * 64}}) == 1


AGGREGATION = prudent.Sum(clip=1.0, noise_multiplier=4.0)


def run():
    """The receipt of a run, as `fit` makes it; of one step, whose price is quickly proved."""
    given = {"sampling_rate": 0.1, "steps": 1, "aggregation": AGGREGATION, "expected_batch": 20}
    plan = prudent.Plan(**given)
    asked = {"plan": plan, "run": "a", "unit": None}
    price = {"epsilon": plan.epsilon(1e-5), "delta": 1e-5, "relation": plan.relation}
    released = {"files": {}}
    return receipt_of("training", asked=asked, event=plan.event, released=released, **price).plain()


PTR = {
    "aggregation": prudent.ProposeTestRelease(
        clip=1.0, noise_multiplier=4.0, propose=0.5, test=prudent.LaplaceTest(40.0), failure=1e-9
    )
}
SHAPES = {
    "plain": {},
    "watched": {"watch": prudent.LossRelease(loss_every=7, bound=2.0, noise_multiplier=9.0)},
    "after another": {"before": dp.GaussianDpEvent(30.0)},
    "in turns": {"num_bands": 4},
    "tested": PTR,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_event_of_a_run_is_derived_from_its_plan(shape):
    from prudent_verify import plans
    from prudent_verify.events import Relation, parsed

    given = {"sampling_rate": 0.1, "steps": 20, "aggregation": AGGREGATION, "expected_batch": 20}
    plan = prudent.Plan(**given | SHAPES[shape])
    asked = {"plan": plan, "run": "a", "unit": None}
    price = {"epsilon": 1.0, "delta": 1e-5, "relation": plan.relation}
    found = receipt_of("training", asked=asked, event=plan.event, released={}, **price)
    relation = Relation.parsed(found.relation)
    wanted = (found.kind, found.asked, parsed(found.event), relation)
    assert plans.problem_of(*wanted) is None
    more = found.asked | {"plan": found.asked["plan"] | {"steps": 40}}
    assert plans.problem_of(found.kind, more, *wanted[2:]) is not None


def test_a_plan_pays_for_all_of_its_steps(status_of):
    honest = run()
    assert status_of(honest) == 0
    for steps, rate, noise in ((20, 0.1, 4.0), (1, 0.5, 4.0), (1, 0.1, 1.0)):
        places = ("steps",), ("sampling_rate",), ("aggregation", "noise_multiplier")
        values = zip(places, (steps, rate, noise), strict=True)
        forged = changed(honest, *((("asked", "plan", *place), each) for place, each in values))
        assert status_of(forged) == 1
    for kind in ("Mean", "NoClipping", None, []):  # with the noise of another one
        assert status_of(changed(honest, (("asked", "plan", "aggregation", "kind"), kind))) == 1
    for asked in ({}, {"plan": None}, {"plan": {}}, {"trials": {"mean": 4.0, "shape": 1.0}}):
        assert status_of(honest | {"asked": asked}) == 1


def test_a_search_pays_for_all_of_its_candidates(status_of):
    from prudent.tune import Geometric

    trials = Geometric(4)
    event = trials.event(dp.LaplaceDpEvent(10.0))
    asked = {"trials": trials, "run": "a", "delta": 0.0}
    price = {"epsilon": 0.31, "delta": 0.0}
    honest = receipt_of("tuning", asked=asked, event=event, released={}, **price).plain()
    assert status_of(honest) == 0
    for name, value in (("mean", 100.0), ("shape", 0.0)):
        assert status_of(changed(honest, (("asked", "trials", name), value))) == 1


def test_a_model_is_the_one_of_its_receipt(status_of, tmp_path):
    path, model = tmp_path / "receipt.json", tmp_path / "checkpoint.pt"
    model.write_bytes(b"weights")
    files = {model.name: hashlib.sha256(b"weights").hexdigest()}
    content = run() | {"files": files, "released": {"files": files}}
    path.write_text(sealed(content))
    assert verify(path).status == 0
    model.write_bytes(b"other weights")
    assert verify(path).status == 1
    for files in ({"../checkpoint.pt": "0" * 64}, {"checkpoint.pt": "0"}, {"checkpoint.pt": 3}):
        assert status_of(content | {"files": files}) in (1, 2)
    for empty in ({"files": {}}, {"released": {}}, {"released": {"files": {}}}, {"released": None}):
        assert status_of(content | empty) == 1


def test_a_large_delta_is_no_guarantee(charged, status_of):
    for delta in (0.999999, 0.5, 0.4, 0.01):
        forged = charged[0] | {"ledger": None, "epsilon": 0.001, "delta": delta}
        forged |= {"asked": {"unit": None}, "released": {}}
        assert status_of(forged) == 2


def test_a_delta_of_minus_zero_is_zero(charged, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(sealed(charged[0] | {"ledger": None, "delta": -0.0}))
    assert "δ = 0 " in verify(path).summary


def test_an_odd_signature_ends_no_checklist(charged, tmp_path, capsys):
    path = tmp_path / "forged.json"
    for signature in ({}, {"key": "0" * 64}, {"key": 3, "signature": 4}, {"by": "me"}):
        path.write_text(sealed(charged[0] | {"signature": signature}))
        assert main(["verify", str(path), "--checklist", str(tmp_path / "list.md")]) == 2
        assert "Please report" not in capsys.readouterr().err


def test_a_claim_between_bounds_is_not_called_proved(charged, tmp_path, monkeypatch):
    from prudent_verify import checks
    from prudent_verify.prices import Found

    path = tmp_path / "receipt.json"
    path.write_text(sealed(charged[0]))
    shown, prove = Found(0.5 * 1.0009, "laws", 0.5 * 0.9999), checks.prove
    monkeypatch.setattr(checks, "prove", lambda *own: prove(*own) if own[-1] else shown)
    found = verify(path)
    assert (found.status, found.epsilon) == (4, shown.epsilon)
    assert found.summary.endswith("ε = 0.50045 at δ = 0 was proved, and not the ε = 0.5 claimed.")
    words = [each.words for each in found.findings if each.claim == "price"]
    assert "is claimed, within [0.49995, 0.50045], not proved." in words[0]
    monkeypatch.setattr(checks, "prove", lambda *_: attrs.evolve(shown, least=0.500001))
    assert verify(path).status == 1


def test_verified_says_what_was_not_checked(charged, tmp_path):
    path = tmp_path / "receipt.json"
    path.write_text(sealed(charged[0]))
    assert verify(path).summary.endswith("not signed; no ledger was asked.")
    found = verify(path, head=charged[0]["ledger"]["head"])
    assert found.summary.endswith("not signed; the head of its ledger was compared.")
    assert found.summary.startswith("Verified: ε = 0.5 at δ = 0 was proved;")
    shown = found.plain()["shown"]
    assert shown.pop("epsilon") == pytest.approx(0.5)
    assert shown == {"delta": 0.0, "signer": None, "head": True}


def test_an_allocation_is_proved_by_one_step_of_each_epoch_or_not_at_all(status_of):
    step = {"kind": "GaussianDpEvent", "noise_multiplier": 8.0}
    epoch = {"kind": "RandomAllocationDpEvent", "event": step, "steps": 10}
    content = run() | {"kind": "release", "asked": {"unit": None}, "event": repeated(epoch, 4)}
    alone = content | {"event": repeated(step, 4), "epsilon": 1.2}
    assert status_of(alone) == status_of(content | {"epsilon": 1.2}) == 0
    assert status_of(alone | {"epsilon": 0.5}) == 1
    assert status_of(content | {"epsilon": 0.5}) == 2  # it may hold, by a proof that is not here


HARMLESS = {
    ("format",): "another format is not read, or is this one",
    ("digest",): "computed again, here and by whoever seals a receipt anew",
    ("digests",): "likewise",
    ("theorems",): "likewise: they follow from the event",
    ("signature",): "there is none; a receipt that has one is bound by it",
    ("versions",): "they claim nothing",
    ("context", "program"): "it claims nothing",
    ("context", "data"): "what the owner of the data declares is told as declared",
    ("context", "budget"): "a limit is told as assumed; less than was spent is refuted",
}
"""Leaves whose change deceives nobody, and why. All others are refused."""

MISSING = object()
CHANGES = {
    "another": other,
    "nothing": lambda value: None if value is not None else 0,
    "left out": lambda value: MISSING,
    "another type": lambda value: [value],
    "zero": lambda value: 0.0 if value != 0 or isinstance(value, bool) else 1.0,
    "an object": lambda value: {"value": value},
}


def mutated(content, place, change):
    """A copy with one leaf changed, or left out."""
    inside = content = copy.deepcopy(content)
    for name in place[:-1]:
        inside = inside[name]
    value = change(inside[place[-1]])
    if value is MISSING:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value
    return content


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_any_changed_leaf_is_refused_or_harmless(charged, change, status_of):
    """Whoever changes a leaf also computes digests and theorems again."""
    places = list(places_of(charged[0]))
    assert len(places) > 60
    accepted = set()
    for place in places:
        if status_of(mutated(charged[0], place, change)) == 0:
            accepted.add(place)
    assert not [each for each in accepted if not {each[:1], each[:2]} & set(HARMLESS)]


def test_every_harmless_leaf_is_one_of_a_receipt(charged):
    tops = {place[:1] for place in places_of(charged[0])} | {("context", "data")}
    tops |= {place[:2] for place in places_of(charged[0])}
    assert set(HARMLESS) <= tops | {("context", "program")}


def test_both_readers_bind_a_request_alike(charged, tmp_path):
    from prudent.accounting.relations import ADD_REMOVE
    from prudent.receipts.making import request_digest
    from prudent_verify.receipt import load, read

    path = tmp_path / "receipt.json"
    path.write_text(sealed(charged[0]))
    found = read(load(path), path)[0]
    assert found.request() == request_digest("release", found.asked, None, ADD_REMOVE)
    assert attrs.evolve(found, unit="person").request() != found.request()
