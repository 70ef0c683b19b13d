"""Runs made elsewhere: their claimed ε is proved or refuted from a plain description."""

import copy
import json

import dp_accounting as dp
import pytest

pytest.importorskip("flint")
from prudent_verify import ReceiptError, verify
from prudent_verify.__main__ import main

RUN = {"sampling": "poisson", "sampling_rate": 0.01, "steps": 10_000, "noise_multiplier": 1.0}
OPACUS = {
    "claim": {"epsilon": 6.007, "delta": 1e-5},
    "relation": "add-remove",
    "run": RUN,
    "source": "the GDP accountant of Opacus: 6.007",
}
GAUSSIAN = {"noise": "gaussian", "scale": 4.0, "d_in": 1, "d_out": 0.03125}
GAUSSIAN |= {"measure": "ZeroConcentratedDivergence"}
ONCE = {"kind": "LaplaceDpEvent", "noise_multiplier": 2.0}
LAPLACE = {"noise": "laplace", "scale": 4.0, "d_in": 1, "d_out": 0.25, "measure": "MaxDivergence"}


@pytest.fixture
def of(tmp_path):
    def checked(content):
        path = tmp_path / "run.json"
        path.write_text(json.dumps(content))
        return verify(path)

    return checked


def claiming(content, epsilon, delta=1e-5, **changes):
    return copy.deepcopy(content) | {"claim": {"epsilon": epsilon, "delta": delta}} | changes


@pytest.mark.unhurried
def test_a_claim_by_an_approximation_is_refuted(of, tmp_path, capsys):
    """Opacus's own PRV accountant says 6.198 of the same run, and dp_accounting 6.188."""
    found = of(OPACUS)
    assert found.status == 1
    words = found.findings[0].words
    assert "At least ε = 6.186" in words
    assert "what can be shown is ε = 6.189" in words
    assert main([str(tmp_path / "run.json"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["status"] == "refuted"


@pytest.mark.thorough
def test_the_price_of_the_same_run_is_proved(of):
    assert of(claiming(OPACUS, 6.188)).status == 0
    assert of(claiming(OPACUS, 6.1865)).status == 1


def plain(value):
    """A named tuple of dp_accounting as JSON."""
    if hasattr(value, "_asdict"):
        return {name: plain(each) for name, each in value._asdict().items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def test_events_of_dp_accounting_are_read(of):
    event = dp.ComposedDpEvent([dp.GaussianDpEvent(4.0), dp.GaussianDpEvent(3.0)])
    truth = dp.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    content = {"relation": "add-remove", "event": plain(event.to_named_tuple())}
    assert of(claiming(content, truth * 1.0005)).status == 0
    assert of(claiming(content, truth * 0.999)).status == 1
    replaced = claiming(content, truth * 1.0005, relation="replace-one")
    assert of(replaced).status == 1
    assert of(claiming(content, 0.5, 0.0, event=ONCE)).status == 0
    several = {"adjacency": "add-remove", "records": 3}
    assert of(claiming(content, 0.5, 0.0, event=ONCE, relation=several)).status == 1
    assert of(claiming(content, 1.5, 0.0, event=ONCE, relation=several)).status == 0


def test_measurements_of_opendp_are_read(of):
    content = {"relation": "add-remove", "measurement": LAPLACE}
    assert of(claiming(content, 0.25, 0.0)).status == 0
    assert of(claiming(content, 0.24, 0.0)).status == 1
    assert of(claiming(content, 0.25, 0.0, measurement=LAPLACE | {"d_in": 2})).status == 1
    third = LAPLACE | {"scale": 3.0, "d_in": 1, "d_out": 0.3333333333333333}  # rounded down
    assert of(claiming(content, 0.34, 0.0, measurement=third)).status == 1
    # OpenDP's own conversion of ρ = 1/32 at δ = 1e-5 gives 1.048.
    gaussian = {"relation": "add-remove", "measurement": GAUSSIAN}
    assert of(claiming(gaussian, 1.05)).status == 0
    assert of(claiming(gaussian, 0.9)).status == 2  # it may hold, of this noise: ρ does not tell
    assert of(claiming(gaussian, 1.05, measurement=GAUSSIAN | {"scale": 3.0})).status == 1
    other = GAUSSIAN | {"measure": "MaxDivergence"}
    assert of(claiming(gaussian, 1.05, measurement=other)).status == 1


@pytest.mark.unhurried
def test_a_conversion_of_zero_concentrated_dp_is_an_upper_bound(of):
    opendp = pytest.importorskip("opendp.prelude")
    opendp.enable_features("contrib")
    space = opendp.atom_domain(T=int), opendp.absolute_distance(T=int)
    noisy = opendp.m.make_gaussian(*space, scale=4.0)
    assert noisy.map(1) == GAUSSIAN["d_out"]
    theirs = opendp.c.make_zCDP_to_approxDP(noisy).map(1).epsilon(delta=1e-5)
    content = {"relation": "add-remove", "measurement": GAUSSIAN}
    assert of(claiming(content, theirs * 1.0001)).status == 0
    truth = dp.pld.PLDAccountant().compose(dp.GaussianDpEvent(4.0)).get_epsilon(1e-5)
    proved = of(claiming(content, 2 * theirs)).epsilon
    assert truth < proved < theirs * 1.0001


def test_shuffled_batches_are_not_amplified(of):
    shuffled = RUN | {"sampling": "shuffle", "steps": 200, "noise_multiplier": 8.0}
    twice = dp.SelfComposedDpEvent(dp.GaussianDpEvent(8.0), 2)
    truth = dp.pld.PLDAccountant().compose(twice).get_epsilon(1e-5)
    assert of(claiming(OPACUS, truth * 1.001, run=shuffled, relation="zero-out")).status == 0
    assert of(claiming(OPACUS, truth * 0.9, run=shuffled, relation="zero-out")).status == 2
    one_more = shuffled | {"steps": 201}
    assert of(claiming(OPACUS, truth * 1.001, run=one_more, relation="zero-out")).status == 2


WRONG = {
    "no claim": {"run": RUN, "relation": "add-remove", "claim": {}},
    "two": OPACUS | {"event": {"kind": "GaussianDpEvent", "noise_multiplier": 1.0}},
    "neither": {"claim": OPACUS["claim"], "relation": "add-remove"},
    "another field": OPACUS | {"accountant": "GDP"},
    "another field of a run": OPACUS | {"run": RUN | {"clip": 1.0}},
    "another sampling": OPACUS | {"run": RUN | {"sampling": "fixed"}},
    "another relation": OPACUS | {"relation": "similar"},
    "shuffled, and one more": OPACUS | {"run": RUN | {"sampling": "shuffle"}},
    "no steps": OPACUS | {"run": RUN | {"steps": 0}},
    "no noise": OPACUS | {"run": RUN | {"noise_multiplier": 0.0}},
    "a rate of two": OPACUS | {"run": RUN | {"sampling_rate": 2.0}},
    "a negative price": OPACUS | {"claim": {"epsilon": -1.0, "delta": 1e-5}},
    "words": OPACUS | {"claim": {"epsilon": "small", "delta": 1e-5}},
    "no event": claiming({"relation": "add-remove", "event": {"kind": "NoOpDpEvent"}}, 1.0),
    "two classes": claiming(
        {"relation": "add-remove", "event": {"class_name": "NoOpDpEvent", **ONCE}}, 1.0
    ),
    "xi": claiming(
        {"relation": "add-remove", "event": {"kind": "ZCDpEvent", "rho": 0.1, "xi": 1}}, 1.0
    ),
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG.keys())
def test_what_is_no_description_is_refused(of, content):
    with pytest.raises(ReceiptError):
        of(content)
