"""Per-example gradients of a loss that is computed outside, on the outputs of a whole batch.

The model runs on one record at a time, as in every engine, and its outputs are returned as a batch.
The caller computes a loss from them and runs backward, which yields the gradient Gᵢ of the loss
with respect to the outputs oᵢ of each record. The gradient of record i with respect to the
parameters is that of the linear function ⟨oᵢ, Gᵢ⟩, so the rest is book-keeping with this function
as the loss.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from typing_extensions import override

from prudent._torch_private import pytree
from prudent._validate import ArgumentError, Choice
from prudent.training.gradients.engine import (
    BookKeeping,
    Gradients,
    Values,
    by_person,
    check_same,
    count_records,
    kept,
    native_products,
    no_records,
)
from prudent.training.gradients.factors.tape import NormTape, Tape
from prudent.training.gradients.host_state import HostState, check_repeatable
from prudent.training.gradients.output_guard import (
    Batch,
    Node,
    as_outputs,
    batch_of,
    check_inputs,
    check_loss,
    plain,
)
from prudent.training.gradients.record_streams import Replay, active_streams, again, sketch
from prudent.training.gradients.unsupported import attempt, made_up, refuse_unsupported

Tensors = list[Tensor]


class Reduction(Choice):
    """How a loss combines the records of a batch."""

    MEAN = "mean"
    """The sum of one term per record, divided by the number of records."""

    SUM = "sum"
    """The sum of one term per record."""


@attrs.define
class OutsideLoss:
    """Runs a model on batches whose loss the caller computes.

    Attributes:
        model: Any module whose layers do not mix records.
        forward: The model's own forward. All tensors among its arguments and outputs have the
            records on the first axis.
        reduction: How the caller's loss combines the records. A mean is undone: the gradient of a
            record must not depend on how many others were drawn.
        physical_batch: Largest number of records whose activations are in memory. A larger batch is
            run in parts, three times: for its outputs, for its norms and for its weighted sum.

    | case | what happens |
    |---|---|
    | no records | outputs of no rows, shaped like those of a made-up record |
    | output without axes, such as a loss computed by the model | reduced over the records |
    | record that a kernel refuses | not a finite gradient; its outputs are those of a made-up one |
    | output that is a number, text or None | returned as it is |
    | output of any other type, such as a cache | None: it may hold tensors of single records |

    Guarantee:
        If the caller's loss is a mean or a sum, as declared, of terms that each depend on one
        record and its outputs, then the gradient of each record is that of its own term, and norms
        and sums are as for `BookKeeping`.
    """

    model: nn.Module
    forward: Callable[..., Any]
    reduction: Reduction = Reduction.MEAN
    physical_batch: int | None = None
    _host: HostState | None = attrs.field(default=None, init=False)
    _judged: dict[Any, int] = attrs.field(factory=dict, init=False)

    def __call__(
        self,
        trained: Mapping[str, Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        slots: int | None = None,
        shares: Tensor | None = None,
    ) -> tuple[Any, "Pass"]:
        """Run a batch forward.

        Args:
            trained: The parameters to differentiate with respect to, by name.
            args: Positional arguments of the model.
            kwargs: Keyword arguments of the model.
            slots: If given, so many consecutive rows are those of one person.
            shares: What the term of each row is multiplied by, if they are.

        Returns:
            The outputs, which require a gradient, and the pass that waits for it.
        """
        refuse_unsupported(self.model)
        noted = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        check_inputs(noted, self._judged)
        args, kwargs = pytree.tree_map_only(Tensor, plain, (args, kwargs))
        records = count_records(args, kwargs)
        leaves = {name: value.detach().requires_grad_() for name, value in trained.items()}
        everything = self.model.named_parameters()
        fixed = {name: value.detach() for name, value in everything if name not in leaves}
        engine = _Linear(self.model, partial(_fill, self.forward, (args, kwargs)), slots)
        tensors = [t.detach() for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if self._host is None:
            self._host = engine.host
            engine.rehearse_outputs(leaves, fixed, tensors)
        engine.host = self._host
        given = engine, leaves, fixed
        with native_products():
            if records == 0:
                parts = [_empty(*given, tensors)]
            elif self.physical_batch is None or records <= self.physical_batch:
                parts = [_at_once(*given, tensors)]
            else:
                size = max(1, self.physical_batch // (slots or 1)) * (slots or 1)
                split = zip(*(torch.split(t, size) for t in tensors), strict=True)
                parts = [_rerun(*given, list(t), n * size) for n, t in enumerate(split)]
        passed = Pass(parts, records if self.reduction is Reduction.MEAN else 1, shares)
        return self._gated(passed, engine, batch_of(noted)), passed

    def _gated(self, passed: "Pass", engine: "_Linear", batch: Batch | None) -> Any:
        """The outputs for the caller; backward through them sends their gradients to the pass."""

        def check(loss: Node) -> None:
            passed.is_checked = True
            if passed.is_drawn:
                check_loss(loss, self.reduction.value, self._judged)

        each = [part.outputs for part in passed.parts]
        whole = [own[0] if len(own) == 1 else torch.cat(own) for own in zip(*each, strict=True)]
        reduce = torch.mean if self.reduction is Reduction.MEAN else torch.sum
        with torch.enable_grad():
            arguments = passed.receive, torch.zeros((), requires_grad=True), *_differentiable(whole)
            gate: Any = iter(_Gate.apply(*arguments))  # type: ignore[no-untyped-call]
            own = [
                as_outputs(next(gate) if o.is_floating_point() else o, check, batch) for o in whole
            ]
            outputs = iter(
                reduce(o) if scalar and o.is_floating_point() else o
                for o, scalar in zip(own, engine.scalars, strict=True)
            )
            for part in passed.parts:
                part.outputs = []  # the caller's from here on
            return pytree.tree_map(
                lambda leaf: next(outputs) if leaf is _TENSOR else leaf, engine.outline
            )


class Pass:
    """One batch that has run forward; backward delivers the gradients of its outputs.

    Args:
        parts: The parts of the batch.
        factor: What the gradients of the outputs are multiplied by, to undo a mean.
        shares: What that of each row is multiplied by as well; None: by nothing.

    Attributes:
        received: Called with this pass when its backward has run.
    """

    def __init__(self, parts: "list[_Part]", factor: int, shares: Tensor | None) -> None:
        self.parts, self._factor, self._shares = parts, factor, shares
        self.received: Callable[[Pass], None] = lambda _: None
        self._given: list[Tensor | None] | None = None
        self.is_checked = False  # whether the loss was seen
        self.is_drawn = True  # whether a step may be taken on it

    def receive(self, gradients: Sequence[Tensor | None]) -> None:
        """Accept the gradients of the differentiable outputs."""
        if self._given is not None:
            raise RuntimeError(
                "Expected one backward pass through the outputs of a batch, got two: each record "
                "would count twice. Add the losses up, and call backward() once."
            )
        if not self.is_checked:
            raise ValueError(
                "Expected loss.backward() of a loss that torch functions compute from the model's "
                "outputs, got a backward pass from elsewhere: whether each of its terms depends on "
                "one record cannot be checked."
            )
        self._given = [None if g is None else g * self._factor for g in gradients]
        if self._shares is not None:
            self._given = [
                None if g is None else g * self._shares.to(g).view(-1, *[1] * (g.ndim - 1))
                for g in self._given
            ]
        self.received(self)

    def gradients(self) -> list[Gradients]:
        """The per-example gradients, one entry for each part of the batch. Call it once."""
        assert self._given is not None, "backward has not run"
        (given, self._given), (parts, self.parts) = (self._given, []), (self.parts, [])
        sizes = [part.rows for part in parts]
        pieces = [[None] * len(parts) if g is None else torch.split(g, sizes) for g in given]
        return [
            part.gradients([piece[place] for piece in pieces]) for place, part in enumerate(parts)
        ]


@attrs.define
class _Part:
    """A part of a batch that has run forward: its outputs, with records on the first axis."""

    rows: int
    outputs: Tensors
    gradients: Callable[[list[Tensor | None]], Gradients]  # given those of its outputs


def _empty(engine: "_Linear", leaves: Values, fixed: Values, tensors: Tensors) -> _Part:
    """A batch of no records."""

    def run(tensors: Tensors) -> Tensors:
        return engine.outputs(NormTape(leaves, keep=False), fixed, tensors)

    device = next(iter(leaves.values())).device
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        outputs = attempt(run, made_up(tensors, 1, varied=True))
        if outputs is None:
            outputs = run(made_up(tensors, 1, varied=False))
    return _Part(0, [output[:0] for output in outputs], lambda _: no_records(leaves))


def _at_once(engine: "_Linear", leaves: Values, fixed: Values, tensors: Tensors) -> _Part:
    """A whole batch, whose activations are kept for its backward pass."""

    def run(tensors: Tensors) -> tuple[NormTape, Tensors]:
        tape = NormTape(leaves, keep=True, slots=engine._slots_of(tensors, ()))
        return tape, engine.outputs(tape, fixed, tensors)

    (tape, outputs), rejected = engine._tried(run, tensors)

    def gradients(given: list[Tensor | None]) -> Gradients:
        pairs = zip(_differentiable(outputs), given, strict=True)
        reached, used = zip(*((o, g) for o, g in pairs if g is not None), strict=True)
        losses = _dot(reached, used, lambda product: product.reshape(len(product), -1).sum(1))
        outputs.clear()
        with torch.autocast(losses.device.type, enabled=False), native_products():
            tape.collect(losses)
            with torch.no_grad():
                answer = kept(tape, _unknown(by_person(losses, tape.slots).sum(1)))
        return answer if rejected is None else answer.without(engine._refused(rejected))

    return _Part(len(tensors[0]), [output.detach() for output in outputs], gradients)


def _rerun(engine: "_Linear", leaves: Values, fixed: Values, tensors: Tensors, first: int) -> _Part:
    """One part of a batch, of which only arguments are kept: it is run again for norms and sum.

    `first` is the place of its first row in the batch.
    """
    streams = active_streams()
    streams = None if streams is None else streams.part(first)
    replay = Replay(next(iter(leaves.values())).device)

    def run(tensors: Tensors) -> Tensors:
        # The graph is not used, but makes this run round like the ones that follow.
        outputs = engine.outputs(NormTape(leaves, keep=False), fixed, tensors)
        return [output.detach() for output in outputs]

    with again(streams):
        outputs, rejected = engine._tried(run, tensors)
    tensors = tensors if rejected is None else rejected.replaced(tensors)
    before = sketch(tensors)

    def gradients(given: list[Tensor | None]) -> Gradients:
        engine.reached = [g is not None for g in given]
        batch = leaves, fixed, tensors, [g for g in given if g is not None]

        def run_again(weights: Tensor) -> Values:
            check_same(sketch(tensors), before, 1e-5)
            with native_products(), replay.again(), again(streams):
                losses, total = engine._sum(*batch, weights)
            check_same([losses], [terms], replay.near)
            return total

        with native_products(), replay.again(), again(streams):
            found = engine._run(*batch, keep=False)
        norms, terms = found.norms, found.losses
        answer = Gradients(norms, _unknown(terms), run_again)
        return answer if rejected is None else answer.without(engine._refused(rejected))

    return _Part(len(tensors[0]), outputs, gradients)


class _Linear(BookKeeping):
    """The engine for ⟨o, G⟩: inputs are the tensors among a model's arguments, targets are G.

    Attributes:
        outline: The outputs without their tensors, known after the first run.
        scalars: Whether each of these tensors has no axes.
        reached: Which of the differentiable outputs have a gradient.
    """

    def __init__(
        self, model: nn.Module, forward: Callable[[Tensors], Any], slots: int | None
    ) -> None:
        super().__init__(model, computed_outside, slots=slots)
        self._run_model = forward
        self.outline: Any = None
        self.scalars: list[bool] = []
        self.reached: list[bool] = []

    def outputs(self, tape: Tape, fixed: Values, tensors: Tensors) -> Tensors:
        """The outputs of a batch; what the tape needs of them stays in their graph."""
        with self._guard() as guard:
            outputs: Tensors = self._forward(tape, fixed, guard, self._of_record, tensors)
        return outputs

    def rehearse_outputs(self, leaves: Values, fixed: Values, tensors: Tensors) -> None:
        """Raise an error if the model depends on earlier calls, or rejects made-up records."""
        device = next(iter(leaves.values())).device
        batch = made_up(tensors, 2 * (self.slots or 1), varied=True)

        def run(tensors: Tensors) -> Tensors:
            outputs = self.outputs(NormTape(leaves, keep=False), fixed, tensors)
            return [output.detach() for output in outputs]

        with torch.random.fork_rng([device] if device.type == "cuda" else []), native_products():
            attempt(lambda batch: check_repeatable(self.host, partial(run, batch), device), batch)
            self._tried(run, batch)

    @override
    def _record_loss(self, values: Mapping[str, Tensor], inputs: Any, targets: Any) -> Tensor:
        outputs = _differentiable(self._of_record(values, inputs))
        reached = [o for o, is_reached in zip(outputs, self.reached, strict=True) if is_reached]
        return _dot(reached, targets, lambda product: product.sum())

    def _of_record(self, values: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> Tensors:
        """The outputs of one record, which the model gets as a batch of one."""
        outputs = self._holding(values, lambda: self._run_model([t[None] for t in tensors]))
        found = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
        for leaf in found:
            if leaf.ndim and leaf.shape[0] != 1:
                raise ArgumentError(
                    "model",
                    "to return tensors with the records on their first axis",
                    shown=f"one of shape {tuple(leaf.shape)} for a batch of one record",
                )
        kept = bool, int, float, str, bytes
        self.outline = pytree.tree_map(
            lambda leaf: (
                _TENSOR if isinstance(leaf, Tensor) else leaf if isinstance(leaf, kept) else None
            ),
            outputs,
        )
        self.scalars = [leaf.ndim == 0 for leaf in found]
        return [leaf[0] if leaf.ndim else leaf for leaf in found]


class _Gate(torch.autograd.Function):
    """The identity, whose backward hands the gradients to a function and stops there."""

    @staticmethod
    def forward(ctx: Any, receive: Callable[[Any], None], anchor: Tensor, *outputs: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.receive = receive
        return tuple(output.view_as(output) for output in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.receive(gradients)
        return None, None, *(None for _ in gradients)


_TENSOR = object()


def _fill(forward: Callable[..., Any], arguments: Any, tensors: Sequence[Tensor]) -> Any:
    """Call `forward` with the arguments, whose tensors are replaced by the given ones."""
    rest = iter(tensors)
    args, kwargs = pytree.tree_map_only(Tensor, lambda _: next(rest), arguments)
    return forward(*args, **kwargs)


def _differentiable(outputs: Sequence[Tensor]) -> Tensors:
    return [output for output in outputs if output.is_floating_point()]


def _dot(
    outputs: Sequence[Tensor], given: Sequence[Tensor], total: Callable[[Tensor], Tensor]
) -> Tensor:
    """⟨o, G⟩; `total` adds up the products of one output."""
    return torch.stack([total(o * g) for o, g in zip(outputs, given, strict=True)]).sum(0)


def _unknown(losses: Tensor) -> Tensor:
    """NaN for every record: the caller's loss is not known by record."""
    return torch.full_like(losses.detach(), torch.nan)


def computed_outside(outputs: Any, targets: Any) -> Tensor:
    """A placeholder for the loss of an engine or a step: the training loop computes its own."""
    raise NotImplementedError("The caller computes the loss.")
