"""Norms and weighted sums from one backward that never forms a per-example gradient."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from prudent.training.gradients.capture import Capture
from prudent.training.gradients.engine import Engine, Formed, Gradients, Loss, Values, count_records
from prudent.training.gradients.randomness import Replay
from prudent.training.gradients.tape import FormTape, NormTape, SumTape, Tape


class BookKeeping(Engine):
    """Keeps, layer by layer, the factors of the gradients: inputs and gradients of outputs.

    One forward and one backward per batch. Ordinary parameter gradients are not computed; the norms
    come from the factors, and the weighted sum is one product per layer of the same factors.

    Any model works. The layers that are cheap are Linear, matrix products, Conv1d to Conv3d,
    Embedding and the normalisations, tied or not; a parameter used in any other way (a positional
    table added to the input, torch's MultiheadAttention) gets its per-example gradients formed.

    Args:
        model: As for every engine.
        loss: As for every engine.
        recompute: Store nothing between the norms and the weighted sum, and run the batch again,
            with the same dropout, for the latter: twice the time, the memory of one batch for a
            logical batch of many.

    Guarantee: `norms` are those of the gradients that `weighted_sum` adds up, each the gradient of
    its own record's loss, up to rounding. A path from a parameter to the loss that the book-keeping
    did not see raises an error.
    """

    def __init__(self, model: nn.Module, loss: Loss, *, recompute: bool = False) -> None:
        super().__init__(model, loss)
        self.recompute = recompute

    def _run(self, trained: Values, fixed: Values, inputs: Any, targets: Any) -> Gradients:
        tape = NormTape(trained, keep=not self.recompute)
        replay = Replay(tape.anchor.device) if self.recompute else None
        losses = self._collect(tape, fixed, inputs, targets)
        with torch.no_grad(), torch.autocast(losses.device.type, enabled=False):
            norms = tape.norms(losses)
        if replay is None:
            return _Kept(tape, norms, losses)

        def run_again(weights: Tensor) -> Values:
            again = SumTape(trained, weights)
            with replay.again():
                self._collect(again, fixed, inputs, targets)
            return again.sums()

        return _Recomputed(run_again, norms, losses)

    def _form(self, trained: Values, fixed: Values, inputs: Any, targets: Any) -> Formed:
        tape = FormTape(trained, count_records(inputs, targets))
        losses = self._collect(tape, fixed, inputs, targets)
        with torch.no_grad(), torch.autocast(losses.device.type, enabled=False):
            return Formed(tape.formed(), losses)

    def _collect(self, tape: Tape, fixed: Values, inputs: Any, targets: Any) -> Tensor:
        """Fill the tape with one forward and one backward; the losses."""

        def record_loss(inputs: Any, targets: Any) -> Tensor:
            leaf = next(x for x in pytree.tree_leaves((inputs, targets)) if isinstance(x, Tensor))
            with Capture(tape, leaf):
                return self._record_loss(tape.parameters | fixed, inputs, targets)

        with torch.enable_grad():
            losses = torch.vmap(record_loss, randomness="different")(inputs, targets)
            # Autocast is for the model; norms that bound a sensitivity are not rounded again.
            with torch.autocast(losses.device.type, enabled=False):
                tape.collect(losses)
        return losses.detach()


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


class _Recomputed(Gradients):
    def __init__(
        self, run_again: Callable[[Tensor], Values], norms: Tensor, losses: Tensor
    ) -> None:
        self._run_again = run_again
        self.norms, self.losses = norms, losses

    def weighted_sum(self, weights: Tensor) -> Values:
        return self._run_again(self._checked(weights))
