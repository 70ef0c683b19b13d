"""Hugging Face models are told that they run on a record whose values cannot be branched on.

They look whether a mask hides anything, to skip it if not. Under vmap a record has no values to
look at; they ask first whether a tensor is being traced, and then keep the mask, which gives the
same result. They also look whether the positions, which all records share, are those of several
packed sequences. While a step is captured or compiled nothing can be looked at, so the answer that
the same shape got before is given again; otherwise a mask would be made where none is needed.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from prudent.training.gradients.leftovers import is_record
from prudent.training.gradients.randomness import is_capturing

_unpacked: set[torch.Size] = set()
"""Shapes of shared positions that were one sequence each."""


@contextmanager
def records_are_traced() -> Iterator[None]:
    """Let Hugging Face models treat the tensors of a record as tensors without values."""
    with ExitStack() as stack:
        for module, name, changed in (
            ("transformers.utils.import_utils", "is_fake_tensor", _or_a_record),
            ("transformers.utils.import_utils", "is_cuda_stream_capturing", _never),
            ("transformers.masking_utils", "find_packed_sequence_indices", _remembered),
        ):
            stack.enter_context(_replaced(sys.modules.get(module), name, changed))
        yield


@contextmanager
def _replaced(module: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    before = getattr(module, name, None)
    if before is None:  # the library is not loaded, or of another version
        yield
        return
    setattr(module, name, change(before))
    try:
        yield
    finally:
        setattr(module, name, before)


def _or_a_record(is_fake: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda tensor: is_fake(tensor) or (isinstance(tensor, Tensor) and is_record(tensor))


def _never(is_captured: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: False


def _remembered(find: Callable[[Tensor], Tensor | None]) -> Callable[[Tensor], Tensor | None]:
    def packed(positions: Tensor) -> Tensor | None:
        if is_record(positions):
            return find(positions)
        if (is_capturing() or get_proxy_mode() is not None) and positions.shape in _unpacked:
            return None
        found = find(positions)
        (_unpacked.add if found is None else _unpacked.discard)(positions.shape)
        return found

    return packed
