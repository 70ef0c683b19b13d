"""Random bits from a secret key: the ChaCha20 keystream (RFC 8439), read at chosen positions.

Noise protects only while it cannot be predicted. A coordinate whose gradient is zero for every
record, such as the weight of a pixel that is always black, releases pure noise, so an observer of
the model sees outputs of the random generator. For a linear generator (torch's Mersenne twister on
a CPU) a few thousand such coordinates determine the whole state, and with it all noise and all
batches; the 64-bit seed of Philox (on a GPU) can be found by exhaustive search. Telling the output
of ChaCha20 from random bits, let alone predicting it, is as hard as breaking the cipher.

A stream has no state. Its bits are a function of

    the key, the purpose, the step and the rank,

so a resumed run reads the same bits as an uninterrupted one, a checkpoint needs only the key and
the step, and two draws share bits only if all four are equal. Each purpose has a key of its own,
derived by keyed BLAKE2b; step and rank are the nonce: the first 64 bits are the step, the last 32
the rank. The keystream of one nonce is 256 GiB long, enough for 2³⁵ numbers.

Random 64-bit words are mapped to numbers by deterministic functions, so the CPU and a CUDA device,
which read the same bits, get the same numbers up to the rounding of a logarithm and a cosine.

What a model draws in a private step, such as the masks of dropout, is from the key as well. Its
gradient is a function of the record and of what is drawn for it. There are two ways in which that
keeps the sensitivity of a clipped sum; a step uses the first where it can.

*One stream per record.* On the CPU, every record draws from a stream of its own, a
function of the key, the step and the id of the record. The other records of two neighbouring data
sets draw the same numbers, so that the sums differ by one clipped gradient, bit for bit. For this
the numbers need not be secret.

*Secret independent draws.* On a GPU, and for operations of which the rows cannot be told apart,
torch's default generators draw row by row. They are seeded for every step, with secret bits from
the key, and restored afterwards. Then let M be what is drawn for all rows of a step, and P and P′
the distributions of the release on neighbouring data sets.

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

import enum
import hashlib
import math
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import attrs
import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from torch import Tensor

from prudent import _validate
from prudent._warning import PredictableNoiseWarning, warn
from prudent.training.gradients.record_streams import (
    CHOICES,
    RecordStreams,
    Seeds,
    is_capturing,
    mixed,
)

WORDS = 1 << 35
"""Number of 64-bit words in the keystream of one position: 2³² blocks of 64 bytes."""

RARE = 1 << 42
"""First words, without their sign, below this get further bits when they become normals."""

FINER_RANK = 1
"""The rank whose keystream holds those bits; the noise itself is drawn at rank 0."""

_LOW_BITS = (1 << 11) - 1
_ZEROS = bytes(1 << 20)

_SHARED = 0
"""The rank whose keystream all processes share; process r draws at r + 1."""

_TWISTER = 24, 624
"""Where the state of torch's Mersenne twister has its words, and how many there are."""


class Purpose(enum.Enum):
    """What random bits are used for; each purpose has its own streams."""

    NOISE = "noise"  # the Gaussian noise on a sum
    TEST = "test"  # the noise of a private test
    SAMPLING = "sampling"  # which records are in a batch
    PARTS = "parts"  # which records are in the parts that take turns
    CORRUPTION = "corruption"  # seeds of simulated attacks; no guarantee depends on them
    MODEL = "model"  # what a model draws, such as the masks of dropout; see above
    WATCH = "watch"  # the noise on a released loss
    HELD_OUT = "held-out"  # the noise on what is released of held-out records
    READING = "reading"  # seeds for data sets that draw random numbers


class NoCopyMixin:
    """Something that must not exist twice: a copy would draw the same noise again.

    Copying and pickling are refused, and with them copying and pickling whatever holds it. So is
    its use in a forked process, which is a copy as well.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"A {type(self).__name__} holds the key of a run, which is never copied or pickled: a "
            "copy would draw the same noise for other sums. Make a new one, with a key of its own."
        )


def check_process(owner: int) -> None:
    """Raise an error in a process other than the one that made a key."""
    if owner != os.getpid():
        raise RuntimeError(
            "A key was made in another process and copied here by a fork: two processes would draw "
            "the same noise for different sums. Make the step, or the key, in the process that "
            "uses it."
        )


@attrs.frozen
class Key(NoCopyMixin):
    """The secret key of one run. It reveals all noise and which records were in each batch.

    Use a key for one run only. Two runs with the same key on different data release different sums
    with the same noise, and their difference is not protected. A key cannot be copied or pickled,
    and is used by the process that made it.

    Attributes:
        secret: 32 bytes; never printed.
        predictable: Whether the key was made from a seed, which others may know or guess. The
            guarantee of the run does not hold against them.
    """

    secret: bytes = attrs.field(repr=False)
    predictable: bool = False
    _process: int = attrs.field(factory=os.getpid, init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != 32:
            hint = "Use Key.random(), or Key.from_seed(seed) if reproducing a run matters "
            hint += "more than privacy."
            raise _validate.ArgumentError("secret", "32 bytes", hint=hint)

    @classmethod
    def random(cls) -> Self:
        """A new key from the operating system."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_seed(cls, seed: int) -> Self:
        """The key of a seed: reproducible, and therefore predictable."""
        number = str(_validate.count(seed=seed)).encode()
        digest = hashlib.blake2b(number, digest_size=32, person=b"prudent seed")
        return cls(digest.digest(), predictable=True)

    def renewed(self) -> Self:
        """A new key from the operating system, for the rest of the run of this one."""
        return type(self)(secrets.token_bytes(32), self.predictable)

    def stream(self, purpose: Purpose) -> "Stream":
        """The stream of random bits for one purpose."""
        check_process(self._process)
        derived = hashlib.blake2b(
            purpose.value.encode(), key=self.secret, digest_size=32, person=b"prudent stream"
        )
        return Stream(derived.digest())

    def generator(
        self, device: torch.device, purpose: Purpose, *, step: int = 0, rank: int = 0
    ) -> torch.Generator:
        """A torch generator for uses without a guarantee; its output does not reveal the key."""
        seed = int(self.stream(purpose).words(1, step=step, rank=rank)) & (2**63 - 1)
        return torch.Generator(device).manual_seed(seed)


def given_or_random(key: Key | None) -> Key:
    """The given key, or a new one from the operating system; warns of a predictable one."""
    if key is None:
        return Key.random()
    if not isinstance(key, Key):
        raise _validate.ArgumentError(
            "key",
            "a Key or None",
            shown=type(key).__name__,
            hint="Leave it unset for a secret key; Key.from_seed(seed) makes a run "
            "reproducible, and its noise predictable.",
        )
    if key.predictable:
        warn(
            "The noise is predictable: its key comes from a seed, and whoever knows or guesses the "
            "seed can subtract the noise. Leave the seed out where the data are secret.",
            PredictableNoiseWarning,
        )
    return key


@attrs.frozen
class Stream(NoCopyMixin):
    """The keystreams of one purpose."""

    secret: bytes = attrs.field(repr=False)
    _process: int = attrs.field(factory=os.getpid, init=False, eq=False, repr=False)

    def at(self, step: int, rank: int = 0, block: int = 0) -> "Reader":
        """A reader of the keystream of a position, from the start of a block of 8 words on."""
        check_process(self._process)
        return Reader(self.secret, step.to_bytes(8, "little") + rank.to_bytes(4, "little"), block)

    def words(self, count: int, *, step: int, rank: int = 0) -> Tensor:
        """The first `count` words of a position."""
        return self.at(step, rank).words(count)

    def word(self, place: int, *, step: int, rank: int = 0) -> Tensor:
        """The word at one place of a position, as a tensor of one element."""
        block, offset = divmod(place, 8)
        return self.at(step, rank, block).words(8)[offset : offset + 1]


class Reader:
    """Reads one keystream sequentially on the CPU: of a key of 32 bytes and a nonce of 12."""

    def __init__(self, secret: bytes, nonce: bytes, counter: int = 0) -> None:
        initial = counter.to_bytes(4, "little") + nonce  # the layout that the library expects
        self._cipher = Cipher(algorithms.ChaCha20(secret, initial), mode=None).encryptor()
        self._left = WORDS - 8 * counter

    def words(self, count: int) -> Tensor:
        """The next `count` 64-bit words, little-endian, as signed integers."""
        if count > self._left:
            raise ValueError(
                f"Expected at most {WORDS} random words for one step, got more. A model of so many "
                "parameters needs noise from more than one position."
            )
        self._left -= count
        words = torch.empty(count, dtype=torch.int64)
        place = words.numpy().data.cast("B")
        for start in range(0, len(place), len(_ZEROS)):
            part = place[start : start + len(_ZEROS)]
            self._cipher.update_into(memoryview(_ZEROS)[: len(part)], part)
        return words


def uniforms(words: Tensor) -> Tensor:
    """Uniform numbers in (0, 1], from 63 random bits each; the sign of a word is not used.

    A word w gives |w + ½|/2⁶³, that is (k + ½)/2⁶³ for an integer k, rounded to double precision.
    Small values keep full precision: the smallest is 2⁻⁶⁴, and Pr[u <= p] equals p within 2⁻⁶⁴ and
    one part in 2⁵³.
    """
    return words.to(torch.float64).add_(0.5).abs_().mul_(2.0**-63)


def normals(words: Tensor, finer: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Standard normal numbers in double precision, one per word; the number of words must be even.

    Box and Muller (1958): two words give a radius √(−2 ln u) and an angle; these give two
    independent normals. The number u has the 63 bits of the first word and 11 bits of the second,
    whose other 53 bits are the angle. Where u < 2⁻²¹, 63 further bits from `finer` follow, so that
    the relative error of u stays below 2⁻⁵³ down to u = 2⁻⁷⁴, far in the tail.

    Args:
        words: Random words.
        finer: Returns further random words, given the positions of the first words of those pairs
            that need them. Without it, u is at least 2⁻⁷⁵, which limits the radius to 10.2.
    """
    first, second = words[0::2], words[1::2]
    whole = first ^ (first >> 63)  # drops the sign: 63 random bits
    below = (second & _LOW_BITS).to(torch.float64)
    rest: Tensor | float = 0.5
    if finer is not None:
        rare = torch.nonzero(whole < RARE)[:, 0]
        if len(rare):
            rest = torch.full_like(below, 0.5)
            rest[rare] = uniforms(finer(2 * rare))
    uniform = below.add_(rest).mul_(2.0**-11).add_(whole).mul_(2.0**-63)
    radius = uniform.log_().mul_(-2.0).sqrt_()
    angle = (second >> 11).to(torch.float64).add_(0.5).mul_(math.pi * 2.0**-52)
    pairs = torch.empty(len(radius), 2, dtype=torch.float64, device=words.device)
    torch.mul(radius, angle.cos(), out=pairs[:, 0])
    torch.mul(radius, angle.sin_(), out=pairs[:, 1])
    return pairs.flatten()


@attrs.frozen
class ModelRandomness:
    """The random numbers that a model draws in the steps of a run."""

    stream: Stream  # the stream of this purpose
    device: torch.device  # the device of the model
    rank: int = 0  # the process

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
        device = None
        if self.device.type == "cuda" and not is_capturing():
            torch.cuda.init()  # type: ignore[no-untyped-call]
            index = self.device.index
            index = torch.cuda.current_device() if index is None else index
            device = torch.cuda.default_generators[index]
        before = host.get_state(), None if device is None else device.get_state()
        CHOICES.set(self.choices)
        try:
            twister = torch.Generator().get_state()
            start, count = _TWISTER
            place = twister.numpy()[start : start + 8 * count].view(np.uint64)
            place[:] = self.words[2:].numpy().view(np.uint32)
            host.set_state(twister)
            if device is not None:
                seed, offset = (int(word) & (2**63 - 1) for word in self.words[:2])
                device.manual_seed(seed)
                device.set_offset(offset & (2**62 - 4))
            own = host.get_state()
            yield
            if is_capturing() and not torch.equal(own, host.get_state()):
                raise RuntimeError("A graph cannot follow a number that is drawn on the host.")
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
