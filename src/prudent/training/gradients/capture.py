"""Capture of every use of a parameter while a model runs, one record at a time.

The model runs under `torch.vmap`, so it sees a batch of one record, and records cannot interact: by
construction, each gradient is that of its own record's loss, however the model permutes axes. Under
vmap a tensor either depends on the record or is shared. A shared tensor that requires a gradient is
a parameter or was derived from parameters alone. Wherever one is combined with a record, `Capture`
calls a rule of `rules`, which keeps the factors of per-example gradients, or gives the function one
copy of the tensor per record (an expanded view), whose gradient is the per-example gradient.

`torch.utils.checkpoint` does not work under vmap. A checkpointed part becomes one autograd function
of plain tensors, whose backward enters vmap again and runs the part with the same random numbers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import MethodDescriptorType
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils.checkpoint import checkpoint

from prudent._torch_private import get_unwrapped, maybe_get_level, pytree
from prudent.training.gradients.factors.layers import Expand, call
from prudent.training.gradients.factors.rules import (
    GROUPED,
    RECORD_RULES,
    RULES,
    on_records,
    without_fused_attention,
)
from prudent.training.gradients.factors.tape import Tape, tensors
from prudent.training.gradients.host_state import EscapedTensorGuard
from prudent.training.gradients.record_streams import RANDOM, Draws, Replay
from prudent.training.gradients.watching import OPENED, FunctionInterceptor

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


class _Checkpointed(Function):
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


class Capture(FunctionInterceptor):
    """Sends every use of a shared, trained tensor together with a record to a `Tape`."""

    def __init__(
        self,
        tape: Tape,
        record: Tensor,
        hold: Hold,
        guard: EscapedTensorGuard,
        draws: Draws,
        around: "Capture | None" = None,
    ) -> None:
        super().__init__(guard, draws)
        guard.note(record)
        self._tape = tape
        self._record = record
        self._hold = hold
        self._level = maybe_get_level(record)
        self._around = around
        self._begin: int | None = None  # all nodes of autograd before this one have smaller numbers
        if around is not None:
            with torch.enable_grad():
                node: Any = tape.anchor.clone().grad_fn
            self._begin = node._sequence_nr()

    def __enter__(self) -> Self:
        if self._around is not None:
            self._around._rests = True
        super().__enter__()
        self._contexts.enter_context(checkpoints_become(self._checkpointed))
        return self

    def __exit__(self, *error: Any) -> None:
        # A recomputed part keeps this object alive, and must not keep the record.
        del self._record, self._draws
        super().__exit__(*error)
        if self._around is not None:
            self._around._rests = False

    def _apply(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `func` and capture the parameters that it combines with a record."""
        if func is functional.batch_norm:
            _refuse_batch_statistics(*args, **kwargs)
        records, trained = {}, []
        for tensor in tensors((*args, *kwargs.values()) if kwargs else args):
            if self._is_record(tensor):
                records[id(tensor)] = tensor
            elif tensor.requires_grad:
                trained.append(tensor)
        if not (trained and torch.is_grad_enabled()):
            return (RECORD_RULES.get(func, func) if records else func)(*args, **kwargs)
        if func is Tensor.__getitem__:
            table, index = args
            whole = isinstance(index, Tensor) and index.dtype in (torch.int32, torch.int64)
            if whole and table.ndim == 2 and not self._is_record(table):
                # Far cheaper than one copy of the table per record. Negative: from its end.
                index = torch.where(index < 0, index + len(table), index)
                return self._apply(functional.embedding, index, table)
        if not records and func is not functional.embedding:
            result = func(*args, **kwargs)
            if func not in RANDOM or not any(map(self._is_record, tensors(result))):
                return result
            # It drew other numbers for every record, so each has a gradient of its own.
        if func in OPENED:
            with self._inside():
                return OPENED[func](*args, **kwargs)
        record = next(iter(records.values()), self._record)
        result = NotImplemented
        if func in RULES and (len(records) <= 1 or func in GROUPED):
            result = RULES[func](self._tape, record, *args, **kwargs)
        if result is NotImplemented:
            result = self._expanded(func, args, kwargs, record, trained)
        return result

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Capture within a captured function."""
        TorchFunctionMode.__enter__(self)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            TorchFunctionMode.__exit__(self, None, None, None)  # type: ignore[no-untyped-call]

    def _checkpointed(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`function(*args, **kwargs)`, recomputed in the backward pass, as torch's checkpoint."""
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
        draws, before, tape, hold = self._draws, self._draws.number, self._tape, self._hold
        for place in places:
            leaves[place] = None  # the part may outlive the pass, but its records must not
        shape: pytree.TreeSpec | None = None

        def part(again: bool, *records: Tensor) -> tuple[Tensor, ...]:
            """Run the part on plain tensors, with records along the first axis."""

            def on_record(*values_and_row: Tensor) -> tuple[Tensor, ...]:
                nonlocal shape
                *values, row = values_and_row
                own = Draws(row, draws.streams, before)
                given = list(leaves)
                for place, value in zip(places, values, strict=True):
                    given[place] = value
                part_args, part_kwargs = pytree.tree_unflatten(given, structure)
                with self._part(values[0], own, again):
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
            outputs = hold(lambda: every(*records)) if again else every(*records)
            return outputs

        def run(_: int, *records: Tensor) -> tuple[Tensor, ...]:
            replay = Replay(tape.anchor.device)
            outputs: tuple[Tensor, ...] = _Checkpointed.apply(  # type: ignore[no-untyped-call]
                tape.anchor, tape, part, replay, *records
            )
            return outputs

        outputs = on_records(run, *records)
        assert shape is not None
        return pytree.tree_unflatten(outputs, shape)

    def _part(self, record: Tensor, draws: Draws, again: bool) -> "Capture":
        """The capture of a checkpointed part, in the forward pass or when it is recomputed."""
        if again:
            return Capture(self._tape.again(), record, self._hold, self._guard, draws)
        return Capture(self._tape, record, self._hold, self._guard, draws, around=self)

    def _is_record(self, tensor: Tensor) -> bool:
        level = maybe_get_level(tensor)
        if level > self._level:
            raise RuntimeError(
                "The model applies torch.func transforms of its own, which book-keeping cannot "
                "look into. Use the Materialised engine."
            )
        is_record = bool(level == self._level)
        if is_record and self._begin is not None:
            node = get_unwrapped(tensor).grad_fn
            if node is not None and node._sequence_nr() < self._begin:
                raise RuntimeError(
                    "A checkpointed function uses a tensor computed outside of it, whose gradient "
                    "would be lost. Give it to torch.utils.checkpoint.checkpoint as an argument."
                )
        return is_record

    def _expanded(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        record: Tensor,
        trained: list[Tensor],
    ) -> Any:
        """Call `func` with one copy per record of each trained tensor."""
        tape = self._tape
        copies = {}
        for shared in trained:
            values, use = tape.detached(shared), tape.use(shared)
            copies[id(shared)] = on_records(
                lambda records, _, v=values, u=use: call(Expand(records, u), tape.anchor, v), record
            )
        if kwargs or any(isinstance(arg, tuple | list | dict) for arg in args):
            args, kwargs = pytree.tree_map_only(
                Tensor, lambda leaf: copies.get(id(leaf), leaf), (args, kwargs)
            )
        else:  # which takes a fraction of the time
            args = tuple(copies.get(id(arg), arg) for arg in args)
        try:
            is_method = isinstance(func, MethodDescriptorType)  # of a tensor, so not attention
            with nullcontext() if is_method else without_fused_attention():
                return func(*args, **kwargs)
        except RuntimeError as error:
            names = ", ".join(dict.fromkeys(map(tape.name, trained)))
            raise RuntimeError(
                f"Cannot give {names} one gradient per record through "
                f"{resolve_name(func) or func}: {error} "
                "Build the layer from torch.nn.Linear, Conv, Embedding and normalisation layers, "
                "or freeze it with requires_grad_(False)."
            ) from error


def _refuse_batch_statistics(*args: Any, **options: Any) -> None:
    if options.get("training", len(args) > 5 and args[5]):
        raise ValueError(
            "Expected every record to have a gradient of its own, got batch normalisation in "
            "training mode, which mixes records. Replace it by torch.nn.GroupNorm, or call .eval() "
            "on the layer to use its running statistics."
        )
