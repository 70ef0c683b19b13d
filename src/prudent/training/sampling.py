"""Poisson sampling of batches with a fixed shape, drawn from the keystream of a key.

The ids of a Poisson sample are partial sums of independent geometric gaps: the distance from one
sampled record to the next is k with probability q(1-q)^(k-1). Drawing gaps instead of one coin per
record costs time proportional to the batch rather than to the data set, and yields ids in ascending
order. Gaps are drawn on the host, for many batches at a time, so that a batch is the same on every
device.
"""

import copy
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attrs
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.records import Seeds
from prudent.records.people import PeopleReader, Units
from prudent.records.reader import RecordReader
from prudent.training.gradients.output_guard import traced_batch
from prudent.training.keystream import Key, Purpose, Reader, given_or_random, uniforms
from prudent.training.parallel import Processes
from prudent.training.run.charging import RunCharge

_MOST_STEPS = 2.0**60  # blocks are numbered by 64 bits
_STEPS_PER_BLOCK = 64


@attrs.frozen
class Batch:
    """Record ids of one logical batch, padded to physical batches of a fixed shape."""

    # Ascending record ids, shape (chunks, physical); padding holds the id of a record of this
    # process.
    ids: Tensor
    valid: Tensor  # False for padding; same shape


class PoissonSampler:
    """Draws Poisson batches: each record is in each batch independently with probability q.

    A batch larger than the physical size is returned in several chunks; it is never truncated.

    | case | what happens |
    |---|---|
    | empty draw | one chunk, all padding |
    | draw larger than `physical_batch` | more chunks |
    | q = 1 | every record, every time |
    | several processes | each draws the same batch and keeps the records that are its own |
    | several bands | step t draws from part t modulo `num_bands`, at as many times the rate |
    | `allocates` | the same, and the parts are drawn anew after each turn of all of them |

    With several bands every record is in one part, drawn from the key for it alone: a record added
    or removed changes nothing about the parts of others. So it is in at most one of any `num_bands`
    batches in a row.

    Attributes:
        records: Size of the data set.
        rate: Probability with which a record is in a batch; with several bands, of its turn.
        num_bands: Number of parts that take turns.
        allocates: Whether each turn of all parts has parts of its own (random allocation).
        physical_batch: Rows per chunk, in each process.
        key: The key of the draws, the same in all processes; a new one from the operating system
            unless given. Sampling amplifies privacy only while the drawn records are secret: a key
            made from a seed that others know voids the plan's ε.
        processes: The processes among which the records are divided. The union of their batches
            does not depend on their number.
    """

    def __init__(
        self,
        records: int,
        rate: float,
        *,
        physical_batch: int | None = None,
        key: Key | None = None,
        device: torch.device | str = "cpu",
        processes: Processes | None = None,
        num_bands: int = 1,
        allocates: bool = False,
    ) -> None:
        self.allocates = allocates
        self.records = _validate.count(1, records=records)
        self.rate = _validate.between(0, 1, ends="(]", rate=rate)
        self.num_bands = _validate.count(1, num_bands=num_bands)
        device = _validate.device(device=device)
        self.processes = Processes() if processes is None else processes
        _validate.instance(Processes, "processes of a run", processes=self.processes)
        self.processes.check_same(records=records, rate=rate, num_bands=num_bands)
        own = -(-records // (self.processes.count * self.num_bands))
        self.physical_batch = (
            roomy_batch(own, rate, 2.5 if device.type == "cpu" else 5.0)
            if physical_batch is None
            else _validate.count(1, physical_batch=physical_batch)
        )
        if key is None:
            key = Key(self.processes.first(lambda: Key.random().secret))
        self._device = device
        self._begin(given_or_random(key))

    def _begin(self, key: Key) -> None:
        """Forget what was drawn, and draw from a key."""
        self.key, self._stream = key, key.stream(Purpose.SAMPLING)
        self._parts: dict[int, Tensor] = {}
        self._block = -1
        self._ids = self._valid = torch.empty(0)
        self._sizes: list[int] = []

    def with_key(self, key: Key) -> "PoissonSampler":
        """The same sampler, drawing from another key."""
        same = copy.copy(self)
        same._begin(key)
        return same

    def batch(self, step: int) -> Batch:
        """The batch of a step; it depends only on the key and the step."""
        _validate.between(0, _MOST_STEPS, step=step)
        block, position = divmod(_validate.count(step=step), _STEPS_PER_BLOCK)
        if block != self._block:
            self._draw_block(block)
        chunks = max(1, -(-self._sizes[position] // self.physical_batch))
        rows = slice(0, chunks * self.physical_batch)
        return Batch(
            self._ids[position, rows].view(chunks, -1), self._valid[position, rows].view(chunks, -1)
        )

    def draw(self, step: int) -> "Draw":
        """The batch of a step, and the seeds for reading it."""
        batch, words = self.batch(step), self.key.stream(Purpose.READING).words(4, step=step)
        return Draw(step, batch.ids.cpu(), batch.valid.cpu(), Seeds(words.numpy().tobytes()))

    def _draw_block(self, block: int) -> None:
        """Draw the ids of a block of steps, at the keystream position of the block."""
        reader = self._stream.at(block)
        # Wide enough for nearly every draw. It does not depend on the physical batch size, which
        # must not change the draws.
        width = roomy_batch(-(-self.records // self.num_bands), self.rate, 5.0)
        places = self._gaps(width, reader).cumsum(1) - 1
        while True:
            ids = self._ids_at(places, block)
            sizes = (ids < self.records).sum(1).tolist()
            if max(sizes) < ids.shape[1]:
                break
            # Some batch may extend beyond the gaps drawn so far, so draw more. Redrawing instead
            # would make large batches too rare.
            more = places[:, -1:] + self._gaps(width, reader).cumsum(1)
            places = torch.cat([places, more], 1)
        if self.processes.count > 1:
            mine = (ids < self.records) & (ids % self.processes.count == self.processes.rank)
            ids = torch.where(mine, ids, self.records).sort(1).values
            sizes = mine.sum(1).tolist()
        padding = -ids.shape[1] % self.physical_batch
        ids = torch.nn.functional.pad(ids, (0, padding), value=self.records)
        valid = ids < self.records
        self._ids = torch.where(valid, ids, self.processes.rank).to(self._device)
        self._valid = valid.to(self._device)
        self._sizes, self._block = sizes, block

    def _drawn_parts(self, turn: int) -> Tensor:
        """The ids in each part, ascending, one part per row; the rest of a row is no id."""
        words = self.key.stream(Purpose.PARTS).words(self.records, step=turn)
        parts = torch.remainder(words >> 1, self.num_bands)
        order = torch.argsort(parts, stable=True)
        sizes = torch.bincount(parts, minlength=self.num_bands).tolist()
        table = torch.full((self.num_bands, max(sizes) + 1), self.records)
        for row, ids in zip(table, torch.split(order, sizes), strict=True):
            row[: len(ids)] = ids
        return table

    def _ids_at(self, places: Tensor, block: int) -> Tensor:
        """The ids at the drawn places of a part, or of all records."""
        if self.num_bands == 1:
            return places
        steps = range(block * _STEPS_PER_BLOCK, (block + 1) * _STEPS_PER_BLOCK)
        if self.allocates:  # earlier turns are over
            self._parts = {k: v for k, v in self._parts.items() if k == steps[0] // self.num_bands}
        rows = []
        for step, row in zip(steps, places, strict=True):
            turn, part = divmod(step, self.num_bands)
            turn = turn if self.allocates else 0
            if turn not in self._parts:
                self._parts[turn] = self._drawn_parts(turn)
            table = self._parts[turn]
            rows.append(table[part, row.clamp_max(table.shape[1] - 1)])  # the last is never an id
        return torch.stack(rows)

    def _gaps(self, width: int, reader: Reader) -> Tensor:
        shape = (_STEPS_PER_BLOCK, width)
        if self.rate == 1:
            return torch.ones(shape, dtype=torch.int64)
        uniform = uniforms(reader.words(math.prod(shape))).view(shape)
        gaps = uniform.log_().div_(math.log1p(-self.rate)).floor_().add_(1)
        return gaps.clamp_max_(self.records + 1).to(torch.int64)


def roomy_batch(records: int, rate: float, deviations: float = 2.5) -> int:
    """A physical batch size, a multiple of 8, for the mean draw plus `deviations` deviations.

    On a CPU padding is expensive and a second chunk is cheap; for a captured graph it is the
    reverse.
    """
    spread = math.sqrt(records * rate * (1 - rate))
    return max(8, -(-math.ceil(records * rate + deviations * spread + 1) // 8) * 8)


class Draw(NamedTuple):
    """What is drawn for one step. Secret."""

    number: int  # the step, counted from 0
    ids: Tensor  # ids of records, or of people, shape (chunks, physical)
    valid: Tensor  # False for padding; same shape
    seeds: Seeds  # of the random numbers that are drawn while a record is read


class Draws(Sampler[Any]):
    """The batch sampler of a loader: a draw for every batch of an epoch.

    `first` returns the number of the first one, given the next that is new.
    """

    def __init__(self, sampler: PoissonSampler, batches: int, first: Callable[[int], int]) -> None:
        self._sampler, self._batches, self._first = sampler, batches, first
        self._next = 0

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[Draw]:
        self._next = self._first(self._next)
        for _ in range(self._batches):
            number, self._next = self._next, self._next + 1
            yield self._sampler.draw(number)


class PoissonLoader(DataLoader[Any]):
    """Draws each record into each batch independently, with the sampler's rate.

    Data set, `collate_fn`, workers and memory pinning are those of the given loader, but records
    are read, collated and converted one at a time by `prudent.records`: one that cannot be read or
    has another form is left out, as if it had not been drawn. A batch lists its records
    by ascending index. An empty batch has no rows.

    With people, these are drawn, and a batch lists all slots of each of them one after another.

    The charge is made before the first record is drawn. It counts the steps taken, and an epoch
    begins with the part whose turn it is.

    Attributes:
        sample_rate: Probability with which a record, or a person, is drawn into a batch.
        count: Number of records, or of people.
        slots: Rows of each person; None without people.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        sampler: PoissonSampler,
        batches: int,
        example: Any = None,
        *,
        charge: RunCharge,
        units: Units,
    ) -> None:
        self._charge = charge
        self._bands = sampler.num_bands
        self.sample_rate = sampler.rate / sampler.num_bands
        self.count = sampler.records
        self.slots = units.slots
        self._outstanding: deque[Drawn] = deque()
        shared: dict[str, Any] = {
            "batch_sampler": Draws(sampler, batches, self._in_turn),
            "num_workers": loader.num_workers,
            "worker_init_fn": loader.worker_init_fn,
            "generator": loader.generator,
        }
        super().__init__(loader.dataset, collate_fn=loader.collate_fn, **shared)
        # Torch's own way of reading would collate the records of a batch together.
        self._read: DataLoader[Any] = DataLoader(
            _Batches(units.reader(loader.collate_fn, example=example)),
            collate_fn=unchanged,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
            **shared,
        )

    def __repr__(self) -> str:
        kind = type(self.dataset).__name__
        return f"PoissonLoader({kind}, {len(self)} batches an epoch, {self._charge.priced()})"

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The batches of one epoch."""
        self._charge.pay()
        self._outstanding.clear()
        for drawn, batch in self._read:
            self._outstanding.append(drawn)
            yield traced_batch(batch)

    def _in_turn(self, number: int) -> int:
        """The next number at which it is the turn of the part that the next step draws from."""
        return number + (self._charge.taken - number) % self._bands

    def drawn(self, rows: int) -> "Drawn | None":
        """The batch that a step on this many rows would use; None if there is none."""
        slots = self.slots or 1
        for drawn in self._outstanding:
            if self._in_turn(drawn.number) == drawn.number and len(drawn.ids) * slots == rows:
                return drawn
        return None

    def spend(self, batch: "Drawn | None") -> None:
        """Mark the oldest batch as used, if `drawn` returned it when its rows ran forward."""
        if self._outstanding and self._outstanding[0] is batch:
            self._outstanding.popleft()
            return
        if any(each is batch for each in self._outstanding):
            raise ValueError(
                "Expected a step on every batch of an epoch, got one after a batch without a step. "
                "Which batches are used must not depend on what is in them: take a step on an "
                "empty one, too, and stop an epoch early by leaving its loop."
            )
        raise ValueError(
            "Expected a step on a batch of the private loader, with one row per record, got "
            "another number of rows, a batch that has already been used or, with bands, one out of "
            "its turn. Take one step per batch, in their order, and keep several views of a record "
            "together as one row."
        )


class Drawn(NamedTuple):
    """Who is in a batch. Secret."""

    ids: Tensor  # the records, or the people
    shares: Tensor | None  # what the loss in each row is multiplied by; None without people
    number: int = 0  # the number of the draw


class _Batches(Dataset[Any]):
    """The batches of a data set, read by draws."""

    def __init__(self, reader: RecordReader | PeopleReader) -> None:
        self._reader = reader

    def __getitems__(self, draw: Draw) -> tuple[Drawn, Any]:
        """Who is in the batch, and the batch."""
        drawn = draw.ids[draw.valid]
        found: Any = self._reader.rows(drawn.tolist(), [True] * len(drawn), draw.seeds)
        ids = drawn[torch.tensor([rows is not None for rows in found], dtype=torch.bool)]
        found = [rows for rows in found if rows is not None]
        return Drawn(ids, self._reader.shares(found), draw.number), self._reader.batch(found)


def unchanged(batch: Any) -> Any:
    """What a loader collates of a batch that is read whole."""
    return batch


def check_replaceable(loader: DataLoader[Any]) -> None:
    """Raise an error unless Poisson batches may replace the batches of the loader."""
    _validate.instance(DataLoader, "a torch.utils.data.DataLoader", loader=loader)
    if isinstance(loader, PoissonLoader):
        raise ArgumentError("loader", "an ordinary loader", shown="one that is already private")
    if isinstance(loader.dataset, IterableDataset):
        allowed, why = "over a map-style data set", "records are drawn by index"
        raise ArgumentError("loader", allowed, shown="an IterableDataset", why=why)
    if loader.batch_size is None:
        raise ArgumentError("loader", "with a batch_size", got=None, why="it is the expected one")
    sampler = loader.sampler
    if type(sampler) not in (RandomSampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler) and sampler.replacement
    ):
        allowed = "that visits each record once in an epoch (shuffle=True or False)"
        shown = f"one with {type(sampler).__name__}"
        why = "the draws would be replaced by Poisson samples"
        hint = "Use torch.utils.data.Subset to select records."
        raise ArgumentError("loader", allowed, shown=shown, why=why, hint=hint)
