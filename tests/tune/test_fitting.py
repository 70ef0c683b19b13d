"""Candidates that train a model, and their score."""

from pathlib import Path
from typing import Any

import attrs
import dp_accounting as dp
import pytest
import torch
from torch import nn

from prudent import Execution, Plan, Sum
from prudent.accounting import (
    DiscreteLaplaceTest,
    LaplaceTest,
    PldAccountant,
    WorstOfDpEvent,
)
from prudent.tune import (
    Binomial,
    Geometric,
    HeldOutScore,
    Trial,
    calibrate_plan,
    price,
    training,
    tune,
)

PLAN = Plan(
    sampling_rate=0.5, steps=3, aggregation=Sum(clip=1.0, noise_multiplier=1.0), expected_batch=20
)
NOISE = DiscreteLaplaceTest(2.0)


def records(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(40, 3, generator=generator)
    return features, (features.sum(1) > 0).long()


def model(setting: Any) -> nn.Module:
    return nn.Linear(3, 2)


def plan_of(setting: Any) -> Plan:
    return attrs.evolve(PLAN, aggregation=Sum(clip=setting["clip"], noise_multiplier=1.0))


def options(setting: Any) -> dict[str, Any]:
    return {"lr": setting["lr"]}


def space(trial: Trial) -> None:
    trial.float("lr", 0.1, 1.0, log=True)
    trial.choice("clip", [0.5, 1.0])


def score(noise: Any = NOISE) -> HeldOutScore:
    return HeldOutScore(*records(1), noise)


LOSS = nn.CrossEntropyLoss(reduction="none")


def candidate(**changes: Any) -> Any:
    arguments = {"plan_of": plan_of, "options": options, "execution": Execution(device="cpu")}
    return training(PLAN, model, LOSS, records(0), score(), **{**arguments, **changes})


def test_the_score_is_part_of_the_price() -> None:
    whole = candidate().event
    assert whole == dp.ComposedDpEvent([PLAN.event, NOISE])

    def epsilon(event: dp.DpEvent) -> float:
        return PldAccountant().compose(event).get_epsilon(1e-6)

    assert epsilon(whole) > epsilon(PLAN.event) + 0.02  # what forgetting the score would print
    assert candidate(disjoint=True).event == WorstOfDpEvent([PLAN.event, NOISE])
    public = training(PLAN, model, LOSS, records(0), score(None), options=options)
    assert public.event == PLAN.event
    assert public.relation == PLAN.relation


@pytest.mark.unhurried
def test_the_best_model_is_released_without_its_key(tmp_path: Path) -> None:
    best = tune(candidate(), space, trials=Binomial(2, 1.0), delta=1e-6, out=tmp_path)
    assert not best.failed
    assert best.folder is not None
    assert {path.name for path in best.folder.iterdir()} == {"model.pt"}
    assert not list(tmp_path.rglob("checkpoint.pt"))
    kept = torch.load(best.folder / "model.pt", weights_only=True)
    assert torch.equal(kept["weight"], best.value.weight)
    assert best.score == int(best.score)
    assert best.setting is not None
    assert set(best.setting) == {"lr", "clip"}


def test_plans_that_were_not_declared_are_refused_before_anything_runs() -> None:
    def longer(setting: Any) -> Plan:
        return attrs.evolve(PLAN, steps=4)

    class Charged:
        def charge(self, *_: Any, **__: Any) -> None:
            raise AssertionError("charged")

    with pytest.raises(ValueError, match="plan_of"):
        tune(candidate(plan_of=longer), space, trials=Geometric(2), delta=1e-6, ledger=Charged())
    plans = [PLAN, attrs.evolve(PLAN, steps=4)]
    several = training(plans, model, LOSS, records(0), score(None), plan_of=longer)
    assert several.event == WorstOfDpEvent([plan.event for plan in plans])
    several.check({})


@pytest.mark.unhurried
def test_scores_count_right_answers() -> None:
    net = nn.Linear(3, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[-1.0] * 3, [1.0] * 3]))
        net.bias.zero_()
    assert score(None)(net) == 40
    noisy = [score()(net) for _ in range(200)]
    assert abs(sum(noisy) / 200 - 40) < 5.5 * (2 * 2.0**2 / 200) ** 0.5
    assert len(set(noisy)) > 3


class Touchy(nn.Module):
    """A model that raises an error on records it does not know, as an embedding does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2)
        with torch.no_grad():
            self.table.weight.copy_(torch.eye(2).repeat(2, 1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.table(tokens)
        return scores


def test_an_odd_record_is_one_wrong_answer_and_ends_nothing() -> None:
    tokens = torch.tensor([0, 1, 2, 3, 99, 0])
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    assert HeldOutScore(tokens, labels, None)(Touchy()) == 4
    assert HeldOutScore(tokens[:4], labels[:4], None)(Touchy()) == 4
    assert HeldOutScore(tokens[:0], labels[:0], None)(Touchy()) == 0


@pytest.mark.thorough
def test_calibration_covers_search_and_score() -> None:
    plan = calibrate_plan(PLAN, Geometric(5), score(), epsilon=8.0, delta=1e-5)
    event = dp.ComposedDpEvent([plan.event, NOISE])
    assert 7.9 < price(event, Geometric(5), 1e-5, plan.relation) <= 8.0
    assert price(plan.event, Geometric(5), 1e-5, plan.relation) < 7.9


def test_arguments_are_checked() -> None:
    for change, name in [
        ({"ledger": None}, "ledger"),
        ({"reporting": None}, "reporting"),
        ({"out": "x"}, "out"),
    ]:
        with pytest.raises(ValueError, match=name):
            candidate(**change)
    with pytest.raises(ValueError, match="noise"):
        score(LaplaceTest(2.0))
    with pytest.raises(ValueError, match="plan_of"):
        training([PLAN, PLAN], model, LOSS, records(0), score())
