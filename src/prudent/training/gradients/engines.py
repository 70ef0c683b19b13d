"""The two engines: book-keeping, and per-example gradients that are formed with `torch.func`."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from prudent._torch_private import pytree
from prudent.training.gradients.capture import Capture, checkpoints_become, without_checkpoint
from prudent.training.gradients.engine import (
    Engine,
    Formed,
    Gradients,
    Parameters,
    Values,
    by_person,
    count_records,
    native_products,
)
from prudent.training.gradients.factors.rules import without_fused_attention
from prudent.training.gradients.factors.tape import (
    FormTape,
    NormTape,
    SumTape,
    Tape,
    leaves_behind,
    refuse_foreign,
)
from prudent.training.gradients.host_state import EscapedTensorGuard
from prudent.training.gradients.record_streams import Draws, rows_of
from prudent.training.gradients.unsupported import refuse_unsupported
from prudent.training.gradients.watching import FunctionInterceptor


class BookKeeping(Engine):
    """Keeps the factors of the gradients of each layer: its inputs and output gradients.

    One forward and one backward pass per batch. Ordinary parameter gradients are not computed;
    norms are computed from the factors, and the weighted sum is one product of the same factors per
    layer.

    Any model works. Linear, matrix products, Conv1d to Conv3d, Embedding, attention, recurrent
    layers and the normalisations are cheap, tied or not. For a parameter used in any other way (a
    positional table added to the input) the per-example gradients are formed.

    Parts of a model that use `torch.utils.checkpoint` are recomputed in the backward pass, as in
    ordinary training.

    Guarantee: `norms` are those of the gradients that `weighted_sum` adds up, each the gradient of
    its own record's loss, up to rounding. A path from a parameter to the loss that the book-keeping
    did not capture raises an error.
    """

    def _run(self, trained: Values, fixed: Values, inputs: Any, targets: Any) -> Gradients:
        tape = NormTape(trained, keep=True, slots=self._slots_of(inputs, targets))
        norms, losses = self._record(tape, fixed, inputs, targets)
        return _Kept(tape, norms, losses)

    def _norms(
        self, trained: Values, fixed: Values, inputs: Any, targets: Any
    ) -> tuple[Tensor, Tensor]:
        tape = NormTape(trained, keep=False, slots=self._slots_of(inputs, targets))
        return self._record(tape, fixed, inputs, targets)

    def _sum(
        self, trained: Values, fixed: Values, inputs: Any, targets: Any, weights: Tensor
    ) -> tuple[Tensor, Values]:
        tape = SumTape(trained, weights, self._slots_of(inputs, targets))
        losses = self._collect(tape, fixed, inputs, targets)
        with torch.no_grad(), torch.autocast(losses.device.type, enabled=False):
            return by_person(losses, tape.slots).sum(1), tape.sums()

    def _record(
        self, tape: NormTape, fixed: Values, inputs: Any, targets: Any
    ) -> tuple[Tensor, Tensor]:
        losses = self._collect(tape, fixed, inputs, targets)
        with torch.no_grad(), torch.autocast(losses.device.type, enabled=False):
            losses = by_person(losses, tape.slots).sum(1)
            return tape.norms(losses), losses

    def _form(self, trained: Values, fixed: Values, inputs: Any, targets: Any) -> Formed:
        tape = FormTape(trained, count_records(inputs, targets), self._slots_of(inputs, targets))
        losses = self._collect(tape, fixed, inputs, targets)
        with torch.no_grad(), torch.autocast(losses.device.type, enabled=False):
            return Formed(tape.formed(), by_person(losses, tape.slots).sum(1))

    def _collect(self, tape: Tape, fixed: Values, inputs: Any, targets: Any) -> Tensor:
        """Fill the tape with one forward and one backward pass; return the losses."""
        with self._guard() as guard:  # at its end the pass has freed its own tensors
            return self._forward_backward(tape, fixed, inputs, targets, guard)

    def losses(self, parameters: Parameters, inputs: Any, targets: Any) -> Tensor:
        """The loss of each record alone, without gradients; NaN where the model rejects it."""
        refuse_unsupported(self.model)
        trained, fixed = self._split(parameters)

        def run(batch: tuple[Any, Any]) -> Tensor:
            with self._guard() as guard:
                return self._forward(NormTape(trained, keep=False), fixed, *batch, guard)

        batch = inputs, targets
        device = next(iter(trained.values())).device
        with torch.no_grad(), native_products(), self._precision(device):
            found: Tensor
            found, rejected = self._tried(run, batch)
            return found if rejected is None else found.masked_fill(rejected.refused, torch.nan)

    def _forward_backward(
        self, tape: Tape, fixed: Values, inputs: Any, targets: Any, guard: EscapedTensorGuard
    ) -> Tensor:
        with torch.enable_grad():
            losses = self._forward(tape, fixed, inputs, targets, guard)
            # Autocast is for the model only: norms that bound a sensitivity must not be rounded to
            # it.
            with torch.autocast(losses.device.type, enabled=False):
                tape.collect(losses)
        return losses.detach()

    def _forward(
        self, tape: Tape, fixed: Values, inputs: Any, targets: Any, guard: EscapedTensorGuard
    ) -> Tensor:
        """The losses of the records; what the tape needs of them stays in their graph."""

        def record_loss(inputs: Any, targets: Any, row: Tensor) -> Tensor:
            leaf = next(x for x in pytree.tree_leaves((inputs, targets)) if isinstance(x, Tensor))
            guard.note((inputs, targets))
            hold = partial(self._holding, values)
            with Capture(tape, leaf, hold, guard, Draws(row)):
                return self._record_loss(values, inputs, targets)

        values = tape.parameters | fixed
        rows = rows_of((inputs, targets))
        losses: Tensor = torch.vmap(record_loss, randomness="different")(inputs, targets, rows)
        return losses


class _Kept(Gradients):
    def __init__(self, tape: NormTape, norms: Tensor, losses: Tensor) -> None:
        self._tape: NormTape | None = tape
        self.norms, self.losses = norms, losses

    def weighted_sum(self, weights: Tensor) -> Values:
        weights = self._checked(weights)
        if self._tape is None:
            raise RuntimeError(
                "weighted_sum was already called and freed what it needs; run the engine again."
            )
        tape, self._tape = self._tape, None
        with torch.no_grad(), torch.autocast(weights.device.type, enabled=False):
            return tape.weighted_sum(weights)


class Materialised(Engine):
    """Forms every record's gradient with `torch.func`."""

    def _form(self, trained: Values, fixed: Values, inputs: Any, targets: Any) -> Formed:
        with self._guard() as guard:
            return self._differentiate(trained, fixed, inputs, targets, guard)

    def _differentiate(
        self, trained: Values, fixed: Values, inputs: Any, targets: Any, guard: EscapedTensorGuard
    ) -> Formed:
        def record_loss(values: Values, inputs: Any, targets: Any, row: Tensor) -> Tensor:
            guard.note((inputs, targets))
            with FunctionInterceptor(guard, Draws(row)):
                return self._record_loss(values | fixed, inputs, targets)

        gradient = grad_and_value(record_loss)
        differentiate = vmap(gradient, in_dims=(None, 0, 0, 0), randomness="different")
        values = {name: value.detach() for name, value in trained.items()}
        with (
            without_fused_attention(),
            checkpoints_become(without_checkpoint),
            torch.enable_grad(),  # so that leaves outside the model are detected
        ):
            rows = rows_of((inputs, targets))
            per_example, losses = differentiate(values, inputs, targets, rows)
        refuse_foreign(leaves_behind([losses, *per_example.values()]), (), values)
        with torch.no_grad(), torch.autocast(losses.device.type, enabled=False):
            slots = self._slots_of(inputs, targets)
            per_example = {n: by_person(g, slots).sum(1) for n, g in per_example.items()}
            return Formed(per_example, by_person(losses, slots).sum(1))
