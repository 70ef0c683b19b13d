"""Access to records by id, from tensors on the device or from a data set on the host.

With several processes, each reads only its own records: record i belongs to process i modulo their
number.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Self

import attrs
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from prudent._validate import ArgumentError
from prudent.training.loop.execution import Execution
from prudent.training.loop.reading import Collate, ItemLoader, ItemReader
from prudent.training.parallel.processes import Processes

Gather = Callable[[Tensor], tuple[Any, Any]]
"""Maps record ids of this process to inputs and targets."""


@attrs.frozen(kw_only=True)
class Records:
    """The records of a run: tensors on the device, or items that are read on the host.

    Attributes:
        count: Number of records in all processes.
        fingerprint: Returns the fingerprint of the records, which it computes once.
        gather: Reads a batch of this process from tensors on the device; None for items.
        loader: Reads batches of items on the host; None for tensors.
    """

    count: int
    fingerprint: Callable[[], str]
    gather: Gather | None = None
    loader: ItemLoader | None = None

    @classmethod
    def of(
        cls,
        train_set: Any,
        execution: Execution,
        processes: Processes,
        collate_fn: Collate | None = None,
    ) -> Self:
        """The records of a data set; this process reads only its own."""
        tensors = None if isinstance(train_set, Dataset) and collate_fn else _tensors(train_set)
        count = _length_of_items(train_set) if tensors is None else _length(tensors)
        if count < processes.count:
            raise ArgumentError(
                "train_set",
                f"with at least one record for each of the {processes.count} processes",
                shown=f"{count} in all",
                hint="Start fewer processes.",
            )
        known = functools.cache(functools.partial(fingerprint, train_set))
        if tensors is None:
            first = range(processes.rank, count, processes.count)
            loader = ItemLoader(
                reader=ItemReader(train_set, collate_fn, first),
                device=execution.device,
                workers=execution.workers,
                prefetch=execution.prefetch,
            )
            return cls(count=count, fingerprint=known, loader=loader)
        if collate_fn is not None:
            raise ArgumentError(
                "collate_fn",
                "None with a pair of tensors, which are already a batch",
                hint="A TensorDataset of them is a data set of items.",
            )
        gather = _gather(tensors, execution.device, processes)
        return cls(count=count, fingerprint=known, gather=gather)

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


def _tensors(train_set: Any) -> tuple[Any, Any] | None:
    """Inputs and targets, if they are given as tensors."""
    if isinstance(train_set, TensorDataset) and len(train_set.tensors) == 2:
        inputs, targets = train_set.tensors
        return inputs, targets
    if not isinstance(train_set, tuple | list) or len(train_set) != 2:
        return None
    # A list of two is a pair if one of them is a tensor, and two items otherwise.
    if isinstance(train_set, list) and not any(isinstance(part, Tensor) for part in train_set):
        return None
    return train_set[0], train_set[1]


def _length(tensors: tuple[Any, Any]) -> int:
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


def _length_of_items(items: Any) -> int:
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


def _gather(tensors: tuple[Any, Any], device: torch.device, processes: Processes) -> Gather:
    """A function that reads rows of this process from tensors placed on the device."""
    own = slice(processes.rank, None, processes.count)
    placed = pytree.tree_map(lambda leaf: leaf[own].to(device), tensors)

    def gather(ids: Tensor) -> tuple[Any, Any]:
        rows = ids // processes.count
        inputs, targets = pytree.tree_map(lambda leaf: leaf.index_select(0, rows), placed)
        return inputs, targets

    return gather
