"""Access to records by id, from tensors on the device or from a data set on the host.

Of several processes each reads only its own records, i modulo their number; items are read ahead.
"""

import functools
import warnings
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Self

import attrs
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from prudent._torch_private import pytree
from prudent._validate import ArgumentError
from prudent.records import PUBLIC, Seeds
from prudent.records.containers import count_of, fingerprint, tensors_of
from prudent.records.people import PeopleReader, TensorReader, Unit, Units
from prudent.records.reader import Collate, RecordReader, inputs_and_targets
from prudent.training.chunk import Chunk
from prudent.training.parallel.processes import Processes
from prudent.training.run.execution import Execution
from prudent.training.sampling import Draw, PoissonSampler, unchanged


class ReadBatch(NamedTuple):
    """A physical batch as it was read, on the host."""

    # Inputs and targets, trees of tensors; of people targets and the shares of all slots.
    batch: tuple[Any, Any]
    readable: Tensor  # False for padding and for records, or people, that count as absent
    ids: Tensor  # ids of records, one per row; or of people


def chunk_on(
    device: torch.device, batch: tuple[Any, Any], valid: Tensor, ids: Tensor, *, recompute: bool
) -> Chunk:
    """A physical batch on the device, or with `recompute` a function that places it there."""

    def placed() -> Any:
        return pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device, non_blocking=True), batch)

    masks = {"valid": valid.to(device), "ids": ids.to(device)}
    return Chunk(placed, **masks) if recompute else Chunk(*placed(), **masks)


@attrs.frozen
class ReadDraws:
    """The physical batches of draws, in the form of a data set."""

    reader: RecordReader | PeopleReader  # reads the records

    def __getitem__(self, draw: Draw) -> list[ReadBatch]:
        """The batches of a draw."""
        parts = zip(draw.ids, draw.valid, strict=True)
        return [self.read(ids, valid, draw.seeds) for ids, valid in parts]

    def read(self, ids: Tensor, valid: Tensor, seeds: Seeds) -> ReadBatch:
        """A batch of records; padding, which is not valid, is not read."""
        rows: Any = self.reader.rows(ids.tolist(), valid.tolist(), seeds)
        readable = torch.tensor([row is not None for row in rows])
        inputs, targets = inputs_and_targets(self.reader.batch(rows))
        shares = self.reader.shares(rows)
        return ReadBatch((inputs, targets if shares is None else (targets, shares)), readable, ids)


Gather = Callable[[Tensor], tuple[Any, Any]]
"""Maps record ids of this process to inputs and targets."""


@attrs.frozen(kw_only=True)
class RunRecords:
    """The records of a run: tensors on the device, or items that are read on the host."""

    units: Units  # the records of all processes, or the people
    device: torch.device  # where batches are needed
    fingerprint: Callable[[], str]  # returns the fingerprint of the records, which it computes once
    # reads a batch of this process from tensors on the device; None for items.
    gather: Gather | None = None
    # Reads items, or people, on the host; None for tensors.
    reader: RecordReader | PeopleReader | None = None
    workers: int = 0  # processes that read; 0: this one reads when a batch is needed
    prefetch: int = 2  # steps that each worker reads ahead

    @classmethod
    def of(
        cls,
        train_set: Any,
        execution: Execution,
        processes: Processes,
        collate_fn: Collate | None = None,
        example: Any = None,
        unit: Unit | None = None,
    ) -> Self:
        """The records of a data set, or its people; this process reads only its own."""
        tensors = None if isinstance(train_set, Dataset) and collate_fn else tensors_of(train_set)
        units = Units.of(train_set, unit, count_of(train_set, tensors))
        if len(units) < processes.count:
            raise ArgumentError(
                "train_set",
                f"with at least one {units.protected} for each of the {processes.count} processes",
                shown=f"{len(units)} in all",
                hint="Start fewer processes.",
            )
        device = execution.device
        known = functools.cache(lambda: units.fingerprint(fingerprint(train_set)))
        if tensors is None:
            own = processes.rank, processes.count
            reader: RecordReader | PeopleReader = units.reader(
                collate_fn, own, example=example, check=inputs_and_targets
            )
        else:
            for name, value in (("collate_fn", collate_fn), ("example", example)):
                if value is not None:
                    raise ArgumentError(
                        name,
                        "None with a pair of tensors, which are already a batch",
                        hint="A TensorDataset of them is a data set of items.",
                    )
            if units.people is None:
                gather = _gather(tensors, device, processes)
                return cls(units=units, device=device, fingerprint=known, gather=gather)
            reader = PeopleReader(TensorReader(tensors), units.people)
        ahead: Any = {"workers": execution.workers, "prefetch": execution.prefetch}
        return cls(units=units, device=device, fingerprint=known, reader=reader, **ahead)

    @property
    def count(self) -> int:
        """Number of records in all processes, or of people."""
        return len(self.units)

    def read(self, ids: Tensor) -> tuple[Any, Any]:
        """Inputs and targets of public records; of none, they have the form of any batch."""
        if self.gather is not None:
            return self.gather(ids.to(self.device))
        assert self.reader is not None
        some = ids if len(ids) else torch.zeros(1, dtype=torch.int64)
        read = ReadDraws(self.reader).read(some, torch.full_like(some, len(ids)).bool(), PUBLIC)
        return chunk_on(self.device, *read, recompute=False).read()

    def batches(
        self, sampler: PoissonSampler, steps: range, *, recompute: bool
    ) -> Generator[list[Chunk], None, None]:
        """The chunks of each step, of items that are read ahead of time.

        With `recompute` they stay on the host until they are read.
        """
        assert self.reader is not None
        loader: DataLoader[Any] = DataLoader(
            ReadDraws(self.reader),  # type: ignore[arg-type]
            batch_size=None,  # an element is all of a step
            sampler=map(sampler.draw, steps),
            collate_fn=unchanged,
            num_workers=self.workers,
            prefetch_factor=self.prefetch if self.workers else None,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # or it would draw from the generator that dropout uses
        )
        with warnings.catch_warnings():
            # Python warns of any fork beside other threads. Workers use one thread of torch, and
            # none of what the others may have locked.
            warnings.filterwarnings("ignore", ".* is multi-threaded", DeprecationWarning)
            read = iter(loader)
        for parts in read:
            yield [chunk_on(self.device, *part, recompute=recompute) for part in parts]


def check_same_records(
    processes: Processes, name: str, count: int, fingerprint: Callable[[], str]
) -> None:
    """Raise an error unless every process has the same records in the same order."""
    processes.check_same(**{f"records of {name}": count})
    if processes.count > 1 and len(set(processes.gathered(fingerprint()))) > 1:
        raise ArgumentError(
            name,
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
