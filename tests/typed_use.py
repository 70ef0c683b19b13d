"""The types that a user's type checker sees; checked by mypy together with the package, not run."""

from typing import assert_type

import torch
from torch import nn

import prudent
from prudent.accounting import Run
from prudent.training import Fitted, StepOutcome


def train(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    """A name that is loaded on first use has its own type, not Any."""
    aggregation = prudent.ProposeTestRelease(
        clip=1.0,
        noise_multiplier=1.0,
        propose=0.5,
        test=prudent.GaussianTest(scale=4.0),
        trim=prudent.AdaptiveTrim(),
    )
    plan = prudent.Plan(sampling_rate=0.1, steps=10, aggregation=aggregation)
    assert_type(plan, prudent.Plan)
    assert_type(plan.calibrate(epsilon=1.0, delta=1e-5).epsilon(1e-5), float)
    loss = nn.CrossEntropyLoss(reduction="none")
    assert_type(prudent.fit(plan, model, loss, (inputs, targets), lr=0.1), Fitted)
    assert_type(prudent.Step(plan, model, loss)([]), StepOutcome)
    assert_type(Run(steps=3).calibrate("steps", epsilon=1.0, delta=1e-5), Run)


def release(path: str) -> float | None:
    """The outcome of a statistic is told apart by its type."""
    with prudent.Ledger(path, epsilon=1.0, delta=1e-6) as ledger:
        outcome = prudent.median([1.0, 2.0], propose=1.0, epsilon=0.5, delta=1e-7, ledger=ledger)
    return outcome.value if isinstance(outcome, prudent.Released) else None
