"""Outputs for losses that divide by something other than the number of records.

A mean with class weights is divided by the sum of the weights of the batch, and one with ignored
labels by the number of the others, so the term of a record depends on the others. Neither can be
undone by the number of records. The first is refused. The second, which every `cross_entropy` is
by default (`ignore_index=-100`), is divided by the number of all labels instead: then an ignored
label adds nothing, no term depends on another record, and nothing changes for a batch without
ignored labels.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prudent._torch_private import DisableTorchFunctionSubclass
from prudent._validate import ArgumentError

_LOSSES = {
    functional.cross_entropy: inspect.signature(functional.cross_entropy),
    functional.nll_loss: inspect.signature(functional.nll_loss),
}


class Computed(Tensor):
    """A tensor like any other, computed from the outputs of several records.

    Whatever has an axis and is computed from it is of this class, too, such as a view of all
    positions of all texts; so every mean of a loss with class labels is seen.
    """

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call `func` on ordinary tensors, and mark what it returns."""
        kwargs = kwargs or {}
        with DisableTorchFunctionSubclass():
            if func in _LOSSES:
                return _marked(_with_public_divisor(func, args, kwargs), Computed)
            result = func(*args, **kwargs)
            first = args[0] if args else None
            if not isinstance(first, RecordOutputs):
                return _marked(result, Computed)
            if func in _ROWS_KEPT or (func is Tensor.__getitem__ and _keeps_rows(first, args[1])):
                return _marked(result, RecordOutputs)
            if func in _ROWS_DIVIDED and (*args[1:], *kwargs.values()) in ((), (0,)):
                return _marked(result, Tensor)
            if func is Tensor.__getitem__ and type(args[1]) is int:
                return _marked(result, Tensor)
            return _marked(result, Computed)


class RecordOutputs(Computed):
    """Outputs with the records on the first axis. One row of them is an ordinary tensor."""


def as_outputs(tensor: Tensor) -> Tensor:
    """A tensor with the records on its first axis as an output; one without axes stays."""
    return tensor.as_subclass(RecordOutputs) if tensor.ndim else tensor


_ROWS_KEPT = {
    functional.log_softmax,
    torch.log_softmax,
    Tensor.log_softmax,
    Tensor.contiguous,
    Tensor.double,
    Tensor.float,
    Tensor.to,
}
_ROWS_DIVIDED = {Tensor.unbind, torch.unbind}  # also by iterating


def _keeps_rows(outputs: Tensor, index: Any) -> bool:
    """Whether an index keeps the whole first axis."""
    if not isinstance(index, tuple) or not index:
        return False
    first, *rest = index
    if not all(type(part) in (int, slice) for part in rest):
        return False
    return (
        len(rest) < outputs.ndim if first is ... else type(first) is slice and first == slice(None)
    )


def _marked(result: Any, kind: type[Tensor]) -> Any:
    """Results with axes as tensors of this kind, and those without as ordinary ones."""
    if isinstance(result, Tensor):
        return result.as_subclass(kind if result.ndim and result.is_floating_point() else Tensor)
    if type(result) in (tuple, list):
        return type(result)(_marked(part, kind) for part in result)
    return result


def _with_public_divisor(
    loss: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """The loss, of which a mean is divided by the number of labels, ignored or not."""
    given = _LOSSES[loss].bind(*args, **kwargs)
    given.apply_defaults()
    target, named = given.arguments["target"], given.arguments
    old = named["size_average"], named["reduce"]
    if (named["reduction"] != "mean" and old == (None, None)) or False in old:
        return loss(*args, **kwargs)
    if named["weight"] is not None:
        raise ArgumentError(
            "loss",
            "to be a mean or a sum over the records",
            shown="a mean with class weights",
            why="it is divided by a number that depends on the labels of all records",
            hint="Use reduction='none' and then .mean().",
        )
    if target.is_floating_point():  # probabilities: none is ignored
        return loss(*args, **kwargs)
    named["size_average"] = named["reduce"] = None
    named["reduction"] = "sum"
    labels: int = max(1, target.numel())
    return loss(*given.args, **given.kwargs) / labels
