"""The unit gradients are measured in: exact, public, paid for, and where it should be."""

import math

import attrs
import dp_accounting as dp
import pytest
import torch
from torch import nn

from prudent.accounting import GaussianTest, PldAccountant, RdpAccountant
from prudent.federated import RoundRelease
from prudent.training import (
    AdaptiveScale,
    Chunk,
    ClassMeans,
    DirectionBound,
    Mean,
    Plan,
    ProposeTestRelease,
    Step,
    Sum,
    TrimmedSum,
)
from tests.training.gradients.oracle import alone, cross_entropy

SILENT = 1e-6
RULES = {
    "sum": Sum(clip=1.5, noise_multiplier=SILENT),
    "trimmed": TrimmedSum(clip=1.5, noise_multiplier=SILENT),
    "propose": ProposeTestRelease(
        clip=1.5, propose=0.5, noise_multiplier=SILENT, test=GaussianTest(1.0)
    ),
}


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def batch(size=20):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    return inputs * torch.logspace(-2, 2, size)[:, None], torch.arange(size) % 3


def step_of(rule, scale, **options):
    plan = Plan(sampling_rate=0.1, steps=10**6, aggregation=rule, expected_batch=20, scale=scale)
    return Step(plan, network(), cross_entropy, generator=torch.Generator(), **options)


def released(step, chunk):
    step([chunk])
    return torch.cat([parameter.grad.flatten() for parameter in step.model.parameters()])


class TestFactor:
    def test_it_is_an_exact_power_of_two(self):
        exponents = torch.linspace(-40, 40, 4001, dtype=torch.float64)
        for factor in AdaptiveScale.factor(exponents).tolist():
            mantissa, _ = math.frexp(factor)
            assert mantissa == 0.5

    @pytest.mark.parametrize("exponent", [-7.3, 0.0, 11.8])
    def test_no_scaled_gradient_is_longer_than_the_clip_after_rounding(self, exponent):
        norms = torch.rand(10_000) * 10 ** torch.linspace(-6, 6, 10_000)
        factor = AdaptiveScale.factor(torch.tensor(exponent, dtype=torch.float64)).float()
        valid = torch.ones_like(norms, dtype=torch.bool)
        weights = RULES["sum"].decide(norms * factor, valid, torch.zeros(())).weights * factor
        assert (weights * norms <= RULES["sum"].clip).all()

    def test_a_factor_of_another_kind_would_let_some_be(self):
        norms, factor = torch.rand(10_000) * 100, torch.tensor(1.3)
        valid = torch.ones_like(norms, dtype=torch.bool)
        weights = RULES["sum"].decide(norms * factor, valid, torch.zeros(())).weights * factor
        assert not (weights * norms <= RULES["sum"].clip).all()


class TestCount:
    def test_one_record_changes_it_by_one_at_most(self):
        norms = torch.tensor([0.5, 1.0, 1.5, 1.5001, 40.0, math.inf, math.nan, 0.0])
        counts = [
            float(AdaptiveScale.short(norms, kept, 1.5))
            for kept in (torch.arange(8) != i for i in range(-1, 8))
        ]
        assert counts[0] == 5  # what is not a number counts as the zero gradient
        assert all(0 <= counts[0] - count <= 1 for count in counts)

    def test_its_noise_is_as_large_as_the_price_says(self):
        generator, cpu = torch.Generator().manual_seed(0), torch.device("cpu")
        scale = AdaptiveScale(noise=7.0)
        drawn = torch.stack([scale.drawn_noise(cpu, generator) for _ in range(4000)])
        assert abs(float(drawn.mean())) < 0.5
        assert abs(float(drawn.std()) / 7 - 1) < 0.05

    @pytest.mark.parametrize("padding", [0, 9])
    def test_padding_does_not_count(self, padding):
        norms = torch.cat([torch.ones(4), torch.zeros(padding)])
        valid = torch.arange(4 + padding) < 4
        assert float(AdaptiveScale.short(norms, valid, 2.0)) == 4


class TestPrice:
    def test_with_gaussian_noise_it_is_one_gaussian(self):
        rule = Sum(clip=1.0, noise_multiplier=0.9)
        plan = Plan(sampling_rate=0.01, steps=500, aggregation=rule)
        scaled = attrs.evolve(plan, scale=AdaptiveScale(noise=5.0))
        joint = attrs.evolve(plan, aggregation=rule.with_noise((0.9**-2 + 5.0**-2) ** -0.5))
        for accountant in (PldAccountant, RdpAccountant):
            price = scaled.epsilon(1e-5, accountant=accountant)
            assert price == pytest.approx(joint.epsilon(1e-5, accountant=accountant), rel=1e-6)
            assert price > plan.epsilon(1e-5, accountant=accountant)

    def test_with_a_test_it_is_a_composition_on_one_batch(self):
        rule = attrs.evolve(RULES["propose"], noise_multiplier=0.9)
        plan = Plan(sampling_rate=0.01, steps=200, aggregation=rule)
        scaled = attrs.evolve(plan, scale=AdaptiveScale(noise=5.0))
        assert scaled.event == dp.SelfComposedDpEvent(
            dp.PoissonSampledDpEvent(
                0.01, dp.ComposedDpEvent([rule.event, dp.GaussianDpEvent(5.0)])
            ),
            200,
        )
        apart = dp.ComposedDpEvent(
            [
                plan.event,
                dp.SelfComposedDpEvent(
                    dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(5.0)), 200
                ),
            ]
        )
        # One sample for both is dearer than two independent ones.
        assert scaled.epsilon(1e-5) > PldAccountant().compose(apart).get_epsilon(1e-5)

    def test_noise_is_solved_for_both(self):
        plan = Plan(
            sampling_rate=0.01, steps=500, aggregation=RULES["sum"], scale=AdaptiveScale(noise=5.0)
        )
        solved = plan.calibrate(epsilon=2.0, delta=1e-5)
        assert 1.99 < solved.epsilon(1e-5) <= 2.0


class TestStep:
    @pytest.mark.parametrize("exponent", [-3.0, 4.0])
    def test_the_sum_is_of_scaled_gradients(self, exponent):
        inputs, targets = batch()
        step = step_of(RULES["sum"], AdaptiveScale())
        step.exponent.fill_(exponent)
        gradients = alone(network(), cross_entropy, inputs, targets, 20)
        rows = torch.stack(
            [torch.cat([g[i].flatten() for g in gradients.values()]) for i in range(20)]
        )
        rows *= 2**exponent
        clipped = rows * (1.5 / rows.norm(dim=1, keepdim=True)).clamp_max(1)
        expected = clipped.sum(0) / 20
        assert torch.allclose(released(step, Chunk(inputs, targets)), expected, atol=1e-6)

    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
    def test_one_record_changes_the_sum_by_no_more_than_the_clip(self, rule):
        inputs, targets = batch()
        for left_out in range(0, 20, 3):
            both = []
            for kept in (torch.ones(20, dtype=torch.bool), torch.arange(20) != left_out):
                step = step_of(rule, AdaptiveScale())
                step.exponent.fill_(5.0)
                both.append(released(step, Chunk(inputs, targets, kept)) * 20)
            assert float((both[0] - both[1]).norm()) <= 1.5 + 1e-4

    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
    @pytest.mark.parametrize("quantile", [0.3, 0.8])
    def test_it_finds_the_quantile(self, rule, quantile):
        inputs, targets = batch()
        step = step_of(rule, AdaptiveScale(quantile=quantile, noise=0.5))
        norms = step.engine(dict(step.model.named_parameters()), inputs, targets).norms
        shares = []
        for number in range(400):
            outcome = step([Chunk(inputs, targets)])
            if number >= 200:
                shares.append(float((norms * outcome.scale <= 1.5).double().mean()))
        assert abs(sum(shares) / len(shares) - quantile) < 0.06

    def test_the_next_factor_is_made_of_the_noisy_count_alone(self):
        inputs, targets = batch()
        scale = AdaptiveScale(noise=1e6, speed=1e-3)
        exponents = []
        for rows in (20, 1):
            step = step_of(RULES["sum"], scale)
            step([Chunk(inputs[:rows], targets[:rows])])
            exponents.append(float(step.exponent))
        # The same noise, which drowns 19 records.
        assert exponents[0] == pytest.approx(exponents[1], rel=1e-4)
        assert exponents[0] != 0

    def test_without_it_nothing_is_drawn_or_scaled(self):
        inputs, targets = batch()
        step = step_of(RULES["sum"], None)
        outcome = step([Chunk(inputs, targets)])
        assert (float(outcome.scale), float(step.exponent)) == (1.0, 0.0)


@pytest.mark.parametrize(
    "policy",
    [{"scale": AdaptiveScale()}, {"bound": DirectionBound()}, {"anchor": ClassMeans()}],
    ids=["scale", "bound", "anchor"],
)
def test_a_mean_and_a_federation_have_no_use_for_it(policy):
    (name,) = policy
    with pytest.raises(ValueError, match=f"{name} None with Mean"):
        Plan(sampling_rate=0.1, steps=1, aggregation=Mean(), **policy)
    plan = Plan(sampling_rate=0.1, steps=1, aggregation=RULES["sum"], **policy)
    with pytest.raises(ValueError, match=rf"plan\.{name} None"):
        RoundRelease(plan, 3, expected_clients=10)


@pytest.mark.parametrize(
    "changes", [{"quantile": 0.0}, {"quantile": 1.0}, {"speed": 0.0}, {"noise": -1.0}]
)
def test_settings_that_make_no_sense_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        AdaptiveScale(**changes)
