"""Private tuning of an experiment: settings that cost nothing by themselves, and one score."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import dp_accounting as dp
import torch

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.accounting.events import DiscreteLaplaceTest
from prudent.accounting.losses.repeated_selection import TrialCount
from prudent.accounting.relations import ADD_REMOVE
from prudent.records.people import people_in
from prudent.training import Execution, Plan
from prudent.tune import Candidate, HeldOutScore, Trial, calibrate_plan, training
from prudent.tune.fitting import training_event
from prudent_lab.datasets import Dataset, held_apart, split_of, units
from prudent_lab.experiment import build_model
from prudent_lab.settings import Experiment, Method

if TYPE_CHECKING:
    from torch import nn

TUNABLE = ("lr", "momentum", "clip", "fallback_scale", "trim", "trim_up", "trim_down", "trim_most")
"""Settings of an experiment that do not change its privacy event, so that all share one price."""


@attrs.frozen
class SettingRange:
    """The values of one setting that a search tries, uniform as they are or in their logarithm."""

    low: float
    high: float
    log: bool = False


@attrs.frozen
class SettingRanges:
    """A search space: each setting from its range or its list of values, independently."""

    of: Mapping[str, SettingRange | tuple[float, ...]]

    def __attrs_post_init__(self) -> None:
        unknown = sorted(set(self.of) - set(TUNABLE))
        if unknown or not self.of:
            raise ArgumentError(
                "search",
                f"settings among {', '.join(TUNABLE)}",
                shown=", ".join(unknown) or "none",
                why="other settings change the price of a candidate",
            )

    def __call__(self, trial: Trial) -> None:
        """Draw one setting."""
        for name, values in self.of.items():
            if isinstance(values, SettingRange):
                trial.float(name, values.low, values.high, log=values.log)
            else:
                trial.choice(name, values)

    def corners(self) -> list[dict[str, float]]:
        """Settings at the ends of all ranges, which show whether the experiment takes them."""
        ends = {
            name: (v.low, v.high) if isinstance(v, SettingRange) else (min(v), max(v))
            for name, v in self.of.items()
        }
        return [{name: end[side] for name, end in ends.items()} for side in (0, 1)]


@attrs.frozen(kw_only=True)
class SettingSearch:
    """A private search for the best settings of an experiment.

    Some of the training records are held out. Each candidate trains on the others with settings of
    its own, and is scored by how many held-out records it labels correctly, with noise.

    Guarantee:
        The number of records is public (neighbours by `ZERO_OUT` or replace-one), so on
        neighbouring data sets the same positions are held out. A person with one record affects
        either training or the score, and a candidate costs the worse of the two; a person with
        several may affect both, and then both are composed. With a unit people are held out, and
        the score counts one record of each, so a person affects one of the two.
    """

    # What is tuned. Its ε, if there is one, is that of the whole search, from which the noise of a
    # candidate is solved; otherwise its noise is used. Steps must be given.
    experiment: Experiment
    space: SettingRanges  # the settings that are tried
    trials: TrialCount  # the distribution of the number of candidates
    # The fraction of the training records that are held out. Which ones is public and depends on
    # their number alone.
    held_out: float = 0.1
    score_noise: float = 10.0  # the scale of the discrete Laplace noise of the score, in records

    def __attrs_post_init__(self) -> None:
        _validate.between(0, 0.9, ends="(]", held_out=self.held_out)
        _validate.positive(score_noise=self.score_noise)
        experiment, privacy = self.experiment, self.experiment.privacy
        if experiment.rule.method is Method.SGD:
            raise ArgumentError("method", "a private one: ptr, trimmed or dpsgd", got="sgd")
        if privacy.steps is None:
            raise ArgumentError("steps", "given: the noise is solved for", got=None)
        if privacy.public_size is not None or privacy.relation == ADD_REMOVE:
            raise ArgumentError(
                "public_size",
                "to be left out",
                got=privacy.public_size,
                why="which records are held out depends on their number, which is public here",
            )
        if experiment.corruption is not None:
            raise ArgumentError("corrupt", "none in a search", got=experiment.corrupt)
        for setting in self.space.corners():
            experiment.changed(**setting)

    def count(self, data: Dataset) -> int:
        """The number of training records, or people."""
        unit, records = self.experiment.unit, len(data.train_labels)
        return records if unit is None else people_in(units(self.experiment.dataset, unit), records)

    def plan(self, records: int) -> Plan:
        """The plan of one candidate, for a number of records, or people; reads none of them."""
        rest = len(split_of(records, self.held_out)[0])
        privacy = self.experiment.privacy
        noise = privacy.noise_multiplier or 1.0
        plan = self.experiment.changed(epsilon=None, noise_multiplier=noise).plan(rest)
        if privacy.epsilon is None:
            return plan
        return calibrate_plan(
            plan,
            self.trials,
            self._score(),
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            disjoint=plan.relation.records == 1,
        )

    def candidate(self, data: Dataset, plan: Plan, *, device: str = "cpu") -> Candidate:
        """The candidate that trains under the plan on a data set and is scored on the rest."""
        experiment, owners, people = self.experiment, None, {}
        if experiment.unit is not None:
            owners = units(experiment.dataset, experiment.unit)
        some, rest, first = held_apart(owners, data, self.held_out)
        rest = rest[first]  # one record of each, so that nobody changes a score by more
        if owners is not None:
            people = {
                "unit": owners[some.numpy()],
                "records_per_person": experiment.records_per_person,
                "per_unit": experiment.per_unit,
            }
        # A model is built of shapes and classes alone.
        no_records = data.mapped(lambda features: features[:0], lambda labels: labels[:0])
        work = _Settings(experiment, plan, no_records)
        return training(
            plan,
            work.model,
            torch.nn.CrossEntropyLoss(reduction="none"),
            (data.train_features[some], data.train_labels[some]),
            self._score(data.train_features[rest], data.train_labels[rest]),
            plan_of=work.plan_of,
            options=work.options,
            disjoint=plan.relation.records == 1,
            execution=Execution(device=device),
            **people,
        )

    def event(self, plan: Plan) -> dp.DpEvent:
        """The privacy event of one candidate; reads no data."""
        return training_event([plan], self._score(), disjoint=plan.relation.records == 1)

    def _score(self, features: Any = None, labels: Any = None) -> HeldOutScore:
        return HeldOutScore(features, labels, DiscreteLaplaceTest(self.score_noise))


@attrs.frozen(eq=False)
class _Settings:
    """What a setting stands for: the model, the plan and the options of `fit`."""

    experiment: Experiment
    base: Plan
    shapes: Dataset

    def model(self, setting: Mapping[str, Any]) -> "nn.Module":
        return build_model(self.shapes, self.experiment.seed)

    def plan_of(self, setting: Mapping[str, Any]) -> Plan:
        noise = self.base.aggregation.noise_multiplier  # type: ignore[attr-defined]
        aggregation = self.experiment.changed(**setting).rule.aggregation(noise)
        return attrs.evolve(self.base, aggregation=aggregation)

    def options(self, setting: Mapping[str, Any]) -> dict[str, Any]:
        return attrs.asdict(self.experiment.changed(**setting).optimizer)


def space_of(texts: list[str]) -> SettingRanges:
    """The search space that texts name: lr=0.05:2:log, clip=0.1:4 or momentum=0,0.5,0.9."""
    ranges: dict[str, SettingRange | tuple[float, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if name in ranges:
            raise ArgumentError("search", "each setting once", got=name)
        ends, log = values.removesuffix(":log").split(":"), values.endswith(":log")
        try:
            numbers = [float(each) for each in (values.split(",") if len(ends) == 1 else ends)]
        except ValueError:
            numbers = []
        fine = bool(numbers) and all(map(math.isfinite, numbers))
        if fine and len(ends) == 1 and not log:
            ranges[name] = tuple(numbers)
        elif fine and len(ends) == 2 and numbers[0] <= numbers[1] and (numbers[0] > 0 or not log):
            ranges[name] = SettingRange(numbers[0], numbers[1], log)
        else:
            form = "NAME=LOW:HIGH, NAME=LOW:HIGH:log with LOW > 0, or NAME=A,B,…"
            raise ArgumentError("search", form, got=text)
    return SettingRanges(ranges)
