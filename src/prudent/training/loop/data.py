"""Access to records by id, from tensors on the device or from a data set on the host.

With several processes, each reads only its own records: record i belongs to process i modulo their
number.
"""

import functools
import hashlib
from collections.abc import Callable
from typing import Any, Self

import attrs
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from prudent._validate import ArgumentError
from prudent.training.parallel.processes import Processes

Gather = Callable[[Tensor], tuple[Any, Any]]
"""Maps record ids of this process to inputs and targets."""


@attrs.frozen(kw_only=True)
class Records:
    """The records of a run, read by id.

    Attributes:
        count: Number of records in all processes.
        gather: Reads a batch of records of this process.
        on_device: Whether batches are indexed from tensors; otherwise items are read one by one on
            the host.
        fingerprint: Returns the fingerprint of the records, which it computes once.
    """

    count: int
    gather: Gather
    on_device: bool
    fingerprint: Callable[[], str]

    @classmethod
    def of(cls, train_set: Any, device: torch.device, processes: Processes) -> Self:
        """The records of a data set; this process reads only its own."""
        count, gather = _reader(train_set, device, processes)
        if count < processes.count:
            raise ArgumentError(
                "train_set",
                f"with at least one record for each of the {processes.count} processes",
                shown=f"{count} in all",
                hint="Start fewer processes.",
            )
        return cls(
            count=count,
            gather=gather,
            on_device=_tensors(train_set) is not None,
            fingerprint=functools.cache(functools.partial(fingerprint, train_set)),
        )

    def check_same(self, processes: Processes) -> None:
        """Raise an error unless every process has the same records in the same order."""
        processes.check_same(records=self.count)
        if processes.count > 1 and len(set(processes.gathered(self.fingerprint()))) > 1:
            raise ArgumentError(
                "train_set",
                "with the same records in the same order in every process",
                shown="different ones",
                why="a record held by two processes would count twice",
                hint="Shuffle and split with the same seed in every process.",
            )


def fingerprint(train_set: Any) -> str:
    """A fingerprint of the sequence of records; empty if computing it would require reading them.

    If two processes had the records in different orders, both could get the same record, which
    would then count twice; and a run resumed on other records would release their sums with the old
    noise. For a subset of a data set, the fingerprint covers at least the chosen indices, which
    `random_split` draws anew each time.
    """
    found = hashlib.blake2b(digest_size=16)
    if isinstance(train_set, Subset):
        found.update(repr([int(index) for index in train_set.indices]).encode())
        whole: Any = train_set.dataset
        # Inside a subset, a list or tuple is a sequence of items, not a pair of tensors.
        found.update(b"" if isinstance(whole, tuple | list) else fingerprint(whole).encode())
        return found.hexdigest()
    tensors = _tensors(train_set)
    if tensors is None:
        return ""
    for leaf in pytree.tree_leaves(tensors):
        found.update(repr((leaf.dtype, tuple(leaf.shape))).encode())
        found.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _tensors(train_set: Any) -> tuple[Any, ...] | None:
    """Inputs and targets, if they are given as tensors."""
    if isinstance(train_set, TensorDataset):
        return train_set.tensors
    return tuple(train_set) if isinstance(train_set, tuple | list) else None


def _reader(train_set: Any, device: torch.device, processes: Processes) -> tuple[int, Gather]:
    """The total number of records, and how this process reads its own."""
    tensors = _tensors(train_set)
    if tensors is not None and len(tensors) == 2:
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
            raise ValueError(
                f"Expected inputs and targets of the same length, got {sorted(sizes)}."
            )
        own = slice(processes.rank, None, processes.count)
        placed = pytree.tree_map(lambda leaf: leaf[own].to(device), tensors)

        def gather(ids: Tensor) -> tuple[Any, Any]:
            rows = ids // processes.count
            inputs, targets = pytree.tree_map(lambda leaf: leaf.index_select(0, rows), placed)
            return inputs, targets

        return sizes.pop(), gather
    if isinstance(train_set, Dataset) and hasattr(train_set, "__len__"):
        return len(train_set), functools.partial(_collate, train_set, device)
    raise ArgumentError(
        "train_set",
        "a pair (inputs, targets) of tensors, a TensorDataset or a map-style data set "
        "with a length",
        shown=type(train_set).__name__,
    )


def _collate(data: Any, device: torch.device, ids: Tensor) -> tuple[Any, Any]:
    """Read items one by one on the host; padding repeats the first record of this process."""
    inputs, targets = default_collate([data[index] for index in ids.tolist()])
    inputs, targets = pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device), (inputs, targets))
    return inputs, targets
