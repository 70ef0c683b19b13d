"""The step as a CUDA graph: one launch, without reading values on the host."""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from prudent.training.captured import captured_by_this_thread, no_collection
from prudent.training.sampling import Batch
from prudent.training.step import Step, StepOutcome

_WARM_UP = 3


class CapturedStep:
    """Replays gather, step and usually the optimizer's update for batches of one physical shape.

    The warm-up runs the step on real records. The model, the optimizer and the state of the step
    are restored afterwards, even if it fails, so nothing of it is released. A replay counts its
    steps on the device and reads the keystream at its own position, as an uncaptured step would.

    Args:
        run: Performs one update, with or without the optimizer, given (ids, valid), each of shape
            (1, physical).
        step: The step; its state is restored after the warm-up.
        model: Restored after the warm-up.
        optimizer: Restored after the warm-up.
        example: A batch of the shape to capture.
        counters: Tensors that `run` adds to; restored after the warm-up.
    """

    def __init__(
        self,
        run: Callable[[Tensor, Tensor], StepOutcome],
        step: Step,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        example: Batch,
        counters: Sequence[Tensor] = (),
    ) -> None:
        self._ids = example.ids.clone()
        self._valid = example.valid.clone()
        # Library workspaces belong to a stream. Runs that use streams of their own must be captured
        # on them; otherwise graphs that run concurrently would share a workspace.
        current = torch.cuda.current_stream()
        own = current != torch.cuda.default_stream()
        stream = current if own else _side_stream(current.device)
        with rehearsal(step, model, optimizer, counters):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    step.state.move_to(0)  # the warm-up does not count as a step of the plan
                    run(self._ids, self._valid)
            current.wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            self._graph.register_generator_state(step.generator)  # the generator of a corruption
            step.state.move_to(0)
            with no_collection(), captured_by_this_thread(self._graph, stream=stream):
                self._outcome = run(self._ids, self._valid)
        self._step = step
        self._gradients = [(p, p.grad) for p in model.parameters() if p.grad is not None]

    def __call__(self, batch: Batch) -> StepOutcome:
        """Perform one update. The next call overwrites the tensors of the outcome."""
        self._ids.copy_(batch.ids)
        self._valid.copy_(batch.valid)
        self._step.refuse_beyond_plan()
        with self._step.randomness.at(self._step.taken + 1).seeded():
            self._graph.replay()
        self._step.state.taken += 1
        return self._outcome

    def place_gradients(self) -> None:
        """Assign what the last replay computed to `.grad`, as an uncaptured step may have since."""
        for parameter, gradient in self._gradients:
            parameter.grad = gradient


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all captures of a device: workspaces of a stream are never given back."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def is_capturable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether state created during the warm-up may be reset to zero, as at the start of a run."""
    if isinstance(optimizer, torch.optim.SGD):
        return all(group["dampening"] == 0 for group in optimizer.param_groups)
    return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW)


@contextmanager
def rehearsal(
    step: Step,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    counters: Sequence[Tensor],
) -> Iterator[None]:
    """Restore everything that steps inside this context changed, even if one fails.

    The steps are not charged. Gradients are kept, because a captured graph writes to them; if a
    step fails, they are cleared.

    Args:
        step: The step; its state is restored.
        model: Restored.
        optimizer: Restored.
        counters: Tensors to restore.
    """
    tensors = [(tensor, tensor.clone()) for tensor in counters]
    parameters = copy.deepcopy(model.state_dict())
    moments = copy.deepcopy(optimizer.state_dict())
    state, chance = step.state.clone(), step.generator.get_state()
    dropout = torch.cuda.get_rng_state()
    try:
        yield
    except BaseException:
        optimizer.zero_grad()
        raise
    finally:
        # Restore in place: the graph refers to tensors by address.
        with torch.no_grad():
            for tensor, before in tensors:
                tensor.copy_(before)
            for name, value in model.state_dict().items():
                value.copy_(parameters[name])
            _copy_moments(optimizer, moments)
            step.state.copy_(state)
        step.generator.set_state(chance)
        torch.cuda.set_rng_state(dropout)


def _copy_moments(optimizer: torch.optim.Optimizer, kept: dict[str, Any]) -> None:
    """Restore the optimizer's tensors; those created during the warm-up are set to zero."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        before = kept["state"].get(index, {})
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                value.copy_(before[name]) if name in before else value.zero_()
