"""Receipts by whoever wants to deceive: with digests and theorems that fit, and false claims.

None may be verified, and none may end `verify` with a traceback: what cannot be read has status 2.
"""

import copy
import hashlib
import json

import numpy as np
import pyarrow
import pytest

import prudent
from prudent.cli import main
from prudent.receipts.receipt import Receipt, digest_of, theorems_of

pytest.importorskip("flint")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """What stands in an honest receipt with a certificate."""
    path = tmp_path_factory.mktemp("honest") / "answer.json"
    prudent.median(np.arange(2000.0), epsilon=0.5, certify=40.0, receipt=path)
    return json.loads(path.read_text())


def sealed(content):
    """The text of a receipt, with digests and, where there are any, theorems that fit."""
    content = copy.deepcopy(content)
    if content.get("ledger") is None and isinstance(content.get("context"), dict):
        content["context"].pop("budget", None)
    try:
        fields = {k: v for k, v in content.items() if k not in ("format", "digest")}
        content["theorems"] = theorems_of(content["event"], Receipt(**fields))
    except Exception:  # of a receipt that is none
        pass
    try:
        for name in content["digests"]:
            content["digests"][name] = digest_of(content.get(name))
        skipped = ("digest", "signature")
        content["digest"] = digest_of({k: v for k, v in content.items() if k not in skipped})
    except Exception:
        content["digest"] = "0" * 64
    return json.dumps(content)


@pytest.fixture
def status_of(tmp_path, capsys):
    """What the command line ends with, which says so in words of its own."""

    def status(text, *options):
        path = tmp_path / "forged.json"
        path.write_text(text)
        found = main(["verify", str(path), "--checklist", str(tmp_path / "list.md"), *options])
        out, err = capsys.readouterr()
        assert "Please report" not in err
        start = ("Verified:", "Refuted:", "Not verified:")[found]
        assert out.startswith(start) or (found == 2 and err)
        return found

    return status


def with_event(content, event, epsilon=0.01, delta=0.0):
    changes = {"event": event, "epsilon": epsilon, "delta": delta, "asked": {}, "released": {}}
    return copy.deepcopy(content) | changes


def test_what_is_sealed_again_is_verified(honest, status_of):
    assert status_of(sealed(honest)) == 0


LAPLACE = {"kind": "LaplaceDpEvent", "noise_multiplier": 1.0}
GAUSSIAN = {"kind": "GaussianDpEvent", "noise_multiplier": 1.0}
TEST = {"kind": "LaplaceTest", "scale": 1.0}
REFUSING = {
    "kind": "ProposeTestReleaseDpEvent",
    "noise_multiplier": "inf",
    "propose": 0.0,
    "test": TEST,
    "failure": 1e-8,
    "robust_noise_multiplier": 1e9,
    "reveals": "branch",
}


def several(*events):
    return {"kind": "ComposedDpEvent", "events": list(events)}


def discrete(sensitivity):
    return {"kind": "DiscreteLaplaceDpEvent", "noise_parameter": 1.0, "sensitivity": sensitivity}


def best_of(event, mean, shape):
    return {"kind": "RepeatAndSelectDpEvent", "event": event, "mean": mean, "shape": shape}


def sampled(event, rate):
    return {"kind": "PoissonSampledDpEvent", "event": event, "sampling_probability": rate}


def repeated(event, count):
    return {"kind": "SelfComposedDpEvent", "event": event, "count": count}


def approximate(epsilon, delta):
    return {"kind": "ApproximateDpEvent", "epsilon": epsilon, "delta": delta}


EVENTS = {
    "nothing in a sample": sampled(several(), 0.5),
    "no runs": repeated(LAPLACE, 0),
    "fewer runs than none": several(LAPLACE, repeated(LAPLACE, -1)),
    "runs without end": repeated(LAPLACE, 10**400),
    "noisy runs without end": repeated(GAUSSIAN, 10**400),
    "many runs": several(repeated(REFUSING, 10**15), GAUSSIAN),
    "half a sensitivity": discrete(0.5),
    "a negative sensitivity": several(LAPLACE, discrete(-1)),
    "sensitivity as text": discrete("0"),
    "a negative shape": best_of(LAPLACE, 2.0, -2),
    "a very negative shape": several(LAPLACE, best_of(LAPLACE, 2.0, -3)),
    "an endless shape": best_of(LAPLACE, 2.0, 10**400),
    "an empty choice": several(LAPLACE, {"kind": "WorstOfDpEvent", "events": []}),
    "no sampling": sampled(LAPLACE, 0),
    "negative sampling": sampled(GAUSSIAN, -1),
    "endless noise": {"kind": "LaplaceDpEvent", "noise_multiplier": "inf"},
    "very much noise": {"kind": "LaplaceDpEvent", "noise_multiplier": 10**400},
    "noise in other digits": {"kind": "LaplaceDpEvent", "noise_multiplier": "\u0661\u0660\u0660"},
    "a wide test": several({"kind": "DiscreteGaussianTest", "scale": 1e300}),
    "a test that mostly passes": REFUSING | {"failure": 0.9},
    "a test that always passes": REFUSING | {"failure": 1},
    "a negative delta": approximate(0.001, -1),
    "a large delta": approximate(0.001, 5),
    "no kind": {},
    "kind of another type": {"kind": ["LaplaceDpEvent"]},
    "a list inside": several([]),
    "a text inside": several("LaplaceDpEvent"),
    "events of another type": {"kind": "ComposedDpEvent", "events": 3},
    "a list": [LAPLACE],
    "a text": "LaplaceDpEvent",
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS.keys())
def test_no_odd_event_is_cheap(honest, event, status_of):
    for delta in (0.0, 1e-6):
        assert status_of(sealed(with_event(honest, event, delta=delta))) in (1, 2)


def test_an_exact_price_is_refuted_by_the_last_digit(honest, status_of):
    content = with_event(honest, LAPLACE, epsilon=1.0)
    assert status_of(sealed(content)) == 0
    assert status_of(sealed(content | {"epsilon": 0.9999999999999999})) == 1


def test_a_price_in_closed_form_has_no_grid_to_hide_behind(honest, status_of):
    content = with_event(honest, GAUSSIAN, epsilon=4.3772, delta=1e-5)  # 4.377178…
    assert status_of(sealed(content)) == 0
    assert status_of(sealed(content | {"epsilon": 4.3771})) == 1


CERTIFICATES = {
    "from nothing": {"basis": {}},
    "without a basis": {"basis": None},
    "from something unknown": {"basis": {"kind": "trust"}},
    "from a text": {"basis": "trust"},
    "of any confidence": {"confidence": 0.0},
    "of less than any": {"confidence": -5.0},
    "of more than all": {"confidence": 2.0},
    "of a ball of confidence": {"confidence": "0.9 +/- 0.5"},
    "of half records": {"needed": 1e300, "withstands": 1e300},
    "of no number": {"needed": "many"},
}


@pytest.mark.parametrize("change", CERTIFICATES.values(), ids=CERTIFICATES.keys())
def test_no_certificate_is_taken_on_trust(honest, change, status_of):
    content = copy.deepcopy(honest)
    content["ledger"] = None
    noisy = content["released"]["certificate"]["basis"]["noisy"]
    more = {"needed": noisy, "withstands": max(0, noisy - 1)}
    content["released"]["certificate"] |= more | change
    assert status_of(sealed(content)) in (1, 2)


FIELDS = {
    "epsilon": ["0.5", True, None, -1.0, "nan", "-inf", [0.5], {}],
    "delta": ["0", False, None, -1e-6, 1.0, [], 10**400],
    "relation": [None, {}, [], {"adjacency": "add-remove"}, "add-remove"],
    "unit": [None, 3, ["record"]],
    "asked": [None, [], "median"],
    "files": [None, [], "a.json"],
    "digests": [None, [], "0"],
    "ledger": [[], "rows", 3, {}, {"rows": []}],
    "theorems": [None, {}, [{}], ["theorem"], 3, [["claim", "theorem", "proof"]]],
    "versions": [None, [], 3],
    "predictable": [None, 0, "no"],
    "signature": [[], "", {}, {"key": 3, "signature": 4}, {"key": "0" * 64, "signature": "00"}],
    "kind": [None, "other", []],
    "event": [None, [], 3],
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_of_another_type_are_no_receipt(honest, name, status_of):
    for value in FIELDS[name]:
        assert status_of(sealed(copy.deepcopy(honest) | {name: value})) in (1, 2), value


@pytest.mark.parametrize("released", [None, 3, [1], "a", [{}]])
def test_answers_by_group_are_named(honest, released, status_of):
    content = copy.deepcopy(honest) | {"ledger": None, "released": released}
    content["asked"] |= {"by": "city", "groups": ["a"]}
    assert status_of(sealed(content)) == 1


def test_odd_rows_of_a_ledger_are_refuted(honest, status_of):
    rows = ["", "[]", "3", "{}", '{"dataset": 1}', '{"event": {}, "details": []}', "[" * 5000]
    for record in rows:
        noted = {"before": "0", "dataset": 1, "rows": [{"record": record, "digest": "0"}]}
        content = copy.deepcopy(honest) | {"ledger": noted | {"head": "0"}}
        assert status_of(sealed(content)) == 1


def test_text_that_readers_understand_differently_is_no_receipt(honest, status_of):
    text = json.dumps(honest)
    assert status_of(text) == 0
    twice = text.replace('"epsilon": 0.5', '"epsilon": 0.1, "epsilon": 0.5')
    assert twice != text
    nan = text.replace('"noise_scale": 0.0', '"noise_scale": NaN')
    endless = text.replace('"noise_scale": 0.0', '"noise_scale": 1e999')
    half = text.replace('"selected"', '"\\ud800"')
    deep = text.replace('"noise_scale": 0.0', f'"noise_scale": {"[" * 300}{"]" * 300}')
    deeper = text.replace('"noise_scale": 0.0', f'"noise_scale": {"[" * 100_000}{"]" * 100_000}')
    for changed in (twice, nan, endless, half, deep, deeper):
        assert changed != text
        assert status_of(changed) == 2


def test_many_records_of_a_person_take_no_more_time(honest, status_of):
    for adjacency in ("add-remove", "replace-one"):
        for event in (sampled(GAUSSIAN, 0.01), REFUSING):
            content = with_event(honest, event, delta=1e-6)
            content["relation"] = content["relation"] | {"adjacency": adjacency, "records": 10**9}
            assert status_of(sealed(content)) in (1, 2)


def test_a_signer_that_is_not_known_is_not_a_refutation(honest, status_of):
    assert status_of(json.dumps(honest), "--signer", "nobody of this name") == 2
    assert status_of(json.dumps(honest), "--signer", "0" * 64) == 1


def test_a_row_of_a_ledger_binds_unit_and_price(status_of, tmp_path):
    with prudent.Ledger(tmp_path / "budget.db", epsilon=5.0, delta=1e-5) as ledger:
        data = pyarrow.table({"user": np.arange(500) // 2, "salary": np.arange(500.0)})
        given = {"column": "salary", "unit": "user", "ledger": ledger}
        prudent.mean(data, epsilon=0.5, bounds=(0, 500), receipt=tmp_path / "a.json", **given)
    content = json.loads((tmp_path / "a.json").read_text())
    assert status_of(sealed(content)) == 0
    for changes in ({"unit": "record"}, {"unit": "record", "asked": {"unit": None}}):
        asked = content["asked"] | changes.get("asked", {})
        assert status_of(sealed(content | changes | {"asked": asked})) == 1
    dear = json.loads(content["ledger"]["rows"][0]["record"])
    dear["price"]["epsilon"] = 2.0
    record = json.dumps(dear)
    digest = hashlib.sha256(f"{content['ledger']['before']}\n{record}".encode()).hexdigest()
    noted = content["ledger"] | {"rows": [{"record": record, "digest": digest}], "head": digest}
    assert status_of(sealed(content | {"ledger": noted})) == 1


@pytest.mark.parametrize(
    ("spent", "delta", "expected"), [(0.5, 1e-5, 0), (0.0, 1e-5, 1), (0.4, 1e-5, 1), (0.5, 0.6, 1)]
)
def test_a_ledger_spent_at_least_what_it_charged(status_of, tmp_path, spent, delta, expected):
    """Else a receipt could say that most of a budget is left."""
    with prudent.Ledger(tmp_path / "budget.db", epsilon=5.0, delta=1e-5) as ledger:
        prudent.median(np.arange(99.0), epsilon=0.5, ledger=ledger, receipt=tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    noted, last = content["ledger"], content["ledger"]["before"]
    for row in noted["rows"]:
        fields = json.loads(row["record"])
        fields |= {"spent": spent} if "spent" in fields else {}
        row["record"] = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        last = hashlib.sha256(f"{last}\n{row['record']}".encode()).hexdigest()
        row["digest"] = noted["head"] = last
    content["context"]["budget"]["delta"] = delta
    assert status_of(sealed(content)) == expected


def test_a_receipt_replaces_nothing_but_a_receipt(tmp_path):
    """Not the data, nor the ledger; and that is found before anything is charged."""
    data = tmp_path / "data.csv"
    data.write_text("salary\n1\n2\n")
    with prudent.Ledger(tmp_path / "budget.db", epsilon=1.0, delta=1e-5) as ledger:
        for bad in (data, tmp_path / "budget.db", "/dev/null"):
            with pytest.raises(ValueError, match="a receipt to replace"):
                prudent.count(np.arange(9.0), epsilon=0.1, ledger=ledger, receipt=bad)
        assert ledger.spent == 0
        for _ in range(2):
            receipt = tmp_path / "a.json"
            prudent.count(np.arange(9.0), epsilon=0.1, ledger=ledger, receipt=receipt)
    assert data.read_text() == "salary\n1\n2\n"


def test_prices_of_different_neighbours_are_not_added_up(honest, tmp_path, capsys):
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    other = {"relation": honest["relation"] | {"adjacency": "replace-one"}, "epsilon": 1.0}
    other |= {"asked": {}, "released": {}}
    for path, change, said in (
        (paths[0], {}, "at most ε = 1 at δ = 0"),
        (paths[1], other, "do not add up"),
        (paths[1], {"epsilon": 0.4, "asked": {}, "released": {}}, "Not all of them are verified"),
    ):
        paths[1].write_text(sealed(honest))
        path.write_text(sealed(copy.deepcopy(honest) | change))
        assert main(["budget", "report", *map(str, paths)]) == 0
        assert said in capsys.readouterr().out
