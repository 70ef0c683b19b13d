"""A data loader that draws Poisson batches and keeps everything else of the loader it replaces."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from prudent._validate import ArgumentError
from prudent.records.reader import RecordReader, checked
from prudent.records.seeds import Seeds
from prudent.training.sampling import PoissonSampler


class PoissonLoader(DataLoader[Any]):
    """Draws each record into each batch independently, with the sampler's rate.

    Data set, `collate_fn`, workers and memory pinning are those of the given loader, but records
    are read, collated and converted one at a time by `prudent.records`: one that cannot be read or
    has another form than most is left out, as if it had not been drawn. A batch lists its records
    by ascending index. An empty batch has no rows.

    Args:
        loader: The loader to replace.
        sampler: Draws the batches.
        batches: Number of batches in an epoch.
        example: A public record that has the form of all; see `RecordReader`.
        before: Called before the first record of an epoch is drawn.

    Attributes:
        sample_rate: Probability with which a record is drawn into a batch.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        sampler: PoissonSampler,
        batches: int,
        example: Any = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._before = before
        self.sample_rate = sampler.rate
        self._outstanding: deque[list[int]] = deque()
        reader = RecordReader(
            loader.dataset, loader.collate_fn, range(sampler.records), example=example
        )
        draws, workers = _Draws(sampler, batches), loader.num_workers
        super().__init__(
            loader.dataset,
            batch_sampler=draws,
            collate_fn=loader.collate_fn,
            num_workers=workers,
            worker_init_fn=loader.worker_init_fn,
            generator=loader.generator,
        )
        # Torch's own way of reading would collate the records of a batch together.
        self._read: DataLoader[Any] = DataLoader(
            _Batches(reader),
            batch_sampler=draws,
            collate_fn=_unchanged,
            num_workers=workers,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The batches of one epoch."""
        self._before()
        self._outstanding.clear()
        for ids, batch in map(checked, self._read):
            self._outstanding.append(ids)
            yield batch

    def ids(self, records: int) -> torch.Tensor | None:
        """The ids in the batch that a step on this many records would use; None if there is none.

        Secret: they show which records were drawn.
        """
        fitting = (ids for ids in self._outstanding if len(ids) == records)
        found = next(fitting, None)
        return None if found is None else torch.tensor(found, dtype=torch.int64)

    def spend(self, records: int) -> None:
        """Mark the oldest batch of this size as used, and drop all older ones.

        Raises:
            ValueError: If no unused batch of the epoch has this many records. The message does not
                say how many were drawn.
        """
        while self._outstanding:
            if len(self._outstanding.popleft()) == records:
                return
        raise ValueError(
            "Expected a step on a batch of the private loader, with one row per record, got "
            "another number of rows or a batch that has already been used. Take one step per "
            "batch, and keep several views of a record together as one row."
        )


class _Draw(NamedTuple):
    """The records of one batch. Secret."""

    ids: list[int]
    seeds: Seeds


class _Draws(Sampler[Any]):
    """A new draw for every batch of every epoch."""

    def __init__(self, sampler: PoissonSampler, batches: int) -> None:
        self._sampler = sampler
        self._batches = batches
        self._drawn = 0

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[_Draw]:
        for _ in range(self._batches):
            drawn, seeds = (
                self._sampler.batch(self._drawn),
                self._sampler.reading_seeds(self._drawn),
            )
            self._drawn += 1
            yield _Draw(drawn.ids[drawn.valid].tolist(), seeds)


class _Batches(Dataset[Any]):
    """The batches of a data set, read by draws."""

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader

    def __getitems__(self, draw: _Draw) -> tuple[list[int], Any] | None:
        """The ids of the records and their batch; None if none of many records has the form."""
        rows = self._reader.rows(draw.ids, [True] * len(draw.ids), draw.seeds)
        if rows is None:
            return None
        present = [(i, row) for i, row in zip(draw.ids, rows, strict=True) if row is not None]
        return [i for i, _ in present], self._reader.batch([row for _, row in present])


def _unchanged(batch: Any) -> Any:
    return batch


def check_replaceable(loader: DataLoader[Any]) -> None:
    """Raise an error unless Poisson batches may replace the batches of the loader."""
    if not isinstance(loader, DataLoader):
        raise ArgumentError("loader", "a torch.utils.data.DataLoader", shown=type(loader).__name__)
    if isinstance(loader, PoissonLoader):
        raise ArgumentError("loader", "an ordinary loader", shown="one that is already private")
    if isinstance(loader.dataset, IterableDataset):
        raise ArgumentError(
            "loader",
            "over a map-style data set",
            shown="an IterableDataset",
            why="records are drawn by index",
        )
    if loader.batch_size is None:
        raise ArgumentError("loader", "with a batch_size", got=None, why="it is the expected one")
    sampler = loader.sampler
    if type(sampler) not in (RandomSampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler) and sampler.replacement
    ):
        raise ArgumentError(
            "loader",
            "that visits each record once in an epoch (shuffle=True or False)",
            shown=f"one with {type(sampler).__name__}",
            why="the draws would be replaced by Poisson samples",
            hint="Use torch.utils.data.Subset to select records.",
        )
