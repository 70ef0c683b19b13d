"""Aggregations: how the gradients of one batch become one release.

An aggregation maps per-example gradient norms to weights and a noise level. A clipped, trimmed sum
is Σ wᵢ gᵢ with weights that depend on the norms alone, so an aggregation needs nothing but the
norms. Everything here is fixed-shape tensor arithmetic that never reads a value back to the host,
so a step can be captured as a CUDA graph.

| case | what happens |
|---|---|
| empty batch | no weights; noise is still added |
| batch no larger than the trim | the trimmed sum is zero |
| ties in the norm | broken by record id, one order for all records |
| norm of zero | weight 1, it adds nothing |
| NaN or infinite gradient | counted as the zero gradient: weight 0 and norm 0 |
| padding | weight 0, never counted |

A record whose gradient is not finite is treated as if its gradient were zero. The replacement
depends on this record alone, so removing the record still changes one (zero) summand: clipping,
trimming and the test keep their sensitivity.
"""

import math
from abc import ABC, abstractmethod
from functools import partial
from typing import NamedTuple, Self

import attrs
import dp_accounting as dp
import torch
from torch import Tensor
from typing_extensions import override

from prudent import _validate
from prudent.accounting.events import MarginTest, ProposeTestReleaseDpEvent, Reveals
from prudent.training.noise import margin_noise, shown_margin


class Trim(ABC):
    """A policy for F, the number of largest gradients left out.

    F is a whole number that depends on the expected batch size, which is public, and on branches
    already released. If it were a fraction of the drawn batch, one record could change it.
    """

    @abstractmethod
    def start(self, expected_batch: float) -> float:
        """F of the first step, before rounding down."""

    @abstractmethod
    def next(self, trim: Tensor, passed: Tensor, expected_batch: float) -> Tensor:
        """F of the next step, before rounding down, given the branch of this one."""

    @staticmethod
    def records(trim: Tensor) -> Tensor:
        """F rounded down to a whole number."""
        return torch.floor(trim)


@attrs.frozen
class FixedTrim(Trim):
    """Trims a fixed fraction of the expected batch.

    Attributes:
        share: The fraction, in [0, 1].
    """

    share: float

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, partial(_validate.between, 0, 1), "share")

    @override
    def start(self, expected_batch: float) -> float:
        return float(math.floor(self.share * expected_batch))

    @override
    def next(self, trim: Tensor, passed: Tensor, expected_batch: float) -> Tensor:
        return trim


@attrs.frozen(kw_only=True)
class AdaptiveTrim(Trim):
    """Trims more after a failed test and less after a passed one.

    The pass rate tends to up/(up + down) unless F reaches a bound. A passed test indicates that few
    gradients are large, so fewer need trimming; a failed test indicates that many are (Errata 27).
    Adapting in the opposite direction is a positive feedback loop (Errata 28).

    Attributes:
        first: Fraction of the expected batch trimmed in the first step.
        up: Fraction of the expected batch added after a failed test.
        down: Fraction of the expected batch subtracted after a passed test.
        least: Lower bound on the trimmed fraction.
        most: Upper bound on the trimmed fraction. Beyond it, the remaining gradients would
            represent too few records.
    """

    first: float = 0.25
    up: float = 0.02
    down: float = 0.02
    least: float = 0.0
    most: float = 0.5

    def __attrs_post_init__(self) -> None:
        share = partial(_validate.between, 0, 1)
        _validate.fields(self, share, "first", "up", "down", "least", "most")
        if not self.least <= self.first <= self.most:
            raise _validate.ArgumentError(
                "first", f"in [least, most] = [{self.least}, {self.most}]", got=self.first
            )

    @override
    def start(self, expected_batch: float) -> float:
        return self.first * expected_batch

    @override
    def next(self, trim: Tensor, passed: Tensor, expected_batch: float) -> Tensor:
        moved = torch.where(
            passed, trim - self.down * expected_batch, trim + self.up * expected_batch
        )
        return moved.clamp(self.least * expected_batch, self.most * expected_batch)


_FEW = 2048


class Decision(NamedTuple):
    """What an aggregation decided for one batch. All tensors are on the device of the norms."""

    weights: Tensor  # weight of each record in the sum, shape (records,)
    noise: Tensor  # standard deviation of the noise on the sum, a scalar in double precision
    passed: Tensor  # whether the robust branch was taken, a boolean scalar
    # The noisy margin that the test compared, a scalar; public only if the plan reveals it.
    noisy_margin: Tensor
    scale: Tensor  # factor on the update, a scalar; 1 unless the branches have separate rates


class Fallback(_validate.Choice):
    """What is released when the test fails.

    `SUM` and `TRIMMED` cost the same; `SKIP` costs less.
    """

    SUM = "sum"
    """The clipped sum with full noise, as in the paper."""

    TRIMMED = "trimmed"
    """The trimmed sum with full noise."""

    SKIP = "skip"
    """Nothing: the step is skipped."""


class Aggregation(ABC):
    """A rule that maps gradient norms to weights and noise, with its sensitivity and its event."""

    clip: float
    trim: Trim

    @property
    @abstractmethod
    def event(self) -> dp.DpEvent:
        """The privacy event of one step, without sampling."""

    def with_noise(self, noise_multiplier: float) -> Self:
        """A copy of the rule with another noise multiplier."""
        raise ValueError(f"Expected a private aggregation, got {type(self).__name__}.")

    @property
    def sensitivity(self) -> float:
        """The largest change, in L2 norm, that one record can make to the released sum."""
        return self.clip

    @abstractmethod
    def decide(self, norms: Tensor, valid: Tensor, trim: Tensor, words: Tensor) -> Decision:
        """Decide the weights and the noise for one batch.

        Args:
            norms: Gradient norm of every record of the logical batch, ordered by record id.
            valid: False for padding.
            trim: F, the number of largest gradients to leave out; a whole number that does not
                depend on the batch.
            words: Two random 64-bit words from which the noise of the test is generated.
        """


def clip_weights(norms: Tensor, valid: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Weights min(1, R/norm) and clipped norms; no rounded weight times norm exceeds R."""
    counted = valid & torch.isfinite(norms)
    norms = torch.where(counted, norms, 0.0)
    weights = torch.where(norms > clip, clip / norms, 1.0)
    for _ in range(2):
        smaller = torch.nextafter(weights, torch.zeros_like(weights))
        weights = torch.where(weights * norms > clip, smaller, weights)
    return torch.where(counted, weights, 0.0), norms.clamp_max(clip)


def keep_smallest(clipped: Tensor, valid: Tensor, trim: Tensor) -> Tensor:
    """A mask of the valid records except the `trim` largest by (clipped norm, record id)."""
    ranks = _ranks(torch.where(valid, clipped, math.inf))
    return valid & (ranks < valid.sum() - trim)


def _ranks(keys: Tensor) -> Tensor:
    """The rank of each key in ascending order; equal keys keep their order."""
    places = torch.arange(len(keys), device=keys.device)
    if keys.is_cuda and len(keys) <= _FEW:
        # Compare all pairs: for few keys this is one GPU kernel, faster than the passes of a sort.
        tied_before = (keys[None] == keys[:, None]) & (places[None] < places[:, None])
        return ((keys[None] < keys[:, None]) | tied_before).sum(1)
    order = torch.sort(keys, stable=True).indices  # stable: ties stay ordered by record id
    return torch.empty_like(order).scatter_(0, order, places)


def _double(value: float, like: Tensor) -> Tensor:
    """A scalar in double precision: noise must not become smaller by rounding."""
    return torch.full((), value, dtype=torch.float64, device=like.device)


def _plain(weights: Tensor, noise: float, *, passed: bool) -> Decision:
    """The decision of an aggregation without a test."""
    passes = torch.full((), passed, dtype=torch.bool, device=weights.device)
    return Decision(
        weights, _double(noise, weights), passes, _double(math.nan, weights), weights.new_ones(())
    )


@attrs.frozen(kw_only=True)
class Noisy(Aggregation):
    """A sum of clipped gradients with Gaussian noise."""

    clip: float
    noise_multiplier: float

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, _validate.positive, "clip", "noise_multiplier")

    @property
    @override
    def event(self) -> dp.DpEvent:
        return dp.GaussianDpEvent(self.noise_multiplier)

    @override
    def with_noise(self, noise_multiplier: float) -> Self:
        return attrs.evolve(self, noise_multiplier=noise_multiplier)


@attrs.frozen(kw_only=True)
class Sum(Noisy):
    """The clipped sum with Gaussian noise: DP-SGD.

    Attributes:
        clip: R, the L2 bound on every gradient.
        noise_multiplier: σ; the noise on the sum has standard deviation σR.
    """

    trim: Trim = attrs.field(factory=lambda: FixedTrim(0.0), init=False)

    @override
    def decide(self, norms: Tensor, valid: Tensor, trim: Tensor, words: Tensor) -> Decision:
        weights, _ = clip_weights(norms, valid, self.clip)
        return _plain(weights, self.noise_multiplier * self.clip, passed=False)


@attrs.frozen(kw_only=True)
class TrimmedSum(Noisy):
    """The clipped sum without the F largest gradients, with full Gaussian noise (TSGD+Gaussian).

    Attributes:
        clip: R, the L2 bound on every gradient.
        noise_multiplier: σ; trimming does not lower the global sensitivity, so the noise is σR.
        trim: How many of the largest gradients are left out.
    """

    trim: Trim = attrs.field(factory=lambda: FixedTrim(0.25))

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not isinstance(self.trim, FixedTrim):
            raise _validate.ArgumentError(
                "trim",
                "a FixedTrim",
                got=self.trim,
                hint="Without a test there is nothing to adapt to.",
            )

    @override
    def decide(self, norms: Tensor, valid: Tensor, trim: Tensor, words: Tensor) -> Decision:
        weights, clipped = clip_weights(norms, valid, self.clip)
        weights = weights * keep_smallest(clipped, valid, trim)
        return _plain(weights, self.noise_multiplier * self.clip, passed=True)


@attrs.frozen(kw_only=True)
class ProposeTestRelease(Noisy):
    """The trimmed sum, released by Propose-Test-Release (TSGD+PTR).

    It proposes τ as a bound on the change that one record can make to the trimmed sum, tests the
    proposal privately, and adds the smaller noise στ if the test passes.

    The margin of the trimmed sum is Δ = max(0, F - #{clipped norms > τ}) for every batch, including
    empty ones and those no larger than F (Errata 1); adding a record can only lower it.

    Attributes:
        clip: R, the L2 bound on every gradient.
        propose: τ/R, the proposal relative to the clip; below 1.
        noise_multiplier: σ; the noise has standard deviation στ if the test passes and σR if it
            fails.
        test: The private test of the margin.
        failure: δ₀, the largest probability with which a margin of 0 passes.
        trim: How many of the largest gradients are left out, fixed or adapted to the released
            branches.
        fallback: What is released when the test fails.
        reveals: What an observer learns about the test; by default only the branch.
        fallback_scale: Factor on the update in the fallback branch, which gives it a learning rate
            of its own.
    """

    propose: float
    test: MarginTest
    failure: float = 1e-8
    trim: Trim = attrs.field(factory=AdaptiveTrim)
    fallback: Fallback = attrs.field(default=Fallback.SUM, converter=Fallback)
    reveals: Reveals = attrs.field(default=Reveals.MONOTONE_BRANCH, converter=Reveals)
    fallback_scale: float = 1.0

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        _validate.fields(self, partial(_validate.between, 0, 1, ends="()"), "propose")
        _validate.fields(self, _validate.non_negative, "fallback_scale")
        if not isinstance(self.trim, Trim):
            raise _validate.ArgumentError("trim", "a FixedTrim or AdaptiveTrim", got=self.trim)
        _ = self.event  # validates the test together with `failure`

    @property
    def proposal(self) -> float:
        """τ, the proposed sensitivity."""
        return self.propose * self.clip

    @property
    def threshold(self) -> float:
        """The value that the noisy margin must exceed to pass."""
        return self.test.threshold(self.failure)

    @property
    @override
    def event(self) -> dp.DpEvent:
        skips = self.fallback is Fallback.SKIP
        return ProposeTestReleaseDpEvent(
            math.inf if skips else self.noise_multiplier,
            self.propose,
            self.test,
            self.failure,
            self.noise_multiplier if skips else None,
            self.reveals,
        )

    @override
    def decide(self, norms: Tensor, valid: Tensor, trim: Tensor, words: Tensor) -> Decision:
        weights, clipped = clip_weights(norms, valid, self.clip)
        trimmed = weights * keep_smallest(clipped, valid, trim)
        # Propose and test.
        above = (valid & (clipped > self.proposal)).sum()
        margin = (trim - above).clamp_min(0)
        noisy_margin = margin + margin_noise(self.test, words)
        if self.reveals is Reveals.MARGIN:
            noisy_margin = shown_margin(self.test, noisy_margin)
        passed = noisy_margin > self.threshold
        # Release.
        other = {
            Fallback.SUM: weights,
            Fallback.TRIMMED: trimmed,
            Fallback.SKIP: torch.zeros_like(weights),
        }[self.fallback]
        full = 0.0 if self.fallback is Fallback.SKIP else self.noise_multiplier * self.clip
        return Decision(
            torch.where(passed, trimmed, other),
            torch.where(
                passed, _double(self.noise_multiplier * self.proposal, norms), _double(full, norms)
            ),
            passed,
            noisy_margin,
            torch.where(passed, 1.0, self.fallback_scale).to(norms.dtype),
        )


@attrs.frozen(kw_only=True)
class Mean(Aggregation):
    """The plain mean, neither clipped nor private: the non-private baseline."""

    clip: float = attrs.field(default=math.inf, init=False)
    trim: Trim = attrs.field(factory=lambda: FixedTrim(0.0), init=False)

    @property
    @override
    def event(self) -> dp.DpEvent:
        return dp.NonPrivateDpEvent()

    @override
    def decide(self, norms: Tensor, valid: Tensor, trim: Tensor, words: Tensor) -> Decision:
        weights = torch.where(valid & torch.isfinite(norms), 1.0, 0.0).to(norms.dtype)
        return _plain(weights, 0.0, passed=False)
