"""White-box audits of real steps: honest ones stand, close to their price; planted faults fall."""

import copy
import inspect
import math

import attrs
import numpy as np
import pytest
import torch

from prudent import ArgumentError
from prudent.accounting import GaussianTest, LaplaceTest
from prudent.audit.training.one_run import one_run
from prudent.audit.training.scenes import (
    Likelihood,
    Releases,
    dirac,
    displaced,
    observe,
    observe_lanes,
    opposed,
)
from prudent.audit.training.white_box import epsilon_of_alarms, most_telling_trim, white_box
from prudent.records.people import Unit
from prudent.training import (
    FixedTrim,
    Mean,
    Plan,
    ProposeTestRelease,
    Sum,
    aggregation,
    noise,
    step,
)
from prudent.training.run.run import Run

pytestmark = pytest.mark.usefixtures("same_draws")

BATCH = 64.0


def plain(noise_multiplier, rate=1.0, steps=1):
    rule = Sum(clip=1.0, noise_multiplier=noise_multiplier)
    return Plan(sampling_rate=rate, steps=steps, aggregation=rule, expected_batch=BATCH)


def ptr(trim, rate=1.0, steps=1, **changes):
    settings = {
        "clip": 1.0,
        "propose": 0.5,
        "noise_multiplier": 1.0,
        "test": GaussianTest(1.0),
        "failure": 1e-3,
        "trim": FixedTrim((trim + 0.5) / BATCH),
    }
    rule = ProposeTestRelease(**(settings | changes))
    return Plan(sampling_rate=rate, steps=steps, aggregation=rule, expected_batch=BATCH)


# Honest runs.


def test_an_honest_run_stands_and_reaches_four_fifths_of_its_price():
    plan = plain(1.0, rate=0.2, steps=10)
    result = white_box(plan, delta=1e-2, runs=0, lanes=100_000)
    assert result.exact == pytest.approx(result.claimed, rel=1e-3)
    assert 0.8 < result.share < 1
    assert not result.refuted


@pytest.mark.unhurried
def test_an_honest_tested_run_stands():
    result = white_box(ptr(4), delta=0.05, runs=50, confidence=0.999)
    assert not result.refuted
    assert result.curve is not None
    assert result.sentence


def test_the_bound_of_alarms_is_exceeded_as_rarely_as_stated():
    random, epsilon, delta, runs = np.random.default_rng(5), 1.5, 0.05, 400
    for rate in (0.01, 0.05, 0.2):
        hits = random.binomial(runs, min(1.0, math.exp(epsilon) * rate + delta), 4000)
        alarms = random.binomial(runs, rate, 4000)
        lower = epsilon_of_alarms(hits, alarms, runs, runs, delta=delta, confidence=0.95)
        assert np.mean(lower > epsilon) <= 0.05


# Planted faults, each in the code that trains.


def halved_noise(monkeypatch):
    add = noise.HostNoise.add_
    monkeypatch.setattr(
        noise.HostNoise,
        "add_",
        lambda self, total, deviation, state: add(self, total, deviation / 2, state),
    )


def noise_of_the_first_step_again(monkeypatch):
    add = noise.HostNoise.add_

    def again(self, total, deviation, state):
        first = copy.deepcopy(state)
        first.move_to(1)
        add(self, total, deviation, first)

    monkeypatch.setattr(noise.HostNoise, "add_", again)


def margin_without_noise(monkeypatch):
    zero = torch.zeros((), dtype=torch.float64)
    monkeypatch.setattr(aggregation, "margin_noise", lambda test, words: zero)


def division_by_the_drawn_batch(monkeypatch):
    release = step.Step._release

    def divided(self, *given):
        released = release(self, *given)
        scale = self.expected_batch / released.outcome.drawn.clamp_min(1)
        return released._replace(scale=released.scale * scale)

    monkeypatch.setattr(step.Step, "_release", divided)


def trim_from_the_drawn_batch(monkeypatch):
    decide = ProposeTestRelease.decide

    def drawn(self, norms, valid, trim, words):
        return decide(self, norms, valid, torch.floor(valid.sum() / 2), words)

    monkeypatch.setattr(ProposeTestRelease, "decide", drawn)


def honest(monkeypatch):
    pass


@pytest.mark.unhurried
@pytest.mark.parametrize(
    ("fault", "plan", "delta", "options"),
    [
        (halved_noise, plain(2.0), 1e-2, {"runs": 0, "lanes": 20_000}),
        (noise_of_the_first_step_again, plain(2.0, 0.5, 4), 1e-2, {"runs": 0, "lanes": 20_000}),
        (
            margin_without_noise,
            ptr(13, noise_multiplier=2.0, test=GaussianTest(4.0)),
            1e-2,
            {"runs": 100, "scenes": ["dirac"]},
        ),
        pytest.param(
            division_by_the_drawn_batch,
            plain(1.0),
            0.02,
            {"runs": 1500, "lanes": 0, "scenes": ["opposed"]},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            trim_from_the_drawn_batch,
            ptr(32, test=GaussianTest(8.0)),
            0.02,
            {"runs": 1500, "scenes": ["opposed"]},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_planted_fault_is_found(monkeypatch, fault, plan, delta, options):
    fault(monkeypatch)
    result = white_box(plan, delta=delta, **options)
    assert result.refuted, result.lines()


QUIET = {"noise_multiplier": 1e-3}


@pytest.mark.parametrize(
    ("fault", "plan", "sensitivity", "moves"),
    [
        (honest, plain(1e-3), 1.0, 1.0),
        (division_by_the_drawn_batch, plain(1e-3), 1.0, 2.0),
        (honest, ptr(32, **QUIET), 0.5, 0.5),
        (trim_from_the_drawn_batch, ptr(32, **QUIET), 0.5, 1.0),
    ],
)
def test_the_opposed_canary_moves_a_faulty_release_further(
    monkeypatch, fault, plan, sensitivity, moves
):
    fault(monkeypatch)
    scene = opposed(plan.aggregation, 63)
    absent, present = (observe(plan, scene, present=each, runs=1) for each in (False, True))
    moved = float(present.along[0, 0] - absent.along[0, 0])
    assert moved == pytest.approx(moves, abs=0.05)
    assert (moved > sensitivity + 0.05) == (fault is not honest)


# What the attacker expects.


@pytest.mark.parametrize(("reveals", "trim"), [("margin", 3), ("monotone-branch", 10)])
def test_a_canary_attains_the_price_of_the_test(reveals, trim):
    plan = ptr(trim, reveals=reveals, test=GaussianTest(2.0), failure=1e-8)
    found = max(
        Likelihood(plan, scene).epsilon(1e-2) or 0.0
        for scene in (dirac(plan.aggregation), displaced(plan.aggregation, trim))
    )
    assert found == pytest.approx(plan.epsilon(1e-2), rel=0.01)


def test_the_most_telling_trim_is_one_where_the_noisy_margin_is_shown():
    plan = ptr(0, rate=0.3, steps=2, reveals="margin", test=LaplaceTest(1.0), failure=1e-8)
    chosen = most_telling_trim(plan, 1e-2)
    likelihood = Likelihood(chosen, dirac(chosen.aggregation))
    assert chosen.aggregation.trim.start(chosen.expected_batch) == 1
    assert likelihood.epsilon(1e-2) == pytest.approx(plan.epsilon(1e-2), rel=1e-3)


@pytest.mark.parametrize("reveals", ["margin", "monotone-branch"])
@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_the_likelihood_ratio_of_an_honest_run_has_mean_one(rate, reveals):
    """E[p(seen | present)/p(seen | absent)] without the canary is 1, for the law that runs have."""
    plan = ptr(4, rate=rate, steps=2, noise_multiplier=2.0, reveals=reveals)
    rule, random, shape = plan.aggregation, np.random.default_rng(2), (200_000, 2)
    margin = 4 + random.standard_normal(shape)
    passed = margin > rule.threshold
    along = random.standard_normal(shape) * np.where(passed, 1.0, 2.0)
    seen = Releases(along, passed, margin, np.full(shape, 4.0))
    ratios = np.exp(Likelihood(plan, dirac(rule)).score(seen))
    assert ratios.mean() == pytest.approx(1.0, abs=6 * ratios.std() / math.sqrt(len(ratios)))
    assert ratios.std() > 0.1


def test_lanes_show_canaries_where_they_are():
    present = np.arange(6) % 2 == 0
    seen = observe_lanes(plain(1e-3, steps=3), present)
    assert seen.shape == (6, 3)
    assert np.allclose(seen, present[:, None], atol=0.02)


def test_a_plan_without_noise_or_with_nothing_to_try_is_refused():
    with pytest.raises(ArgumentError, match="private aggregation"):
        white_box(Plan(sampling_rate=1.0, steps=1, aggregation=Mean()), delta=1e-5)
    with pytest.raises(ArgumentError, match="scenes"):
        white_box(plain(1.0), delta=1e-5, runs=0, lanes=0)


@pytest.mark.parametrize("method", [white_box, one_run])
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("epsilon", -1.0),
        ("delta", 2.0),
        ("confidence", 1.0),
        ("confidence", 0.2),
        ("guesses", 2.5),
        ("guesses", 10**6),
        ("records_per_person", 2.5),
    ],
)
def test_wrong_arguments_are_named_before_any_step(monkeypatch, method, argument, value):
    monkeypatch.setattr(Run, "take", lambda _: pytest.fail("a step was taken"))
    if argument not in inspect.signature(method).parameters:
        return
    with pytest.raises(ArgumentError) as error:
        method(plain(1.0), **{"epsilon": 1.0, "delta": 1e-5, argument: value})
    assert error.value.argument == argument


# People.


def test_a_person_with_many_records_tells_no_more_than_her_price():
    """An honest run is refuted with a probability of at most 1e-8."""
    result = white_box(
        plain(2.0), delta=1e-2, runs=0, lanes=300, records_per_person=6, confidence=1 - 1e-8
    )
    assert not result.refuted


def test_clipping_her_records_one_by_one_is_refuted(monkeypatch):
    """Twelve clips move a lane by six deviations: of 300 guesses hardly one is wrong."""
    people = Unit.people

    def each_alone(self, items, records):
        return attrs.evolve(people(self, items, records), members=[[i] for i in range(records)])

    monkeypatch.setattr(Unit, "people", each_alone)
    result = white_box(plain(2.0), delta=1e-2, runs=0, lanes=300, records_per_person=12)
    assert result.refuted
