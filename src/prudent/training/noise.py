"""The noise of a step, for its test and for its sum, drawn from the keystream of a key.

All noise is a function of the key and the number of the step: one process draws it once, and only a
run that repeats the step draws it again. Distributions are computed in double precision, because
the noise of a test must be accurate at probabilities as small as 1e-8. Noisy sums are rounded to a
lattice (`rounding`), because the low bits of a float can tell the sum from the noise.
"""

import functools
import math
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prudent._validate import ArgumentError
from prudent.accounting.events import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    MarginTest,
)
from prudent.training.cancelling import NoiseHistory
from prudent.training.chunk import StepState
from prudent.training.keystream import FINER_RANK, Key, Purpose, Uncopied, normals, uniforms
from prudent.training.rounding import rounded, spacing_of

TEST_WORDS = 2
"""Number of random words from which the noise of a test is generated."""

_CHUNK = 1 << 17  # numbers drawn at a time on the host; few enough to stay in cache
_FINE = 2.0**-60  # a lattice on which standard normals above 2⁻⁷ keep all their bits
_CHECKED_STEP = 2**40 + 53  # of the zero key: one of its first pairs needs further bits


def margin_noise(test: MarginTest, words: Tensor) -> Tensor:
    """The test's noise as a double-precision scalar, generated from two random words on any device.

    A symmetric distribution takes its sign from the sign of the first word and its magnitude from
    the other 63 bits by inverting its tail: every outcome with a probability above 2⁻⁶⁴ can be
    drawn.
    """
    if isinstance(test, GaussianTest):
        return normals(words)[0] * test.scale
    uniform = uniforms(words[:1])
    if isinstance(test, LaplaceTest):
        size = uniform.log() * -test.scale
    else:
        tails = _tails(test, words.device)
        size = (len(tails) - torch.searchsorted(tails, uniform)).to(torch.float64)
    return torch.where(words[:1] < 0, -size, size)[0]


def shown_margin(test: MarginTest, noisy_margin: Tensor) -> Tensor:
    """The noisy margin without the low bits that would tell the margin from continuous noise.

    It is rounded down to a multiple of a power of two, at most 1/4096 of the scale. So a margin of
    0 passes no more often than before, and what is shown is a function of the exact noisy margin.
    """
    if isinstance(test, DiscreteGaussianTest | DiscreteLaplaceTest):
        return noisy_margin  # whole numbers, added exactly
    spacing = 2.0 ** (math.frexp(test.scale)[1] - 13)
    return torch.floor(noisy_margin / spacing) * spacing


@functools.lru_cache(maxsize=32)
def _tails(test: MarginTest, device: torch.device) -> Tensor:
    """Pr[|noise| > k] of an integer-valued distribution, ascending, down to k = 0."""
    if isinstance(test, DiscreteGaussianTest):
        reach = test.reach
    elif isinstance(test, DiscreteLaplaceTest):
        reach = math.ceil(48 * test.scale) + 2
    else:
        raise ArgumentError("test", "a MarginTest this package defines", got=test)
    above = np.array([2 * test.tail(k) for k in reversed(range(reach))])
    return torch.tensor(above, device=device)


class HostNoise:
    """Noise drawn on the host and copied to the device of the sum if that is a different one.

    No CUDA graph can draw it. Noise on sums is from the stream of a purpose.
    """

    capturable = False

    def __init__(self, key: Key, device: torch.device, purpose: Purpose = Purpose.NOISE) -> None:
        self._device = device
        self._test, self._noise = key.stream(Purpose.TEST), key.stream(purpose)

    def test_words(self, state: StepState) -> Tensor:
        """The random words for this step's test."""
        return self._test.words(TEST_WORDS, step=state.taken).to(self._device)

    def add_(self, total: Tensor, deviation: Tensor, state: StepState) -> None:
        """Add this step's Gaussian noise to a vector, in place, and round to the lattice.

        The vector must be the sum over all records: numbers added afterwards would not be rounded.
        """
        deviation = deviation.to(torch.float64)
        self.add_on_lattice_(total, deviation, spacing_of(deviation), state)

    def add_on_lattice_(
        self, total: Tensor, deviation: Tensor, spacing: Tensor, state: StepState
    ) -> None:
        """As `add_`, on a lattice of a given spacing."""
        reader = self._noise.at(state.taken)
        for index, part in enumerate(torch.split(total, _CHUNK)):
            finer = functools.partial(self._finer, state.taken, index * _CHUNK)
            drawn = normals(reader.words(len(part) + len(part) % 2), finer)[: len(part)]
            part.copy_(rounded(part, drawn.to(self._device), deviation, spacing))

    def _finer(self, step: int, start: int, places: Tensor) -> Tensor:
        """Further random words for a few places of the keystream."""
        stream, rank = self._noise, FINER_RANK
        return torch.cat(
            [stream.word(start + place, step=step, rank=rank) for place in places.tolist()]
        )


class DeviceNoise(Uncopied):
    """Noise drawn by kernels on a CUDA device, at the step number counted on the device.

    A CUDA graph can draw it. Noise on sums is from the stream of a purpose.
    """

    capturable = True

    def __init__(self, key: Key, device: torch.device, purpose: Purpose = Purpose.NOISE) -> None:
        self._kernels = _kernels()
        self._test, self._noise = (
            _key_words(key, each).to(device) for each in (Purpose.TEST, purpose)
        )

    def test_words(self, state: StepState) -> Tensor:
        """The random words for this step's test."""
        words = torch.empty(TEST_WORDS, dtype=torch.int64, device=state.number.device)
        self._kernels.fill_words(words, self._test, state.number)
        return words

    def add_(self, total: Tensor, deviation: Tensor, state: StepState) -> None:
        """Add this step's Gaussian noise to a contiguous vector, in place, as `HostNoise` does."""
        deviation = deviation.to(torch.float64)
        self.add_on_lattice_(total, deviation, spacing_of(deviation), state)

    def add_on_lattice_(
        self, total: Tensor, deviation: Tensor, spacing: Tensor, state: StepState
    ) -> None:
        """As `add_`, on a lattice of a given spacing."""
        self._kernels.add_normals(total, deviation, spacing, self._noise, state.number)

    def fill_finer_(self, words: Tensor, state: StepState) -> None:
        """Fill a tensor with the first of the further words that rare pairs of normals get."""
        self._kernels.fill_words(words, self._noise, state.number, FINER_RANK)


def add_cancelling_(
    source: HostNoise | DeviceNoise,
    total: Tensor,
    deviation: Tensor,
    state: StepState,
    *,
    bands: int,
    steps: int,
) -> None:
    """As `add_`, with noise that takes back part of the noise of earlier steps (`cancelling`)."""
    deviation = deviation.to(torch.float64)
    if state.history is None or state.history.kept.shape != (bands - 1, len(total)):
        state.history = NoiseHistory.start(bands, steps, len(total), total.device)
    noise = torch.zeros(len(total), dtype=torch.float64, device=total.device)
    one, fine = torch.ones_like(deviation), torch.full_like(deviation, _FINE)
    source.add_on_lattice_(noise, one, fine, state)
    noise = state.history.next_(noise, deviation, state.number)
    total.copy_(rounded(total, noise, deviation, spacing_of(deviation)))


def noise_on(
    device: torch.device, key: Key, purpose: Purpose = Purpose.NOISE
) -> HostNoise | DeviceNoise:
    """The noise source of a run, drawing on the device of its sums if the kernels run there."""
    if device.type == "cuda" and _kernels_work(device):
        return DeviceNoise(key, device, purpose)
    return HostNoise(key, device, purpose)


@functools.lru_cache(maxsize=8)
def _kernels_work(device: torch.device) -> bool:
    """Whether the kernels run; raises an error if they draw other numbers than the host."""
    key, state = Key(bytes(32)), StepState.start(0.0, device)
    state.move_to(_CHECKED_STEP)
    one, fine = torch.tensor([1.0, 2.0**-42], dtype=torch.float64, device=device)
    drawn = torch.zeros(2**14 + 5, dtype=torch.float64, device=device)
    try:
        kernels = DeviceNoise(key, device)
        words = kernels.test_words(state)
        finer = torch.empty_like(words)
        kernels.fill_finer_(finer, state)
        kernels.add_on_lattice_(drawn, one, fine, state)
    except Exception as error:  # no Triton, no compiler for it, an unsupported device
        message = " ".join(str(error).split())[:200]
        warnings.warn(
            "Noise is drawn on the host and copied to the device, which takes longer, and no CUDA "
            f"graph is captured: Triton does not run here ({type(error).__name__}: {message}).",
            RuntimeWarning,
            stacklevel=4,
        )
        return False
    expected, host = torch.zeros_like(drawn), HostNoise(key, device)
    host.add_on_lattice_(expected, one, fine, state)
    further = key.stream(Purpose.NOISE).words(TEST_WORDS, step=_CHECKED_STEP, rank=FINER_RANK)
    same_bits = torch.equal(words, host.test_words(state)) and torch.equal(finer.cpu(), further)
    if not same_bits or not torch.allclose(drawn, expected, rtol=0, atol=1e-12):
        raise RuntimeError(
            f"The noise kernels draw other numbers on {device} than the cipher gives, so nothing "
            "that they add could be called private. Train on another device, and report this with "
            "the versions of torch and Triton."
        )
    return True


def _kernels() -> Any:
    """The module with the kernels; importing it requires Triton."""
    from prudent.training import keystream_kernel

    return keystream_kernel


def _key_words(key: Key, purpose: Purpose) -> Tensor:
    """A stream's key as eight 32-bit words."""
    secret = key.stream(purpose).secret
    return torch.from_numpy(np.frombuffer(secret, dtype="<i4").copy())
