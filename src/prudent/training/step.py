"""One private step, for any loop: a batch in, noisy gradients in `parameter.grad` out."""

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
        inputs: A tensor, or a tree of them, records first. Or a function that reads the inputs and
            the targets, the same each time: for an engine that recomputes, which then holds no more
            than one chunk at a time.
        targets: Likewise; not looked at if `inputs` reads them.
        valid: False where a row is padding; None: no padding.
        ids: Record ids, strictly ascending over the chunks of a batch, padding aside: the order
            that ties need, and a proof that no record counts twice. Needed by a corruption, and by
            several processes.
    """

    inputs: Any
    targets: Any = None
    valid: Tensor | None = None
    ids: Tensor | None = None

    def read(self) -> tuple[Any, Any]:
        """The inputs and the targets."""
        return self.inputs() if callable(self.inputs) else (self.inputs, self.targets)


Corrupt = Callable[[Values, Chunk, torch.Generator], Values]
"""Replaces the per-example gradients of a chunk: how faulty or hostile records are simulated.

What it draws it draws with a generator of torch that belongs to the step and that a checkpoint
keeps. No guarantee rests on it."""


@runtime_checkable
class Corruption(Protocol):
    """Makes a share of the records of a data set bad, such as those of `prudent.corruption`."""

    @property
    def per_record(self) -> bool:
        """Whether what a bad record sends depends on no other: else no accounting covers it."""

    def hook(self, records: int, device: torch.device) -> Corrupt:
        """What a step calls, for a data set of so many records."""


class Outcome(NamedTuple):
    """What a step lets be known, all on the device; three of the fields must stay there.

    Attributes:
        passed: Whether the test passed.
        trim: F, the number of gradients the step would trim.
        noise: Standard deviation of the noise on the sum.
        noisy_margin: What the test saw. Private, unless the plan reveals the margin.
        drawn: Records in the batch. Private: neither released nor charged.
        loss: Mean loss of the batch. Private likewise.
    """

    passed: Tensor
    trim: Tensor
    noise: Tensor
    noisy_margin: Tensor
    drawn: Tensor
    loss: Tensor


class Step:
    """Turns a batch into the gradient of a plan: norms, test, weights, one weighted sum, noise.

    After `step(...)`, every trained parameter's `.grad` holds (noisy sum) / (expected batch), for
    any torch optimizer to use: that is post-processing.

    Args:
        plan: What is released.
        model: Any module whose layers keep records apart. Of a DistributedDataParallel the model
            inside is used; one divided by `fully_shard` is gathered for the time of a step.
        loss: Takes outputs and targets to one loss per record.
        expected_batch: The public size the sum is divided by; the plan's own if it has one. Else
            the sampling rate times the number of records, which `plan.relation` calls public.
        engine: `BookKeeping` unless given.
        corrupt: Applied to the per-example gradients before anything else; forms them all.
        key: Of all noise; a new one from the operating system unless given. Never use one twice.
        compile: Fuse the step into one program for each shape of batch. Takes a minute or two, and
            changes no number but for rounding and the masks of dropout. Pays for long runs on a
            GPU, and for transformers on the CPU. A corruption is then traced once: it must be a
            function of its arguments alone.
        processes: Those that release each batch together, from `distributed.join`. Each is called
            with its own records; every one starts from the parameters of the first and gets the
            same gradient. This process alone unless given.

    Guarantee:
        If batches are Poisson samples at the plan's rate, all calls together are as private as
        `plan.event` says for `plan.relation`, whatever is done with the gradients. A call beyond
        `plan.steps` is refused. Noise comes from the ChaCha20 keystream of the key, and nobody
        without it can tell it from true noise but by breaking the cipher.

        A blanked record (`valid` False) is as good as absent, whatever its row holds: its weight is
        0; it ranks behind every other and is not counted when the trimmed sum keeps all but F of
        those that are; it is not among the norms above τ, so the margin does not see it; and F, the
        thresholds and the noise are made of public numbers alone. Hence zero-out has the price of
        add-remove.

    Attributes:
        state: What one step leaves for the next: the trim, and how many were taken.
        noise: What the noise is drawn with.
        generator: Of what a corruption draws; the key decides its seed.
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
        # Each process divides its own part: another divisor would be another weight of its records.
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
        """F of the next step, before it is rounded down."""
        return self.state.trim

    @property
    def taken(self) -> int:
        """Steps taken so far."""
        return self.state.taken

    def use(self, key: Key) -> None:
        """Draws with another key from now on: that of a run that is resumed."""
        device = next(self.model.parameters()).device
        self.noise = noise_on(device, key)
        self.generator = key.generator(device, Purpose.CORRUPTION, rank=self.processes.rank)

    def refuse_beyond_plan(self) -> None:
        """Raises if the plan has no step left."""
        if self.taken >= self.plan.steps:
            raise ValueError(
                f"Expected at most plan.steps = {self.plan.steps} steps, got one more: the plan "
                "does not pay for it. Make a plan of more steps before you begin."
            )

    def __call__(self, chunks: Sequence[Chunk]) -> Outcome:
        """Releases one batch, given in one or more chunks in the order of record ids."""
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
        """Parameters and buffers, whole."""
        named = (*self.model.named_parameters(), *self.model.named_buffers())
        with self.processes.watched():
            return {name: whole(value) for name, value in named}

    def _release(
        self, values: Values, trim: Tensor, chunks: tuple[Chunk, ...], words: Tensor
    ) -> "_Released":
        """The step without the noise on the sum, as a function of tensors: it changes nothing."""
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
        """Weights of this process's records, and the noise, from the norms of all processes."""
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
        """Adds the noise, one draw for all parameters, and divides by the expected batch.

        The first process adds the noise to its part; the sum of all parts then holds it once.
        """
        total = released.total
        flat = torch.cat([value.flatten() for value in total.values()])
        # In place: for a large model each of these is as large as its parameters.
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
        """What this process keeps of the sum of all processes' parts."""
        parameter = self.model.get_parameter(name)
        if not is_sharded(parameter):
            return self.processes.summed(part)
        with self.processes.watched():
            return scattered(part, parameter)


def _refuse_other_numbers(model: nn.Module) -> None:
    """Sums and noise are of the type of the parameters, and not every type holds a bound."""
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
    """Refuses a batch that holds a record twice, or in another order than that of ids."""
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
    if not known or is_capturing():  # a graph is not asked for values; see _counted_once
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
    """Which rows of a batch are records; `rows` has one number for each row of each chunk."""
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
    """The rows that count: those whose id is above the ids of all rows that count before them.

    Guarantee:
        What counts is strictly ascending, so no record counts twice, on any device and in a
        captured graph, where nothing can be raised. Batches that pass `_check_ids` keep all rows.
    """
    if ids is None or not len(ids):
        return valid
    known = torch.where(valid, ids, -1)
    before = torch.nn.functional.pad(known, (1, 0), value=-1)[:-1].cummax(0).values
    return valid & (ids > before)


class _Released(NamedTuple):
    """What a step computed before the noise.

    Attributes:
        total: The weighted sum of gradients by parameter: secret until noise is added.
        noise: Standard deviation of that noise.
        scale: Factor on the update.
        trim: Of the next step.
        outcome: What may be known.
    """

    total: Values
    noise: Tensor
    scale: Tensor
    trim: Tensor
    outcome: Outcome
