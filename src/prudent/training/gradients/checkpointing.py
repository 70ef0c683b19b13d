"""Checkpointed parts of a model, recomputed in the backward pass instead of stored.

`torch.utils.checkpoint` recomputes what a part would have saved. This does not work under vmap,
which has ended by then, so the part is wrapped as one autograd function of plain tensors. It keeps
only its inputs; its backward enters vmap again, runs the part on them with the same random numbers,
and backpropagates through that run, which sends the contributions to the tape.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from prudent.training.gradients.randomness import Replay
from prudent.training.gradients.record_streams import Draws
from prudent.training.gradients.rules import on_records
from prudent.training.gradients.tape import Tape

Watch = Callable[[Tensor, Draws, bool], AbstractContextManager[Any]]
"""Captures the operations on a record; the flag is True for the recomputation."""

Hold = Callable[[Callable[[], Any]], Any]
"""Runs a function while the model uses the parameters that are differentiated."""

_SETTINGS = (  # of torch's checkpoint; all other arguments are for the function
    "use_reentrant",
    "preserve_rng_state",
    "context_fn",
    "determinism_check",
    "debug",
    "early_stop",
)


def without_checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a checkpointed part without checkpointing."""
    return function(*args, **_arguments(kwargs))


@contextmanager
def checkpoints_become(run: Callable[..., Any]) -> Iterator[None]:
    """Redirect `torch.utils.checkpoint.checkpoint`, however imported, to another function.

    This works because torch looks up the torch.compile-disabled version of its function at every
    call, and that lookup is replaced.
    """
    original, place = getattr(checkpoint, "__wrapped__", checkpoint), "__dynamo_disable"
    before = original.__dict__.get(place)
    setattr(original, place, run)
    try:
        yield
    finally:
        if before is None:
            delattr(original, place)
        else:
            setattr(original, place, before)


class Checkpointing:
    """Runs the checkpointed parts of a model.

    Args:
        tape: Receives the contributions, from the recomputation.
        watch: Captures the part's use of parameters.
        is_record: Whether a tensor depends on the record.
        hold: Gives the model its parameters for the recomputation.
        draws: The random calls of the pass, which the part continues and its recomputation repeats.
    """

    def __init__(
        self,
        tape: Tape,
        watch: Watch,
        is_record: Callable[[Tensor], bool],
        hold: Hold,
        draws: Draws,
    ) -> None:
        self._tape, self._watch, self._is_record, self._hold = tape, watch, is_record, hold
        self._draws = draws

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return `function(*args, **kwargs)`; accepts the settings of torch's checkpoint."""
        kwargs = _arguments(kwargs)
        leaves, structure = pytree.tree_flatten((args, kwargs))
        places = [
            place
            for place, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and self._is_record(leaf)
        ]
        if not places or not torch.is_grad_enabled():
            return function(*args, **kwargs)
        records = [*(leaves[place] for place in places), self._draws.row]
        draws, before = self._draws, self._draws.number
        for place in places:
            leaves[place] = None  # the part may outlive the pass, but its records must not
        shape: pytree.TreeSpec | None = None

        def part(again: bool, *records: Tensor) -> tuple[Tensor, ...]:
            """Run the part on plain tensors, with records along the first axis."""

            def on_record(*values_and_row: Tensor) -> tuple[Tensor, ...]:
                nonlocal shape
                *values, row = values_and_row
                own = draws.part(row, before)
                given = list(leaves)
                for place, value in zip(places, values, strict=True):
                    given[place] = value
                part_args, part_kwargs = pytree.tree_unflatten(given, structure)
                with self._watch(values[0], own, again):
                    results, shape = pytree.tree_flatten(function(*part_args, **part_kwargs))
                if not again:
                    draws.number = own.number
                if not all(isinstance(result, Tensor) for result in results):
                    raise ValueError(
                        "Expected a checkpointed function to return tensors, got "
                        f"{[type(result).__name__ for result in results]}."
                    )
                return tuple(results)

            every = torch.vmap(on_record, randomness="different")
            outputs: tuple[Tensor, ...]
            outputs = self._hold(lambda: every(*records)) if again else every(*records)
            return outputs

        def run(_: int, *records: Tensor) -> tuple[Tensor, ...]:
            replay = Replay(self._tape.anchor.device)
            outputs: tuple[Tensor, ...] = _Part.apply(  # type: ignore[no-untyped-call]
                self._tape.anchor, self._tape, part, replay, *records
            )
            return outputs

        outputs = on_records(run, *records)
        assert shape is not None
        return pytree.tree_unflatten(outputs, shape)


class _Part(Function):
    """A checkpointed part as an autograd function that saves only its inputs."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        tape: Tape,
        part: Callable[..., tuple[Tensor, ...]],
        replay: Replay,
        *records: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run the part and discard the graph that it recorded."""
        ctx.save_for_backward(*records)
        ctx.tape, ctx.part, ctx.replay = tape, part, replay
        with torch.enable_grad():
            outputs = part(False, *_leaves(records, ctx.needs_input_grad[4:]))
        fixed = [place for place, output in enumerate(outputs) if not output.requires_grad]
        outputs = tuple(output.detach() for output in outputs)
        ctx.mark_non_differentiable(*(outputs[place] for place in fixed))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Recompute the part and backpropagate through it."""
        tape: Tape = ctx.tape
        needed = ctx.needs_input_grad[4:]
        records = _leaves(ctx.saved_tensors, needed)
        with torch.enable_grad(), ctx.replay.again():
            outputs = ctx.part(True, *records)
        wanted = [record for record, needs in zip(records, needed, strict=True) if needs]
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
        tape.refuse_foreign((output for output, _ in pairs), *wanted)
        passed = torch.autograd.grad(
            [output for output, _ in pairs],
            [tape.anchor, *tape.parameters.values(), *wanted],
            [gradient for _, gradient in pairs],
            allow_unused=True,
        )
        tape.refuse_missed(passed[1 : 1 + len(tape.parameters)])
        each = iter(passed[1 + len(tape.parameters) :])
        return None, None, None, None, *(next(each) if needs else None for needs in needed)


def _leaves(records: tuple[Tensor, ...], needed: tuple[bool, ...]) -> list[Tensor]:
    return [r.detach().requires_grad_(needs) for r, needs in zip(records, needed, strict=True)]


def _arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in _SETTINGS}
