"""Outputs that refuse losses which divide by something other than the number of records.

A mean with class weights is divided by the sum of the weights of the batch, and one with ignored
labels by the number of the others, so the term of a record depends on the others. Neither can be
undone by the number of records.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prudent._validate import ArgumentError

_IGNORED_BY_DEFAULT = -100


class RecordOutputs(Tensor):
    """A tensor like any other, except for the losses it refuses.

    Whatever is computed from it is an ordinary tensor; so only losses that get it as it is, and not
    a view of it, are looked at.
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func` on ordinary tensors."""
        kwargs = kwargs or {}
        if func in (functional.cross_entropy, functional.nll_loss):
            _refuse_other_divisors(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def _refuse_other_divisors(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = _IGNORED_BY_DEFAULT,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> None:
    if reduction == "mean" and (weight is not None or ignore_index != _IGNORED_BY_DEFAULT):
        what = "class weights" if weight is not None else "ignore_index"
        raise ArgumentError(
            "loss",
            "to be a mean or a sum over the records",
            shown=f"a mean with {what}",
            why="it is divided by a number that depends on the labels of all records",
            hint="Use reduction='none' and then .mean().",
        )
