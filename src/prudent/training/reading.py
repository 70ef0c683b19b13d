"""Records by id, from tensors on the device or from a data set on the host.

Of several processes each reads its own records alone: i modulo their number.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, TensorDataset, default_collate

from prudent.training.distributed import Alone


def reader(
    train_set: Any, device: torch.device, processes: Alone
) -> tuple[int, Callable[[Tensor], tuple[Any, Any]]]:
    """The number of all records, and a function from ids of this process to a batch of them."""
    records, gather = _reader(train_set, device, processes)
    if records < processes.count:
        raise ValueError(
            f"Expected train_set of a record or more for each of {processes.count} processes, got "
            f"{records} in all. Start fewer processes."
        )
    return records, gather


def _reader(
    train_set: Any, device: torch.device, processes: Alone
) -> tuple[int, Callable[[Tensor], tuple[Any, Any]]]:
    if isinstance(train_set, TensorDataset):
        train_set = train_set.tensors
    if isinstance(train_set, tuple | list) and len(train_set) == 2:
        for leaf in pytree.tree_leaves(tuple(train_set)):
            if not isinstance(leaf, Tensor):
                raise ValueError(
                    "Expected train_set a pair (inputs, targets) of tensors, got one with "
                    f"{type(leaf).__name__} in it. torch.as_tensor makes tensors of arrays."
                )
        sizes = {len(leaf) for leaf in pytree.tree_leaves(tuple(train_set))}
        if len(sizes) != 1:
            raise ValueError(f"Expected inputs and targets of one length, got {sorted(sizes)}.")
        own = slice(processes.rank, None, processes.count)
        placed = pytree.tree_map(lambda leaf: leaf[own].to(device), tuple(train_set))

        def gather(ids: Tensor) -> tuple[Any, Any]:
            rows = ids // processes.count
            inputs, targets = pytree.tree_map(lambda leaf: leaf.index_select(0, rows), placed)
            return inputs, targets

        return sizes.pop(), gather
    if isinstance(train_set, Dataset) and hasattr(train_set, "__len__"):
        return len(train_set), functools.partial(_collate, train_set, device)
    raise ValueError(
        "Expected train_set a pair (inputs, targets) of tensors, a TensorDataset or a map-style "
        f"data set with a length, got {type(train_set).__name__}."
    )


def _collate(data: Any, device: torch.device, ids: Tensor) -> tuple[Any, Any]:
    """Reads items one by one, on the host; padding repeats the first of this process."""
    inputs, targets = default_collate([data[index] for index in ids.tolist()])
    inputs, targets = pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device), (inputs, targets))
    return inputs, targets
