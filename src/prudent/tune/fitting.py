"""Candidates that train a model under a plan, and their private score."""

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent._files import replacing
from prudent._validate import ArgumentError
from prudent.accounting.losses.trial_counts import TrialCount
from prudent.tune.candidate import Candidate, Scored, ScoreNoise, check_score_noise, scored_event
from prudent.tune.space import Setting
from prudent.tune.tuning import calibrate

if TYPE_CHECKING:
    from torch import Tensor, nn

    from prudent.training import Plan

_MODEL, _TRAINING = "model.pt", "training"


@attrs.frozen(eq=False)
class HeldOutScore:
    """A score: the number of held-out records that a model labels correctly, with noise.

    Attributes:
        features: The records' features, as for `prudent.training.accuracy`.
        labels: Their classes.
        noise: The noise of the count, `DiscreteLaplaceTest(scale)` or `DiscreteGaussianTest(scale)`
            with the scale in records. None: the held-out records are public, the count is exact.

    Guarantee:
        Given the model, one record more or less changes the count by at most 1, so the score has
        the event `noise`. It is drawn by OpenDP's exact samplers.
    """

    features: Any
    labels: "Tensor"
    noise: ScoreNoise | None

    def __attrs_post_init__(self) -> None:
        check_score_noise(noise=self.noise)

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one score."""
        return dp.NoOpDpEvent() if self.noise is None else self.noise

    def __call__(self, model: "nn.Module") -> float:
        """The score of a model."""
        right = self._right(model)
        if self.noise is None:
            return float(right)
        from prudent.release.noise import SecureNoise

        return float(right + SecureNoise().of_test(self.noise))

    def _right(self, model: "nn.Module") -> int:
        """The number of records labelled correctly.

        Each record is run by itself: in a batch, the scores of one record can be rounded
        differently when another is added, and its label can flip. Whether a candidate fails is
        shown without noise, so no record may make it fail: one on which the model raises an error,
        or which has other than one label, counts as wrong.
        """
        from prudent.training import accuracy

        score, total = accuracy(self.features, self.labels), 0
        for one in range(len(self.labels)):
            with contextlib.suppress(Exception):
                total += score.right(model, one, one + 1) == 1
        return total


def training(
    plan: "Plan | Sequence[Plan]",
    model: "Callable[[Setting], nn.Module]",
    loss: Any,
    train_set: Any,
    score: HeldOutScore,
    *,
    plan_of: "Callable[[Setting], Plan] | None" = None,
    options: Callable[[Setting], Mapping[str, Any]] = dict,
    disjoint: bool = False,
    **fit_options: Any,
) -> Candidate:
    """A candidate that trains a model with `prudent.fit` and scores it.

    Args:
        plan: The training plan; if settings change its event, all plans that occur.
        model: Makes an untrained model for a setting.
        loss: As for `fit`.
        train_set: As for `fit`.
        score: The score of the trained model.
        plan_of: The plan of a setting; None: `plan`. Its event must be that of one of `plan`: a
            clip may be changed, because noise is relative to it.
        options: Options of `fit` and of the optimizer for a setting. By default the setting itself,
            so that `lr` and `momentum` need no more than their names.
        disjoint: Whether no person has records both in `train_set` and among the held-out ones.
            Then a candidate costs the worse of training and score instead of both: one person's
            records affect either the model, of which the score is post-processing, or the score.
        **fit_options: Options of `fit` for all candidates, such as `execution`.

    Returns:
        The candidate. `Tuned.value` is the trained model, and its folder holds model.pt.
    """
    from prudent.training import Plan, Reporting

    plans = [plan] if isinstance(plan, Plan) else list(plan)
    for one in plans:
        _validate.instance(Plan, "a Plan or several", plan=one)
    if not plans or len({one.relation for one in plans}) > 1:
        raise ArgumentError("plan", "at least one Plan, all with the same relation", got=plan)
    if plan_of is None and len(plans) > 1:
        raise ArgumentError("plan_of", "a function when there are several plans", got=None)
    # Those of a Reporting too: the optimizer would refuse them after the search is charged.
    own = {"ledger", "corrupt", "reporting", *(field.name for field in attrs.fields(Reporting))}
    for name in own & set(fit_options):
        raise ArgumentError(name, "to be left to the search", got=fit_options[name])
    work = _Training(plans, model, loss, train_set, score, plan_of, options, fit_options)
    event = training_event(plans, score, disjoint=_validate.flag(disjoint=disjoint))
    return Candidate(work, event, plans[0].relation, work.load, work.check)


def calibrate_plan(
    plan: "Plan",
    trials: TrialCount,
    score: HeldOutScore,
    *,
    epsilon: float,
    delta: float,
    disjoint: bool = False,
) -> "Plan":
    """A copy of the plan with the least noise that makes a whole search (ε, δ)-DP, rounded up.

    Args:
        plan: The training plan of all candidates.
        trials: The distribution of their number.
        score: Their score, which is part of the price.
        epsilon: The ε of the whole search.
        delta: The δ of the whole search.
        disjoint: As for `training`.
    """

    def noisy(noise: float) -> "Plan":
        return attrs.evolve(plan, aggregation=plan.aggregation.with_noise(noise))

    noise = calibrate(
        lambda sigma: training_event([noisy(sigma)], score, disjoint=disjoint),
        trials,
        epsilon=epsilon,
        delta=delta,
        relation=plan.relation,
    )
    return noisy(noise)


def training_event(plans: "Sequence[Plan]", score: HeldOutScore, *, disjoint: bool) -> dp.DpEvent:
    """The event of one candidate of `training`: training and score."""
    return scored_event([plan.event for plan in plans], score.noise, disjoint=disjoint)


@attrs.frozen(eq=False)
class _Training:
    """What a candidate of `training` does; picklable if its parts are."""

    plans: "list[Plan]"
    model: "Callable[[Setting], nn.Module]"
    loss: Any
    train_set: Any
    score: HeldOutScore
    plan_of: "Callable[[Setting], Plan] | None"
    options: Callable[[Setting], Mapping[str, Any]]
    fit_options: dict[str, Any]

    def plan(self, setting: Setting) -> "Plan":
        return self.plans[0] if self.plan_of is None else self.plan_of(setting)

    def check(self, setting: Setting) -> None:
        """Raise an error unless the plan of a setting is one that was declared."""
        plan = self.plan(setting)
        if plan.event not in [one.event for one in self.plans]:
            raise ArgumentError(
                "plan_of",
                "to give plans with the event of one of `plan`",
                got=plan,
                hint="Pass all plans that occur as `plan`: their worst is what is charged.",
            )
        if plan.relation != self.plans[0].relation:
            raise ArgumentError("plan_of", "to keep the relation of `plan`", got=plan.relation)

    def __call__(self, setting: Setting, folder: Path) -> Scored:
        """Train, score, and keep the model."""
        import torch

        from prudent.training import Reporting, fit

        self.check(setting)
        fitted = fit(
            self.plan(setting),
            self.model(setting),
            self.loss,
            self.train_set,
            reporting=Reporting(out=folder / _TRAINING, resume=True, progress=False),
            **{**self.fit_options, **self.options(setting)},
        )
        score = self.score(fitted.model)
        with replacing(folder / _MODEL, "wb", owner_only=True) as file:
            torch.save(fitted.model.state_dict(), file)
        # Its checkpoint holds the key of the noise, and must not be released with the model.
        shutil.rmtree(folder / _TRAINING)
        return Scored(score)

    def load(self, setting: Setting, folder: Path) -> "nn.Module":
        """The trained model."""
        import torch

        model = self.model(setting)
        model.load_state_dict(torch.load(folder / _MODEL, map_location="cpu", weights_only=True))
        return model
