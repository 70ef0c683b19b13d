"""The noise of a step, for its test and for its sum, drawn from the keystream of a key.

All noise is a function of the key and the number of the step: one process draws it once, and only a
run that repeats the step draws it again. Distributions are computed in double precision, because
the noise of a test must be accurate at probabilities as small as 1e-8. Noisy sums are rounded to a
lattice, because the low bits of a float can tell the sum from the noise.

*Correlated noise*: the noise of a step takes back part of the noise of the steps before it.

A model is a sum of updates, so what counts is the noise of the sum, and noise that is subtracted
again later does little harm. Let C be a lower triangular Toeplitz matrix of b = `num_bands`
diagonals whose columns have norm 1. The noise of step t is (C⁻¹z)ₜ with z independent and normal;
since C is banded, that is a recursion over the last b - 1 noises:

    wₜ = (zₜ - c₁wₜ₋₁ - … - cₖwₜ₋ₖ) / c₀,    k = b - 1.

These are kept, in double precision: b - 1 vectors as large as the model, in the first process
alone. They cannot be drawn again from the keystream in less than all steps so far, because every
noise depends on all before it.

*Rounding*: a weight is the clip divided by a norm, and both the norm and the sum of weighted
gradients are computed in floating point. So a record can move the *computed* sum by a little more
than the clip. The noise of a step is therefore larger by a factor 1 + η, and the price stays that
of the clip: its noise multiplier is at least the one that is charged.

Noisy sums are rounded to a public lattice. Numbers computed as sum + noise in floating point can
reveal the sum by their low bits (Mironov 2012; for Gaussian noise Jin et al. 2022): which floats
are reachable depends on the sum. So a noisy sum is rounded to multiples of a public power of two,
the spacing, between 1/16 and 1/8 of the standard deviation of the noise. The noise makes the
rounding unbiased (to 1e-500), and rounding adds at most 0.13 % to the variance.

Guarantee:
    *Correlated noise.* If a record takes part in at most one of any b steps in a row, what it adds
    to the run is dominated by one Gaussian release with the noise multiplier of the plan for each
    step that it takes part in; proof in `docs/correlated-noise.md`. That needs of C: columns of
    norm at most 1, of at most b entries (`coefficients` proves both in exact arithmetic); of the
    noise: one deviation and no step left out in the recursion. After a gap, or with another
    deviation or number of parameters, it starts anew, which is another block of C.

    The coefficients decrease, so that all zeros of c₀ + c₁x + … are outside the unit disc (Eneström
    and Kakeya): rounding errors of the recursion die out.

    *Norms.* Let u be half the distance from 1 to the next number of the parameters' type (2⁻²⁴ for
    float32). Adding m squares in any order has a relative error of at most mu/(1 − mu), and the
    square root halves it. A norm is computed over runs of fewer than 2,048 numbers, then over at
    most P/1,024 runs, then over the parameters, K in number; a norm of factors is the product of
    two such norms. So it is too small by a factor of at most 1 + u (2 (2,048 + P/1,024) + K + 32),
    for P numbers in all. (Sums of products that cancel have an allowance of their own; `norms`.)

    *Sums* over records are in double precision. Added up are first the n rows of a chunk, times the
    T positions of a record, in any order, then the chunks. Let N be the records of the batch. The
    error of a sum is at most (nT + 2) 2⁻⁵³ times the sum of the lengths of all terms. A term is at
    most the clip for T = 1; for larger T the allowance in the norms, which is a share of at least
    8ε of the square of that sum, for a machine precision ε, makes it at most 1/√(8ε) clips for each
    record: 1,024 in float32, 2.4·10⁷ in float64. Two neighbouring sums have two such errors,
    together at most `SUMS` clips as long as

        N n ≤ 4.5·10¹² for T = 1,
        N n T ≤ 4.3·10⁹ for T > 1 in float32,
        N n T ≤ 1.8·10⁵ for T > 1 in float64:

    two million records in one chunk of vectors, or 4,096 records of 256 positions in one chunk, or
    16,384 in chunks of 1,024. In float64, whose short allowance proves little about terms that
    cancel, 64 records of 40 positions.

    *Runs in single precision*: on a GPU, with factors in bfloat16 or TF32 and T > 1, a kernel first
    adds at most 1,024 products of one record by tensor cores, with the factors of TF32 in two parts
    of which the product of the smaller ones is left out. Of tensor cores it is assumed that k
    additions have an error of at most k 2⁻²³ of the sum of the absolute values, which leaves room
    for sums that are truncated and not rounded. What a run adds is then a number of this record
    alone, whatever stands beside it, and its length exceeds the norm by a factor of at most
    √(1 + 10⁻³), half of `SUMS` (`norms`). For T ≤ 1,024 it is one term, no longer than the clip, so
    the other half covers N n ≤ 2.2·10¹²; for larger T it covers N n T ≤ 2.1·10⁹.

    *The lattice.* Were the noise an exact Gaussian, rounding would be post-processing and cost
    nothing. `rounded` differs from that ideal only where rounding errors move a number across a
    boundary between two lattice points. `with_rounding` bounds what this adds to ε and δ.

    *One pair.* Let u = 2⁻⁵³ and let X be the ideal pair of normals, of radius r, that the random
    bits stand for (bits continued at random give a real number). Suppose that logarithms, cosines
    and sines are accurate to 2 units in the last place, which CUDA, SLEEF and the C libraries in
    use state for double precision; other operations are IEEE 754. If the uniform number of the pair
    is at least 2⁻⁷⁴, each computed coordinate, with the rounding of its sum, is within
    η(r) = (16 r + 6/r + 1)u of X, in standard deviations. 6/r is the error of the uniform number
    near 1, the rest relative errors. The integer part of sum/spacing is set aside before the noise
    is added, so that η does not grow with the sum.

    *One cell.* Let g = spacing/σ. The lattice points of a pair are squares of side g. An ideal pair
    in the square shrunk by η lands in it, and none outside the square enlarged by η does. The
    normal density changes by a factor of at most e^(gr) over a side, so the probability Q of a
    square differs from its ideal probability P by a factor 1 + e with |e| ≤ κ(r) = 4 (η/g) e^(gr).
    Next to the origin, where η is not small against r, the strips along the four sides have area at
    most 4 · 450u, so |e| ≤ 1858u/g² for squares that reach into r < g/2; these lie in r < 2g.

    *All pairs.* Under the ideal distribution the e of successive pairs have mean 0 given the past,
    |e| ≤ M and E e² ≤ χ². The log-likelihood ratio of real and ideal run on the same data is the
    sum of log(1 + e); by Bernstein's inequality it exceeds λ, in either direction, with a
    probability of at most δ₁, λ = √(2nχ²L) + (2/3)ML + nM², L = log(1/δ₁), n pairs. Uniform numbers
    below 2⁻⁷⁴ occur with a probability of at most n 2⁻⁷⁴. Replace the real run by the ideal one on
    both data sets: if the ideal run is (ε, δ)-DP, the real run is (ε + 2λ, e^λ δ + (1 + e^(ε+2λ))
    δ₂)-DP with δ₂ = δ₁ + n 2⁻⁷⁴.

    *Rounding of correlated noise*. Let w be the noises as computed; they are numbers that no
    data decide. Then c₀wₜ + c₁wₜ₋₁ + … is z up to the rounding of b products and sums of this step
    alone: errors do not add up over steps. Each coordinate is within
    η(r) + (b + 3) (r + |wₜ₋₁| + … + |wₜ₋ₖ|) u of an ideal normal, and a cell has c₀ times its side.
    For b ≤ 64, c₀ is at least 1/3 and a noise has a standard deviation of at most 5, so that the
    mean square of e, and with it λ, grows by a factor below 2·10³: λ stays below 10⁻³ for 10¹⁰
    numbers drawn.
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

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.accounting.events import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    MarginTest,
)
from prudent.training.keystream import FINER_RANK, Key, NoCopyMixin, Purpose, normals, uniforms

SUMS = 1e-3
"""What the rounding of sums may add to the sensitivity, in clips."""

_RUN = 2048
_LEVEL = 1024


def noise_factor(numbers: int, parameters: int, dtype: torch.dtype) -> float:
    """1 + η, by which the noise on a sum is larger than that of the plan.

    For gradients of so many numbers in so many parameters, of the given type as their norms are.
    """
    unit = torch.finfo(dtype).eps / 2
    norms = unit * (2 * (_RUN + numbers / _LEVEL) + parameters + 32)
    return (1 + SUMS) * (1 + norms)


_UNIT = 2.0**-53
_COARSENESS = 3  # the spacing is the power of two at or below σ, divided by 2 to this power
_LEAST_EXPONENT = 64  # of a deviation, biased: below 1e-288 nothing is computed correctly
_TAIL = 1e-20  # δ₁
_RARE = 2.0**-74


def spacing_of(deviation: Tensor) -> Tensor:
    """The spacing of the lattice for a standard deviation, both in double precision.

    It is computed from the bits of the deviation, so that all devices get the same.
    """
    exponent = (deviation.view(torch.int64) >> 52).clamp_min(_LEAST_EXPONENT)
    return ((exponent - _COARSENESS) << 52).view(torch.float64)


def rounded(total: Tensor, normals: Tensor, deviation: Tensor, spacing: Tensor) -> Tensor:
    """Return `total` + `normals` × `deviation`, rounded to a multiple of `spacing`, a power of two.

    All but the sums are in double precision. A deviation of 0 returns the sums themselves.
    """
    place = total.to(torch.float64) / spacing
    whole = place.round()  # place - whole is exact
    moved = (normals * (deviation / spacing)).add_(place.sub_(whole)).round_()
    return torch.where(deviation > 0, moved.add_(whole).mul_(spacing), total)


def with_rounding(epsilon: float, delta: float, *, numbers: int) -> tuple[float, float]:
    """The (ε, δ) of a run with computed noise, given that of the ideal run.

    Args:
        epsilon: ε with exact Gaussian noise, as accountants compute it.
        delta: δ likewise.
        numbers: Normals drawn in the whole run: trained parameters times steps.
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.between(0, 1, delta=delta)
    pairs = -(-_validate.count(numbers=numbers) // 2)
    mean_square, largest = _relative_errors()
    doubt = -math.log(_TAIL)
    spread = math.sqrt(2 * pairs * mean_square * doubt) + 2 / 3 * largest * doubt
    ratio = spread + pairs * largest**2 if pairs else 0.0
    accidents = pairs * _RARE + (_TAIL if pairs else 0.0)
    spent = epsilon + 2 * ratio
    # An ε this large has no meaning left, and its exponential no finite value.
    factor = 1 + math.exp(spent) if spent < 700 else math.inf
    rest = math.exp(ratio) * delta + (factor * accidents if accidents else 0.0)
    return spent, min(1.0, rest)


@functools.cache
def _relative_errors() -> tuple[float, float]:
    """χ² and M of this module's proof, for the worst spacing."""
    worst, largest = 0.0, 0.0
    edge = math.sqrt(2)  # a square of side g reaches over at most √2 g
    radius = np.linspace(0, 10.2, 20_001)
    for g in (1 / 16, 1 / 12, 1 / 8):
        far = radius + edge * g
        eta = 16 * far + 6 / np.maximum(radius - edge * g, g / 2) + 1
        relative = 4 * eta * _UNIT / g * np.exp(g * far)
        near = 1858 * _UNIT / g**2
        density = radius * np.exp(-(radius**2) / 2)
        mean = float(np.trapezoid(relative**2 * density, radius)) + near**2 * 2 * g**2
        worst, largest = max(worst, mean), max(largest, near, float(relative.max()))
    # A percent for the quadrature and for terms of second order.
    return 1.01 * worst, 1.01 * largest


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

    def add_(
        self, total: Tensor, deviation: Tensor, state: StepState, spacing: Tensor | None = None
    ) -> None:
        """Add this step's Gaussian noise to a vector, in place, and round to the lattice.

        The vector must be the sum over all records: numbers added afterwards would not be rounded.
        """
        deviation = deviation.to(torch.float64)
        spacing = spacing_of(deviation) if spacing is None else spacing
        reader = self._noise.at(state.taken)
        for index, part in enumerate(torch.split(total, _CHUNK)):

            def finer(places: Tensor, start: int = index * _CHUNK) -> Tensor:
                word = functools.partial(self._noise.word, step=state.taken, rank=FINER_RANK)
                return torch.cat([word(start + place) for place in places.tolist()])

            drawn = normals(reader.words(len(part) + len(part) % 2), finer)[: len(part)]
            part.copy_(rounded(part, drawn.to(self._device), deviation, spacing))


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

    def add_(
        self, total: Tensor, deviation: Tensor, state: StepState, spacing: Tensor | None = None
    ) -> None:
        """Add this step's Gaussian noise to a contiguous vector, in place, as `HostNoise` does."""
        deviation = deviation.to(torch.float64)
        spacing = spacing_of(deviation) if spacing is None else spacing
        self._kernels.add_normals(total, deviation, spacing, self._noise, state.number)


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
    source.add_(noise, one, state, fine)
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
        kernels._kernels.fill_words(finer, kernels._noise, state.number, FINER_RANK)
        kernels.add_(drawn, one, state, fine)
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
    host.add_(expected, one, state, fine)
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
