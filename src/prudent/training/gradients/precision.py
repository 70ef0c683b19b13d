"""In how many digits matrix products are computed, whatever is allowed elsewhere.

A user may let the layers of a model multiply numbers cut to TF32 or bfloat16, with
`torch.set_float32_matmul_precision`. A norm that bounds a sensitivity and the sum that it bounds
must not be cut differently, so their products have settings of their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_DEVICE: Any = torch.backends.cuda.matmul
_HOST: Any = getattr(torch.backends.mkldnn, "matmul", None)
_WHOLE = "ieee", "none"  # "none" is the default, which is not to cut
_EACH_ITS_OWN = hasattr(_DEVICE, "fp32_precision")  # older releases have one setting for all


@contextmanager
def whole_products() -> Iterator[None]:
    """Products of single precision numbers, with all their digits."""
    if not _EACH_ITS_OWN:
        with _everywhere("highest"):
            yield
        return
    cut = [(place, place.fp32_precision) for place in (_DEVICE, _HOST)]
    cut = [(place, precision) for place, precision in cut if precision not in _WHOLE]
    for place, _ in cut:
        place.fp32_precision = "ieee"
    try:
        yield
    finally:
        for place, precision in cut:
            place.fp32_precision = precision


@contextmanager
def short_products() -> Iterator[None]:
    """On a GPU, products of numbers that TF32 takes as they are: see `shortened`."""
    if not _EACH_ITS_OWN:
        with _everywhere("high"):
            yield
        return
    before = _DEVICE.fp32_precision
    _DEVICE.fp32_precision = "tf32"
    try:
        yield
    finally:
        _DEVICE.fp32_precision = before


@contextmanager
def _everywhere(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
