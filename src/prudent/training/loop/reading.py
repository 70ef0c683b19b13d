"""Reading the items of a data set on the host: collated, and in worker processes ahead of time.

A batch is secret and so is everything about its items, errors included. So reading never fails
because of one record:

| case | what happens |
|---|---|
| padding | the stand-in, one of the first items; weight zero |
| an item that cannot be read or collated with the stand-in | counts as absent; weight zero |
| more than a quarter of the first eight items differ from the rest | an error, before any charge |
| a `collate_fn` that fails on items that it accepts one by one | an error |
| no item of a batch of eight or more can be read | an error |

Whether a record can be read depends on that record and the form of most others, so a record that
counts as absent has the same price as one that is absent. The errors quote no record. They show
that the code does not fit the data as a whole; no single record can cause one unless others fail as
well.

Random numbers that data sets and collators draw from torch's default generator, `random` or numpy
are seeded for every chunk from the key of the run. They do not depend on the number of workers, and
a resumed run draws them again.
"""

import copy
import random
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, default_collate

from prudent._validate import ArgumentError
from prudent.training.chunk import Chunk
from prudent.training.keystream import Purpose
from prudent.training.sampling import Batch, PoissonSampler

Collate = Callable[[list[Any]], Any]
"""Makes a batch of a list of items."""

_TRIES = 8
_TARGETS = "labels"


class StructureError(ArgumentError):
    """A batch that is no pair of inputs and targets. The message quotes no record."""


class Request(NamedTuple):
    """What to read for one physical batch.

    Attributes:
        ids: Record ids, one per row.
        valid: False for padding, which is not read.
        seed: Seed of the random numbers that are drawn while reading.
    """

    ids: list[int]
    valid: list[bool]
    seed: int


class Part(NamedTuple):
    """A physical batch as it was read, on the host.

    Attributes:
        inputs: The inputs, a tree of tensors.
        targets: The targets, likewise.
        readable: False for rows of padding and of records that could not be read.
    """

    inputs: Any
    targets: Any
    readable: Tensor


class ItemReader:
    """Reads physical batches of the items of a data set; in the form of a data set of batches.

    The stand-in is an item with which at least three quarters of the first items can be collated
    without a change of structure or number types. Items are always collated after it, and its row
    is then removed; so it determines the form of every batch, and a batch can be collated if each
    of its items can be collated with the stand-in. The required majority means that no single
    record determines the form: one record more or less either leaves it as it is, or makes the
    reader refuse data of which a quarter differs from the rest.

    Args:
        items: Anything with `__getitem__`; `__getitems__` is used where there is one.
        collate_fn: Makes a batch of items; torch's `default_collate` unless given.
        first: Ids of the first items, from which the stand-in is chosen.

    Raises:
        ArgumentError: If too few of the first items can be read and collated alike.
    """

    def __init__(self, items: Any, collate_fn: Collate | None, first: Iterable[int]) -> None:
        self.items = items
        self.collate_fn = collate_fn
        with seeded(0):
            tried = self._read(list(islice(first, _TRIES)))
            for item in tried:
                self.stand_in, self._form = item, self._form_of(item, item)
                alike = [self._form_of(item, other) == self._form for other in tried]
                if self._form is not None and 4 * sum(alike) >= 3 * len(tried):
                    return
        problems = [self._problem(item) for item in tried]
        if problems[0] is not None and all(problems):
            raise problems[0]
        raise ArgumentError(
            "train_set",
            "with items that can be read and collated, of one structure, type and shape",
            shown=f"fewer than three quarters of the first {len(tried)}",
            why="any error is withheld, since it may quote a record",
            hint="Try collate_fn([train_set[0], train_set[1]]) yourself; collate_fn is "
            "torch.utils.data.default_collate unless you give one. Items of different shapes need "
            "one that pads them.",
        )

    def __getitem__(self, request: Request) -> Part | None:
        """The batch that was asked for; None if it cannot be made of readable items."""
        with seeded(request.seed):
            rows = self._rows(request)
            batch = self._attempt(rows)
            if batch is None:
                rows = [
                    None if row is None or self._attempt([row]) is None else row for row in rows
                ]
                batch = self._attempt(rows)
        readable = torch.tensor([row is not None for row in rows])
        if batch is None or (sum(request.valid) >= _TRIES and not readable.any()):
            return None
        return Part(*batch, readable)

    def _rows(self, request: Request) -> list[Any]:
        """The item of every row; None for padding and for what cannot be read."""
        wanted = [i for i, valid in zip(request.ids, request.valid, strict=True) if valid]
        found = iter(self._read(wanted))
        return [next(found) if valid else None for valid in request.valid]

    def _read(self, ids: list[int]) -> list[Any]:
        """The items with these ids; None for those that cannot be read."""
        together = getattr(self.items, "__getitems__", None)
        if together is not None:
            try:
                found = list(together(ids))
            except Exception:  # some item cannot be read: find out which
                found = []
            if len(found) == len(ids):
                return found
        return [self._item(number) for number in ids]

    def _item(self, number: int) -> Any:
        try:
            return self.items[number]
        except Exception:
            return None

    def _attempt(self, rows: Sequence[Any]) -> tuple[Any, Any] | None:
        """The collated rows, with the stand-in in place of None; None if collating fails."""
        try:
            return self._collate([self.stand_in if row is None else row for row in rows])
        except Exception:
            return None

    def _collate(self, items: list[Any]) -> tuple[Any, Any]:
        """Inputs and targets of items, collated after the stand-in, in its form."""
        leaves, structure = self._flat([self.stand_in, *items])
        assert self._form is not None
        known, types = self._form
        if structure != known:
            raise StructureError("collate_fn", "to return batches of one structure")
        rows = [leaf[1:].to(dtype) for leaf, dtype in zip(leaves, types, strict=True)]
        inputs, targets = pytree.tree_unflatten(rows, structure)
        return inputs, targets

    def _form_of(self, *items: Any) -> tuple[Any, list[torch.dtype]] | None:
        """The structure and number types of collated items; None if they cannot be collated."""
        try:
            leaves, structure = self._flat(list(items))
        except Exception:
            return None
        return structure, [leaf.dtype for leaf in leaves]

    def _problem(self, item: Any) -> StructureError | None:
        """What is wrong with the structure of an item, if it can be collated at all."""
        try:
            self._flat([item, item])
        except StructureError as error:
            return error
        except Exception:
            return None
        return None

    def _flat(self, items: list[Any]) -> tuple[list[Tensor], Any]:
        """The tensors of collated items, and the structure of inputs and targets."""
        collate: Collate = default_collate
        if self.collate_fn is not None:
            collate = self.collate_fn
            items = [copy.copy(item) for item in items]  # it may change what it gets
        leaves, structure = pytree.tree_flatten(inputs_and_targets(collate(items)))
        if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise StructureError(
                "train_set",
                "of items that collate to tensors alone",
                shown="other values",
                hint="Leave out texts and the like, with a collate_fn or in the data set.",
            )
        if any(not leaf.ndim or len(leaf) != len(items) for leaf in leaves):
            raise StructureError(
                "collate_fn",
                "to return tensors with one row per item",
                shown="another number of rows",
                why="a row is one record, whose gradient is clipped",
            )
        return leaves, structure


def inputs_and_targets(batch: Any) -> tuple[Any, Any]:
    """The two parts of a collated batch: of a pair, or of a mapping with the key `labels`."""
    if isinstance(batch, Mapping) and _TARGETS in batch:
        return {k: v for k, v in batch.items() if k != _TARGETS}, batch[_TARGETS]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, targets = (dict(part) if isinstance(part, Mapping) else part for part in batch)
        return inputs, targets
    raise StructureError(
        "train_set",
        f"of items (inputs, targets), or of dictionaries with the key {_TARGETS!r}",
        shown="dictionaries without it" if isinstance(batch, Mapping) else "other items",
        hint="A collate_fn may return a pair (inputs, targets) of any items.",
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators that data sets use, and restore their states on exit."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002 - seeded for data sets that use it
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs, too
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002


@attrs.frozen(kw_only=True)
class ItemLoader:
    """Reads the batches of a run ahead of time and places them on the device.

    Attributes:
        reader: Reads physical batches.
        device: Where batches are needed; those for a GPU are copied from pinned memory.
        workers: Processes that read; 0: this one reads when a batch is needed.
        prefetch: Physical batches that each worker reads ahead.
    """

    reader: ItemReader
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
        return _checked(self.reader[request])

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
            self.reader,  # type: ignore[arg-type]
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
            return map(_checked, iter(loader))


def _requests(sampler: PoissonSampler, steps: range, drawn: deque[Batch]) -> Iterator[Request]:
    """What to read for each step, noting the batch of the step in `drawn`."""
    seeds = sampler.key.stream(Purpose.READING)
    for step in steps:
        batch = sampler.batch(step)
        drawn.append(batch)
        seed = int(seeds.words(1, step=step, rank=sampler.processes.rank)) & (2**63 - 1)
        rows = zip(batch.ids.tolist(), batch.valid.tolist(), strict=True)
        for index, (ids, valid) in enumerate(rows):
            yield Request(ids, valid, (seed + index) & (2**63 - 1))


def _checked(part: Part | None) -> Part:
    """The part, or an error that quotes no record if it could not be read."""
    if part is None:
        raise ArgumentError(
            "train_set",
            "with items that can be read and collated together",
            shown="a batch for which that failed",
            why="the error is withheld, since it may quote a record",
            hint="Items of different shapes need a collate_fn that pads them.",
        )
    return part


def _unchanged(part: Part | None) -> Part | None:
    return part
