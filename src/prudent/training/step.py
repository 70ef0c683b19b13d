"""One private step for any training loop: writes the noisy gradients of a batch to `.grad`."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from prudent._torch_private import pytree
from prudent._validate import ArgumentError, instance
from prudent.training.captured import Captured, place
from prudent.training.chunk import (
    Chunk,
    Corrupt,
    Corruption,
    check_chunks,
    counted_once,
    record_ids,
    repeated_ids,
    valid_rows,
)
from prudent.training.gradients import BookKeeping, Engine, Gradients
from prudent.training.gradients.engine import Loss, Values
from prudent.training.gradients.host_state import settings
from prudent.training.gradients.record_streams import is_capturing
from prudent.training.keystream import Key, ModelRandomness, Purpose, given_or_random
from prudent.training.noise import StepState, add_correlated_, noise_factor, noise_on
from prudent.training.parallel import (
    Processes,
    check_mesh,
    has_shards,
    is_sharded,
    own_shard,
    reshard,
    unwrapped,
    whole,
    without_gathering,
)
from prudent.training.plan import Plan

SUM_ROUNDING = 1e-6
"""A bound on the rounding of a sum of losses, relative to the largest of one."""


def check_parameter_types(model: nn.Module) -> None:
    """Raise an error for parameter types in which the bounds on sums and noise would not hold."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or parameter.dtype in (torch.float32, torch.float64):
            continue
        given = f"Expected trained parameters in float32 or float64, got {parameter.dtype} for "
        if parameter.is_complex():
            raise ValueError(
                f"{given}{name!r}: the real and imaginary parts of complex noise each have only "
                "half its variance. Train torch.view_as_real of the parameter, and apply "
                "torch.view_as_complex in the model."
            )
        raise ValueError(
            f"{given}{name!r}: rounding would let one record change the sum by more than the clip. "
            "Keep the parameters in float32 and run the layers under torch.autocast."
        )


def refuse_anomaly_detection() -> None:
    """Raise an error in a mode of torch that stops at one record, and shows where."""
    if torch.is_anomaly_enabled():
        why = "it would stop at one record whose gradient is not a number, and say so"
        hint = "Look for such numbers with public records."
        raise ArgumentError("detect_anomaly", "off", shown="on", why=why, hint=hint)


class StepOutcome(NamedTuple):
    """The outcome of a step, on the device. Some fields are private and must not be shown.

    Attributes:
        passed: Whether the test passed.
        trim: F, the number of gradients that the robust branch of the step trims.
        noise: Standard deviation of the noise on the sum, without the factor that pays for rounding
            (`noise_factor`).
        noisy_margin: The noisy margin that the test compared. Private unless the plan reveals the
            margin.
        drawn: Number of records in the batch. Private: neither released nor charged.
        loss: Mean loss of the batch. Private for the same reason.
        watched: The noisy mean of clipped losses, in the steps in which the plan releases it (its
            `watch`); NaN in all others.
    """

    passed: Tensor
    trim: Tensor
    noise: Tensor
    noisy_margin: Tensor
    drawn: Tensor
    loss: Tensor
    watched: Tensor


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
        cuda_graph: Replay the step as a CUDA graph for every shape of batch that recurs: the same
            numbers with one launch, or one for each part between two exchanges of several
            processes. None and True: on every CUDA device. Never done with a sharded model, a
            corruption or a function that reads a chunk.
        processes: The processes that release each batch together, as returned by `join`. Each is
            called with its own records; all start from the parameters of the first and get the same
            gradient. Only this process unless given.

    Guarantee:
        If batches are Poisson samples at the plan's rate (with `num_bands`, in turns as those of
        `PoissonSampler`), all calls together are as private as
        `plan.event` states for `plan.relation`, whatever is done with the gradients. A call beyond
        `plan.steps` raises an error. Noise comes from the ChaCha20 keystream of the key: without
        the key, telling it from true noise requires breaking the cipher.

        A blanked record (`valid` False) has the same effect as an absent one, whatever its row
        holds: its weight is 0; it ranks after every valid record and is not counted when the
        trimmed sum keeps all but F of the valid ones; it is not counted among the norms above τ, so
        it does not affect the margin; and F, the thresholds and the noise depend on public numbers
        only. Hence zero-out has the same price as add-remove.

    Attributes:
        state: What one step passes on to the next: the trim, the number of steps taken and, with
            `num_bands`, the last noises.
        noise: The source of the noise.
        generator: The generator that a corruption draws from, seeded from the key.
        randomness: What the model draws, such as the masks of dropout; from the key as well.
        programs: The captured graphs; `refresh` drops them when they may be stale.
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
        cuda_graph: bool | None = None,
        processes: Processes | None = None,
    ) -> None:
        processes = Processes() if processes is None else processes
        instance(Processes, "processes of a run", processes=processes)
        batch = instance(Plan, "a Plan", plan=plan).divisor(expected_batch=expected_batch)
        instance(nn.Module, "a torch module", model=model)
        refuse_anomaly_detection()
        device = next((parameter.device for parameter in model.parameters()), None)
        if device is None:
            raise ArgumentError("model", "with parameters to train", shown=type(model).__name__)
        if isinstance(corrupt, Corruption):
            raise ArgumentError(
                "corrupt",
                "a function of gradients, a Chunk and a generator",
                shown=f"{type(corrupt).__name__}, which needs the number of records",
                hint="Pass corrupt.hook(records, device), or pass the corruption to fit.",
            )
        # Each process divides its own part, so a different divisor would weight its records
        # differently.
        processes.check_same(plan=repr(plan), expected_batch=batch)
        model = unwrapped(model, processes)
        reshard(model)
        check_mesh(model, processes.count)
        check_parameter_types(model)
        processes.align(model)
        self.plan = plan
        self.model = model
        self.loss = loss
        self.expected_batch = batch
        self.engine = BookKeeping(model, loss) if engine is None else engine
        self.corrupt = corrupt
        self.processes = processes
        self.use(given_or_random(key))
        self._rehearsed = False
        self._repeated = repeated_ids()
        self.programs: list[Captured] = []
        self._made_for: Any = None
        self._run: Captured | None = None
        # Steps with batches of the same shape must consist of the same operations.
        repeats = corrupt is None and not self.engine.recompute and not has_shards(model)
        if device.type == "cuda" and cuda_graph is not False and repeats:
            self._run = Captured(self._release)
            self.programs.append(self._run)
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
        self._loss_noise = noise_on(device, key, Purpose.WATCH)
        self.generator = key.generator(device, Purpose.CORRUPTION, rank=self.processes.rank)
        self.randomness = ModelRandomness(key.stream(Purpose.MODEL), device, self.processes.rank)

    def __call__(self, chunks: Sequence[Chunk]) -> StepOutcome:
        """Release one batch, given as one or more chunks."""
        check_chunks(chunks, self._repeated)
        self.plan.refuse_beyond(self.taken)
        if not self._rehearsed and not is_capturing():
            self.rehearse(chunks[0].read())
        self.refresh()
        self.state.begin()
        words = self.noise.test_words(self.state)
        self._drawn = self.randomness.at(self.taken)
        reshard(self.model)
        parameters = dict(self.model.named_parameters())  # once: a walk takes as long as kernels
        for parameter in parameters.values():
            parameter.grad = None  # as large as the model, and not needed from now on
        sharded = any(map(is_sharded, parameters.values()))
        with without_gathering(self.model) if sharded else nullcontext(), self._drawn.seeded():
            most = self.processes.largest(record_ids(chunks))
            values = self._whole(parameters | dict(self.model.named_buffers()))
            given = values, self.trim, tuple(chunks), words, most
            reads = any(callable(leaf) for leaf in pytree.tree_leaves(chunks))
            if self._run is None or reads or is_capturing():
                released = self._release(*given)
            else:
                released = self._run(*given)
                # The next replay overwrites what this one returned; the sum is used up before it.
                kept = StepOutcome(*(value.clone() for value in released.outcome))
                released = released._replace(outcome=kept)
            outcome = self._of_all(released.outcome)
            self._write_noisy_mean(released, parameters)
        self.trim.copy_(released.trim)
        return outcome

    def rehearse(self, form: tuple[Any, Any]) -> None:
        """Raise what the model or the loss would raise on any batch of this form; takes no step."""
        self._rehearsed = True
        with without_gathering(self.model):
            self.engine.rehearse(self.values(), lambda: form)

    def refresh(self) -> None:
        """Drop all programs if anything has changed that a program would repeat as it was.

        That is everything on the host that the model or the loss can read, see `HostState`, and
        where their parameters and buffers are and which are trained.
        """
        if self.programs and not is_capturing():
            host, version = self.engine.host, self.engine.host.refresh()
            made_for = version, settings(), [(name, place(it)) for name, it in host.arguments()]
            for program in self.programs if self._made_for not in (None, made_for) else ():
                program.clear()
            self._made_for = made_for

    def values(self) -> Values:
        """All parameters and buffers by name, gathered if they are sharded."""
        return self._whole(dict((*self.model.named_parameters(), *self.model.named_buffers())))

    def _whole(self, values: Mapping[str, Tensor]) -> Values:
        with self.processes.watched():
            return {name: whole(value) for name, value in values.items()}

    def _release(
        self, values: Values, trim: Tensor, chunks: tuple[Chunk, ...], words: Tensor, most: int
    ) -> "_Released":
        """Compute the step except for the noise on the sum, as a pure function of tensors."""
        batches, rows = [], 0
        for chunk in chunks:
            batches.append(self._gradients(values, chunk, rows))
            rows += len(batches[-1].norms)
        norms = [batch.norms for batch in batches]
        policy = self.plan.aggregation.trim
        valid = counted_once(valid_rows(chunks, norms), record_ids(chunks))
        trimmed = policy.records(trim)
        decision = self.processes.decide(
            torch.cat(norms),
            valid,
            record_ids(chunks),
            most,
            lambda norms, valid: self.plan.aggregation.decide(norms, valid, trimmed, words),
        )
        all_losses = torch.cat([batch.losses for batch in batches]).detach()
        outcome = StepOutcome(
            passed=decision.passed,
            trim=trimmed,
            noise=decision.noise,
            noisy_margin=decision.noisy_margin,
            drawn=valid.sum(),
            loss=torch.where(valid, all_losses, 0.0).sum(),  # sums of this process; see _of_all
            watched=self._loss_sum(all_losses, valid),
        )
        trim = policy.next(trim, decision.passed, self.expected_batch)
        parts = torch.split(decision.weights.double(), [len(each) for each in norms])
        total: Values = {}
        for batch, part in zip(batches, parts, strict=True):
            for name, value in batch.weighted_sum(part).items():
                total[name] = total[name] + value if name in total else value
        return _Released(total, decision.scale, trim, outcome)

    def _gradients(self, values: Values, chunk: Chunk, first: int) -> Gradients:
        """The gradients of a chunk; `first` is the number of its first row."""
        corrupt = self.corrupt
        with self._drawn.records(chunk.ids, first, self.engine.slots or 1).active():
            if corrupt is None:
                return self.engine.read(values, chunk.read)
            formed = self.engine.formed(values, *chunk.read())
        return formed.corrupted(lambda gradients: corrupt(gradients, chunk, self.generator))

    def _loss_sum(self, losses: Tensor, valid: Tensor) -> Tensor:
        """The sum of clipped losses, of which none exceeds the bound; secret without noise."""
        watch = self.plan.watch
        if watch is None:
            return losses.new_full((), torch.nan, dtype=torch.float64)
        clipped = losses.double().nan_to_num(nan=watch.bound).clamp(0.0, watch.bound)
        return torch.where(valid, clipped, 0.0).sum()

    def _of_all(self, outcome: StepOutcome) -> StepOutcome:
        """The outcome with the losses of all processes, and noise on the one that is released."""
        loss = outcome.loss
        parts = torch.stack([outcome.drawn.double(), loss.double(), outcome.watched])
        drawn, total, watched = self.processes.summed(parts).unbind()
        return outcome._replace(
            drawn=drawn.to(outcome.drawn.dtype),
            loss=(total / drawn.clamp_min(1)).to(loss.dtype),
            watched=self._noisy_loss(watched.reshape(1)),
        )

    def _noisy_loss(self, total: Tensor) -> Tensor:
        """The released mean loss; NaN in a step that releases none.

        The noise is drawn in every step, so that a captured step is the same as any other; what is
        not released is not shown.
        """
        watch = self.plan.watch
        if watch is None:
            return total[0]
        total = total.clone()
        if self.processes.rank == 0:
            # Sums in double precision are off by less than the last factor pays for.
            deviation = watch.noise_multiplier * watch.bound * (1 + SUM_ROUNDING)
            self._loss_noise.add_(total, torch.full_like(total, deviation)[0], self.state)
        mean = self.processes.sent(total)[0] / self.expected_batch
        released = (self.state.number - 1) % watch.loss_every == 0
        return torch.where(released, mean, torch.nan)

    def _write_noisy_mean(
        self, released: "_Released", parameters: Mapping[str, nn.Parameter]
    ) -> None:
        """Add the noise, drawn once for all parameters, and divide by the expected batch.

        The first process adds it to the sum of all parts, and all processes get the result.
        """
        total = released.total
        trained = {name: parameters[name] for name in total}
        types = {parameter.dtype for parameter in trained.values()}
        flat = torch.cat([value.flatten() for value in total.values()])
        if self.processes.count > 1:
            flat = flat.double()
        # Work in place: each of these vectors is as large as the model.
        flat = self.processes.collected(flat)
        if self.processes.rank == 0:
            shortest = min(types, key=lambda dtype: torch.finfo(dtype).bits)
            factor = noise_factor(len(flat), len(total), shortest)
            deviation = released.outcome.noise * factor
            if self.plan.num_bands == 1:
                self.noise.add_(flat, deviation, self.state)
            else:
                turns = {"num_bands": self.plan.num_bands, "steps": self.plan.steps}
                add_correlated_(self.noise, flat, deviation, self.state, **turns)
        flat = self.processes.sent(flat)
        flat.mul_(released.scale / self.expected_batch)
        if len(types) == 1:
            flat = flat.to(dtype=next(iter(types)))  # one kernel instead of one per parameter
        parts = torch.split(flat, [value.numel() for value in total.values()])
        for parameter, value, part in zip(trained.values(), total.values(), parts, strict=True):
            gradient = part.view(value.shape)
            if len(types) > 1:
                gradient = gradient.to(parameter.dtype)
            if is_sharded(parameter):
                gradient = own_shard(gradient, parameter)
            parameter.grad = gradient


class _Released(NamedTuple):
    """The results of a step before the noise is added."""

    total: Values  # weighted sum of gradients by parameter name; secret until the noise is added
    scale: Tensor  # factor on the update
    trim: Tensor  # F of the next step, before rounding down
    outcome: StepOutcome  # the outcome that the step returns
