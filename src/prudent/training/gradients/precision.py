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
_PLACES = [place for place in (_DEVICE, _HOST) if hasattr(place, "fp32_precision")]
_WHOLE = "ieee", "none"  # "none" is the default, which is not to cut


@contextmanager
def whole_products() -> Iterator[None]:
    """Products of single precision numbers, with all their digits."""
    before, own = _setting(), [place.fp32_precision for place in _PLACES]
    if before in (None, "highest") and all(precision in _WHOLE for precision in own):
        yield
        return
    try:
        if before is not None:
            torch.set_float32_matmul_precision("highest")
        for place in _PLACES:
            if place.fp32_precision not in _WHOLE:
                place.fp32_precision = "ieee"
        yield
    finally:
        if before is not None:
            torch.set_float32_matmul_precision(before)
        for place, precision in zip(_PLACES, own, strict=True):
            if place.fp32_precision != precision:
                place.fp32_precision = precision


@contextmanager
def short_products() -> Iterator[None]:
    """On a GPU, products of numbers that TF32 takes as they are: see `shortened`."""
    name, short = ("fp32_precision", "tf32") if _setting() is None else ("allow_tf32", True)
    before = getattr(_DEVICE, name)
    if before == short:  # to say it again would change another setting, "medium", to "high"
        yield
        return
    setattr(_DEVICE, name, short)
    try:
        yield
    finally:
        setattr(_DEVICE, name, before)


def _setting() -> str | None:
    """The one setting for all products; None where each place has been given its own.

    The library refuses to tell the one where it cannot be squared with the others.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None
