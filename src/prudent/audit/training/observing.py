"""Runs of a plan as a white-box attacker sees them: every release of every step.

The steps are those of `prudent.fit`, taken by the same `TrainingRun`: real sampling, clipping,
test, trim, noise and division. The model is linear, so what a step releases does not depend on
earlier ones, and `runs` times `plan.steps` steps in a row are `runs` runs of the plan.
"""

from typing import cast

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from prudent._progress import track
from prudent.audit.lower_bounds import BoolArray, FloatArray
from prudent.audit.training.scenes import Linear, Scene, output_as_loss
from prudent.training.plan import Plan
from prudent.training.run.execution import Execution
from prudent.training.run.training_run import TrainingRun


@attrs.frozen(eq=False)
class Releases:
    """What an attacker sees of many runs; every array has the shape (runs, steps).

    Attributes:
        along: The released gradient along the direction of the canary, times the expected batch.
        passed: Whether the test passed.
        noisy_margin: The noisy margin of the test; to be used only if the plan reveals it.
        trim: F of each step.
    """

    along: FloatArray
    passed: BoolArray
    noisy_margin: FloatArray
    trim: FloatArray

    @classmethod
    def joined(cls, parts: "list[Releases]") -> "Releases":
        """The runs of all parts, one after the other."""
        names = [field.name for field in attrs.fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def ordered(self, places: "np.ndarray[tuple[int], np.dtype[np.intp]]") -> "Releases":
        """The runs in another order."""
        return Releases(*(value[places] for value in attrs.astuple(self, recurse=False)))


def observe(plan: Plan, scene: Scene, *, present: bool, runs: int) -> Releases:
    """Take the steps of many runs on the records of a scene, with its canary or without."""
    records = scene.records(present=present)
    model = Linear(records.shape[1])
    run = _prepared(plan, plan.steps * runs, model, records)
    seen: list[Tensor] = []
    for number in track(run.steps(0, plan.steps * runs), "training runs", plan.steps * runs):
        outcome = run.last
        gradient = model.layer.weight.grad
        assert outcome is not None
        assert gradient is not None
        along = gradient[0] @ scene.direction * run.step.expected_batch
        values = (along, outcome.passed, outcome.noisy_margin, outcome.trim)
        seen.append(torch.stack([torch.as_tensor(v, dtype=torch.float64) for v in values]))
        if (number + 1) % plan.steps == 0:  # the next step is the first of another run
            run.step.state.trim.fill_(plan.aggregation.trim.start(run.step.expected_batch))
    table = torch.stack(seen).view(runs, plan.steps, 4).numpy()
    return Releases(table[..., 0], table[..., 1] > 0, table[..., 2], table[..., 3])


class Lanes(nn.Module):
    """A model with one weight per lane; a record is the number of its lane."""

    def __init__(self, lanes: int) -> None:
        super().__init__()
        self.weights = nn.Embedding(lanes, 1, dtype=torch.float64)
        nn.init.zeros_(self.weights.weight)

    def forward(self, lanes: Tensor) -> Tensor:
        """The weight of each record's lane."""
        return cast(Tensor, self.weights(lanes))[:, 0]


def observe_lanes(plan: Plan, present: BoolArray) -> FloatArray:
    """Take the steps of one run in which each lane is a run of its own; shape (lanes, steps).

    A lane is a coordinate of the model. Where `present`, a Dirac canary has its gradient there, of
    twice the clip, so that it is clipped. The canaries of other lanes add nothing to this one, each
    is drawn on its own, and each coordinate has noise of its own: for the clipped sum, what a lane
    shows is distributed as in a run with this canary alone, and lanes are independent.
    """
    clip = plan.aggregation.clip
    model = Lanes(len(present))
    records = torch.from_numpy(np.flatnonzero(present))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return 2 * clip * outputs

    run = _prepared(plan, plan.steps, model, records, loss)
    seen = np.empty((len(present), plan.steps))
    for number in run.steps(0, plan.steps):
        assert model.weights.weight.grad is not None
        seen[:, number] = run.step.expected_batch * model.weights.weight.grad[:, 0].numpy()
    return seen


def _prepared(
    plan: Plan, steps: int, model: nn.Module, records: Tensor, loss: "object" = output_as_loss
) -> TrainingRun:
    """A run of the plan's steps, whose updates leave the model as it is."""
    return TrainingRun.prepare(
        attrs.evolve(plan, steps=steps),
        model,
        loss,  # type: ignore[arg-type]
        (records, torch.zeros(len(records))),
        options={"lr": 0.0},
        execution=Execution(distributed=False),
    )
