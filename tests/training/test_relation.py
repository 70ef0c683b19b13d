"""Which neighbours a plan protects, and that blanked records are as good as absent."""

import json
import math

import attrs
import pytest
import torch
from torch import nn

from prudent.accounting import (
    ADD_REMOVE,
    REPLACE_ONE,
    ZERO_OUT,
    GaussianTest,
    PldAccountant,
    Relation,
    epsilon_of,
)
from prudent.accounting.serialisation import from_plain
from prudent.training import (
    AdaptiveTrim,
    Chunk,
    Fallback,
    FixedTrim,
    Mean,
    Plan,
    ProposeTestRelease,
    Reporting,
    Step,
    Sum,
    TrimmedSum,
    fit,
)
from prudent.training.keystream import Key
from prudent.training.run.run import Run
from tests.training.gradients.oracle import cross_entropy

PTR = ProposeTestRelease(
    clip=1.0, propose=0.5, noise_multiplier=1.0, test=GaussianTest(1.0), trim=AdaptiveTrim()
)
AGGREGATIONS = [
    Sum(clip=1.0, noise_multiplier=1.0),
    TrimmedSum(clip=1.0, noise_multiplier=1.0, trim=FixedTrim(0.3)),
    PTR,
    attrs.evolve(PTR, fallback=Fallback.TRIMMED, reveals="margin"),
    attrs.evolve(PTR, fallback=Fallback.SKIP, trim=FixedTrim(0.5)),
    Mean(),
]


def plan_of(aggregation=PTR, **changes):
    return Plan(**({"sampling_rate": 0.1, "steps": 5, "aggregation": aggregation} | changes))


def network():
    torch.manual_seed(1)
    return nn.Linear(4, 3).double()


def records(count):
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, 4, dtype=torch.float64, generator=generator)
    return inputs, torch.arange(count) % 3


def prepared(plan, count):
    return Run(plan, network(), cross_entropy, records(count), options={"lr": 0.1})


class TestTheNumberOfRecords:
    """N = 200 and 201 were told apart by the divisor of released gradients, whatever the noise."""

    @pytest.mark.parametrize("aggregation", AGGREGATIONS)
    def test_no_public_number_depends_on_it_under_add_remove(self, aggregation):
        plan = plan_of(aggregation, expected_batch=20.0)
        assert plan.relation == ADD_REMOVE
        steps = [prepared(plan, count).step for count in (200, 201)]
        assert steps[0].expected_batch == steps[1].expected_batch == 20.0
        assert float(steps[0].trim) == float(steps[1].trim)

    def test_where_it_divides_the_sum_it_is_said_to_be_public(self):
        plan = plan_of()
        steps = [prepared(plan, count).step for count in (200, 201)]
        assert steps[0].expected_batch < steps[1].expected_batch
        assert plan.relation == ZERO_OUT
        assert plan.relation.size_is_public

    @pytest.mark.filterwarnings("ignore:The test hardly ever passes")
    def test_the_records_are_written_with_it(self, tmp_path):
        fitted = fit(
            plan_of(), network(), cross_entropy, records(30), lr=0.1, delta=1e-5,
            reporting=Reporting(out=tmp_path),
        )  # fmt: skip
        ledger = json.loads((tmp_path / "paid.json").read_text())
        assert from_plain(ledger["relation"]) == ZERO_OUT
        assert fitted.history[-1].relation == str(ZERO_OUT)
        written = (tmp_path / "metrics.jsonl").read_text().splitlines()
        assert json.loads(written[-1])["relation"] == str(ZERO_OUT)


class TestPlan:
    def test_the_relation_follows_the_expected_batch_unless_it_is_given(self):
        assert plan_of().relation == ZERO_OUT
        assert plan_of(expected_batch=8).relation == ADD_REMOVE
        assert attrs.evolve(plan_of(), expected_batch=8).relation == ADD_REMOVE
        assert attrs.evolve(plan_of(expected_batch=8), expected_batch=None).relation == ZERO_OUT
        assert plan_of(expected_batch=8, relation=ZERO_OUT).relation == ZERO_OUT
        assert attrs.evolve(plan_of(relation=REPLACE_ONE), steps=9).relation == REPLACE_ONE

    def test_a_secret_number_of_records_needs_a_public_batch(self):
        with pytest.raises(ValueError, match="Give the public batch size, or another relation"):
            plan_of(relation=Relation("add-remove", 2))
        with pytest.raises(ValueError, match="Expected relation a Relation, got 'zero-out'"):
            plan_of(relation="zero-out")

    def test_it_is_told(self):
        assert "relation=Relation(adjacency=<Adjacency.ZERO_OUT" in repr(plan_of())
        assert repr(plan_of()) != repr(plan_of(relation=REPLACE_ONE))

    @pytest.mark.thorough
    @pytest.mark.parametrize("relation", [REPLACE_ONE, Relation("zero-out", 3)])
    @pytest.mark.parametrize("aggregation", AGGREGATIONS[:3])
    def test_prices_are_for_it(self, relation, aggregation):
        plan = plan_of(aggregation, relation=relation, steps=20)
        exact = epsilon_of(plan.event, 1e-5, relation)
        assert plan.epsilon(1e-5) == exact > plan_of(aggregation, steps=20).epsilon(1e-5)
        assert plan.epsilon_after(3, 1e-5) < exact
        assert plan_of(aggregation, steps=20).epsilon(1e-5) == (
            PldAccountant().compose(plan.event).get_epsilon(1e-5)
        )

    @pytest.mark.thorough
    def test_what_is_solved_for_keeps_it(self):
        plan = plan_of(AGGREGATIONS[0], relation=REPLACE_ONE)
        quiet, long = plan.calibrate(epsilon=2, delta=1e-5), plan.longest(epsilon=9, delta=1e-5)
        assert 1.99 < quiet.epsilon(1e-5) <= 2
        assert quiet.relation == long.relation == REPLACE_ONE
        assert long.epsilon(1e-5) <= 9 < attrs.evolve(long, steps=long.steps + 1).epsilon(1e-5)


@pytest.mark.unhurried
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("value", [0.3, 1e6, math.nan])
def test_a_blanked_record_is_literally_absent(aggregation, value):
    """Through the step itself: the same test, noise, margin, trim and sum, in every position."""
    inputs, targets = records(15)

    def released(rows, blank):
        model = network()
        step = Step(
            plan_of(aggregation, expected_batch=20.0), model, cross_entropy, key=Key.from_seed(11)
        )
        outcomes = []
        for _ in range(4):
            features = inputs[rows].clone()
            features[blank] = value
            chunk = Chunk(features, targets[rows], ~blank, torch.tensor(rows))
            outcome = step([chunk])
            shown = (outcome.passed, outcome.trim, outcome.noise, outcome.noisy_margin)
            gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
            outcomes.append(([float(x) for x in (*shown, outcome.drawn)], gradient))
        return outcomes

    for place in (0, 7, 14):
        others = [row for row in range(15) if row != place]
        blank = torch.arange(15) == place
        with_blank = released(list(range(15)), blank)
        without = released(others, torch.zeros(14, dtype=torch.bool))
        for (shown, gradient), (alone, other) in zip(with_blank, without, strict=True):
            assert shown == pytest.approx(alone, abs=0, nan_ok=True)
            torch.testing.assert_close(gradient, other, rtol=1e-12, atol=1e-13)
