"""What a forward pass must not leave behind: tensors of records, changed buffers, other state.

Under vmap a model sees one record at a time, and a tensor that depends on it cannot be written into
one that does not, nor converted to a number. But the model can keep such a tensor in an attribute,
a list or a closure. In the next batch, each record could then read the record at the same position
of the previous one. It can also change plain state, such as a number or a generator: how often it
does would depend on how many chunks and rejected records a batch has. So every pass begins with the
state at the beginning of the step, and what it changes is put back.
"""

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from prudent._torch_private import is_record
from prudent.training.gradients.factors.tape import tensors
from prudent.training.gradients.host_state import HostState
from prudent.training.gradients.record_streams import (
    RecordStreams,
    is_capturing,
    is_same,
    restarting,
)


class KeptRecordError(ValueError):
    """A model kept a tensor of a record, or changed its state, in a forward pass."""


class EscapedTensorGuard:
    """A context for a pass: rejects a model that keeps a tensor of it, and restores other state.

    Args:
        model: The model. Its buffers must not change; its attributes are named in the error.
        host: The state of the model and the loss, which is restored.

    Guarantee:
        If the context ends without an error, no tracked tensor is alive, wherever it was kept, no
        buffer of the model was changed, and the state on the host is what it was, also if the pass
        raised an error. So the next pass can read nothing of this pass's records, and nothing that
        reveals how many passes a batch took.
    """

    def __init__(self, model: nn.Module, host: HostState) -> None:
        self._model, self._host = model, host
        self._kept = host.kept()
        self.choices = host.choices  # as they were before the pass: tracing changes the state
        self._noted: list[weakref.ref[Tensor]] = []
        self._versions = {
            name: (buffer, buffer._version)
            for name, buffer in model.named_buffers()
            if not buffer.is_inference()
        }

    def __enter__(self) -> Self:
        """Begin a pass."""
        self._kept.__enter__()
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        """End it."""
        try:
            if kind is None:
                self._refuse()
        finally:
            self._kept.__exit__(None, None, None)
        same = kind is not None or self._host.kept_all or self._host.holds()
        written = [] if same else self._host.written()
        if written:
            raise KeptRecordError(_CHANGED.format("tensor", written))

    def note(self, result: Any) -> None:
        """Track the tensors of records in the result of a function, without keeping them alive."""
        found = (result,) if isinstance(result, Tensor) else tensors(result)
        self._noted += [weakref.ref(tensor) for tensor in found if is_record(tensor)]

    def _refuse(self) -> None:
        """Raise an error if anything was left behind.

        Raises:
            KeptRecordError: Names the place, if it is an attribute of the model.
        """
        changed = [name for name, (buffer, v) in self._versions.items() if buffer._version != v]
        if changed:
            raise KeptRecordError(_CHANGED.format("buffer", changed))
        if not self._is_left() or is_capturing():  # the warm-up runs before a capture were checked
            return
        raise KeptRecordError(
            "Expected a model that keeps nothing of a record from one forward to the next, got a "
            f"tensor kept {self._place()}: records of one batch would reach the gradients of "
            "another. Pass the state on as an argument, or set it back to None before forward "
            "returns."
        )

    def _is_left(self) -> bool:
        """Whether a tracked tensor is alive, other than in an unreachable reference cycle."""
        if not any(reference() is not None for reference in self._noted):
            return False
        if is_capturing():  # freeing another run's graph would abort the capture
            return True
        for generation in range(3):  # youngest first: older generations are slow to collect
            gc.collect(generation)
            if not any(reference() is not None for reference in self._noted):
                return False
        return True

    def _place(self) -> str:
        kept = {id(tensor) for reference in self._noted if (tensor := reference()) is not None}
        for path, module in self._model.named_modules():
            for name, value in vars(module).items():
                if name not in _OWN and any(id(t) in kept for t in tensors(value)):
                    return f"at {f'{path}.{name}'.strip('.')!r}"
        return "outside of its attributes"


_OWN = frozenset(vars(nn.Module())) - {"_buffers"}

_CHANGED = (
    "Expected a model whose forward changes no {0}, got a change of {1}: a batch in two chunks "
    "would change it twice. Call .eval() on that layer, or update the {0} between steps."
)
_SAME_STREAMS = RecordStreams(lambda rows: rows.astype("uint64"))


def check_repeatable(
    host: HostState, run: Callable[[], Sequence[Tensor]], device: torch.device
) -> None:
    """Raise an error if what a run returns depends on what the run before it has left behind.

    The state after the first run is kept, such as what a model computes once for all. Later runs
    begin with it, whatever they change (`EscapedTensorGuard`). A change on which no result depends,
    such as a counter, does no harm; any other would be undone without a word.

    Raises:
        KeptRecordError: Names what changed.
    """
    restart, found = restarting(device), []
    with host.advancing(), _SAME_STREAMS.active():
        try:
            run()
            host.refresh()
            for _ in range(2):
                restart()
                found.append(run())
                if host.holds():
                    break
            changed, unread = host.changes(), host.iterators
        finally:
            host.restore()
    near = 0.0 if device.type == "cpu" else 1e-5
    if unread or (len(found) == 2 and not is_same(found[0], found[1], near)):
        raise KeptRecordError(
            "Expected a model and a loss whose results do not depend on earlier calls, got "
            f"{', '.join(map(repr, unread or changed))}, which forward changes: how often it runs "
            "depends on the drawn records. Change it between steps instead, by the number of the "
            "step, and draw random numbers from torch's default generator, which is seeded for "
            "every record."
        )
