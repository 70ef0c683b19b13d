"""From norms to weights and noise, row by row of the table in the module, and the trims."""

import math

import attrs
import dp_accounting as dp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prudent.accounting import GaussianTest, LaplaceTest, Reveals
from prudent.training import AdaptiveTrim, Fallback, FixedTrim, Mean, ProposeTestRelease, TrimmedSum
from prudent.training import Sum as ClippedSum
from prudent.training.aggregation import clip_weights
from prudent.training.keystream import Key, Purpose

TEST = Key.from_seed(2).stream(Purpose.TEST)
SURE = GaussianTest(1e-6)  # passes exactly when the margin is positive


def decide(aggregation, norms, trim=0, valid=None, seed=0):
    norms = torch.as_tensor(norms, dtype=torch.float64)
    valid = torch.ones(len(norms), dtype=torch.bool) if valid is None else torch.tensor(valid)
    words = TEST.words(2, step=seed)
    return aggregation.decide(norms, valid, torch.tensor(float(trim)).double(), words)


def propose(**changes):
    given = {"clip": 1.0, "propose": 0.5, "noise_multiplier": 2.0, "test": SURE}
    return ProposeTestRelease(**(given | changes))


class TestClipping:
    @given(
        norms=st.lists(st.floats(0, 2.0**60, width=32), min_size=1, max_size=9),
        clip=st.floats(2.0**-10, 1024, width=32),
        dtype=st.sampled_from([torch.float32, torch.float64]),
    )
    def test_no_computed_norm_exceeds_the_bound(self, norms, clip, dtype):
        norms = torch.tensor(norms, dtype=dtype)
        weights, clipped = clip_weights(norms, torch.ones(len(norms), dtype=torch.bool), clip)
        assert (weights * norms <= clip).all()
        assert (clipped <= clip).all()
        # Nor is anything clipped more than rounding asks for.
        torch.testing.assert_close(weights * norms, norms.clamp_max(clip), rtol=1e-6, atol=1e-37)

    def test_rounding_alone_would_exceed_it(self):
        # What the correction is for: without it, some computed norm is above the bound.
        norms = torch.linspace(1, 50, 5000)
        assert ((0.7 / norms) * norms > torch.tensor(0.7)).any()
        weights, _ = clip_weights(norms, torch.ones(5000, dtype=torch.bool), 0.7)
        assert (weights * norms <= torch.tensor(0.7)).all()

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize(
        "aggregation",
        [
            ClippedSum(clip=1.0, noise_multiplier=1.0),
            TrimmedSum(clip=1.0, noise_multiplier=1.0),
            propose(),
            Mean(),
        ],
        ids=lambda aggregation: type(aggregation).__name__,
    )
    def test_a_gradient_that_is_not_finite_counts_as_zero(self, aggregation, bad):
        decision = decide(aggregation, [0.2, bad, 0.3])
        assert decision.weights.tolist() == [1.0, 0.0, 1.0]
        # In the order it is the smallest: with F = 1 the largest finite one goes, not this one.
        trimmed = decide(TrimmedSum(clip=1.0, noise_multiplier=1.0), [0.2, bad, 0.3], trim=1)
        assert trimmed.weights.tolist() == [1.0, 0.0, 0.0]


class TestTrimming:
    @given(
        norms=st.lists(st.sampled_from([0.0, 0.2, 0.5, 1.0, 3.0]), max_size=12),
        trim=st.integers(0, 14),
    )
    def test_the_largest_are_left_out(self, norms, trim):
        weights = decide(TrimmedSum(clip=1.0, noise_multiplier=1.0), norms, trim=trim).weights
        order = sorted(range(len(norms)), key=lambda i: (min(norms[i], 1.0), i))
        kept = set(order[: max(0, len(norms) - trim)])
        assert {i for i, weight in enumerate(weights) if weight > 0} == kept

    @pytest.mark.parametrize("trim", [0, 1, 5])
    def test_empty_batch(self, trim):
        for rule in (ClippedSum(clip=1.0, noise_multiplier=2.0), propose(), Mean()):
            decision = decide(rule, [], trim)
            assert decision.weights.shape == (0,)
        assert decide(propose(), [], trim).noise == (1.0 if trim else 2.0)

    def test_padding_is_never_counted(self):
        norms, valid = [0.1, 9.0, 0.2, 9.0, math.nan], [True, False, True, False, False]
        for trim, rule in ((0, ClippedSum(clip=1.0, noise_multiplier=1.0)), (1, propose())):
            padded = decide(rule, norms, trim, valid)
            plain = decide(rule, [0.1, 0.2], trim)
            assert padded.weights[[0, 2]].tolist() == plain.weights.tolist()
            assert padded.weights[[1, 3, 4]].tolist() == [0.0] * 3
            assert padded.noisy_margin.nan_to_num(7) == plain.noisy_margin.nan_to_num(7)


class TestTheTest:
    @given(
        norms=st.lists(st.sampled_from([0.0, 0.5, 0.500001, 1.0, 4.0, math.nan]), max_size=10),
        trim=st.integers(0, 12),
    )
    def test_the_margin_counts_the_norms_above_the_proposal(self, norms, trim):
        decision = decide(propose(), norms, trim)
        margin = max(0, trim - sum(norm > 0.5 for norm in norms))
        assert abs(float(decision.noisy_margin) - margin) < 1e-4
        assert bool(decision.passed) == (margin > 0)

    @pytest.mark.parametrize(
        ("fallback", "weights", "noise"),
        [("sum", [1, 1], 2.0), ("trimmed", [1, 0], 2.0), ("skip", [0, 0], 0.0)],
    )
    def test_fallbacks(self, fallback, weights, noise):
        decision = decide(propose(fallback=fallback, fallback_scale=0.25), [0.1, 1.0], trim=1)
        assert not decision.passed
        assert decision.weights.tolist() == weights
        assert (decision.noise, decision.scale) == (noise, 0.25)

    def test_robust_branch(self):
        decision = decide(propose(fallback_scale=0.25), [0.1, 0.5], trim=1)
        assert decision.passed
        assert decision.weights.tolist() == [1, 0]
        assert (decision.noise, decision.scale) == (1.0, 1.0)

    def test_the_comparison_is_in_double_precision(self):
        # Norms may be single precision; a test that fails once in 1e8 must not be.
        decision = propose(test=LaplaceTest(1.0)).decide(
            torch.zeros(3),
            torch.ones(3, dtype=torch.bool),
            torch.tensor(30.0).double(),
            torch.tensor([5, 7]),
        )
        assert decision.noisy_margin.dtype == torch.float64
        assert decision.noise.dtype == torch.float64  # rounding would make it smaller
        assert decision.scale.dtype == torch.float32


class TestPrice:
    def test_the_events_are_those_of_the_mechanisms(self):
        gaussian = dp.GaussianDpEvent(1.5)
        assert ClippedSum(clip=3.0, noise_multiplier=1.5).event == gaussian
        assert TrimmedSum(clip=3.0, noise_multiplier=1.5).event == gaussian
        assert Mean().event == dp.NonPrivateDpEvent()
        event = propose(clip=3.0, noise_multiplier=1.5).event
        assert (event.noise_multiplier, event.propose, event.test) == (1.5, 0.5, SURE)
        assert event.reveals is Reveals.MONOTONE_BRANCH

    def test_skipping_is_priced_as_a_refusal(self):
        event = propose(fallback=Fallback.SKIP).event
        assert event.refuses
        assert event.sigma_over_proposal == 2.0

    def test_the_noise_is_that_of_the_event(self):
        """σR with GS = R and στ with the proposal τ: the ratios the event names."""
        rule = propose(clip=3.0)
        failed, passed = decide(rule, [9.0], trim=1), decide(rule, [], trim=1)
        assert float(failed.noise) / rule.sensitivity == rule.event.noise_multiplier
        assert float(passed.noise) / rule.proposal == rule.event.sigma_over_proposal

    @pytest.mark.parametrize(
        "changes",
        [
            {"clip": 0.0},
            {"clip": math.inf},
            {"propose": 1.0},
            {"propose": 0.0},
            {"noise_multiplier": 0.0},
            {"noise_multiplier": math.nan},
            {"failure": 0.5},
            {"test": 4.0},
            {"fallback_scale": -1.0},
            {"trim": 0.25},
            {"noise_multiplier": "1.1"},
        ],
    )
    def test_what_cannot_be_priced_is_refused(self, changes):
        with pytest.raises(ValueError, match=f"Expected {next(iter(changes))} "):
            propose(**changes)

    def test_a_choice_that_there_is_not_is_answered_with_those_there_are(self):
        with pytest.raises(ValueError, match="Expected fallback one of 'sum', 'trimmed', 'skip'"):
            propose(fallback="nothing")
        with pytest.raises(ValueError, match="Expected reveals one of 'margin', 'branch'"):
            propose(reveals="everything")

    def test_noise_can_be_replaced_but_not_where_there_is_none(self):
        assert propose().with_noise(3.0) == propose(noise_multiplier=3.0)
        with pytest.raises(ValueError, match="Expected a private aggregation, got Mean"):
            Mean().with_noise(1.0)

    def test_there_is_nothing_to_adapt_to_without_a_test(self):
        with pytest.raises(ValueError, match="Expected trim a FixedTrim"):
            TrimmedSum(clip=1.0, noise_multiplier=1.0, trim=AdaptiveTrim())


class TestTrims:
    def test_fixed(self):
        trim = FixedTrim(0.3)
        assert trim.start(25.0) == 7.0
        assert trim.next(torch.tensor(7.0), torch.tensor(False), 25.0) == 7.0
        with pytest.raises(ValueError, match="Expected share in"):
            FixedTrim(1.1)

    def test_a_pass_lowers_it_and_a_failure_raises_it(self):
        trim, now = AdaptiveTrim(first=0.3, up=0.1, down=0.05), torch.tensor(30.0).double()
        assert trim.start(100.0) == 30.0
        assert trim.next(now, torch.tensor(True), 100.0) == 25.0
        assert trim.next(now, torch.tensor(False), 100.0) == 40.0

    def test_it_stays_between_its_bounds(self):
        trim = AdaptiveTrim(first=0.2, up=0.3, down=0.3, least=0.1, most=0.4)
        now = torch.tensor(20.0).double()
        assert trim.next(now, torch.tensor(True), 100.0) == 10.0
        assert trim.next(now, torch.tensor(False), 100.0) == 40.0
        with pytest.raises(ValueError, match=r"Expected first in \[least, most\]"):
            attrs.evolve(trim, first=0.5)
        with pytest.raises(ValueError, match="Expected up in"):
            AdaptiveTrim(up=-0.1)

    def test_what_is_trimmed_is_whole(self):
        assert AdaptiveTrim.records(torch.tensor(12.96).double()) == 12.0

    @pytest.mark.unhurried
    @pytest.mark.parametrize(("up", "down"), [(0.02, 0.02), (0.03, 0.01), (0.01, 0.04)])
    def test_the_pass_rate_tends_to_up_over_both(self, up, down):
        """Whatever the share of large gradients (Errata 1, item 27)."""
        chance, batch = np.random.default_rng(1), 200.0
        rule = propose(test=GaussianTest(2.0), failure=1e-3, trim=AdaptiveTrim(up=up, down=down))
        trim, passes, steps = torch.tensor(rule.trim.start(batch)).double(), 0, 500
        for step in range(steps):
            norms = torch.from_numpy(np.where(chance.random(chance.poisson(200)) < 0.2, 1.0, 0.1))
            valid = torch.ones(len(norms), dtype=torch.bool)
            words = TEST.words(2, step=step)
            decision = rule.decide(norms, valid, rule.trim.records(trim), words)
            trim = rule.trim.next(trim, decision.passed, batch)
            passes += int(decision.passed)
        assert passes / steps == pytest.approx(up / (up + down), abs=0.04)
