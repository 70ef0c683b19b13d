"""Records by id, from tensors on the device or from a data set on the host."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, TensorDataset, default_collate


def reader(train_set: Any, device: torch.device) -> tuple[int, Callable[[Tensor], tuple[Any, Any]]]:
    """The number of records, and a function from ids to a batch of them."""
    if isinstance(train_set, TensorDataset):
        train_set = train_set.tensors
    if isinstance(train_set, tuple | list) and len(train_set) == 2:
        for leaf in pytree.tree_leaves(tuple(train_set)):
            if not isinstance(leaf, Tensor):
                raise ValueError(
                    "Expected train_set a pair (inputs, targets) of tensors, got one with "
                    f"{type(leaf).__name__} in it. torch.as_tensor makes tensors of arrays."
                )
        placed = pytree.tree_map(lambda leaf: leaf.to(device), tuple(train_set))
        sizes = {len(leaf) for leaf in pytree.tree_leaves(placed)}
        if len(sizes) != 1:
            raise ValueError(f"Expected inputs and targets of one length, got {sorted(sizes)}.")

        def gather(ids: Tensor) -> tuple[Any, Any]:
            inputs, targets = pytree.tree_map(lambda leaf: leaf.index_select(0, ids), placed)
            return inputs, targets

        return sizes.pop(), gather
    if isinstance(train_set, Dataset) and hasattr(train_set, "__len__"):
        return len(train_set), functools.partial(_collate, train_set, device)
    raise ValueError(
        "Expected train_set a pair (inputs, targets) of tensors, a TensorDataset or a map-style "
        f"data set with a length, got {type(train_set).__name__}."
    )


def _collate(data: Any, device: torch.device, ids: Tensor) -> tuple[Any, Any]:
    """Reads items one by one, on the host; padding repeats record 0."""
    inputs, targets = default_collate([data[index] for index in ids.tolist()])
    inputs, targets = pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device), (inputs, targets))
    return inputs, targets
