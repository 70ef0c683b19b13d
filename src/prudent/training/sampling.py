"""Poisson batches of a fixed shape, drawn from the keystream of a key.

The ids of a Poisson sample are a sum of independent geometric gaps: from one sampled record to the
next there are k records with probability q(1-q)^(k-1). Drawing gaps instead of one coin for every
record costs as much as the batch, not as the data set, gives ids in ascending order, and needs no
look at a value. They are drawn on the host, many batches at a time, so that a batch is the same on
every device.
"""

import math

import attrs
import torch
from torch import Tensor

from prudent import _validate
from prudent.training.keystream import Key, Purpose, Reader, given_or_random, uniforms
from prudent.training.parallel.processes import Alone, Processes

_STEPS_PER_BLOCK = 64


@attrs.frozen
class Batch:
    """Record ids of one logical batch, padded to physical batches of a fixed shape.

    Attributes:
        ids: Ascending record ids, shape (chunks, physical); a record of this process where padded.
        valid: False where padded, the same shape.
    """

    ids: Tensor
    valid: Tensor


class PoissonSampler:
    """Draws batch after batch; each record enters each batch independently with probability q.

    A batch larger than the physical size comes in more than one chunk: it is never cut.

    | case | what happens |
    |---|---|
    | empty draw | one chunk, all padding |
    | draw larger than `physical_batch` | more chunks |
    | q = 1 | every record, every time |
    | several processes | each draws the same batch and keeps the records that are its own |

    Attributes:
        records: Size of the data set.
        rate: q.
        physical_batch: Rows of one chunk, in each process.
        key: Of the draws; a new one from the operating system unless given, the same in all
            processes. Sampling amplifies privacy only while nobody can tell who was drawn: a key
            from a seed that others know makes the plan's ε void.
        processes: Those that divide the records. The batch, as their union, is the same for any
            number of them.
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
    ) -> None:
        self.records = _validate.count(1, records=records)
        self.rate = _validate.between(0, 1, ends="(]", rate=rate)
        self.processes = Alone() if processes is None else processes
        self.processes.check_same(records=records, rate=rate)
        own = -(-records // self.processes.count)
        self.physical_batch = (
            roomy_batch(own, rate, 2.5 if torch.device(device).type == "cpu" else 5.0)
            if physical_batch is None
            else _validate.count(1, physical_batch=physical_batch)
        )
        key = self.processes.first(Key.random) if key is None else key
        self.key = given_or_random(key)
        self._stream = self.key.stream(Purpose.SAMPLING)
        self._device = torch.device(device)
        self._block = -1
        self._ids = self._valid = torch.empty(0)
        self._sizes: list[int] = []

    def batch(self, step: int) -> Batch:
        """The batch of a step, a function of the key and the step alone."""
        block, position = divmod(step, _STEPS_PER_BLOCK)
        if block != self._block:
            self._draw_block(block)
        chunks = max(1, -(-self._sizes[position] // self.physical_batch))
        rows = slice(0, chunks * self.physical_batch)
        return Batch(
            self._ids[position, rows].view(chunks, -1), self._valid[position, rows].view(chunks, -1)
        )

    def _draw_block(self, block: int) -> None:
        """Draws the ids of many steps at once, from a position of their own."""
        reader = self._stream.at(block)
        # As wide as nearly every draw, whatever the physical size: it must not change the draws.
        width = roomy_batch(self.records, self.rate, 5.0)
        ids = self._gaps(width, reader).cumsum(1) - 1
        sizes = (ids < self.records).sum(1).tolist()
        while max(sizes) == ids.shape[1]:
            # Some batch may go on beyond what was drawn: draw on. Drawing anew would make large
            # batches rarer than they are.
            more = ids[:, -1:] + self._gaps(width, reader).cumsum(1)
            ids = torch.cat([ids, more], 1)
            sizes = (ids < self.records).sum(1).tolist()
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

    def _gaps(self, width: int, reader: Reader) -> Tensor:
        shape = (_STEPS_PER_BLOCK, width)
        if self.rate == 1:
            return torch.ones(shape, dtype=torch.int64)
        uniform = uniforms(reader.words(math.prod(shape))).view(shape)
        gaps = uniform.log_().div_(math.log1p(-self.rate)).floor_().add_(1)
        return gaps.clamp_max_(self.records + 1).to(torch.int64)


def device_kind(device: torch.device) -> str:
    """What decides how sums are rounded, and so whether a repeated step is the same release."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def roomy_batch(records: int, rate: float, deviations: float = 2.5) -> int:
    """A physical size that most draws fit, a multiple of 8: the mean and some deviations.

    The host pays for padding and hardly for a second chunk; a captured graph the other way round.
    """
    spread = math.sqrt(records * rate * (1 - rate))
    return max(8, -(-math.ceil(records * rate + deviations * spread + 1) // 8) * 8)
