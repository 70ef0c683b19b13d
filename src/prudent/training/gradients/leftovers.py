"""What a forward pass must not leave behind: tensors of records, and changed buffers.

Under vmap a model sees one record at a time, and a tensor that depends on it cannot be written into
one that does not, nor turned into a number. What is left is to keep it: in an attribute, a list, a
closure. Kept until the next batch, it would be the record at the same place of the last one.
"""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor

from prudent.training.gradients.randomness import is_capturing


class KeptRecordError(ValueError):
    """A model kept something of a record, or changed a buffer, in a forward pass."""


class Leftovers:
    """Notes the tensors of records that a pass makes, and refuses a model that keeps one.

    Args:
        model: Whose buffers must stay as they are, and whose attributes are named in the error.

    Guarantee:
        If `refuse` returns, no tensor noted is alive, wherever it was kept, and no buffer of the
        model was changed. So the next pass can read nothing of this one's records, and nothing that
        tells how many passes a batch took.
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
        """Remembers the tensors of records in what a function returned, without keeping them."""
        self._noted += [weakref.ref(tensor) for tensor in tensors(result) if is_record(tensor)]

    def refuse(self) -> None:
        """Raises an error if anything is left.

        Raises:
            KeptRecordError: Naming the place, as far as it is an attribute of the model.
        """
        changed = [name for name, (buffer, v) in self._versions.items() if buffer._version != v]
        if changed:
            raise KeptRecordError(
                f"Expected a model whose forward changes no buffer, got a change of {changed}: a "
                "batch in two chunks would change it twice. Call .eval() on that layer, or update "
                "the buffer between steps."
            )
        if not self._is_left() or is_capturing():  # the runs before a capture were looked at
            return
        raise KeptRecordError(
            "Expected a model that keeps nothing of a record from one forward to the next, got a "
            f"tensor kept {self._place()}: records of one batch would reach the gradients of "
            "another. Pass the state on as an argument, or set it back to None before forward "
            "returns."
        )

    def _is_left(self) -> bool:
        """Whether a tensor is alive that no unreachable cycle holds."""
        if not any(reference() is not None for reference in self._noted):
            return False
        if is_capturing():  # to free another run's graph would end it
            return True
        for generation in range(3):  # the youngest first: the others take long to look through
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


def is_record(tensor: Tensor) -> bool:
    """Whether a tensor depends on the record that vmap is at."""
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            return True
        tensor = get_unwrapped(tensor)
    return False


def tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors in a tree of tuples, lists and dictionaries."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list, set, frozenset)):
        for item in tree:
            yield from tensors(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from tensors(item)
