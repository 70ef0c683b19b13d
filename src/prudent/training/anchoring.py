"""A pull that no attack on gradients reaches: toward a model that knows the means of the classes.

Bad records that act together can outweigh the mean of honest gradients, which point many ways. They
cannot outweigh what was released before the first step, if that is a mean of all records.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import dp_accounting as dp
import torch
from torch import Tensor, nn

from prudent import _validate
from prudent.training.aggregation import clip_weights
from prudent.training.distributed import Alone
from prudent.training.gradients.engine import Loss
from prudent.training.sharding import has_shards

Gather = Callable[[Tensor], tuple[Any, Any]]
_AT_ONCE = 4096
_SURE = 4.0


@attrs.frozen(kw_only=True)
class ClassMeans:
    """Releases the mean input of every class before the first step, and trains on these as well.

    With bad records in a share q of every batch, what they add to a step is at most q times the
    clip. The gradient on the class means is at most `weight` times the clip, and less the better
    the model knows them: with a weight above q it is the stronger of the two where the bad push the
    model away from what it knows.

    A record adds its input, no longer than `norm`, to the sum of its class, and `norm` to a count:
    a vector of all sums and counts changes by at most √2·norm. So the price is that of one Gaussian
    release of all records. All that follows is post-processing. It takes inputs of one tensor whose
    mean says something, such as images or tables, and targets that are numbers of classes. The
    classes are the outputs of the model.

    Attributes:
        norm: Longer inputs are shortened to this.
        noise: Standard deviation of the noise, in units of how far a record changes the vector.
        weight: The pull is no longer than this share of the clip.
        shift: Images are also shown moved by so many pixels, to each side and corner.
    """

    norm: float = 10.0
    noise: float = 20.0
    weight: float = 0.3
    shift: int = 0

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, _validate.positive, "norm", "noise", "weight")
        _validate.fields(self, partial(_validate.count, 0), "shift")

    @property
    def event(self) -> dp.DpEvent:
        """The release, for any accountant."""
        return dp.GaussianDpEvent(self.noise)

    def release(
        self,
        gather: Gather,
        records: int,
        model: nn.Module,
        generator: torch.Generator,
        processes: Alone,
    ) -> "Anchor":
        """Reads every record once; each process its own.

        Args:
            gather: From record ids to inputs and targets.
            records: How many there are.
            model: Its outputs are the classes.
            generator: Of the noise, on the device of the model.
            processes: Those that release together.
        """
        if has_shards(model):
            raise ValueError(
                "Expected plan.anchor None for a model divided by fully_shard, got one: its "
                "gradient is taken whole."
            )
        device = next(model.parameters()).device
        own = torch.arange(processes.rank, records, processes.count, device=device)
        example, target = gather(own[:1])
        _check(example, target, self.shift)
        classes = _outputs(model, example)
        total = torch.zeros(classes, example.numel() + 1, dtype=torch.float64, device=device)
        for ids in torch.split(own, _AT_ONCE):
            total += self._sums(*gather(ids), classes)
        deviation = self.noise * math.sqrt(2) * self.norm
        if processes.rank == 0:
            noise = torch.randn(
                total.shape, dtype=total.dtype, device=total.device, generator=generator
            )
            total += deviation * noise
        total = processes.summed(total)
        # Of a class that is hardly there the noise must not make a mean without bounds.
        counts = (total[:, -1:] / self.norm).clamp_min(_SURE * deviation / self.norm)
        means = (total[:, :-1] / counts).to(example.dtype).view(classes, *example.shape[1:])
        return Anchor(self, *_shifted(means, self.shift))

    def _sums(self, inputs: Tensor, targets: Tensor, classes: int) -> Tensor:
        """By class: inputs added up, and their number times the norm, in the last column."""
        flat = inputs.flatten(1).double()
        known = (targets >= 0) & (targets < classes)
        lengths = torch.linalg.vector_norm(flat, dim=1)
        weights, _ = clip_weights(lengths, known, self.norm)
        # Zero times what is not a number is none: such a record is left out before it is added.
        counted = known & torch.isfinite(lengths)
        flat = torch.where(counted[:, None], flat * weights[:, None], 0.0)
        rows = torch.cat([flat, self.norm * counted[:, None].double()], 1)
        sums = rows.new_zeros(classes, rows.shape[1])
        return sums.index_add_(0, targets.clamp(0, classes - 1), rows)


class Anchor:
    """Released records, one or more of each class, and the pull of their gradient.

    Args:
        policy: How they were released, and how strong they are.
        inputs: Of the records.
        targets: Their classes.
    """

    def __init__(self, policy: ClassMeans, inputs: Tensor, targets: Tensor) -> None:
        self._weight = policy.weight
        self.inputs, self.targets = inputs, targets

    def gradient(self, model: nn.Module, loss: Loss, clip: float) -> Tensor:
        """Of the mean loss on these records: clipped, weighted, and flat."""
        trained = [p for p in model.parameters() if p.requires_grad]
        with torch.enable_grad():
            losses = loss(model(self.inputs), self.targets)
            parts = torch.autograd.grad(losses.mean(), trained, materialize_grads=True)
        flat = torch.cat([part.flatten() for part in parts])
        return self._weight * torch.renorm(flat[None], 2, 0, clip)[0]

    def pull(self, model: nn.Module, loss: Loss, clip: float, processes: Alone) -> None:
        """Adds that gradient to what a step has left in `.grad`."""
        flat = self.gradient(model, loss, clip)
        if processes.rank > 0:
            flat = torch.zeros_like(flat)  # all processes take that of the first, to the last digit
        flat = processes.summed(flat)
        trained = [p for p in model.parameters() if p.requires_grad]
        sizes = [p.numel() for p in trained]
        with torch.no_grad():
            for parameter, part in zip(trained, torch.split(flat, sizes), strict=True):
                assert parameter.grad is not None
                parameter.grad += part.view_as(parameter)

    def restore(self, inputs: Tensor) -> None:
        """Takes over saved records, in place: a captured step knows them by their address."""
        self.inputs.copy_(inputs)


def _check(inputs: Any, targets: Any, shift: int) -> None:
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        given = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(
            "Expected inputs one tensor of floating-point numbers for plan.anchor, whose means say "
            f"something, got {given}."
        )
    if not isinstance(targets, Tensor) or targets.ndim != 1 or targets.is_floating_point():
        raise ValueError(
            "Expected targets one class number for each record for plan.anchor, got others."
        )
    if shift and inputs.ndim < 3:
        raise ValueError(
            f"Expected plan.anchor.shift 0 for inputs that are no images, got {shift}."
        )


def _outputs(model: nn.Module, inputs: Tensor) -> int:
    """How many numbers the model gives for a record; asked with one that is nobody's."""
    with torch.no_grad():
        return int(model(torch.zeros_like(inputs[:1])).shape[-1])


def _shifted(means: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """The means where they are and, of images, to each side and corner; and their classes."""
    classes = torch.arange(len(means), device=means.device)
    if not shift:
        return means, classes
    moves = list(itertools.product((-shift, 0, shift), repeat=2))
    moved = torch.cat([torch.roll(means, move, (-2, -1)) for move in moves])
    return moved, classes.repeat(len(moves))
