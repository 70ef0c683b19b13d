"""One run with many canaries: how much of the price it finds, and that an honest run stands."""

import pytest

from prudent import ArgumentError
from prudent.accounting import GaussianTest
from prudent.audit.training.one_run import one_run
from prudent.training import Plan, ProposeTestRelease, Sum, noise

pytestmark = pytest.mark.usefixtures("same_draws")


def plan(noise_multiplier, rate=1.0, steps=1):
    rule = Sum(clip=1.0, noise_multiplier=noise_multiplier)
    return Plan(sampling_rate=rate, steps=steps, aggregation=rule)


@pytest.mark.parametrize(("against", "least"), [("point", 0.4), ("curve", 0.5)])
def test_one_run_finds_two_fifths_of_the_price(against, least):
    result = one_run(plan(1.0), delta=1e-5, canaries=20_000, guesses=480, against=against)
    assert least < result.share < 1
    assert not result.refuted
    assert result.runs == 20_000


def test_a_sampled_run_is_audited_too():
    result = one_run(plan(1.0, rate=0.5, steps=4), delta=1e-4, canaries=4_000)
    assert 0.2 < result.share < 1


@pytest.mark.parametrize("against", ["point", "curve"])
def test_a_tenth_of_the_noise_is_found(monkeypatch, against):
    add = noise.HostNoise.add_
    monkeypatch.setattr(
        noise.HostNoise,
        "add_",
        lambda self, total, deviation, state: add(self, total, deviation / 10, state),
    )
    result = one_run(plan(2.0), delta=1e-5, canaries=2_000, guesses=500, against=against)
    assert result.refuted


def test_a_tested_sum_is_refused():
    rule = ProposeTestRelease(clip=1.0, propose=0.5, noise_multiplier=1.0, test=GaussianTest(4.0))
    with pytest.raises(ArgumentError, match="white_box"):
        one_run(Plan(sampling_rate=1.0, steps=1, aggregation=rule), delta=1e-5)
