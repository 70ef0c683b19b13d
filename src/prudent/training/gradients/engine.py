"""The engines: the norms of all records first, then one weighted sum.

A clipped, trimmed sum of gradients is Σ wᵢ gᵢ with weights that are a function of the norms ‖gᵢ‖.
An engine therefore provides exactly these two, and no other code needs per-example gradients.
"""

import functools
import platform
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import override

from prudent._torch_private import pytree
from prudent._validate import ArgumentError
from prudent.training.gradients.capture import Capture, checkpoints_become, without_checkpoint
from prudent.training.gradients.factors.contributions import Dense, by_record
from prudent.training.gradients.factors.norms import lengths
from prudent.training.gradients.factors.rules import refuse_packed, without_fused_attention
from prudent.training.gradients.factors.tape import (
    FormTape,
    NormTape,
    SumTape,
    Tape,
    leaves_behind,
    refuse_foreign,
)
from prudent.training.gradients.host_state import EscapedTensorGuard, HostState, check_repeatable
from prudent.training.gradients.record_streams import (
    Draws,
    Replay,
    active_streams,
    again,
    is_same,
    restarting,
    rows_of,
    sketch,
)
from prudent.training.gradients.unsupported import (
    RejectedRecords,
    attempt,
    made_up,
    refuse_unsupported,
)
from prudent.training.gradients.watching import FunctionInterceptor

Values = dict[str, Tensor]


class Gradients:
    """The per-example gradients of one physical batch, each that of its own record's loss.

    Attributes:
        norms: L2 norms over all trained parameters jointly, shape (records,).
        losses: The loss of each record, shape (records,).
    """

    def __init__(self, norms: Tensor, losses: Tensor, add_up: Callable[[Tensor], Values]) -> None:
        self.norms, self.losses, self._add_up = norms, losses, add_up

    def weighted_sum(self, weights: Tensor) -> Values:
        """Σᵢ wᵢ gᵢ by parameter name. Call it once: it frees what was stored for it.

        Sums are in double precision. A record of weight zero contributes exactly zero, even if its
        gradient is not finite.
        """
        return self._add_up(self._checked(weights))

    def without(self, refused: Tensor) -> Self:
        """Mark refused records as having a gradient that is not finite."""
        self.norms = self.norms.masked_fill(refused, torch.nan)
        self.losses = self.losses.masked_fill(refused, torch.nan)
        return self

    def _checked(self, weights: Tensor) -> Tensor:
        if weights.shape != self.norms.shape:
            allowed = f"of shape {tuple(self.norms.shape)}, one per record"
            raise ArgumentError("weights", allowed, got=tuple(weights.shape))
        return weights.detach()


def check_same(again: Sequence[Tensor], before: Sequence[Tensor], near: float) -> None:
    """Raise an error if the second run of a batch gives other numbers than the first."""
    if not is_same(again, before, near):
        raise ValueError(
            "Expected a batch that is run twice (recompute=True) to have the same records and the "
            "same losses twice, got others: its norms would not bound its sum. The data set and "
            "the model may draw from torch's default generators, which are set back, but not from "
            "random, numpy or a generator of their own, as some augmentations do. Leave recompute "
            "unset for them."
        )


def no_records(trained: Values) -> Gradients:
    """The gradients of an empty batch, which Poisson sampling can draw."""
    norms = next(iter(trained.values())).detach().new_zeros(0)
    double = torch.float64
    zeros = {name: torch.zeros_like(v.detach(), dtype=double) for name, v in trained.items()}
    return Gradients(norms, norms.clone(), lambda _: zeros)


class Formed(Gradients):
    """Per-example gradients that are held in memory.

    Attributes:
        per_example: Gradients by parameter name, each of shape (records, *shape).
    """

    def __init__(self, per_example: Values, losses: Tensor) -> None:
        self.per_example, self.losses = per_example, losses
        parts = [lengths(by_record(gradient)) for gradient in per_example.values()]
        self.norms = torch.linalg.vector_norm(torch.stack(parts), dim=0)

    @override
    def without(self, refused: Tensor) -> Self:
        self.per_example = {
            name: gradient.masked_fill(refused.view(-1, *[1] * (gradient.ndim - 1)), torch.nan)
            for name, gradient in self.per_example.items()
        }
        return super().without(refused)

    def corrupted(self, corrupt: Callable[[Values], Values]) -> "Formed":
        """The gradients after `corrupt` has replaced them."""
        expected = {name: value.shape for name, value in self.per_example.items()}
        with torch.no_grad():
            corrupted = corrupt(self.per_example)
            got = {name: value.shape for name, value in corrupted.items()}
            if got != expected:
                raise ArgumentError("corrupt", f"to keep names and shapes {expected}", got=got)
            return Formed(corrupted, self.losses)

    @override
    def weighted_sum(self, weights: Tensor) -> Values:
        """Σᵢ wᵢ gᵢ by parameter name; nothing is freed, so this may be called again."""
        weights = self._checked(weights)
        with torch.no_grad(), torch.autocast(weights.device.type, enabled=False):
            return {name: Dense(g).weighted_sum(weights) for name, g in self.per_example.items()}


Loss = Callable[[Any, Any], Tensor]
Parameters = Mapping[str, Tensor] | nn.Module
Read = Callable[[], tuple[Any, Any]]
"""Reads the inputs and targets of a batch; returns the same values every time."""

_Answer = TypeVar("_Answer", bound=Gradients)
_NOTHING = 1e-12  # a smaller norm is a zero gradient up to rounding


class Engine(ABC):
    """Computes per-example gradients of `loss(model(inputs), targets)`.

    Args:
        model: Any module. Tensors are passed as `model(x)`, tuples and lists as `model(*inputs)`,
            dictionaries as `model(**inputs)`; every tensor has the records on its first axis.
        loss: Maps outputs and targets of a batch to one loss per record (reduction="none"; a
            sequence is one record, so sum or average over its positions).
        recompute: Keep only the norms, and rerun the batch with the same dropout for the weighted
            sum. Takes up to twice the time; a logical batch of many physical ones needs the memory
            of one.
        autocast: Run the model in this type (torch.bfloat16). Parameters, norms, weights and sums
            stay in the precision of the parameters.
        slots: Make gradients of people: each is the sum over so many consecutive rows, the slots of
            one person. The targets are then a pair (targets, shares), and the loss of every row is
            multiplied by its share, which is zero for an empty slot. Norms, losses and weights are
            those of people.

    Guarantee: `norms` are those of the gradients that `weighted_sum` adds up, up to rounding in the
    parameters' precision, and larger where the terms of a gradient cancel: a norm that is too small
    would break the sensitivity bound, one that is too large only clips more. Under autocast these
    are the gradients of the rounded layers, and both use the same numbers.

    | case | norms | weighted sum |
    |---|---|---|
    | no records | shape (0,) | zeros |
    | padded record | ignore it | give it weight 0 |
    | gradient not finite | not finite | give it weight 0 |
    | record that a kernel refuses (a label out of range) | not finite | give it weight 0 |
    | parameter frozen (`requires_grad` False) | left out | left out |
    | parameter unused by the model | adds 0 | zeros |
    | parameter used several times | of the summed gradient | summed |
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        recompute: bool = False,
        autocast: torch.dtype | None = None,
        slots: int | None = None,
    ) -> None:
        self.slots = slots
        self.model = model
        self.loss = loss
        self.recompute = recompute
        self.autocast = autocast

    @functools.cached_property
    def host(self) -> HostState:
        """The state of the model and the loss on the host."""
        return HostState(model=self.model, loss=self.loss)

    def _guard(self) -> EscapedTensorGuard:
        """The context of a pass."""
        return EscapedTensorGuard(self.model, self.host)

    def __call__(self, parameters: Parameters, inputs: Any, targets: Any) -> Gradients:
        """Run one physical batch forward and backward.

        Args:
            parameters: Values by name, as in `model.named_parameters()`, or the model itself.
            inputs: A tensor, or a tuple, list or dictionary of them.
            targets: Any tree of tensors that `loss` understands.
        """
        return self.read(parameters, lambda: (inputs, targets))

    def read(self, parameters: Parameters, read: Read) -> Gradients:
        """The same for a batch that is read on demand (twice if `recompute`) and not kept."""
        refuse_unsupported(self.model)
        trained, fixed = self._split(parameters)
        device = next(iter(trained.values())).device
        with self._precision(device):
            # Saved before reading: a data set may draw random numbers, and must draw the same
            # again.
            replay = Replay(device) if self.recompute else None
        batch = self._batch(read())
        if self._count(*batch) == 0:
            return no_records(trained)
        with native_products(), self._precision(device):
            if replay is None:
                return self._answered(lambda batch: self._run(trained, fixed, *batch), batch)
            found, rejected = self._tried(
                lambda batch: self._run(trained, fixed, *batch, keep=False), batch
            )
            if rejected is not None:
                found = found.without(self._refused(rejected))
            norms, losses = found.norms, found.losses
            del found  # with what an engine may have formed for the norms
            before, streams = sketch(batch), active_streams()

        def run_again(weights: Tensor) -> Values:
            with native_products(), replay.again(), again(streams):
                batch = self._batch(read())
                check_same(sketch(batch), before, 1e-5)
                inputs, targets = batch if rejected is None else rejected.replaced(batch)
                again_losses, total = self._sum(trained, fixed, inputs, targets, weights)
            if rejected is not None:
                again_losses = again_losses.masked_fill(self._refused(rejected), torch.nan)
            check_same([again_losses], [losses], replay.near)
            return total

        return Gradients(norms, losses, run_again)

    @staticmethod
    def _batch(batch: tuple[Any, Any]) -> tuple[Any, Any]:
        """The batch detached from autograd: gradients of inputs are not needed."""
        plain: tuple[Any, Any] = pytree.tree_map_only(Tensor, torch.detach, batch)
        return plain

    def _precision(self, device: torch.device) -> AbstractContextManager[Any]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, self.autocast)

    def formed(self, parameters: Parameters, inputs: Any, targets: Any) -> Formed:
        """The same with every record's gradient formed, for callers that need them."""
        refuse_unsupported(self.model)
        trained, fixed = self._split(parameters)
        if self._count(inputs, targets) == 0:
            empty = {name: v.detach().new_zeros(0, *v.shape) for name, v in trained.items()}
            return Formed(empty, no_records(trained).losses)
        batch = self._batch((inputs, targets))
        device = next(iter(trained.values())).device
        with native_products(), self._precision(device):
            return self._answered(lambda batch: self._form(trained, fixed, *batch), batch)

    def rehearse(self, parameters: Parameters, read: Read) -> None:
        """Raise what made-up records raise, and warn if the loss gives no gradient on them.

        Only the shapes and types of the batch are used, so neither reveals anything about its
        records, and the states of torch's default generators are restored. Where made-up records
        are rejected, nothing could stand for another that is: one record would end the run.
        """
        device = next(self.model.parameters()).device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            batch = made_up(read(), 2 * (self.slots or 1), varied=True)
            self.check_repeatable(parameters, batch)
            norms = self(parameters, *batch).norms
        if bool((norms < _NOTHING).all()):
            warnings.warn(
                "Two made-up records both have the gradient zero. The loss is called with one "
                "record at a time: one that compares the records of a batch, as contrastive losses "
                "do, has nothing to compare and learns nothing. Make what is to be compared one "
                "record.",
                RuntimeWarning,
                stacklevel=2,
            )

    def check_repeatable(self, parameters: Parameters, batch: tuple[Any, Any]) -> None:
        """Raise an error if the model or the loss depends on what earlier calls left behind."""

        def run() -> list[Tensor]:
            gradients = self(parameters, *batch)
            return [gradients.norms.detach(), gradients.losses.detach()]

        check_repeatable(self.host, run, next(self.model.parameters()).device)

    @abstractmethod
    def _form(self, trained: Values, fixed: Values, inputs: Any, targets: Any) -> Formed:
        """Formed gradients of a non-empty batch; `trained` are leaves that require a gradient."""

    def _run(
        self, trained: Values, fixed: Values, inputs: Any, targets: Any, *, keep: bool = True
    ) -> Gradients:
        """Gradients of a non-empty batch, not necessarily formed; no sum unless `keep`."""
        return self._form(trained, fixed, inputs, targets)

    def _sum(
        self, trained: Values, fixed: Values, inputs: Any, targets: Any, weights: Tensor
    ) -> tuple[Tensor, Values]:
        """Losses and the weighted sum, computed from scratch."""
        gradients = self._run(trained, fixed, inputs, targets)
        return gradients.losses, gradients.weighted_sum(weights)

    def _answered(self, run: Callable[[Any], _Answer], batch: Any) -> _Answer:
        """The gradients of a batch, not finite where the model or the loss rejects a record."""
        answer: _Answer
        answer, rejected = self._tried(run, batch)
        return answer if rejected is None else answer.without(self._refused(rejected))

    def _tried(self, run: Callable[[Any], Any], batch: Any) -> tuple[Any, RejectedRecords | None]:
        """What `run` returns; for a batch with rejected records, of one in which they are replaced.

        An error of the model itself is raised with its layer.
        """
        restart = restarting(next(self.model.parameters()).device)
        answer = attempt(run, batch)
        if answer is not None:
            return answer, None
        rejected = RejectedRecords(run, batch, self.model)
        restart()  # the second attempt draws what the first drew
        return run(rejected.replaced(batch)), rejected

    def _refused(self, rejected: RejectedRecords) -> Tensor:
        """The records, or the people with a record, that the model or the loss rejects."""
        return by_person(rejected.refused, self.slots or 1).any(1)

    def _count(self, inputs: Any, targets: Any) -> int:
        """The number of rows, which must be those of whole people."""
        rows = count_records(inputs, targets)
        if rows % (self.slots or 1):
            raise ValueError(f"Expected {self.slots} rows for every person, got {rows} in all.")
        return rows

    def _slots_of(self, inputs: Any, targets: Any) -> int:
        """Rows of a person; 1 in a part of a batch that is only tried and may cut a person."""
        if self.slots is None or count_records(inputs, targets) % self.slots:
            return 1
        return self.slots

    def _split(self, parameters: Parameters) -> tuple[Values, Values]:
        """Trained leaves and all other values, both detached from the caller's tensors."""
        if isinstance(parameters, nn.Module):
            parameters = dict(parameters.named_parameters())
        wanted = [name for name, value in self.model.named_parameters() if value.requires_grad]
        missing = [name for name in wanted if name not in parameters]
        if missing:
            raise ValueError(
                f"Expected a value for every trained parameter, got none for {missing}."
            )
        if not wanted:
            raise ValueError(
                "Expected a model with trained parameters, got one without. "
                "Call requires_grad_(True) on what should be trained."
            )
        trained = {name: parameters[name].detach().requires_grad_() for name in wanted}
        fixed = {name: value.detach() for name, value in parameters.items() if name not in trained}
        return trained, fixed

    def _record_loss(self, values: Mapping[str, Tensor], inputs: Any, targets: Any) -> Tensor:
        """The loss of one record, as a batch of one; times its share, if it is a person's."""
        share = None
        if self.slots is not None:
            targets, share = targets
        inputs, targets = pytree.tree_map_only(Tensor, lambda leaf: leaf[None], (inputs, targets))
        outputs = self._holding(values, lambda: run_on(self.model, inputs))
        losses = self.loss(outputs, targets)
        if not isinstance(losses, Tensor) or losses.shape != (1,):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            allowed = "to return one value per record, shape (1,) for one record"
            hint = "Use reduction='none', and sum or average over the positions of a record."
            raise ArgumentError("loss", allowed, shown=str(shape), hint=hint)
        return losses[0] if share is None else losses[0] * share.to(losses.dtype)

    def _holding(self, values: Mapping[str, Tensor], run: Callable[[], Any]) -> Any:
        """The result of `run()` while the model uses the given values."""
        placed = {f"model.{path}": value for path, value in _placed(self.model, values).items()}
        return functional_call(_Running(self.model), placed, (run,), tie_weights=False)


class _Running(nn.Module):
    """A module that wraps the model, to run any function with substituted parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, run: Callable[[], Any]) -> Any:
        """Call `run`."""
        return run()


def run_on(model: nn.Module, inputs: Any) -> Any:
    """Call the model with a tensor, with a tuple or list by position, or with a mapping by name."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Restore the training or evaluation mode of every module on exit.

    `model.train()` would also switch layers that are meant to stay in evaluation mode.
    """
    before = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def by_person(values: Tensor, slots: int) -> Tensor:
    """Values of records, of shape (records, ...), as (people, slots, ...)."""
    return values.reshape(-1, slots, *values.shape[1:])


def count_records(inputs: Any, targets: Any) -> int:
    """The number of records: the size of the first axis, on which all tensors must agree."""
    whole = pytree.tree_leaves((inputs, targets), is_leaf=lambda x: isinstance(x, PackedSequence))
    if any(isinstance(leaf, PackedSequence) for leaf in whole):
        refuse_packed()
    leaves = [leaf for leaf in pytree.tree_leaves((inputs, targets)) if isinstance(leaf, Tensor)]
    sizes = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
    if len(sizes) != 1 or None in sizes:
        raise ValueError(
            "Expected every tensor of inputs and targets to have the records on its first axis, "
            f"got shapes {[tuple(leaf.shape) for leaf in leaves]}."
        )
    return leaves[0].shape[0]


@contextmanager
def native_products() -> Iterator[None]:
    """Use torch's own matrix products instead of oneDNN's on ARM processors.

    Measured there, the batched products of a step take 1.3 to 4 times as long with oneDNN, and
    convolutions with one weight per record up to 11 times.
    """
    before = torch.backends.mkldnn.enabled
    native = before and platform.machine() not in ("aarch64", "arm64")
    torch.backends.mkldnn.enabled = native  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


def _placed(model: nn.Module, values: Mapping[str, Tensor]) -> Values:
    """The values by every name under which the model holds their parameter, each place once.

    torch's own handling of tied weights substitutes twice in a module registered under two names
    and then restores the wrong tensor.
    """
    names: dict[int, str] = {}
    placed = {}
    for path, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                place = f"{path}.{attribute}" if path else attribute
                name = names.setdefault(id(parameter), place)
                if name in values:
                    placed[place] = values[name]
    own = set(names.values())
    return placed | {name: value for name, value in values.items() if name not in own}


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

    @override
    def _run(
        self, trained: Values, fixed: Values, inputs: Any, targets: Any, *, keep: bool = True
    ) -> Gradients:
        tape = NormTape(trained, keep=keep, slots=self._slots_of(inputs, targets))
        with self._taped(tape, fixed, inputs, targets) as losses:
            return kept(tape, losses)

    def _sum(
        self, trained: Values, fixed: Values, inputs: Any, targets: Any, weights: Tensor
    ) -> tuple[Tensor, Values]:
        tape = SumTape(trained, weights, self._slots_of(inputs, targets))
        with self._taped(tape, fixed, inputs, targets) as losses:
            return losses, tape.sums()

    def _form(self, trained: Values, fixed: Values, inputs: Any, targets: Any) -> Formed:
        tape = FormTape(trained, count_records(inputs, targets), self._slots_of(inputs, targets))
        with self._taped(tape, fixed, inputs, targets) as losses:
            return Formed(tape.formed(), losses)

    @contextmanager
    def _taped(self, tape: Tape, fixed: Values, inputs: Any, targets: Any) -> Iterator[Tensor]:
        """Fill the tape with one forward and one backward pass; yield the losses by person.

        Autocast is for the model only: norms that bound a sensitivity must not be rounded to it.
        """
        with self._guard() as guard, torch.enable_grad():
            losses = self._forward(tape, fixed, guard, self._record_loss, inputs, targets)
            with torch.autocast(losses.device.type, enabled=False):
                tape.collect(losses)
            losses = losses.detach()  # the guard ends when the pass has freed its own tensors
        with torch.no_grad(), torch.autocast(losses.device.type, enabled=False):
            yield by_person(losses, tape.slots).sum(1)

    def losses(self, parameters: Parameters, inputs: Any, targets: Any) -> Tensor:
        """The loss of each record alone, without gradients; NaN where the model rejects it."""
        refuse_unsupported(self.model)
        trained, fixed = self._split(parameters)

        def run(batch: tuple[Any, Any]) -> Tensor:
            with self._guard() as guard:
                tape = NormTape(trained, keep=False)
                losses: Tensor = self._forward(tape, fixed, guard, self._record_loss, *batch)
                return losses

        device = next(iter(trained.values())).device
        with torch.no_grad(), native_products(), self._precision(device):
            found: Tensor
            found, rejected = self._tried(run, (inputs, targets))
            return found if rejected is None else found.masked_fill(rejected.refused, torch.nan)

    def _forward(
        self,
        tape: Tape,
        fixed: Values,
        guard: EscapedTensorGuard,
        of_record: Callable[..., Any],
        *batch: Any,
    ) -> Any:
        """What a function returns for each record; what the tape needs stays in its graph."""
        values = tape.parameters | fixed
        hold = partial(self._holding, values)

        def captured(row: Tensor, *batch: Any) -> Any:
            leaf = next(x for x in pytree.tree_leaves(batch) if isinstance(x, Tensor))
            guard.note(batch)
            with Capture(tape, leaf, hold, guard, Draws(row)):
                return of_record(values, *batch)

        return torch.vmap(captured, randomness="different")(rows_of(batch), *batch)


def kept(tape: NormTape, losses: Tensor) -> Gradients:
    """The gradients of a tape that has kept the factors of their sum."""
    stored = [tape]

    def add_up(weights: Tensor) -> Values:
        if not stored:
            raise RuntimeError(
                "weighted_sum was already called and freed what it needs; run the engine again."
            )
        with torch.no_grad(), torch.autocast(weights.device.type, enabled=False):
            return stored.pop().weighted_sum(weights)

    return Gradients(tape.norms(losses), losses, add_up)


class Materialised(Engine):
    """Forms every record's gradient with `torch.func`."""

    def _form(self, trained: Values, fixed: Values, inputs: Any, targets: Any) -> Formed:
        def record_loss(values: Values, inputs: Any, targets: Any, row: Tensor) -> Tensor:
            guard.note((inputs, targets))
            with FunctionInterceptor(guard, Draws(row)):
                return self._record_loss(values | fixed, inputs, targets)

        gradient = grad_and_value(record_loss)
        differentiate = vmap(gradient, in_dims=(None, 0, 0, 0), randomness="different")
        values = {name: value.detach() for name, value in trained.items()}
        with (
            self._guard() as guard,
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
