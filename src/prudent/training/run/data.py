"""Access to records by id, from tensors on the device or from a data set on the host.

With several processes, each reads only its own records: record i belongs to process i modulo their
number.
"""

import functools
from collections.abc import Callable
from typing import Any, Self

import attrs
import torch
from torch import Tensor
from torch.utils.data import Dataset

from prudent._torch_private import pytree
from prudent._validate import ArgumentError
from prudent.records.containers import count_of, tensors_of
from prudent.records.fingerprint import fingerprint
from prudent.records.form import inputs_and_targets
from prudent.records.reader import Collate, RecordReader
from prudent.training.parallel.processes import Processes
from prudent.training.run.execution import Execution
from prudent.training.run.reading import ItemLoader

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
        example: Any = None,
    ) -> Self:
        """The records of a data set; this process reads only its own."""
        tensors = None if isinstance(train_set, Dataset) and collate_fn else tensors_of(train_set)
        count = count_of(train_set, tensors)
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
                reader=RecordReader(
                    train_set, collate_fn, first, example=example, check=inputs_and_targets
                ),
                device=execution.device,
                workers=execution.workers,
                prefetch=execution.prefetch,
            )
            return cls(count=count, fingerprint=known, loader=loader)
        for name, value in (("collate_fn", collate_fn), ("example", example)):
            if value is not None:
                raise ArgumentError(
                    name,
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


def _gather(tensors: tuple[Any, Any], device: torch.device, processes: Processes) -> Gather:
    """A function that reads rows of this process from tensors placed on the device."""
    own = slice(processes.rank, None, processes.count)
    placed = pytree.tree_map(lambda leaf: leaf[own].to(device), tensors)

    def gather(ids: Tensor) -> tuple[Any, Any]:
        rows = ids // processes.count
        inputs, targets = pytree.tree_map(lambda leaf: leaf.index_select(0, rows), placed)
        return inputs, targets

    return gather
