"""One private step for any training loop: writes the noisy gradients of a batch to `.grad`."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from prudent import _validate
from prudent.training.aggregation import Decision
from prudent.training.compiled import Compiled
from prudent.training.gradients import BookKeeping, Engine, Gradients
from prudent.training.gradients.answers import Values
from prudent.training.gradients.engine import Loss
from prudent.training.gradients.randomness import is_capturing
from prudent.training.keystream import Key, Purpose, given_or_random
from prudent.training.noise import noise_on
from prudent.training.parallel.processes import Alone, Processes, unwrapped
from prudent.training.parallel.sharding import (
    check_mesh,
    has_shards,
    is_sharded,
    rest,
    scattered,
    whole,
    without_gathering,
)
from prudent.training.plan import Plan
from prudent.training.step_state import StepState


class Chunk(NamedTuple):
    """One physical batch.

    Attributes:
        inputs: A tensor or a tree of tensors, with records along the first dimension. Or a function
            that reads the inputs and the targets and returns the same values each time; an engine
            that recomputes then holds only one chunk in memory at a time.
        targets: The same for the targets; ignored if `inputs` is a function.
        valid: False for rows that are padding. None: no padding.
        ids: Record ids, strictly ascending over the chunks of a batch except for padding. They
            break ties between norms and prove that no record counts twice. Required with a
            corruption and with several processes.
    """

    inputs: Any
    targets: Any = None
    valid: Tensor | None = None
    ids: Tensor | None = None

    def read(self) -> tuple[Any, Any]:
        """The inputs and the targets."""
        return self.inputs() if callable(self.inputs) else (self.inputs, self.targets)


Corrupt = Callable[[Values, Chunk, torch.Generator], Values]
"""Replaces the per-example gradients of a chunk, to simulate faulty or hostile records.

It draws random numbers from a torch generator that belongs to the step and is saved in checkpoints.
No guarantee depends on this generator.
"""


@runtime_checkable
class Corruption(Protocol):
    """Makes a fraction of the records bad, such as the corruptions in `prudent.corruption`."""

    @property
    def per_record(self) -> bool:
        """Whether what a bad record sends depends on no other record.

        If not, no accounting covers the corruption.
        """

    def hook(self, records: int, device: torch.device) -> Corrupt:
        """The function that a step calls, for a data set of `records` records."""


class Outcome(NamedTuple):
    """The outcome of a step, on the device. Some fields are private and must not be shown.

    Attributes:
        passed: Whether the test passed.
        trim: F, the number of gradients that the robust branch of the step trims.
        noise: Standard deviation of the noise on the sum.
        noisy_margin: The noisy margin that the test compared. Private unless the plan reveals the
            margin.
        drawn: Number of records in the batch. Private: neither released nor charged.
        loss: Mean loss of the batch. Private for the same reason.
    """

    passed: Tensor
    trim: Tensor
    noise: Tensor
    noisy_margin: Tensor
    drawn: Tensor
    loss: Tensor


class Step:
    """Releases the gradient of a batch as a plan prescribes: norms, test, weights, sum, noise.

    After `step(...)`, every trained parameter's `.grad` holds (noisy sum) / (expected batch), which
    any torch optimizer may use: that is post-processing.

    Args:
        plan: Prescribes what is released.
        model: Any module whose layers do not mix records. A DistributedDataParallel is replaced by
            the model it wraps; a model sharded by `fully_shard` is gathered for the duration of a
            step.
        loss: Maps outputs and targets to one loss per record.
        expected_batch: The public batch size by which the sum is divided. The plan's own if it has
            one; otherwise give the sampling rate times the number of records, which `plan.relation`
            declares public.
        engine: The engine for per-example norms and sums; `BookKeeping` unless given.
        corrupt: Applied to the per-example gradients before anything else. All of them are then
            held in memory.
        key: The key of all noise; a new one from the operating system unless given. Never use a key
            twice.
        compile: Compile the step into one fused program per batch shape. Compilation takes a minute
            or two; results change only by rounding and by the masks of dropout. Worthwhile for long
            runs on a GPU and for transformers on the CPU. A corruption is traced once, so it must
            be a function of its arguments alone.
        processes: The processes that release each batch together, as returned by `join`. Each is
            called with its own records; all start from the parameters of the first and get the same
            gradient. Only this process unless given.

    Guarantee:
        If batches are Poisson samples at the plan's rate, all calls together are as private as
        `plan.event` states for `plan.relation`, whatever is done with the gradients. A call beyond
        `plan.steps` raises an error. Noise comes from the ChaCha20 keystream of the key: without
        the key, telling it from true noise requires breaking the cipher.

        A blanked record (`valid` False) has the same effect as an absent one, whatever its row
        holds: its weight is 0; it ranks after every valid record and is not counted when the
        trimmed sum keeps all but F of the valid ones; it is not counted among the norms above τ, so
        it does not affect the margin; and F, the thresholds and the noise depend on public numbers
        only. Hence zero-out has the same price as add-remove.

    Attributes:
        state: What one step passes on to the next: the trim and the number of steps taken.
        noise: The source of the noise.
        generator: The generator that a corruption draws from, seeded from the key.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        loss: Loss,
        *,
        expected_batch: float | None = None,
        engine: Engine | None = None,
        corrupt: Corrupt | None = None,
        key: Key | None = None,
        compile: bool = False,
        processes: Processes | None = None,
    ) -> None:
        batch = plan.expected_batch if plan.expected_batch is not None else expected_batch
        if batch is None:
            raise ValueError(
                "Expected expected_batch, from the plan or here: the sum is divided by it. It is "
                "the sampling rate times the public number of records."
            )
        processes = Alone() if processes is None else processes
        if compile and processes.count > 1:
            raise _validate.ArgumentError(
                "compile",
                f"False, since {processes.count} processes talk to each other within a step",
                got=True,
            )
        if engine is not None and engine.recompute and compile:
            raise ValueError(
                "Expected recompute or compile, got both: a compiled step would draw new dropout "
                "masks for the sum, and the norms would not bound it. Leave compile unset."
            )
        batch = _validate.positive(expected_batch=batch)
        # Each process divides its own part, so a different divisor would weight its records
        # differently.
        processes.check_same(plan=repr(plan), expected_batch=batch)
        model = unwrapped(model, processes)
        rest(model)
        check_mesh(model, processes.count)
        _refuse_other_numbers(model)
        processes.align(model)
        device = next(model.parameters()).device
        if isinstance(corrupt, Corruption):
            raise _validate.ArgumentError(
                "corrupt",
                "a function of gradients, a Chunk and a generator",
                shown=f"{type(corrupt).__name__}, which does not say how many records there are",
                hint="Give corrupt.hook(records, device), or give it to fit.",
            )
        if corrupt is not None and compile and device.type == "cpu":
            raise ValueError(
                "Expected corrupt or compile on the CPU, got both: there a corruption may look at "
                "values, which a compiled step would do only once. Leave compile unset."
            )
        self.plan = plan
        self.model = model
        self.loss = loss
        self.expected_batch = batch
        self.engine = BookKeeping(model, loss) if engine is None else engine
        self.corrupt = corrupt
        self.processes = processes
        self.use(given_or_random(key))
        self._rehearsed = False
        self._compiled = Compiled(self._release) if compile else None
        self.state = StepState.start(plan.aggregation.trim.start(self.expected_batch), device)

    @property
    def trim(self) -> Tensor:
        """F of the next step, before rounding down."""
        return self.state.trim

    @property
    def taken(self) -> int:
        """Number of steps taken so far."""
        return self.state.taken

    def use(self, key: Key) -> None:
        """Switch to another key, that of a resumed run."""
        device = next(self.model.parameters()).device
        self.noise = noise_on(device, key)
        self.generator = key.generator(device, Purpose.CORRUPTION, rank=self.processes.rank)

    def refuse_beyond_plan(self) -> None:
        """Raise an error if all steps of the plan have been taken."""
        if self.taken >= self.plan.steps:
            raise ValueError(
                f"Expected at most plan.steps = {self.plan.steps} steps, got one more: the plan "
                "does not pay for it. Make a plan of more steps before you begin."
            )

    def __call__(self, chunks: Sequence[Chunk]) -> Outcome:
        """Release one batch, given as one or more chunks ordered by record id."""
        _check_chunks(chunks)
        self.refuse_beyond_plan()
        self.state.begin()
        words = self.noise.test_words(self.state)
        rest(self.model)
        release = self._release if self._compiled is None else self._compiled
        with without_gathering(self.model) if has_shards(self.model) else nullcontext():
            released = release(self._values(), self.trim, tuple(chunks), words)
            gradients = self._noisy_mean(released)
        for name, gradient in gradients.items():
            self.model.get_parameter(name).grad = gradient
        self.trim.copy_(released.trim)
        return released.outcome

    def _values(self) -> Values:
        """All parameters and buffers by name, gathered if they are sharded."""
        named = (*self.model.named_parameters(), *self.model.named_buffers())
        with self.processes.watched():
            return {name: whole(value) for name, value in named}

    def _release(
        self, values: Values, trim: Tensor, chunks: tuple[Chunk, ...], words: Tensor
    ) -> "_Released":
        """Compute the step except for the noise on the sum, as a pure function of tensors."""
        policy = self.plan.aggregation.trim
        batches = [self._gradients(values, chunk) for chunk in chunks]
        norms = torch.cat([batch.norms for batch in batches])
        valid = _counted_once(_valid(chunks, [batch.norms for batch in batches]), _ids(chunks))
        trimmed = policy.records(trim)
        decision = self._decide(norms, valid, chunks, trimmed, words)
        total: Values = {}
        parts = torch.split(decision.weights, [len(batch.norms) for batch in batches])
        for batch, part in zip(batches, parts, strict=True):
            for name, value in batch.weighted_sum(part).items():
                total[name] = total[name] + value if name in total else value
        losses = torch.cat([batch.losses for batch in batches]).detach()
        drawn = self.processes.summed(valid.sum())
        loss = self.processes.summed(torch.where(valid, losses, 0.0).sum())
        outcome = Outcome(
            decision.passed,
            trimmed,
            decision.noise,
            decision.noisy_margin,
            drawn,
            loss / drawn.clamp_min(1),
        )
        trim = policy.next(trim, decision.passed, self.expected_batch)
        return _Released(total, decision.noise, decision.scale, trim, outcome)

    def _decide(
        self,
        norms: Tensor,
        valid: Tensor,
        chunks: tuple[Chunk, ...],
        trimmed: Tensor,
        words: Tensor,
    ) -> Decision:
        """This process's weights and the noise level, decided from the norms of all processes."""
        return self.processes.decide(
            norms,
            valid,
            _ids(chunks),
            lambda norms, valid: self.plan.aggregation.decide(norms, valid, trimmed, words),
        )

    def _gradients(self, values: Values, chunk: Chunk) -> Gradients:
        if not self._rehearsed and not is_capturing():
            self._rehearsed = True
            self.engine.rehearse(values, chunk.read)
        corrupt = self.corrupt
        if corrupt is None:
            return self.engine.read(values, chunk.read)
        formed = self.engine.formed(values, *chunk.read())
        return formed.corrupted(lambda gradients: corrupt(gradients, chunk, self.generator))

    def _noisy_mean(self, released: "_Released") -> Values:
        """Add the noise, drawn once for all parameters, and divide by the expected batch.

        The first process adds the noise to its part, so the sum of all parts contains it exactly
        once.
        """
        total = released.total
        flat = torch.cat([value.flatten() for value in total.values()])
        # Work in place: each of these vectors is as large as the model.
        if self.processes.rank == 0:
            self.noise.add_(flat, released.noise, self.state)
        flat.mul_(released.scale / self.expected_batch)
        sharded = has_shards(self.model)
        if not sharded:
            flat = self.processes.summed(flat)
        sizes = [value.numel() for value in total.values()]
        parts = {
            name: part.view_as(value).to(value.dtype)
            for (name, value), part in zip(total.items(), torch.split(flat, sizes), strict=True)
        }
        return {name: self._own(name, part) for name, part in parts.items()} if sharded else parts

    def _own(self, name: str, part: Tensor) -> Tensor:
        """This process's share of the sum over processes: its shard, or the whole sum."""
        parameter = self.model.get_parameter(name)
        if not is_sharded(parameter):
            return self.processes.summed(part)
        with self.processes.watched():
            return scattered(part, parameter)


def _refuse_other_numbers(model: nn.Module) -> None:
    """Raise an error for parameter types in which the bounds on sums and noise would not hold."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or parameter.dtype in (torch.float32, torch.float64):
            continue
        given = f"Expected trained parameters in float32 or float64, got {parameter.dtype} for "
        if parameter.is_complex():
            raise ValueError(
                f"{given}{name!r}: of a complex noise both parts have half the variance. Train "
                "torch.view_as_real of it, and take torch.view_as_complex in the model."
            )
        raise ValueError(
            f"{given}{name!r}: rounding would let one record change the sum by more than the clip. "
            "Keep the parameters in float32 and run the layers under torch.autocast."
        )


def _check_chunks(chunks: Sequence[Chunk]) -> None:
    if isinstance(chunks, Chunk) or not chunks or not all(isinstance(c, Chunk) for c in chunks):
        raise _validate.ArgumentError(
            "chunks",
            "a sequence of one Chunk(inputs, targets) or more",
            shown="a bare Chunk" if isinstance(chunks, Chunk) else type(chunks).__name__,
            hint="Pass [Chunk(inputs, targets)]; an empty batch is a chunk of no rows.",
        )
    for chunk in chunks:
        valid = chunk.valid
        if valid is not None and (valid.dtype != torch.bool or valid.ndim != 1):
            raise _validate.ArgumentError(
                "valid",
                "one boolean for each row of a chunk",
                shown=f"{valid.dtype} of shape {tuple(valid.shape)}",
            )
    _check_ids(chunks)


def _check_ids(chunks: Sequence[Chunk]) -> None:
    """Raise an error if a batch holds a record twice or is not ordered by record id."""
    for chunk in chunks:
        ids, valid = chunk.ids, chunk.valid
        if (ids is None) != (chunks[0].ids is None):
            raise _validate.ArgumentError(
                "ids", "in every Chunk of a batch or in none", shown="some"
            )
        if ids is None:
            continue
        shape = ids.shape if valid is None else valid.shape
        if ids.ndim != 1 or ids.shape != shape or ids.is_floating_point():
            raise _validate.ArgumentError(
                "ids",
                "one integer for each row of a chunk",
                shown=f"{ids.dtype} of shape {tuple(ids.shape)}",
            )
    known = [chunk.ids for chunk in chunks if chunk.ids is not None]
    if not known or is_capturing():  # values cannot be read during capture; see _counted_once
        return
    valid = _valid(chunks, known)
    if bool((_counted_once(valid, torch.cat(known)) != valid).any()):
        raise _validate.ArgumentError(
            "ids",
            "strictly ascending over the chunks of a batch",
            shown="others",
            why="a record that is there twice would count twice, and another order breaks "
            "ties between gradients of one norm differently",
            hint="Sort the batch by id, and keep one row of each.",
        )


def _valid(chunks: Sequence[Chunk], rows: Sequence[Tensor]) -> Tensor:
    """A mask of the rows that are records; `rows` has one entry per row of each chunk."""
    return torch.cat(
        [
            torch.ones_like(each, dtype=torch.bool) if chunk.valid is None else chunk.valid
            for chunk, each in zip(chunks, rows, strict=True)
        ]
    )


def _ids(chunks: Sequence[Chunk]) -> Tensor | None:
    known = [chunk.ids for chunk in chunks if chunk.ids is not None]
    return torch.cat(known) if len(known) == len(chunks) else None


def _counted_once(valid: Tensor, ids: Tensor | None) -> Tensor:
    """A mask of the rows that count: those whose id exceeds the ids of all counted rows before.

    Guarantee:
        The ids of counted rows are strictly ascending, so no record counts twice, on any device and
        also in a captured graph, where no error can be raised. Batches that pass `_check_ids` keep
        all rows.
    """
    if ids is None or not len(ids):
        return valid
    known = torch.where(valid, ids, -1)
    before = torch.nn.functional.pad(known, (1, 0), value=-1)[:-1].cummax(0).values
    return valid & (ids > before)


class _Released(NamedTuple):
    """The results of a step before the noise is added.

    Attributes:
        total: Weighted sum of gradients by parameter name; secret until the noise is added.
        noise: Standard deviation of the noise to add.
        scale: Factor on the update.
        trim: F of the next step, before rounding down.
        outcome: The outcome that the step returns.
    """

    total: Values
    noise: Tensor
    scale: Tensor
    trim: Tensor
    outcome: Outcome
