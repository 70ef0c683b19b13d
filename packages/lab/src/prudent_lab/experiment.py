"""Runs of experiments: what is trained on which records, and what came of it; recipes of them."""

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs
import dp_accounting as dp
import torch
from torch import nn

from prudent import _validate
from prudent.accounting.serialisation import to_plain
from prudent.records.people import people_in
from prudent.training import Execution, Fitted, Reporting, accuracy, fit
from prudent.training.gradients.engine import Loss
from prudent.training.keystream import Key
from prudent.training.plan import RELEASED
from prudent_lab.corruption import DataCorruption, GradientCorruption
from prudent_lab.datasets import Dataset, held_apart, load, split_of, units
from prudent_lab.models import multilayer_perceptron, tutorial_cnn
from prudent_lab.settings import Experiment, Method

Prepare = Callable[[Dataset, torch.device], Dataset]
"""Maps every record of both parts by a public function of that record alone."""

Build = Callable[[Dataset, int], nn.Module]
"""Makes the model for a prepared data set, from a seed."""


class Release(Protocol):
    """Something released about the prepared records before training, for use in training."""

    @property
    def event(self) -> dp.DpEvent:
        """What the release costs, for neighbours that differ in one record."""

    def apply(self, data: Dataset, key: Key) -> Dataset:
        """The data set mapped, record by record, by a function of what is released.

        Training draws from other positions of the keystream of the key.
        """


def build_model(data: Dataset, seed: int) -> nn.Module:
    """The tutorial network for images, or a small perceptron for tables."""
    shape = tuple(data.train_features.shape[1:])
    if len(shape) == 3 and min(shape[1:]) >= 20:
        return tutorial_cnn((shape[0], shape[1], shape[2]), data.classes, seed)
    return multilayer_perceptron(shape, data.classes, seed=seed)


@attrs.frozen(kw_only=True)
class Setup:
    """What is trained, and on what.

    Guarantee:
        Training on prepared records is as private as training on the records themselves, at the
        same ε: `prepare` maps each record by a public function of that record alone, so data sets
        that differ in one record still do so when prepared. What `release` costs is part of the
        plan, and so of every ε.
    """

    # The public map of records; it may place them on the device.
    prepare: Prepare = lambda data, _: data
    release: Release | None = None  # what is released before training; None: nothing
    build: Build = build_model  # makes the model
    # Loss per record, of outputs and targets.
    loss: Loss = attrs.field(factory=lambda: nn.CrossEntropyLoss(reduction="none"))


@attrs.frozen(kw_only=True)
class Recipe:
    """A tuned experiment: `run(recipe.settings(seed=1), setup=recipe.setup)` runs it."""

    name: str  # name for `--recipe`
    summary: str  # what it does, in one line
    anchor: str  # the published result it is compared with
    experiment: Experiment  # the settings of the method that does best
    # The settings that other methods change, by method.
    others: Mapping[Method, Mapping[str, Any]] = attrs.field(factory=dict)
    setup: Setup  # the public map of records, the model and the loss

    def settings(self, **changes: Any) -> Experiment:
        """The recipe's experiment with these changes; `method` brings that method's settings."""
        method = Method(changes.pop("method", self.experiment.rule.method))
        own = {} if method is self.experiment.rule.method else self.others.get(method, {})
        return self.experiment.changed(method=method, **{**own, **changes})


@attrs.frozen
class ExperimentResult:
    """The result of an experiment."""

    experiment: Experiment  # the experiment that was run
    fitted: Fitted  # the model, the plan that was executed, and its history
    accuracy: float  # accuracy on the clean test part
    # ε of the run at the experiment's δ; infinite if the plan does not cover the run.
    epsilon: float

    def plain(self) -> dict[str, Any]:
        """The result as a dictionary with the keys that every command prints."""
        noise = getattr(self.fitted.plan.aggregation, "noise_multiplier", 0.0)
        return {
            "accuracy": self.accuracy,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.experiment.privacy.delta,
            "relation": to_plain(self.fitted.plan.relation),
            "protected": self.fitted.protected,
            "steps": self.fitted.plan.steps,
            "noise_multiplier": noise,
            "pass_rate": self.fitted.pass_rate,
            "released": self.released,
        }

    @property
    def released(self) -> dict[str, float]:
        """What the plan has released last to watch the run by, each with its noise."""
        names = [name + end for name in RELEASED for end in ("", "_noise")]
        shown = [entry.evaluation for entry in self.fitted.history]
        return {name: each[name] for each in shown for name in names if name in each}


def run(
    experiment: Experiment,
    *,
    setup: Setup | None = None,
    dataset: Dataset | None = None,
    device: str = "cpu",
    secret_noise: bool = False,
    evaluations: int = 10,
    reporting: Reporting | None = None,
) -> ExperimentResult:
    """Run an experiment.

    Args:
        experiment: The experiment.
        setup: What is trained; None: the usual network, on the records as they are.
        dataset: The data set, if it is loaded already.
        device: Where to train.
        secret_noise: Take the key of sampling and noise from the operating system, not the seed.
        evaluations: How often to evaluate the accuracy on the test part.
        reporting: What else to show and write.
    """
    reporting = Reporting() if reporting is None else reporting
    setup = Setup() if setup is None else setup
    data = load(experiment.dataset) if dataset is None else dataset
    corruption = experiment.corruption
    if isinstance(corruption, DataCorruption):
        data = data.corrupted(corruption, experiment.seed)
    before = None if setup.release is None else setup.release.event
    count, owners = len(data.train_labels), None
    if experiment.unit is not None:
        owners = units(experiment.dataset, experiment.unit)
        if setup.release is not None:
            raise _validate.ArgumentError(
                "unit",
                "None for a recipe that releases something before training",
                shown="one",
                why="that release is priced for one record",
            )
        count = people_in(owners, count)
    held_out, some, rest = experiment.watching.held_out, None, None
    if held_out is not None:
        some, rest, _ = held_apart(owners, data, held_out)
        count = len(split_of(count, held_out)[0])
    plan = experiment.plan(count, before)
    data = setup.prepare(data, torch.device(device))
    if setup.release is not None:
        # With others, each process that torchrun started would make the release.
        again = reporting.resume or int(os.environ.get("WORLD_SIZE", "1")) > 1
        if secret_noise and again:
            raise _validate.ArgumentError(
                "secret_noise",
                "False for a setup with a release, in a run that is resumed or has several "
                "processes",
                got=True,
                why="the release would be repeated with other noise, which nothing was charged for",
            )
        key = Key.random() if secret_noise else Key.from_seed(experiment.seed)
        data = setup.release.apply(data, key)
    # Corruptions draw from the default generator, whose state a checkpoint saves.
    with torch.random.fork_rng([device] if torch.device(device).type == "cuda" else []):
        torch.manual_seed(experiment.seed)
        fitted = fit(
            plan,
            setup.build(data, experiment.seed),
            setup.loss,
            _part(data, some),
            **attrs.asdict(experiment.optimizer),
            unit=owners if owners is None or some is None else owners[some.numpy()],
            held_out_set=None if rest is None else _part(data, rest),
            held_out_unit=None if owners is None or rest is None else owners[rest.numpy()],
            records_per_person=experiment.records_per_person,
            per_unit=experiment.per_unit,
            execution=Execution(device=device, seed=None if secret_noise else experiment.seed),
            corrupt=corruption if isinstance(corruption, GradientCorruption) else None,
            reporting=attrs.evolve(
                reporting,
                evaluate=accuracy(data.test_features, data.test_labels),
                evaluate_every=max(1, -(-plan.steps // evaluations)),
                patience=experiment.watching.patience,
                keep_best=experiment.watching.patience is not None,
            ),
            delta=experiment.privacy.delta if experiment.is_covered else None,
        )
    spent, privacy = math.inf, experiment.privacy
    if experiment.is_covered:
        spent = fitted.plan.epsilon(privacy.delta, accountant=privacy.accountant)
    final = accuracy(data.test_features, data.test_labels)(fitted.model)["accuracy"]
    return ExperimentResult(experiment, fitted, final, spent)


def _part(data: Dataset, places: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The training records of a data set at some places; None: all of them."""
    if places is None:
        return data.train_features, data.train_labels
    places = places.to(data.train_features.device)
    return data.train_features[places], data.train_labels[places.to(data.train_labels.device)]
