"""Candidates that train a model under a plan, or fit a private estimator, and their private score.

`search` is the private counterpart of a grid search, which pays for every fit. Here a random number
of settings is fitted, each is scored on held-out records with noise, and only the best is released
(`prudent.tune.tuning`).
"""

import contextlib
import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import dp_accounting as dp
import numpy as np

from prudent import _validate
from prudent._files import replacing
from prudent._validate import ArgumentError
from prudent.accounting.losses.repeated_selection import TrialCount
from prudent.accounting.serialisation import to_json
from prudent.tune.candidate import (
    Candidate,
    Scored,
    ScoreNoise,
    Setting,
    Trial,
    check_score_noise,
    scored_event,
)
from prudent.tune.tuning import Tuned, calibrate, tune

if TYPE_CHECKING:
    from torch import Tensor, nn

    from prudent.estimators import PrivateEstimator
    from prudent.training import Plan

_MODEL, _TRAINING, _FIT = "model.pt", "training", "model.json"
_MOST = 1000  # settings of a grid


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


def search(
    estimator: "PrivateEstimator",
    grid: Mapping[str, Sequence[Any]],
    data: tuple[Any, Any],
    *,
    held_out: tuple[Any, Any],
    trials: TrialCount,
    delta: float,
    score_noise: ScoreNoise | None,
    tolerance: float | None = None,
    disjoint: bool = False,
    epsilon: float | None = None,
    ledger: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> Tuned:
    """Fit a random number of settings of an estimator, and release the best one.

    Args:
        estimator: A classifier or a regressor of `prudent.estimators`.
        grid: For each argument of the estimator, the values it may take, as in scikit-learn's
            `GridSearchCV`. Each setting is drawn with the same probability.
        data: The features, as an array or a frame, and the targets, as an array.
        held_out: Features and targets of the records that fitted models are scored on: the score
            is the number of those that are predicted correctly.
        trials: The distribution of the number of fits, such as `Geometric(10)`.
        delta: The δ at which the search is priced.
        score_noise: The noise of a score, such as `DiscreteLaplaceTest(20)`, in records; None: the
            held-out records are public.
        tolerance: How far a predicted number may be off to be correct; None for labels.
        disjoint: Whether no person has records both in `data` and among the held-out ones. Then a
            candidate costs the worse of fit and score instead of both.
        epsilon: The largest ε allowed; a search that costs more is not begun.
        ledger: Charged for the whole search before the first fit; that of the estimator is not.
        out: See `tune`.
        resume: See `tune`.

    Returns:
        The best candidate; `Tuned.value` is the fitted estimator.

    Guarantee:
        That of `tune`: the fitted estimator, its setting and its score together are (ε, δ)-DP at
        `Tuned.epsilon`.
    """
    check_score_noise(score_noise=score_noise)
    from prudent.estimators.base import PrivateEstimator

    _validate.instance(PrivateEstimator, "one of prudent.estimators", estimator=estimator)
    _validate.instance(Mapping, "a mapping of arguments to their values", grid=grid)
    for name, pair in (("data", data), ("held_out", held_out)):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ArgumentError(name, "(features, targets)", shown=type(pair).__name__)
    if tolerance is not None:
        tolerance = _validate.non_negative(tolerance=tolerance)
    known = {name: _validate.values(**{name: each}) for name, each in grid.items()}
    for name, values in known.items():  # those of numpy as a file keeps them
        known[name] = [v.tolist() if isinstance(v, np.generic | np.ndarray) else v for v in values]
    settings = [
        dict(zip(known, values, strict=True))
        for values in itertools.islice(itertools.product(*known.values()), _MOST + 1)
    ]
    if not 1 <= len(settings) <= _MOST:
        raise ArgumentError("grid", f"of 1 to {_MOST:,} settings", shown=f"{len(settings):,}")
    work = _Fit(estimator, data, held_out, score_noise, tolerance)
    if _open(estimator, *data)[1] != _open(estimator, *held_out)[1]:
        raise ArgumentError("held_out", "with the features of data", shown="others")
    # As a setting comes back from its file, in which keys of mappings are texts.
    read = json.loads(json.dumps(settings, default=str))
    fits = [event_of(work.model(each), *data) for each in read]
    different = list({to_json(each): each for each in fits}.values())
    event = scored_event(different, score_noise, disjoint=_validate.flag(disjoint=disjoint))

    def space(trial: Trial) -> None:
        for name, values in known.items():
            trial.choice(name, values)

    return tune(
        Candidate(work, event, load=work.load),
        space,
        trials=trials,
        delta=delta,
        epsilon=epsilon,
        ledger=ledger,
        out=out,
        resume=resume,
    )


def event_of(estimator: "PrivateEstimator", features: Any, targets: Any) -> dp.DpEvent:
    """The privacy event of a fit to arrays, or a frame and an array; nothing is read or charged."""
    rows, names = _open(estimator, features, targets)
    return estimator._priced(rows.names, len(names))[1].event


def _open(estimator: "PrivateEstimator", features: Any, targets: Any) -> Any:
    from prudent.estimators.rows import ModelData

    if isinstance(targets, str):
        raise ArgumentError("data", "features, and an array of targets", got=targets)
    target = targets if estimator._supervised else None
    return ModelData(data=features, target=target, classes=estimator._classes()).open()


@attrs.frozen(eq=False, repr=False)  # its text would quote records
class _Fit:
    """What a candidate of `search` does."""

    estimator: Any
    data: tuple[Any, Any]
    held_out: tuple[Any, Any]
    score_noise: ScoreNoise | None
    tolerance: float | None

    def model(self, setting: Setting) -> Any:
        """An estimator with a setting that charges nobody."""
        from sklearn.base import clone

        return clone(self.estimator).set_params(**{"ledger": None, **setting})

    def __call__(self, setting: Setting, folder: Path) -> Scored:
        """Fit, score, and keep the model."""
        from prudent.release.noise import source_of
        from prudent.tune import saving

        model = self.model(setting).fit(*self.data)
        score = float(self._right(model))
        if self.score_noise is not None:
            score += source_of(model.noise).of_test(self.score_noise)
        saving.write(folder / _FIT, model)
        return Scored(score)

    def _right(self, model: Any) -> int:
        """The number of held-out records that are predicted correctly, each by itself.

        One on which the model raises an error counts as wrong.
        """
        from prudent.estimators.rows import ModelData

        features, targets = self.held_out
        rows = features.iloc if hasattr(features, "iloc") else features
        asked = ModelData(data=features, target=targets)
        known = asked.cells() if self.tolerance is None else asked.numbers()
        total = 0
        for place, target in enumerate(known):
            with contextlib.suppress(Exception):
                (found,) = model.predict(rows[place : place + 1]).tolist()
                if self.tolerance is None:
                    total += bool(found == target)
                else:
                    total += bool(abs(found - target) <= self.tolerance)
        return total

    def load(self, setting: Setting, folder: Path) -> Any:
        """The fitted estimator."""
        from prudent.tune import saving

        model = self.model(setting).set_params(noise=None)
        saving.read(folder / _FIT, model)
        return model
