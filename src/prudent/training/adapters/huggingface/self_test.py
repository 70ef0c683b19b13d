"""Self-tests of a fine-tuning run: the loss reaches what is trained, and only that moves.

Noise moves every trained weight, so a run in which the loss reaches no adapter looks alive. The
tests use a public example and released models alone, and cost nothing.
"""

import warnings
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from prudent._torch_private import pytree
from prudent._validate import ArgumentError
from prudent.training.gradients import Engine
from prudent.training.gradients.engine import count_records

_SHOWN = 5


@attrs.frozen
class Reach:
    """Which parameters the loss of a record reaches."""

    reached: tuple[str, ...]  # trained parameters with a gradient
    unreached: tuple[str, ...]  # trained parameters that only noise would move
    frozen: tuple[str, ...]  # parameters that are not trained


def reach(engine: Engine, inputs: Any, targets: Any = ()) -> Reach:
    """Which parameters of the engine's model the loss of public records reaches.

    Trained parameters are moved a little first, in a copy: adapters start at a point where half of
    them have no gradient.

    Args:
        engine: The engine of the private step.
        inputs: The inputs of one or more public records.
        targets: Their targets.
    """
    model = engine.model
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    some = next(iter(trained.values()), None)
    devices = [some.device] if some is not None and some.is_cuda else []
    with torch.random.fork_rng(devices), torch.no_grad():
        values: dict[str, Tensor] = dict(model.named_parameters()) | dict(model.named_buffers())
        values |= {name: p + 0.01 * torch.randn_like(p) for name, p in trained.items()}
        reached: set[str] = set()
        for place in range(count_records(inputs, targets)):
            rows = slice(place, place + 1)
            record = pytree.tree_map_only(Tensor, itemgetter(rows), (inputs, targets))
            with torch.enable_grad():
                gradients = engine.formed(values, *record).per_example
            reached |= {name for name in trained if bool(gradients[name].nan_to_num().any())}
            if len(reached) == len(trained):
                break
    return Reach(
        reached=tuple(name for name in trained if name in reached),
        unreached=tuple(name for name in trained if name not in reached),
        frozen=tuple(name for name, p in model.named_parameters() if not p.requires_grad),
    )


def check_reach(result: Reach) -> None:
    """Raise an error if the loss reaches no trained parameter, and warn if it misses some."""
    if not result.reached:
        raise ArgumentError(
            "model",
            "with a loss that depends on its trained parameters",
            shown=f"one that reaches none of {_named(result.unreached)}",
            why="only noise would move them",
            hint="Check which parameters require gradients and what the model returns as its loss.",
        )
    if result.unreached:
        warnings.warn(
            f"The loss of public records does not reach {_named(result.unreached)}: only noise "
            "will move them. Freeze them with requires_grad_(False).",
            RuntimeWarning,
            stacklevel=2,
        )


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise an error unless the optimizer has every trained parameter of the model, and no other.

    The gradient of a parameter that the model does not have would be used without noise.
    """
    own, held = dict(model.named_parameters()), set[nn.Parameter]()
    held.update(p for group in optimizer.param_groups for p in group["params"])
    missed = [name for name, p in own.items() if p.requires_grad and p not in held]
    if missed:
        raise ArgumentError(
            "optimizer",
            "with every trained parameter of the model",
            shown=f"one without {_named(missed)}",
            why="they would never move, and their noise would still be paid for",
            hint="Make the optimizer after adapters are added and layers are frozen.",
        )
    if not held <= set(own.values()):
        raise ArgumentError(
            "optimizer",
            "with parameters of the model alone",
            shown="one with others",
            why="their gradients would be used without clipping and noise",
        )


def positions(model: nn.Module) -> dict[str, Tensor]:
    """Where the parameters of a model are, as two sums over each, to see later which have moved."""
    values = {name: p.detach().double() for name, p in model.named_parameters()}
    return {n: torch.stack([v.sum(), v.square().sum()]) for n, v in values.items()}


def check_moved(before: dict[str, Tensor], model: nn.Module, *, last: bool = True) -> bool:
    """Whether every trained parameter has moved; raises an error if a frozen one has.

    At last also if a trained one has not: the very first update can be too small to change any
    number.
    """
    now = positions(model)
    moved = {name for name, sums in before.items() if not torch.equal(sums, now[name])}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    if frozen := moved - trained:
        raise RuntimeError(
            f"The first updates moved {_named(sorted(frozen))}, which should be frozen: neither "
            "clipping nor noise covers such a change. Remove whatever changes weights outside of "
            "the optimizer."
        )
    still = trained - moved
    if still and last:
        raise RuntimeError(
            f"The first updates did not move {_named(sorted(still))}, which should be trained. The "
            "optimizer may hold other tensors than the model; make it from the parameters of this "
            "model, with a learning rate that is not too small."
        )
    return not still


def _named(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
