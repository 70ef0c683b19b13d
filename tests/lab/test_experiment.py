"""Experiments: reproducible from their seed, solved on the safe side, and as good as they were."""

import attrs
import pytest
import torch

from prudent.accounting import ADD_REMOVE, REPLACE_ONE, ZERO_OUT, PldAccountant
from prudent.training import (
    AdaptiveTrim,
    FixedTrim,
    Mean,
    ProposeTestRelease,
    Sum,
    TrimmedSum,
)
from prudent_lab.corruption import GradientNoise, Mimic, RandomLabelFlip
from prudent_lab.datasets import Dataset, load
from prudent_lab.experiment import build_model, run
from prudent_lab.settings import Experiment, Method
from tests.raising import refused

FIXED = Experiment.of(epsilon=None, steps=15, noise_multiplier=1.0, batch=50, delta=1e-4)


@pytest.fixture(scope="module")
def table():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(450) % 3
    features = torch.randn(450, 5, generator=generator)
    features += 3 * torch.nn.functional.one_hot(labels, 5)
    return Dataset("table", features[:300], labels[:300], features[300:], labels[300:], 3, "")


def weights(result):
    return torch.cat([p.detach().flatten() for p in result.fitted.model.parameters()])


@pytest.mark.unhurried
@pytest.mark.parametrize("corrupt", ["none", "label:0.2", "gradient:0.2", "mimic:0.2"])
def test_a_seed_fixes_everything(table, corrupt):
    experiment = FIXED.changed(method="dpsgd", corrupt=corrupt)
    before = torch.get_rng_state()
    first, other = (
        run(experiment.changed(seed=seed), dataset=table, evaluations=1) for seed in (0, 1)
    )
    assert torch.equal(torch.get_rng_state(), before)  # the caller's draws stay the caller's
    torch.randn(7)  # and they change nothing here
    again = run(experiment, dataset=table, evaluations=1)
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))


def test_the_rules_of_the_methods():
    rules = {method: FIXED.changed(method=method).rule.aggregation(1.5) for method in Method}
    assert rules[Method.SGD] == Mean()
    assert rules[Method.DPSGD] == Sum(clip=1.0, noise_multiplier=1.5)
    assert rules[Method.TRIMMED] == TrimmedSum(clip=1.0, noise_multiplier=1.5, trim=FixedTrim(0.25))
    ptr = rules[Method.PTR]
    assert isinstance(ptr, ProposeTestRelease)
    assert ptr.trim == AdaptiveTrim(first=0.25, up=0.02, down=0.02, most=0.5)
    whole = FIXED.changed(trim_most=1.0).rule.aggregation(1.5)
    assert whole == attrs.evolve(ptr, trim=attrs.evolve(ptr.trim, most=1.0))


def test_a_sampling_rate_from_the_data_makes_their_number_public():
    assert FIXED.plan(1000).relation == ZERO_OUT
    public = FIXED.changed(public_size=1000)
    assert public.plan(990) == public.plan(1010)
    assert public.plan(990).relation == ADD_REMOVE
    assert FIXED.changed(relation=REPLACE_ONE).plan(1000).relation == REPLACE_ONE
    with refused("public_size"):
        FIXED.changed(relation=ADD_REMOVE)


def test_two_of_three_give_the_plan():
    common = FIXED.changed(method="dpsgd", epsilon=2.0, noise_multiplier=None)
    noise = common.plan(1000)
    assert (noise.steps, noise.sampling_rate, noise.expected_batch) == (15, 0.05, 50)
    assert noise.epsilon(1e-4) <= 2.0
    steps = common.changed(steps=None, noise_multiplier=1.0).plan(1000)
    assert steps.epsilon(1e-4) <= 2.0 < steps.epsilon_after(steps.steps + 1, 1e-4)
    with pytest.raises(ValueError, match="got epsilon = 2, steps = 60, noise_multiplier = 1"):
        common.changed(steps=60, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="Expected two of epsilon, steps and noise_multiplier"):
        Experiment.of(epsilon=2.0)
    with refused("steps"):
        Experiment.of(method="sgd")


def test_the_printed_numbers_are_those_of_the_plan(table):
    result = run(FIXED.changed(method="dpsgd"), dataset=table)
    plan = result.fitted.plan
    assert result.plain() == {
        "accuracy": result.accuracy,
        "epsilon": PldAccountant().compose(plan.event).get_epsilon(1e-4),
        "delta": 1e-4,
        "relation": {"kind": "Relation", "adjacency": "zero-out", "records": 1},
        "steps": 15,
        "noise_multiplier": 1.0,
        "pass_rate": None,
        "protected": "record",
        "released": {},
    }
    assert result.fitted.history[-1].evaluation["accuracy"] == result.accuracy


def test_the_model_fits_the_data(table):
    assert build_model(table, 0)(table.test_features[:2]).shape == (2, 3)
    images = torch.zeros(4, 1, 28, 28)
    data = Dataset("images", images, torch.arange(4), images, torch.arange(4), 10, "")
    assert sum(p.numel() for p in build_model(data, 0).parameters()) == 26_010


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["ptr", pytest.param("dpsgd", marks=pytest.mark.slow)])
def test_private_training_on_digits(method):
    """A tenth of the data, 60 steps: 0.81 was seen with the test, 0.77 without; chance is 0.1."""
    few = load("mnist").mapped(lambda images: images[:6000], lambda labels: labels[:6000])
    given = {"epsilon": None, "steps": 60, "noise_multiplier": 0.6, "batch": 128, "lr": 2.0}
    experiment = Experiment.of(**given, corrupt="label:0.1", method=method)
    assert run(experiment, dataset=few, evaluations=1).accuracy > 0.6


@pytest.mark.parametrize(
    ("corrupt", "covered"),
    [("none", True), ("label:0.1", True), ("sign-flip:0.1", True), ("inner-product:0.1", False),
     ("reversed:0.1", False), ("loud:0.1", False), ("little:0.1", False), ("mimic:0.1", False)],
)  # fmt: skip
def test_no_price_is_shown_for_an_attack_that_reads_other_records(corrupt, covered):
    """There one record reaches the sum through more than its own gradient."""
    experiment = Experiment.of(steps=2, noise_multiplier=1.0, epsilon=None, corrupt=corrupt)
    assert experiment.is_covered is covered


@pytest.mark.thorough
def test_a_corruption_is_given_as_it_is(table):
    """With its strength, and with a seed of its own."""
    common = {"dataset": table, "evaluations": 1}
    experiment = FIXED.changed(method="dpsgd", corrupt="gradient:0.3:variance=4")
    named, same, other, data = (
        run(experiment.changed(corrupt=corrupt), **common)
        for corrupt in (
            "gradient:0.3:variance=4",
            GradientNoise(0.3, variance=4.0),
            GradientNoise(0.3, variance=4.0, seed=5),
            RandomLabelFlip(0.2),
        )
    )
    assert torch.equal(weights(named), weights(same))
    assert not torch.equal(weights(named), weights(other))
    labels = run(experiment.changed(corrupt="label:0.2"), **common)
    assert torch.equal(weights(data), weights(labels))
    assert not FIXED.changed(corrupt=Mimic(0.1)).is_covered
