"""The precision of the matrix products in norms and sums, whatever the global settings allow.

A user may allow the layers of a model to multiply numbers truncated to TF32 or bfloat16, with
`torch.set_float32_matmul_precision`. A norm that bounds a sensitivity and the sum that it bounds
must not be truncated differently, so their products use settings of their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_DEVICE: Any = torch.backends.cuda.matmul
_HOST: Any = getattr(torch.backends.mkldnn, "matmul", None)
_PLACES = [place for place in (_DEVICE, _HOST) if hasattr(place, "fp32_precision")]
_WHOLE = "ieee", "none"  # "none" is the default: no truncation


@contextmanager
def whole_products() -> Iterator[None]:
    """Compute single-precision products without truncating the factors."""
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
    """Allow TF32 products on a GPU, for numbers that TF32 represents exactly; see `shortened`."""
    old = "allow_tf32", True
    name, short = old if _has_old_setting() else ("fp32_precision", "tf32")
    before = getattr(_DEVICE, name)
    if before == short:  # setting it again would change the global setting "medium" to "high"
        yield
        return
    setattr(_DEVICE, name, short)
    try:
        yield
    finally:
        setattr(_DEVICE, name, before)


def truncates() -> bool:
    """Whether the settings allow the layers of a model to use TF32 products on a GPU."""
    own = getattr(_DEVICE, "fp32_precision", None)
    return _setting() in ("high", "medium") if own is None else bool(own == "tf32")


def _has_old_setting() -> bool:
    """Whether the older of torch's two interfaces works: not if the newer one was used."""
    try:
        return _setting() is not None and isinstance(_DEVICE.allow_tf32, bool)
    except RuntimeError:
        return False


def _setting() -> str | None:
    """The global precision setting; None if backends were given different ones.

    torch raises an error if the global setting is inconsistent with those of the backends.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None
