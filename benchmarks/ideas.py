"""Ideas against attacks by records that act together: what each keeps of the accuracy.

    python -m benchmarks.ideas --out ideas.csv

MNIST at ε = 3, δ = 1e-5, noise solved for each idea by the exact accounting; accuracy on 10,000
training records held out, one seed. Only the average of the weights is in the library; the rest
lives here, so that it need not be tried again. The numbers of a bound on directions, of a clip that
follows the gradients and of an anchor to class means stay in the results, their code was removed:
attacks that choose records rather than gradients defeat all three. Ideas that only change what is
done with released gradients are post-processing and cost nothing. Two that change the release:

Centring. Every gradient is reduced by c, a mean of gradients released before, then clipped; c is
added back to the released mean. c is public, so adding or removing a record changes the sum by its
own clipped vector and no other: sensitivity R, and margins as before.

Proposal adapted. τ moves down after a passed test and up after a failed one, F stays. Each step is
the mechanism at some τ between its bounds, chosen by what was released. A smaller τ is dearer (a
false pass adds less noise to a sum of sensitivity R), so every step is priced at the least.
"""

import argparse
import csv
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from prudent.accounting import GaussianTest
from prudent.training import Execution, Plan, ProposeTestRelease, accuracy
from prudent.training.aggregation import Decision, Trim, clip_weights, keep_smallest
from prudent.training.noise import margin_noise
from prudent.training.run.run import Run
from prudent_lab.corruption import DataCorruption, GradientCorruption
from prudent_lab.datasets import Dataset, load
from prudent_lab.experiment import build_model
from prudent_lab.settings import Experiment

HELD_OUT = 10_000
ATTACKS = (
    "none",
    "colluding:0.2",
    "inner-product:0.2",
    "reversed:0.2",
    "loud:0.2",
    "little:0.2",
)
COLUMNS = (
    "study",
    "idea",
    "corrupt",
    "batch",
    "steps",
    "lr",
    "noise_multiplier",
    "accuracy",
    "pass_rate",
)
_RUNG = 0.05


@attrs.frozen(kw_only=True)
class Ladder(Trim):
    """The number of rungs by which τ is below R, in place of a number of gradients."""

    most: float = 60.0

    def start(self, expected_batch: float) -> float:
        return 10.0

    def next(self, trim: Tensor, passed: Tensor, expected_batch: float) -> Tensor:
        return torch.where(passed, trim + 1, trim - 1).clamp(0, self.most)


@attrs.frozen(kw_only=True)
class AdaptedProposal(ProposeTestRelease):
    """PTR with a fixed F and a τ that follows the branches; `propose` is the least τ/R."""

    trimmed: int

    def decide(
        self,
        norms: Tensor,
        valid: Tensor,
        trim: Tensor,
        words: Tensor,
    ) -> Decision:
        proposal = self.clip * torch.exp(-_RUNG * trim)
        fixed = torch.full_like(trim, self.trimmed)
        weights, clipped = clip_weights(norms, valid, self.clip)
        trimmed = weights * keep_smallest(clipped, valid, fixed)
        margin = (fixed - (valid & (clipped > proposal)).sum()).clamp_min(0)
        noisy_margin = margin + margin_noise(self.test, words)
        passed = noisy_margin > self.threshold
        noise = self.noise_multiplier * torch.where(passed, proposal, self.clip)
        one = torch.ones((), dtype=norms.dtype, device=norms.device)
        return Decision(
            torch.where(passed, trimmed, weights), noise.to(norms.dtype), passed, noisy_margin, one
        )


class Centred(torch.optim.SGD):
    """SGD that adds the centre back and moves it toward what was released."""

    def __init__(self, parameters: Any, centre: list[Tensor], keep: float, **options: Any) -> None:
        super().__init__(parameters, **options)
        self._centre, self._keep = centre, keep

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for parameter, centre in zip(self.param_groups[0]["params"], self._centre, strict=True):
            parameter.grad += centre
            centre.lerp_(parameter.grad, 1 - self._keep)
        super().step(closure)


class Tethered(torch.optim.SGD):
    """SGD that stays within a distance of where it began."""

    def __init__(self, parameters: Any, radius: float, **options: Any) -> None:
        super().__init__(parameters, **options)
        self._radius = radius
        self._start = [p.detach().clone() for p in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        super().step(closure)
        pairs = list(zip(self.param_groups[0]["params"], self._start, strict=True))
        distance = torch.stack([(p - s).norm() for p, s in pairs]).norm()
        factor = (self._radius / distance).clamp_max(1.0)
        for parameter, start in pairs:
            parameter.copy_(start + factor * (parameter - start))


@attrs.frozen(kw_only=True)
class Idea:
    """Changes to the base: an experiment, and what an experiment has no word for."""

    changes: dict[str, Any] = attrs.field(factory=dict)
    rate: float = 1.0
    weight_decay: float = 0.0
    centre: float | None = None
    adapts_proposal: bool = False
    radius: float | None = None


DPSGD = {"method": "dpsgd"}
IDEAS = {
    "TSGD+PTR": Idea(),
    "DP-SGD": Idea(changes=DPSGD),
    "a quarter of the rate": Idea(rate=1 / 4),
    "weight decay 0.003": Idea(weight_decay=0.003),
    "within 10 of the start": Idea(radius=10.0),
    "within 5 of the start": Idea(radius=5.0),
    "centred": Idea(centre=0.9),
    "momentum 0.9": Idea(changes={"momentum": 0.9}, rate=1 / 10),
    "proposal adapted": Idea(changes={"propose": 0.05}, adapts_proposal=True),
    "clip 4, proposal 0.5": Idea(changes={"clip": 4.0, "propose": 0.125}),
    "DP-SGD, clip 3, a third of the rate": Idea(changes=DPSGD | {"clip": 3.0}, rate=1 / 3),
    "DP-SGD, clip 8, an eighth of the rate": Idea(changes=DPSGD | {"clip": 8.0}, rate=1 / 8),
    "four times the batch": Idea(changes={"batch": 1024}, rate=4.0),
    "averaged": Idea(changes={"average": 0.97}),
    "DP-SGD, averaged": Idea(changes=DPSGD | {"average": 0.97}),
}


def experiment_of(idea: Idea, corrupt: str, steps: int, rate: float) -> Experiment:
    base = {"steps": steps, "batch": 256, "lr": rate * idea.rate}
    if "batch" in idea.changes:
        base["steps"] = steps * 256 // idea.changes["batch"]  # as many epochs
    fixed = {"test": GaussianTest(4.0), "epsilon": 3.0, "corrupt": corrupt}
    return Experiment.of(**(base | idea.changes | fixed))


def split() -> Dataset:
    data = load("mnist")
    cut = len(data.train_labels) - HELD_OUT
    return replace(
        data,
        train_features=data.train_features[:cut],
        train_labels=data.train_labels[:cut],
        test_features=data.train_features[cut:],
        test_labels=data.train_labels[cut:],
    )


def run(name: str, corrupt: str, steps: int, rate: float) -> dict[str, Any]:
    torch.set_num_threads(1)
    idea, device = IDEAS[name], torch.device("cpu")
    experiment, data = experiment_of(idea, corrupt, steps, rate), split()
    corruption = experiment.corruption
    if isinstance(corruption, DataCorruption):
        data = data.corrupted(corruption, experiment.seed)
    plan = experiment.plan(len(data.train_labels))
    if idea.adapts_proposal:
        plan = _adapted(plan, experiment)
    model = build_model(data, experiment.seed)
    hook = None
    if isinstance(corruption, GradientCorruption):
        hook = corruption.hook(len(data.train_labels), device)
    centre = [torch.zeros_like(p) for p in model.parameters()]
    if idea.centre is not None:
        hook = _centring(hook, [name for name, _ in model.named_parameters()], centre)

    def optimizer(parameters: Any, **options: Any) -> torch.optim.Optimizer:
        if idea.centre is not None:
            return Centred(parameters, centre, idea.centre, **options)
        if idea.radius is not None:
            return Tethered(parameters, idea.radius, **options)
        return torch.optim.SGD(parameters, **options)

    options = {
        "lr": experiment.optimizer.lr,
        "momentum": experiment.optimizer.momentum,
        "weight_decay": idea.weight_decay,
    }
    training = Run.prepare(
        plan,
        model,
        nn.CrossEntropyLoss(reduction="none"),
        (data.train_features, data.train_labels),
        optimizer=optimizer,
        options=options,
        execution=Execution(seed=experiment.seed),
        corrupt=hook,
        average=experiment.optimizer.average,
    )
    for _ in range(plan.steps):
        training.take()
    with training.shown() as shown:
        right = accuracy(data.test_features, data.test_labels)(shown)["accuracy"]
    return {
        "study": f"{steps} steps",
        "idea": name,
        "corrupt": corrupt,
        "batch": experiment.privacy.batch,
        "steps": plan.steps,
        "lr": experiment.optimizer.lr,
        "noise_multiplier": round(plan.aggregation.noise_multiplier, 4),  # type: ignore[attr-defined]
        "accuracy": round(100 * right, 2),
        "pass_rate": round(training.pass_rate or 0.0, 3),
    }


def _adapted(plan: Plan, experiment: Experiment) -> Plan:
    fields = attrs.asdict(plan.aggregation, recurse=False) | {"trim": Ladder()}
    trimmed = math.floor(experiment.rule.trim * experiment.privacy.batch)
    return attrs.evolve(plan, aggregation=AdaptedProposal(**fields, trimmed=trimmed))


def _centring(hook: Any, names: list[str], centre: list[Tensor]) -> Any:
    def centred(gradients: Any, chunk: Any, generator: Any) -> Any:
        gradients = gradients if hook is None else hook(gradients, chunk, generator)
        return {name: gradients[name] - c for name, c in zip(names, centre, strict=True)}

    return centred


def _rows(
    names: list[str], attacks: list[str], steps: int, rate: float, workers: int
) -> Iterator[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        tasks = [
            pool.submit(run, name, attack, steps, rate) for attack in attacks for name in names
        ]
        for task in as_completed(tasks):
            yield task.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("ideas.csv"))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--ideas", default=";".join(IDEAS), help="separated by semicolons")
    parser.add_argument("--attacks", default=";".join(ATTACKS), help="separated by semicolons")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        names, attacks = arguments.ideas.split(";"), arguments.attacks.split(";")
        for row in _rows(names, attacks, arguments.steps, arguments.rate, arguments.workers):
            writer.writerow(row)
            file.flush()
            print(row, flush=True)


if __name__ == "__main__":
    main()
