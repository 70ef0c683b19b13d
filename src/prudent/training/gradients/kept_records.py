"""Detection of what a forward pass must not leave behind: tensors of records, changed buffers.

Under vmap a model sees one record at a time, and a tensor that depends on it cannot be written into
one that does not, nor converted to a number. But the model can keep such a tensor in an attribute,
a list or a closure. In the next batch, each record could then read the record at the same position
of the previous one.
"""

import gc
import weakref
from typing import Any

from torch import Tensor, nn

from prudent._torch_private import is_record
from prudent.training.gradients.factors.tape import tensors
from prudent.training.gradients.record_streams import is_capturing


class KeptRecordError(ValueError):
    """A model kept a tensor of a record, or changed a buffer, in a forward pass."""


class Leftovers:
    """Tracks the tensors of records that a pass creates and rejects a model that keeps one.

    Args:
        model: The model. Its buffers must not change; its attributes are named in the error.

    Guarantee:
        If `refuse` returns, no tracked tensor is alive, wherever it was kept, and no buffer of the
        model was changed. So the next pass can read nothing of this pass's records, and nothing
        that reveals how many passes a batch took.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._noted: list[weakref.ref[Tensor]] = []
        self._versions = {
            name: (buffer, buffer._version)
            for name, buffer in model.named_buffers()
            if not buffer.is_inference()
        }

    def note(self, result: Any) -> None:
        """Track the tensors of records in the result of a function, without keeping them alive."""
        self._noted += [weakref.ref(tensor) for tensor in tensors(result) if is_record(tensor)]

    def refuse(self) -> None:
        """Raise an error if anything was left behind.

        Raises:
            KeptRecordError: Names the place, if it is an attribute of the model.
        """
        changed = [name for name, (buffer, v) in self._versions.items() if buffer._version != v]
        if changed:
            raise KeptRecordError(
                f"Expected a model whose forward changes no buffer, got a change of {changed}: a "
                "batch in two chunks would change it twice. Call .eval() on that layer, or update "
                "the buffer between steps."
            )
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
