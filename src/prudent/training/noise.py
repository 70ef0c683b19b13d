"""The noise of a step, for its test and for its sum, drawn from the keystream of a key.

All noise is a function of the key and the number of the step: one process draws it once, and only a
run that repeats the step draws it again. Distributions are computed in double precision, because
the noise of a test must be accurate at probabilities as small as 1e-8. Noisy sums are rounded to a
lattice (`rounding`), because the low bits of a float can tell the sum from the noise.

*Correlated noise*: the noise of a step takes back part of the noise of the steps before it.

A model is a sum of updates, so what counts is the noise of the sum, and noise that is subtracted
again later does little harm. Let C be a lower triangular Toeplitz matrix of b = `num_bands`
diagonals whose columns have norm 1. The noise of step t is (C⁻¹z)ₜ with z independent and normal;
since C is banded, that is a recursion over the last b - 1 noises:

    wₜ = (zₜ - c₁wₜ₋₁ - … - cₖwₜ₋ₖ) / c₀,    k = b - 1.

These are kept, in double precision: b - 1 vectors as large as the model, in the first process
alone. They cannot be drawn again from the keystream in less than all steps so far, because every
noise depends on all before it.

Guarantee:
    If a record takes part in at most one of any b steps in a row, what it adds to the run is
    dominated by one Gaussian release with the noise multiplier of the plan for each step that it
    takes part in; proof in `docs/correlated-noise.md`. That needs of C: columns of norm at most 1,
    of at most b entries (`coefficients` proves both in exact arithmetic); of the noise: one
    deviation and no step left out in the recursion. After a gap, or with another deviation or
    number of parameters, it starts anew, which is another block of C.

    The coefficients decrease, so that all zeros of c₀ + c₁x + … are outside the unit disc (Eneström
    and Kakeya): rounding errors of the recursion die out.
"""

import functools
import math
import warnings
from fractions import Fraction
from itertools import pairwise
from typing import Any, Self, TypeAlias

import attrs
import numpy as np
import torch
from scipy import optimize, signal, special
from torch import Tensor

from prudent._validate import ArgumentError
from prudent.accounting.events import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    MarginTest,
)
from prudent.training.keystream import FINER_RANK, Key, NoCopyMixin, Purpose, normals, uniforms
from prudent.training.rounding import rounded, spacing_of

Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]

TEST_WORDS = 2
"""Number of random words from which the noise of a test is generated."""

_MOST_STEPS = 10_000  # for which coefficients are found; longer runs have much the same
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


@functools.lru_cache(maxsize=32)
def coefficients(num_bands: int, steps: int) -> tuple[float, ...]:
    """The entries of a column of C, from the diagonal down; their squares add up to at most 1.

    They minimise the mean squared error of the sums of noise after each step, among columns that
    decrease: each entry is a share of the one before it, at first as in (1 - x)^(-1/2), whose
    coefficients are near the best if `num_bands` is near `steps`.
    """
    if num_bands == 1:
        return (1.0,)
    count = min(max(int(steps), num_bands), _MOST_STEPS)
    start = np.log(2.0 * np.arange(1, num_bands) - 1)
    found = optimize.minimize(_error, start, (count,), method="L-BFGS-B", jac=True).x
    entries = _column(found)
    scale = math.sqrt(math.fsum(entries**2)) * (1 + 2.0**-50)  # rounding may not lengthen it
    column = tuple(float(each / scale) for each in entries)
    assert sum(Fraction(each) ** 2 for each in column) <= 1
    assert all(one >= other > 0 for one, other in pairwise(column))
    return column


def _column(logits: Array) -> Array:
    """Entries of which the first is 1 and each other a share of the one before, by its log-odds."""
    return np.cumprod(np.concatenate([[1.0], special.expit(logits)]))


def _error(logits: Array, steps: int) -> tuple[float, Array]:
    """The logarithm of the mean squared error of `steps` sums of noise, and its gradient.

    The sums of noise have the coefficients of s = 1/((1 - x) c); the derivative of s by cⱼ is
    -xʲ s/c. An error is as large as the norm of the column.
    """
    column = _column(logits)
    sums = np.cumsum(signal.lfilter([1.0], column, np.eye(1, steps)[0]))
    weighted = sums * (steps - np.arange(steps)) / steps
    moved = signal.lfilter([1.0], column, sums)
    squares, norm = float(weighted @ sums), float(column @ column)
    slopes = np.array([weighted[lag:] @ moved[: steps - lag] for lag in range(len(column))])
    by_entry = column * (2 * column / norm - 2 * slopes / squares)
    by_share = np.cumsum(by_entry[::-1])[::-1][1:]
    return math.log(squares * norm), by_share * special.expit(-logits)


@attrs.define
class NoiseHistory:
    """The last noises of a run, from which the next one is computed. As secret as the key.

    All of it is on the device, so that a captured step can follow it.
    """

    kept: Tensor  # the noise of step n in row n modulo `num_bands` - 1, in standard deviations
    last: Tensor  # number of the last step, counted from 1
    run: Tensor  # number of steps since the recursion began
    deviation: Tensor  # standard deviation of z in the last step
    column: Tensor  # A column of C. A resumed run has that of its checkpoint, on whatever machine.

    @classmethod
    def start(cls, num_bands: int, steps: int, numbers: int, device: torch.device) -> Self:
        """No noise so far, for a run of `steps` steps and gradients of so many numbers."""
        whole = torch.zeros(2, dtype=torch.int64, device=device)
        values = torch.zeros(num_bands - 1, numbers, dtype=torch.float64, device=device)
        none = torch.zeros((), dtype=torch.float64, device=device)
        column = torch.tensor(coefficients(num_bands, steps), dtype=torch.float64, device=device)
        return cls(values, whole[0].clone(), whole[1].clone(), none, column)

    def next_(self, normals: Tensor, deviation: Tensor, number: Tensor) -> Tensor:
        """The noise of a step in standard deviations, made of `normals` in place, and kept.

        The normals are z of the step, in double precision; the noise will be multiplied with their
        standard deviation, and `number` is that of the step, from 1, on the device.
        """
        rows = len(self.kept)
        goes_on = (number == self.last + 1) & (deviation == self.deviation)
        self.run.copy_(torch.where(goes_on, self.run + 1, 0))
        places = torch.arange(rows, device=number.device)
        lags = torch.remainder(number - 1 - places, rows) + 1
        weights = torch.where(lags <= self.run, self.column[lags], 0.0)
        noise = normals.sub_(weights @ self.kept).div_(self.column[0])
        self.kept.index_copy_(0, torch.remainder(number, rows).reshape(1), noise[None])
        self.last.copy_(number)
        self.deviation.copy_(deviation)
        return noise

    def plain(self) -> dict[str, Tensor]:
        """As a dictionary, for a checkpoint."""
        return {name: value.clone() for name, value in attrs.asdict(self, recurse=False).items()}

    @classmethod
    def of(cls, saved: dict[str, Tensor], device: torch.device) -> Self:
        """What `plain` returned."""
        return cls(**{name: value.to(device, copy=True) for name, value in saved.items()})


@attrs.define
class StepState:
    """The trim, the step counter and earlier noise, kept on the device and on the host.

    A captured step counts on the device, because its position in the keystream must advance at
    every replay. The host counts too, so that it can check whether the plan has steps left without
    waiting for the device.
    """

    trim: Tensor  # F of the next step, before rounding down; a scalar in double precision
    number: Tensor  # steps begun so far, a 64-bit integer on the device
    taken: int = 0  # the same number, on the host
    # The last noises, where those of the plan cancel; in the first process.
    history: NoiseHistory | None = None

    @classmethod
    def start(cls, trim: float, device: torch.device) -> Self:
        """The state before the first step."""
        return cls(
            torch.tensor(trim, dtype=torch.float64, device=device),
            torch.zeros((), dtype=torch.int64, device=device),
        )

    def begin(self) -> None:
        """Count a step before anything is drawn: a failed step never shares its position."""
        self.taken += 1
        self.number += 1

    def move_to(self, taken: int) -> None:
        """Set both counters to `taken` steps."""
        self.number.fill_(taken)
        self.taken = taken

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors and plain values, for a checkpoint."""
        history = None if self.history is None else self.history.plain()
        return {"trim": self.trim.clone(), "taken": self.taken, "history": history}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the counters never go back.

        Steps that were taken since then are released and paid for, and their noise is used up.
        """
        self.trim.copy_(saved["trim"])
        if saved.get("history") is not None:
            self.history = NoiseHistory.of(saved["history"], self.trim.device)
        self.move_to(max(self.taken, int(saved["taken"])))


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


class DeviceNoise(NoCopyMixin):
    """Noise drawn by kernels on a CUDA device, at the step number counted on the device.

    A CUDA graph can draw it. Noise on sums is from the stream of a purpose.
    """

    capturable = True

    def __init__(self, key: Key, device: torch.device, purpose: Purpose = Purpose.NOISE) -> None:
        self._kernels = _kernels()
        self._test, self._noise = (  # the keys of streams, as eight 32-bit words
            torch.from_numpy(np.frombuffer(key.stream(each).secret, dtype="<i4").copy()).to(device)
            for each in (Purpose.TEST, purpose)
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


def add_correlated_(
    source: HostNoise | DeviceNoise,
    total: Tensor,
    deviation: Tensor,
    state: StepState,
    *,
    num_bands: int,
    steps: int,
) -> None:
    """As `add_`, with noise that takes back part of the noise of earlier steps."""
    deviation = deviation.to(torch.float64)
    if state.history is None or state.history.kept.shape != (num_bands - 1, len(total)):
        state.history = NoiseHistory.start(num_bands, steps, len(total), total.device)
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
