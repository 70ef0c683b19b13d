"""Batches of the items of a data set, read on the host, in worker processes ahead of time."""

import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import attrs
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from prudent._torch_private import pytree
from prudent.records.form import inputs_and_targets
from prudent.records.reader import RecordReader, checked
from prudent.records.seeds import Seeds
from prudent.training.chunk import Chunk
from prudent.training.sampling import Batch, PoissonSampler


class Request(NamedTuple):
    """What to read for one physical batch.

    Attributes:
        ids: Record ids, one per row.
        valid: False for padding, which is not read.
        seeds: Seeds of the random numbers that are drawn while a record is read.
    """

    ids: list[int]
    valid: list[bool]
    seeds: Seeds


class Part(NamedTuple):
    """A physical batch as it was read, on the host.

    Attributes:
        inputs: The inputs, a tree of tensors.
        targets: The targets, likewise.
        readable: False for rows of padding and of records that count as absent.
    """

    inputs: Any
    targets: Any
    readable: Tensor


@attrs.frozen
class _Parts:
    """Physical batches by request; in the form of a data set of batches.

    Attributes:
        reader: Reads the records.
    """

    reader: RecordReader

    def __getitem__(self, request: Request) -> Part | None:
        """The batch that was asked for; None if none of many records has the form."""
        rows = self.reader.rows(*request)
        if rows is None:
            return None
        readable = torch.tensor([row is not None for row in rows])
        return Part(*inputs_and_targets(self.reader.batch(rows)), readable)


@attrs.frozen(kw_only=True)
class ItemLoader:
    """Reads the batches of a run ahead of time and places them on the device.

    Attributes:
        reader: Reads the records.
        device: Where batches are needed; those for a GPU are copied from pinned memory.
        workers: Processes that read; 0: this one reads when a batch is needed.
        prefetch: Physical batches that each worker reads ahead.
    """

    reader: RecordReader
    device: torch.device
    workers: int = 0
    prefetch: int = 2

    def batches(
        self, sampler: PoissonSampler, steps: range, *, recompute: bool
    ) -> Generator[list[Chunk], None, None]:
        """The chunks of each step; with `recompute` they stay on the host until they are read."""
        drawn: deque[Batch] = deque()
        parts = self._parts(_requests(sampler, steps, drawn))
        for part in parts:
            batch = drawn.popleft()
            whole = [part, *islice(parts, len(batch.ids) - 1)]
            yield [
                self.chunk(part, ids, recompute=recompute)
                for part, ids in zip(whole, batch.ids, strict=True)
            ]

    def part(self, request: Request) -> Part:
        """One physical batch, read by this process."""
        return checked(_Parts(self.reader)[request])

    def chunk(self, part: Part, ids: Tensor, *, recompute: bool = False) -> Chunk:
        """A physical batch on the device, or with `recompute` a function that places it there."""

        def placed() -> tuple[Any, Any]:
            inputs, targets = pytree.tree_map_only(
                Tensor,
                lambda leaf: leaf.to(self.device, non_blocking=True),
                (part.inputs, part.targets),
            )
            return inputs, targets

        masks = {"valid": part.readable.to(self.device), "ids": ids.to(self.device)}
        return Chunk(placed, **masks) if recompute else Chunk(*placed(), **masks)

    def _parts(self, requests: Iterable[Request]) -> Iterator[Part]:
        loader: DataLoader[Any] = DataLoader(
            _Parts(self.reader),  # type: ignore[arg-type]
            batch_size=None,  # an element is a whole physical batch
            sampler=requests,
            collate_fn=_unchanged,  # type: ignore[arg-type]
            num_workers=self.workers,
            prefetch_factor=self.prefetch if self.workers else None,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # or it would draw from the generator that dropout uses
        )
        with warnings.catch_warnings():
            # Python warns of any fork beside other threads. Workers use one thread of torch, and
            # none of what the others may have locked.
            warnings.filterwarnings("ignore", ".* is multi-threaded", DeprecationWarning)
            return map(checked, iter(loader))


def _requests(sampler: PoissonSampler, steps: range, drawn: deque[Batch]) -> Iterator[Request]:
    """What to read for each step, noting the batch of the step in `drawn`."""
    for step in steps:
        batch, seeds = sampler.batch(step), sampler.reading_seeds(step)
        drawn.append(batch)
        for ids, valid in zip(batch.ids.tolist(), batch.valid.tolist(), strict=True):
            yield Request(ids, valid, seeds)


def _unchanged(part: Part | None) -> Part | None:
    return part
