"""What a model draws in a private step, such as the masks of dropout: from the key, never public.

A gradient of a model that draws is a function of the record and of what is drawn for it. There are
two ways in which that keeps the sensitivity of a clipped sum; a step uses the first where it can.

*One stream per record.* In eager mode on the CPU, every record draws from a stream of its own, a
function of the key, the step and the id of the record. The other records of two neighbouring data
sets draw the same numbers, so that the sums differ by one clipped gradient, bit for bit. For this
the numbers need not be secret.

*Secret independent draws.* On a GPU, in compiled steps, and for operations of which the rows cannot
be told apart, torch's default generators draw row by row. They are seeded for every step, with
secret bits from the key, and restored afterwards. Then let M be what is drawn for all rows of a
step, and P and P′ the distributions of the release on neighbouring data sets.

    The rows of M are independent and identically distributed, and independent of the data, of the
    sampling and of the noise. So M can be coupled: give each record that both data sets share the
    same row of it, wherever it stands, and the one record that they do not share a row of its own.
    Both couplings have the right distribution, since permuting independent rows changes nothing.
    Conditional on M and on the sampled records, the sums differ by one clipped contribution at
    most, and the margins of a test by one record: the release is the mechanism that the plan
    charges, P_M and P′_M, with a hockey-stick divergence of at most its δ(ε). Divergences of this
    kind are jointly convex, so that for P = E P_M and P′ = E P′_M the divergence is no larger.

The second way needs draws that cannot be predicted: with public ones, removing a record gives every
later one other masks, and the sums differ by many clips. It is computational, as all noise here: it
holds for observers who cannot tell the generators, seeded with secret bits, from random ones: those
of the CPU get a whole secret state, those of CUDA a secret seed and offset of 123 bits.

In both ways running a batch again repeats its draws: recomputation, checkpointed parts, and the
second run after a record was refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prudent.training.gradients.record_streams import (
    CHOICES,
    RecordStreams,
    Seeds,
    is_capturing,
    mixed,
)
from prudent.training.keystream import Key, Purpose, Stream

_SHARED = 0
"""The rank whose keystream all processes share; process r draws at r + 1."""

_TWISTER = 24, 624
"""Where the state of torch's Mersenne twister has its words, and how many there are."""


@attrs.frozen
class ModelRandomness:
    """The random numbers that a model draws in the steps of a run."""

    stream: Stream  # the stream of this purpose
    device: torch.device  # the device of the model
    rank: int = 0  # the process

    @classmethod
    def of(cls, key: Key, device: torch.device, rank: int = 0) -> "ModelRandomness":
        """The random numbers of a run with this key."""
        return cls(key.stream(Purpose.MODEL), device, rank)

    def at(self, step: int) -> "StepRandomness":
        """What is drawn in one step."""
        shared = self.stream.words(3, step=step, rank=_SHARED).numpy().astype(np.uint64)
        own = self.stream.words(2 + _TWISTER[1] // 2, step=step, rank=self.rank + 1)
        return StepRandomness(shared[:2], int(shared[2]) & (2**63 - 1), own, self.device)


@attrs.frozen
class StepRandomness:
    """The random numbers that a model draws in one step."""

    # Two words from which the streams of records are derived.
    secret: Seeds = attrs.field(repr=False)
    choices: int = attrs.field(repr=False)  # the seed of choices for all records at once
    # Random bits for the default generators of this process.
    words: Tensor = attrs.field(repr=False)
    device: torch.device  # the device of the model

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Seed torch's default generators, and restore them afterwards.

        While a graph is captured, that of the device is left alone: its replays are seeded.
        """
        host = torch.default_generator
        device = None if is_capturing() else _device_generator(self.device)
        before = host.get_state(), None if device is None else device.get_state()
        CHOICES.set(self.choices)
        try:
            host.set_state(_twister(self.words[2:]))
            if device is not None:
                seed, offset = (int(word) & (2**63 - 1) for word in self.words[:2])
                device.manual_seed(seed)
                device.set_offset(offset & (2**62 - 4))
            yield
        finally:
            host.set_state(before[0])
            if device is not None and before[1] is not None:
                device.set_state(before[1])

    def records(self, ids: Tensor | None, first: int = 0, slots: int = 1) -> RecordStreams:
        """The streams of the records of a chunk, of which each has so many rows (slots).

        Those without ids are numbered from `first` on.
        """

        def seeds(rows: NDArray[np.int64]) -> Seeds:
            whose, slot = np.divmod(rows, slots)
            named = whose + first if ids is None else ids.numpy()[whose]
            named = (named * slots + slot).astype(np.uint64)
            # One to one, so that no two records of a step share a stream.
            return mixed(mixed(named + self.secret[0]) ^ self.secret[1])

        return RecordStreams(seeds, self.choices)


def _twister(words: Tensor) -> Tensor:
    """A state of torch's generator for the CPU that holds these random bits."""
    state = torch.Generator().get_state()
    start, count = _TWISTER
    place = state.numpy()[start : start + 8 * count].view(np.uint64)
    place[:] = words.numpy().view(np.uint32)
    return state


def _device_generator(device: torch.device) -> torch.Generator | None:
    """The default generator of a CUDA device; None on the CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.init()  # type: ignore[no-untyped-call]
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]
