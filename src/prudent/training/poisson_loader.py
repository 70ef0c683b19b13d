"""A data loader that draws Poisson batches and keeps everything else of the loader it replaces."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from prudent._validate import ArgumentError
from prudent.training.sampling import PoissonSampler


class PoissonLoader(DataLoader[Any]):
    """Draws each record into each batch independently, with the sampler's rate.

    Data set, `collate_fn`, workers and memory pinning are those of the given loader. A batch lists
    its records by ascending index. An empty batch has no rows and the shapes of one record.

    Args:
        loader: The loader to replace.
        sampler: Draws the batches.
        batches: Number of batches in an epoch.

    Attributes:
        sample_rate: Probability with which a record is drawn into a batch.
    """

    def __init__(self, loader: DataLoader[Any], sampler: PoissonSampler, batches: int) -> None:
        self.sample_rate = sampler.rate
        self._drawn: deque[list[int]] = deque()
        self._outstanding: deque[list[int]] = deque()
        super().__init__(
            loader.dataset,
            batch_sampler=_Batches(sampler, batches, self._drawn),
            collate_fn=_Sized(loader.collate_fn, loader.dataset),
            num_workers=loader.num_workers,
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
        self._drawn.clear()
        self._outstanding.clear()
        for _, batch in super().__iter__():
            self._outstanding.append(self._drawn.popleft())
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


class _Batches(Sampler[list[int]]):
    """Lists of record ids, a new draw for every batch of every epoch, also noted in `drawn`."""

    def __init__(self, sampler: PoissonSampler, batches: int, drawn: deque[list[int]]) -> None:
        self._sampler = sampler
        self._batches = batches
        self._noted = drawn
        self._drawn = 0

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self._batches):
            drawn = self._sampler.batch(self._drawn)
            self._drawn += 1
            self._noted.append(drawn.ids[drawn.valid].tolist())
            yield self._noted[-1]


class _Sized:
    """Collates a batch and adds its number of records; runs in the workers.

    Args:
        collate: The collate function for batches that are not empty.
        dataset: Its first record gives the shapes of an empty batch.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], dataset: Any) -> None:
        self.collate = collate
        self._dataset = dataset

    def __call__(self, records: list[Any]) -> tuple[int, Any]:
        if records:
            return len(records), self.collate(records)
        one = self.collate([self._dataset[0]])
        return 0, pytree.tree_map_only(torch.Tensor, lambda tensor: tensor[:0], one)


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
