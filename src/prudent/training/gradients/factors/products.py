"""Matrix products of factors: exact products of short numbers, or products of whole numbers.

A norm that bounds a sensitivity and the sum that it bounds multiply the same factors in different
orders, so they must not round the factors differently. There are two ways to be sure of that:

- *whole*: the factors are multiplied in single precision or better, whatever a user allows the
  layers of a model to truncate (`torch.set_float32_matmul_precision`);
- *short*: the factors are bfloat16 numbers, or truncated to TF32 first. A product of two of them is
  exact in single precision, and a GPU multiplies them many times as fast.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

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
    own = getattr(_DEVICE, "fp32_precision", None)
    setattr(_DEVICE, name, short)
    try:
        yield
    finally:
        setattr(_DEVICE, name, before)
        if own is not None and own != _DEVICE.fp32_precision:  # the older one writes "ieee"
            _DEVICE.fp32_precision = own


def precisions() -> tuple[Any, ...]:
    """The precision that each backend is set to, by whichever of torch's interfaces."""
    cudnn: Any = torch.backends.cudnn
    places = (*_PLACES, *(getattr(cudnn, name, None) for name in ("conv", "rnn")))
    return _setting(), *(getattr(place, "fp32_precision", None) for place in places)


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


Product = Callable[[Tensor, Tensor], Tensor]
HALF = torch.float16, torch.bfloat16
ALIGNED = 8
"""Numbers that kernels for short factors read at a time."""


def precise_product(left: Tensor, right: Tensor) -> Tensor:
    """Left @ right, summed in single precision or better even if the factors are shorter."""
    if left.dtype == right.dtype and multiplies_short(right):
        return by_batch(summed_in_single, left, right)
    return at_least_single(left) @ at_least_single(right)


def short_product(left: Tensor, right: Tensor) -> Tensor:
    """Left @ right of factors that are truncated to TF32, by TF32 products if there are any."""
    return by_batch(_short_product, left, right)


def cut_product(left: Tensor, right: Tensor) -> Tensor:
    """Left @ right of factors that are truncated to TF32 here."""
    return short_product(shortened(left), shortened(right))


def by_batch(product: Product, left: Tensor, right: Tensor) -> Tensor:
    """A product of two batches of matrices, computed with a single batch axis."""
    shape = left.shape[:-2]
    flat = left.reshape(-1, *left.shape[-2:]), right.reshape(-1, *right.shape[-2:])
    return product(*flat).view(*shape, left.shape[-2], right.shape[-1])


def multiplies_short(factor: Tensor) -> bool:
    """Whether the device multiplies bfloat16 factors and accumulates in single precision."""
    known = hasattr(torch.ops.aten.bmm, "dtype")
    return known and factor.is_cuda and factor.dtype == torch.bfloat16


def summed_in_single(left: Tensor, right: Tensor) -> Tensor:
    """Batched products of bfloat16 matrices, with results in single precision."""
    return torch.bmm(left, right, out_dtype=torch.float32)


def cuts_products(values: Tensor) -> bool:
    """Whether a layer's product of these values would be truncated to TF32."""
    return values.is_cuda and values.dtype == torch.float32 and truncates()


def shortened(values: Tensor) -> Tensor:
    """Single-precision values truncated to 11 significant bits, so that their products are exact.

    TF32 arithmetic represents these numbers exactly.
    """
    return (values.view(torch.int32) & -(1 << 13)).view(torch.float32)


def aligned(factor: Tensor, axis: int) -> Tensor:
    """A factor with zeros appended, so that kernels can read several numbers at a time."""
    missing = -factor.shape[axis] % ALIGNED
    if not missing or not factor.is_cuda:
        return factor
    return functional.pad(factor, [0, 0] * (-axis - 1) + [0, missing])


def finite(values: Tensor) -> Tensor:
    """The values, zero where they are not finite."""
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def at_least_single(values: Tensor) -> Tensor:
    """The values in at least single precision, which a norm that bounds a sensitivity needs."""
    return values.float() if values.dtype in HALF else values


def _short_product(left: Tensor, right: Tensor) -> Tensor:
    with short_products():
        return torch.bmm(left, right)
