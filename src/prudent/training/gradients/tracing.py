"""Libraries are told that a model runs on one symbolic record, whose values cannot be branched on.

Hugging Face models look whether a mask hides anything, to skip it if not. Under vmap a record has no
values to look at. These models ask first whether their tensors are being traced and then keep the
mask, which gives the same result.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from prudent.training.gradients.leftovers import is_record

_PLACE, _NAME = "transformers.utils.import_utils", "is_fake_tensor"


@contextmanager
def records_are_traced() -> Iterator[None]:
    """Let Hugging Face models treat the tensors of a record as tensors without values."""
    module = sys.modules.get(_PLACE)
    before = getattr(module, _NAME, None)
    if module is None or before is None:
        yield
        return

    def is_traced(tensor: object) -> bool:
        return bool(before(tensor)) or (isinstance(tensor, Tensor) and is_record(tensor))

    setattr(module, _NAME, is_traced)
    try:
        yield
    finally:
        setattr(module, _NAME, before)
