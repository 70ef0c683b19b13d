"""What is accepted as a set of records: a pair of tensors, or anything with a length and items."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from prudent._torch_private import pytree
from prudent._validate import ArgumentError


def tensors_of(records: Any) -> tuple[Any, Any] | None:
    """Inputs and targets, if they are given as tensors; None for a data set of items."""
    if isinstance(records, TensorDataset) and len(records.tensors) == 2:
        inputs, targets = records.tensors
        return inputs, targets
    if not isinstance(records, tuple | list) or len(records) != 2:
        return None
    # A list of two is a pair if one of them is a tensor, and two items otherwise.
    if isinstance(records, list) and not any(isinstance(part, Tensor) for part in records):
        return None
    return records[0], records[1]


def count_of(records: Any, tensors: tuple[Any, Any] | None) -> int:
    """The number of records of a set, given what `tensors_of` returned for it."""
    return _items(records) if tensors is None else _rows(tensors)


def _rows(tensors: tuple[Any, Any]) -> int:
    """The number of rows, on which all tensors must agree."""
    for leaf in pytree.tree_leaves(tensors):
        if not isinstance(leaf, Tensor):
            raise ArgumentError(
                "train_set",
                "a pair (inputs, targets) of tensors",
                shown=f"one that contains {type(leaf).__name__}",
                hint="torch.as_tensor converts arrays to tensors.",
            )
    sizes = {len(leaf) for leaf in pytree.tree_leaves(tensors)}
    if len(sizes) != 1:
        raise ValueError(f"Expected inputs and targets of the same length, got {sorted(sizes)}.")
    return sizes.pop()


def _items(items: Any) -> int:
    """The number of items of a map-style data set."""
    cannot = isinstance(items, IterableDataset | Mapping | Tensor | str | bytes)
    if not cannot and hasattr(items, "__getitem__") and hasattr(items, "__len__"):
        return len(items)
    raise ArgumentError(
        "train_set",
        "a pair (inputs, targets) of tensors, or a data set of items with __len__ and __getitem__",
        shown=type(items).__name__,
        hint="A stream cannot be Poisson sampled: load it into a list or a map-style data set. "
        "Of a dictionary of splits, pass one.",
    )
