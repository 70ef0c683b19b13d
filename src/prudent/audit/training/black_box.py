"""Audit of private training by an attacker who sees only what the final model says of one record.

The attacker chooses the initial weights and the canary (Annamalai and De Cristofaro 2024). From
weights that fit the other records well, these have small gradients; a canary with a wrong label has
a large one, and it alone moves the model away. How much the loss on the canary has fallen at the
end tells whether it was there.
"""

import math
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from prudent import _validate
from prudent._progress import track
from prudent._rounding import rounded_down, rounded_up
from prudent.audit.auditing import CONFIDENCE
from prudent.audit.lower_bounds import BoolArray, FloatArray, bound_of_scores, clopper_pearson
from prudent.audit.result import AuditResult, MeasuredCurve
from prudent.audit.training.curves import Family, GaussianCurve, epsilon_of_mu, mu_of_rates
from prudent.training.gradients.engine import Loss
from prudent.training.plan import Plan
from prudent.training.run.execution import Execution
from prudent.training.run.training_run import TrainingRun

_HELD_OUT = 0.2  # of the runs, to choose the threshold


@attrs.frozen(eq=False)
class AuditTarget:
    """What a black-box audit trains, and on what."""

    model: nn.Module  # the network; its weights as given are those that every run starts from
    loss: Loss  # maps outputs and targets to one loss per record
    inputs: Tensor  # the other records
    targets: Tensor  # their targets
    canary: tuple[Tensor, Tensor]  # the canary's input and target, each without a batch dimension

    def records(self, *, present: bool) -> tuple[Tensor, Tensor]:
        """The data set, the canary first if it is present."""
        if not present:
            return self.inputs, self.targets
        parts = zip(self.canary, (self.inputs, self.targets), strict=True)
        inputs, targets = (torch.cat([one[None], others]) for one, others in parts)
        return inputs, targets

    @torch.no_grad()
    def score(self) -> float:
        """How well the model fits the canary: minus its loss."""
        device = next(self.model.parameters()).device
        inputs, targets = (part[None].to(device) for part in self.canary)
        return -float(self.loss(self.model(inputs), targets)[0])


def black_box(
    plan: Plan,
    target: AuditTarget,
    *,
    delta: float,
    epsilon: float | None = None,
    runs: int = 1000,
    confidence: float = CONFIDENCE,
    **optimizer_options: Any,
) -> AuditResult:
    """Try to refute the price of a plan with the final model's loss on a canary.

    Guarantee:
        If the runs are independent and as private as the curve of the plan, the result is `refuted`
        with a probability of at most 1 - confidence. See `prudent.audit.training.curves` for what a
        bound on a curve says about ε.

    Args:
        plan: A plan of DP-SGD at sampling rate 1, the setting of the attack; its `expected_batch`
            is public.
        target: What is trained, and the canary.
        delta: δ of the claim.
        epsilon: ε of the claim; None: `plan.epsilon(delta)`.
        runs: The number of runs, with and without the canary together.
        confidence: 1 minus the false-alarm rate.
        **optimizer_options: Passed to `torch.optim.SGD`, such as `lr`.
    """
    check_plan(plan)
    coins = np.random.default_rng().random(_validate.count(8, runs=runs)) < 0.5
    scores = np.empty(runs)
    for present in (False, True):
        places = np.flatnonzero(coins == present)
        scores[places] = final_scores(
            plan, target, present=present, runs=len(places), **optimizer_options
        )
    claimed = plan.epsilon(delta) if epsilon is None else epsilon
    return judge_scores(plan, scores, coins, delta=delta, claimed=claimed, confidence=confidence)


def final_scores(
    plan: Plan,
    target: AuditTarget,
    *,
    present: bool,
    runs: int,
    execution: Execution | None = None,
    **optimizer_options: Any,
) -> FloatArray:
    """The score of the final model of many runs, which start from the same weights.

    They are taken one after the other as the steps of one longer run; the noise and the batch of a
    step are independent of those before, and without momentum the weights are all that a step
    passes on.
    """
    if not runs:
        return np.zeros(0)
    model = target.model
    start = [parameter.detach().clone() for parameter in model.parameters()]
    run = TrainingRun.prepare(
        attrs.evolve(plan, steps=plan.steps * runs),
        model,
        target.loss,
        target.records(present=present),
        options=optimizer_options,
        execution=Execution(distributed=False) if execution is None else execution,
    )
    scores = []
    for number in track(range(plan.steps * runs), "training runs", plan.steps * runs):
        run.take(number)
        if (number + 1) % plan.steps:
            continue
        scores.append(target.score())
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), start, strict=True):
                parameter.copy_(value)
    return np.array(scores)


def judge_scores(
    plan: Plan,
    scores: FloatArray,
    coins: BoolArray,
    *,
    delta: float,
    claimed: float,
    confidence: float = CONFIDENCE,
) -> AuditResult:
    """The result of scores of runs that had the canary where their fair coins say so.

    The threshold is chosen on the first fifth of the runs. On the others Clopper-Pearson bounds on
    both rates, each failing with probability (1 - confidence)/2, give a lower bound on μ: Gaussian
    DP with a smaller μ does not allow them.
    """
    check_plan(plan)
    first = math.ceil(_HELD_OUT * len(scores))
    cut = _best_cut(scores[:first], coins[:first], confidence)
    mu, right, guesses = _mu(scores[first:], coins[first:], cut, confidence)
    point = bound_of_scores(scores, coins, delta=delta, confidence=confidence)
    claim = Family(plan).less_private(1.0)
    assert isinstance(claim, GaussianCurve)
    return AuditResult(
        name="training, black box (loss of the final model on the canary)",
        claimed=claimed,
        delta=delta,
        lower=epsilon_of_mu(mu, delta),
        confidence=confidence,
        runs=len(scores) - first,
        guesses=guesses,
        right=right,
        curve=MeasuredCurve.of(scores[first:], coins[first:], confidence),
        notes=(
            f"The bound is on Gaussian DP, of which the plan is an instance: μ >= "
            f"{rounded_down(mu, 3)} of {rounded_up(claim.mu, 3)}.",
            f"Of (ε, δ)-DP with this δ alone the same runs refute "
            f"ε = {rounded_down(point.lower, 3)}.",
        ),
    )


def _best_cut(scores: FloatArray, coins: BoolArray, confidence: float) -> float:
    """The threshold with the largest bound on held-out runs."""
    cuts = np.unique(np.quantile(scores, np.linspace(0.02, 0.98, 49)))
    # Few runs bound nothing; then the number of right guesses decides, and the middle of the best.
    ratings = [_mu(scores, coins, cut, confidence)[:2] for cut in cuts]
    best = [cut for cut, rating in zip(cuts, ratings, strict=True) if rating == max(ratings)]
    return float(best[len(best) // 2])


def _mu(
    scores: FloatArray, coins: BoolArray, cut: float, confidence: float
) -> tuple[float, int, int]:
    """A lower bound on μ, the number of right guesses, and of guesses."""
    says, present = scores >= cut, int(coins.sum())
    hits, alarms = int(np.sum(says & coins)), int(np.sum(says & ~coins))
    error = (1 - confidence) / 2
    least = float(clopper_pearson(hits, present, error)[0])
    most = float(clopper_pearson(alarms, len(coins) - present, error)[1])
    return mu_of_rates(least, most), hits + len(coins) - present - alarms, len(coins)


def check_plan(plan: Plan) -> None:
    """Raise an error unless the plan is one of DP-SGD on all records."""
    if not Family(plan).is_gaussian or plan.expected_batch is None:
        raise _validate.ArgumentError(
            "plan",
            "DP-SGD (Sum) at sampling rate 1 with a public expected_batch",
            shown=f"{type(plan.aggregation).__name__} at sampling rate {plan.sampling_rate:g}",
            hint="A sampled run is audited white box, or with many canaries in one run.",
        )
