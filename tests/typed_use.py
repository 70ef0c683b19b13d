"""The types that a user's type checker sees; checked by mypy together with the package, not run."""

from typing import assert_type

import torch
from torch import nn

import prudent
from prudent.accounting import Run
from prudent.release import Groups, Outcome, Preview, histogram
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
    assert_type(outcome, prudent.Released | prudent.Refused)
    return outcome.value if isinstance(outcome, prudent.Released) else None


def without_a_cast(path: str) -> list[float]:
    """A number that is never refused, groups and a preview have types of their own."""
    assert_type(prudent.median(path, "x", epsilon=0.5), prudent.Released)
    assert_type(prudent.mean(path, "x", epsilon=0.5, bounds=(0, 9)), prudent.Released)
    assert_type(prudent.median(path, "x", epsilon=0.5, dry_run=True), Preview)
    by_city = prudent.mean(path, "x", epsilon=0.5, by="city", groups=["Oslo"])
    assert_type(by_city, Groups[prudent.Released])
    tested = prudent.median(path, "x", epsilon=0.5, delta=1e-7, propose=9, by="city", groups=["a"])
    assert_type(tested, Groups[prudent.Released | prudent.Refused])
    chosen = prudent.median(path, "x", epsilon=0.5, by="city", groups="private", delta=1e-7)
    assert_type(chosen, Groups[prudent.Released])
    assert_type(prudent.describe(path, "x", epsilon=0.5).mean, prudent.Released)
    assert_type(histogram(path, "x", epsilon=0.5, edges=[0, 1, 2]).counts, tuple[int, ...])
    prudent.median(path, "x", epsilom=0.5)  # type: ignore[call-overload]
    prudent.mean(path, "x", epsilon="0.5")  # type: ignore[call-overload]
    table = prudent.Table(path, unit="person", ledger="budget.db").where("year = 2024")
    assert_type(table.median("x", epsilon=0.5), prudent.Released)
    assert_type(table.median("x", epsilon=0.5, dry_run=True), Preview)
    assert_type(table.iqr("x", epsilon=0.5, propose=2, delta=1e-7), Outcome)
    assert_type(table.by("city", groups=["a"]).mean("x", epsilon=0.5), Groups[prudent.Released])
    grouped = table.by("city", groups="private")
    assert_type(grouped.median("x", epsilon=1, delta=1e-7, propose=2), Groups[Outcome])
    table.median("x", epsilom=0.5)  # type: ignore[call-overload]
    table.mean("x", epsilon="0.5")  # type: ignore[call-overload]
    values = [prudent.median(path, "x", epsilon=0.5).value]
    return [*values, *(each.value for each in by_city.values()), by_city["Oslo"].interval()[0]]
