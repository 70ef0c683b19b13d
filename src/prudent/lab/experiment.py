"""Experiments: a data set, a method, a budget and a corruption as one frozen value."""

import math
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import attrs
import dp_accounting as dp
import torch

from prudent import _validate
from prudent.accounting import ADD_REMOVE, ZERO_OUT, GaussianTest, MarginTest, Relation, Reveals
from prudent.accounting.calibration import Accountant
from prudent.accounting.pld_accountant import PldAccountant
from prudent.accounting.relations import check_relation
from prudent.accounting.serialisation import to_plain
from prudent.lab.corruption import DataCorruption, GradientCorruption, parse
from prudent.lab.datasets import Dataset, load
from prudent.lab.setup import Setup
from prudent.training import (
    AdaptiveTrim,
    Aggregation,
    Fallback,
    Fitted,
    FixedTrim,
    Mean,
    Plan,
    ProposeTestRelease,
    Sum,
    TrimmedSum,
    accuracy,
    fit,
)
from prudent.training.keystream import Key


class Method(_validate.Choice):
    """The training method."""

    PTR = "ptr"
    TRIMMED = "trimmed"
    DPSGD = "dpsgd"
    SGD = "sgd"


@attrs.frozen(kw_only=True)
class Experiment:
    """Everything that determines the outcome of a training run, except the machine.

    Give two of noise, steps and ε: the third is computed from them. Non-private SGD takes only
    steps.

    Attributes:
        dataset: As for `load`.
        method: The training method.
        epsilon: Target ε; None: determined by noise and steps.
        delta: δ of the guarantee.
        steps: Number of steps; None: as many as ε allows.
        noise_multiplier: σ; None: the least that ε allows.
        batch: Expected batch size.
        public_size: Publicly known number of records, from which the sampling rate is computed
            instead of the true number. If the two differ, batches differ from `batch` in
            proportion.
        relation: The neighbouring relation. None: `ADD_REMOVE` with a public size; without one the
            sampling rate reveals the number of records, so it is `ZERO_OUT`.
        clip: R, the L2 bound on every gradient.
        propose: τ/R, the proposal relative to the clip.
        test: The private test.
        failure: δ₀, the largest probability with which a margin of 0 passes.
        reveals: What an observer learns about the test.
        fallback: What is released when the test fails.
        fallback_scale: Factor on the update of a step whose test fails; the paper's second
            learning rate is `lr * fallback_scale`.
        trim: Fraction of the expected batch trimmed in the first step.
        trim_up: Fraction added after a failed test.
        trim_down: Fraction subtracted after a passed test.
        trim_most: Upper bound on the trimmed fraction.
        lr: Learning rate.
        momentum: Momentum of SGD.
        average: Fraction of the running average of the weights that each step keeps; None: use the
            last weights.
        corrupt: A corruption of `prudent.lab.corruption`, or its name as for `parse`. A named
            corruption of gradients takes the seed of the experiment.
        seed: Seed of the model, the sampling, the noise and the corruption.
        accountant: Accountant used for solving; by default the one with privacy-loss distributions.
    """

    dataset: str = "mnist"
    method: Method = attrs.field(default=Method.PTR, converter=Method)
    epsilon: float | None = 3.0
    delta: float = 1e-5
    steps: int | None = None
    noise_multiplier: float | None = None
    batch: int = 256
    public_size: int | None = None
    relation: Relation | None = None
    clip: float = 1.0
    propose: float = 0.5
    test: MarginTest = attrs.field(factory=lambda: GaussianTest(4.0))
    failure: float = 1e-8
    reveals: Reveals = attrs.field(default=Reveals.MONOTONE_BRANCH, converter=Reveals)
    fallback: Fallback = attrs.field(default=Fallback.SUM, converter=Fallback)
    fallback_scale: float = 1.0
    trim: float = 0.25
    trim_up: float = 0.02
    trim_down: float = 0.02
    trim_most: float = 0.5
    lr: float = 0.5
    momentum: float = 0.0
    average: float | None = None
    corrupt: str | DataCorruption | GradientCorruption = "none"
    seed: int = 0
    accountant: Accountant = PldAccountant

    def __attrs_post_init__(self) -> None:
        _validate.count(1, batch=self.batch)
        self._check_relation()
        _validate.positive(lr=self.lr)
        _validate.between(0, 1, ends="[)", momentum=self.momentum)
        if self.average is not None:
            _validate.between(0, 1, ends="[)", average=self.average)
        _validate.between(0, 1, ends="()", delta=self.delta)
        _validate.count(seed=self.seed)
        if self.steps is not None:
            _validate.count(steps=self.steps)
        for name in ("epsilon", "noise_multiplier"):
            if getattr(self, name) is not None:
                _validate.positive(**{name: getattr(self, name)})
        for name in ("trim", "trim_up", "trim_down", "trim_most"):
            _validate.between(0, 1, **{name: getattr(self, name)})
        self._check_solvable()
        _ = self.corruption  # validates its name
        _ = self.aggregation(self.noise_multiplier or 1.0)  # validates clip, proposal and test

    def _check_solvable(self) -> None:
        """Raise an error unless two of ε, steps and noise are given; the third is solved for."""
        names = ("epsilon", "steps", "noise_multiplier")
        given = [name for name in names if getattr(self, name) is not None]
        if self.method is Method.SGD:
            if self.steps is None:
                raise _validate.ArgumentError(
                    "steps", "for sgd, which has no budget to stop it", got=None
                )
            return
        shown = ", ".join(f"{name} = {getattr(self, name):g}" for name in given) or "none"
        if len(given) < 2:
            raise ValueError(
                "Expected two of epsilon, steps and noise_multiplier (the third is solved for), "
                f"got only {shown}."
            )
        if len(given) > 2:
            raise ValueError(
                f"Expected two of epsilon, steps and noise_multiplier, got {shown}: they could "
                "contradict each other. Drop noise_multiplier to have the least noise solved for, "
                "steps to take as many as epsilon allows, or epsilon to have it computed."
            )

    def _check_relation(self) -> None:
        if self.public_size is not None:
            _validate.count(1, public_size=self.public_size)
        if self.relation is None or check_relation(relation=self.relation).size_is_public:
            return
        if self.public_size is None:
            raise _validate.ArgumentError(
                "public_size",
                "when the relation adds or removes records",
                got=None,
                why="the sampling rate would reveal the number of records, which is "
                "secret under this relation",
                hint="Give a public number, or use the relation zero-out, at the same price.",
            )

    @property
    def corruption(self) -> DataCorruption | GradientCorruption | None:
        """The corruption; None without one."""
        if not isinstance(self.corrupt, str):
            return self.corrupt
        named = parse(self.corrupt)
        if isinstance(named, GradientCorruption):
            return attrs.evolve(named, seed=self.seed)
        return named

    @property
    def is_covered(self) -> bool:
        """Whether the ε of the plan is a guarantee for this run.

        It is not for SGD, nor for an attack in which bad records read the gradients of others:
        there a record affects the sum through more than its own gradient.
        """
        corruption = self.corruption
        alone = not isinstance(corruption, GradientCorruption) or corruption.per_record
        return alone and self.method is not Method.SGD

    def aggregation(self, noise_multiplier: float) -> Aggregation:
        """The aggregation of the method with the given noise."""
        match self.method:
            case Method.SGD:
                return Mean()
            case Method.DPSGD:
                return Sum(clip=self.clip, noise_multiplier=noise_multiplier)
            case Method.TRIMMED:
                return TrimmedSum(
                    clip=self.clip, noise_multiplier=noise_multiplier, trim=FixedTrim(self.trim)
                )
            case Method.PTR:
                return ProposeTestRelease(
                    clip=self.clip,
                    propose=self.propose,
                    noise_multiplier=noise_multiplier,
                    test=self.test,
                    failure=self.failure,
                    reveals=self.reveals,
                    fallback=self.fallback,
                    fallback_scale=self.fallback_scale,
                    trim=AdaptiveTrim(
                        first=self.trim,
                        up=self.trim_up,
                        down=self.trim_down,
                        most=self.trim_most,
                    ),
                )

    def plan(self, records: int, before: dp.DpEvent | None = None) -> Plan:
        """The plan, with the missing one of noise, steps and ε solved for.

        Args:
            records: Number of training records.
            before: What is released about them before training; ε includes it.
        """
        size = records if self.public_size is None else self.public_size
        known = ZERO_OUT if self.public_size is None else ADD_REMOVE
        plan = Plan(
            sampling_rate=min(1.0, self.batch / size),
            steps=1000 if self.steps is None else self.steps,
            expected_batch=self.batch,
            relation=known if self.relation is None else self.relation,
            aggregation=self.aggregation(self.noise_multiplier or 1.0),
            before=before,
        )
        if self.method is Method.SGD or self.epsilon is None:
            return plan
        target: dict[str, Any] = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "accountant": self.accountant,
        }
        if self.noise_multiplier is None:
            return plan.calibrate(**target)
        return plan.longest(**target)


@attrs.frozen
class Result:
    """The result of an experiment.

    Attributes:
        experiment: The experiment that was run.
        fitted: The model, the plan that was executed, and its history.
        accuracy: Accuracy on the clean test part.
        epsilon: ε of the run at the experiment's δ; infinite if the plan does not cover the run.
    """

    experiment: Experiment
    fitted: Fitted
    accuracy: float
    epsilon: float

    def plain(self) -> dict[str, Any]:
        """The result as a dictionary with the keys that every command prints."""
        noise = getattr(self.fitted.plan.aggregation, "noise_multiplier", 0.0)
        return {
            "accuracy": self.accuracy,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.experiment.delta,
            "relation": to_plain(self.fitted.plan.relation),
            "steps": self.fitted.plan.steps,
            "noise_multiplier": noise,
            "pass_rate": self.fitted.pass_rate,
        }


def run(
    experiment: Experiment,
    *,
    device: str = "cpu",
    out: Path | None = None,
    resume: bool = False,
    progress: bool = True,
    evaluations: int = 10,
    evaluate_at: Collection[int] = (),
    dataset: Dataset | None = None,
    plan: Plan | None = None,
    secret_noise: bool = False,
    setup: Setup | None = None,
) -> Result:
    """Run an experiment. If `dataset` and `plan` are given, they are not loaded and solved again.

    With `secret_noise`, sampling and noise use a key from the operating system instead of the seed.
    """
    setup = Setup() if setup is None else setup
    data = load(experiment.dataset) if dataset is None else dataset
    corruption = experiment.corruption
    if isinstance(corruption, DataCorruption):
        data = data.corrupted(corruption, experiment.seed)
    before = None if setup.release is None else setup.release.event
    plan = experiment.plan(len(data.train_labels), before) if plan is None else plan
    data = setup.prepare(data, torch.device(device))
    if setup.release is not None:
        _check_release(plan, before, once=not (secret_noise and (resume or _has_peers())))
        key = Key.random() if secret_noise else Key.from_seed(experiment.seed)
        data = setup.release.apply(data, key)
    # Corruptions draw from the default generator, whose state a checkpoint saves.
    with torch.random.fork_rng([device] if torch.device(device).type == "cuda" else []):
        torch.manual_seed(experiment.seed)
        fitted = fit(
            plan,
            setup.build(data, experiment.seed),
            setup.loss,
            (data.train_features, data.train_labels),
            lr=experiment.lr,
            momentum=experiment.momentum,
            average=experiment.average,
            scheduler=None if setup.scheduler is None else setup.scheduler(plan.steps),
            execution=attrs.evolve(
                setup.execution, device=device, seed=None if secret_noise else experiment.seed
            ),
            corrupt=corruption if isinstance(corruption, GradientCorruption) else None,
            evaluate=accuracy(data.test_features, data.test_labels),
            evaluate_every=max(1, -(-plan.steps // evaluations)),
            evaluate_at=evaluate_at,
            delta=experiment.delta if experiment.is_covered else None,
            out=out,
            resume=resume,
            progress=progress,
        )
    spent = math.inf
    if experiment.is_covered:
        spent = fitted.plan.epsilon(experiment.delta, accountant=experiment.accountant)
    final = accuracy(data.test_features, data.test_labels)(fitted.model)["accuracy"]
    return Result(experiment, fitted, final, spent)


def _check_release(plan: Plan, event: dp.DpEvent | None, *, once: bool) -> None:
    """Raise an error if a release before training is not part of the plan, or would be repeated."""
    if plan.before != event:
        raise _validate.ArgumentError(
            "plan", "with what the setup releases as `before`", got=plan.before
        )
    if not once:
        raise _validate.ArgumentError(
            "secret_noise",
            "False for a setup with a release, in a run that is resumed or has several processes",
            got=True,
            why="the release would be repeated with other noise, which nothing was charged for",
        )


def _has_peers() -> bool:
    """Whether torchrun started this process with others, each of which would make the release."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
