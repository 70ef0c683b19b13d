"""Attention masks of Hugging Face transformers, built without reading their values.

The library leaves out a padding mask that masks nothing, so it reads the mask. Under vmap no value
of a record can be read, and whether a record is padded must not decide what is computed. The
library does not read a mask either while it is traced, and that is what it is told here.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from prudent.training.gradients.leftovers import is_record

_MODULE, _NAME = "transformers.masking_utils", "is_tracing"


@contextmanager
def masks_unread() -> Iterator[None]:
    """Let transformers, if it is loaded, treat the mask of a record as one that is traced."""
    module = sys.modules.get(_MODULE)
    before: Callable[..., bool] | None = getattr(module, _NAME, None)
    if before is None:
        yield
        return
    asks = before

    def is_tracing(tensor: Any = None) -> bool:
        return (isinstance(tensor, Tensor) and is_record(tensor)) or asks(tensor)

    setattr(module, _NAME, is_tracing)
    try:
        yield
    finally:
        setattr(module, _NAME, before)
