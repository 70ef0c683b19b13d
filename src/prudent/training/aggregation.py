"""From norms to weights and noise: how one batch of gradients becomes one release.

A clipped, trimmed sum is Σ wᵢ gᵢ with weights that depend on the norms alone, so an aggregation
looks at norms and nothing else. Everything here is fixed-shape tensor arithmetic without a look at
a value, so a step can be compiled or captured as a CUDA graph.

| case | what happens |
|---|---|
| empty batch | no weights; noise all the same |
| batch no larger than the trim | the trimmed sum is zero |
| ties in the norm | broken by record id, in one order for all |
| norm of zero | weight 1, it adds nothing |
| NaN or infinite gradient | counted as the zero gradient: weight 0 and norm 0 |
| padding | weight 0, never counted |

A record with a gradient that is not finite is treated as if its gradient were zero. That is a
function of this record alone, so removing the record still changes one (zero) summand: clipping,
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
from prudent.training.noise import margin_noise
from prudent.training.trimming import AdaptiveTrim, FixedTrim, Trim

_FEW = 2048


class Decision(NamedTuple):
    """What an aggregation decided for one batch, all on the device of the norms.

    Attributes:
        weights: Of each record in the sum, shape (records,).
        noise: Standard deviation of the noise on the sum, a scalar.
        passed: Whether the robust branch was taken, a boolean scalar.
        noisy_margin: What the test saw, a scalar; public only if the plan reveals it.
        scale: Factor on the update, a scalar; 1 unless the branches have separate rates.
    """

    weights: Tensor
    noise: Tensor
    passed: Tensor
    noisy_margin: Tensor
    scale: Tensor


class Fallback(_validate.Choice):
    """What is released when the test fails. All have the same price but the last, which is less."""

    SUM = "sum"
    """The clipped sum, with full noise: the paper's choice."""

    TRIMMED = "trimmed"
    """The trimmed sum, with full noise."""

    SKIP = "skip"
    """Nothing: the step is skipped."""


class Aggregation(ABC):
    """A rule from norms to weights and noise that knows its own sensitivity."""

    clip: float
    trim: Trim

    @property
    @abstractmethod
    def event(self) -> dp.DpEvent:
        """The price of one unsampled step."""

    def with_noise(self, noise_multiplier: float) -> Self:
        """The same rule with another noise multiplier."""
        raise ValueError(f"Expected a private aggregation, got {type(self).__name__}.")

    @property
    def sensitivity(self) -> float:
        """The most one record can change the released sum, in L2."""
        return self.clip

    @abstractmethod
    def decide(
        self,
        norms: Tensor,
        valid: Tensor,
        trim: Tensor,
        words: Tensor,
    ) -> Decision:
        """Weights and noise for one batch.

        Args:
            norms: Of every record of the logical batch, in the order of record ids.
            valid: False for padding.
            trim: How many of the largest to leave out; a whole number, the same for any batch.
            words: Two random 64-bit words, of which the noise of a test is made.
        """


def clip_weights(norms: Tensor, valid: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """min(1, R/norm) and the clipped norms, no computed norm above R after rounding."""
    counted = valid & torch.isfinite(norms)
    norms = torch.where(counted, norms, 0.0)
    weights = torch.where(norms > clip, clip / norms, 1.0)
    for _ in range(2):
        smaller = torch.nextafter(weights, torch.zeros_like(weights))
        weights = torch.where(weights * norms > clip, smaller, weights)
    return torch.where(counted, weights, 0.0), norms.clamp_max(clip)


def keep_smallest(clipped: Tensor, valid: Tensor, trim: Tensor) -> Tensor:
    """True for all but the `trim` largest of the valid records, by (clipped norm, record id)."""
    ranks = _ranks(torch.where(valid, clipped, math.inf))
    return valid & (ranks < valid.sum() - trim)


def _ranks(keys: Tensor) -> Tensor:
    """The place of each key in ascending order; of equal keys the earlier comes first."""
    places = torch.arange(len(keys), device=keys.device)
    if keys.is_cuda and len(keys) <= _FEW:
        # All pairs at once: on a GPU one pass over a small square beats the passes of a sort.
        tied_before = (keys[None] == keys[:, None]) & (places[None] < places[:, None])
        return ((keys[None] < keys[:, None]) | tied_before).sum(1)
    order = torch.sort(keys, stable=True).indices  # stable: ties stay in the order of record ids
    return torch.empty_like(order).scatter_(0, order, places)


def _scalar(value: float, like: Tensor) -> Tensor:
    return torch.full((), value, dtype=like.dtype, device=like.device)


def _plain(weights: Tensor, noise: float, like: Tensor, *, passed: bool) -> Decision:
    """A decision without a test."""
    return Decision(
        weights,
        _scalar(noise, like),
        torch.full((), passed, dtype=torch.bool, device=like.device),
        torch.full((), math.nan, dtype=torch.float64, device=like.device),
        _scalar(1.0, like),
    )


@attrs.frozen(kw_only=True)
class Noisy(Aggregation):
    """A sum of clipped gradients with Gaussian noise.

    Attributes:
        clip: R, the L2 bound of every gradient.
        noise_multiplier: σ; the noise on the sum is σR.
    """

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
        clip: R, the L2 bound of every gradient.
        noise_multiplier: σ; the noise on the sum is σR.
    """

    trim: Trim = attrs.field(factory=lambda: FixedTrim(0.0), init=False)

    @override
    def decide(
        self,
        norms: Tensor,
        valid: Tensor,
        trim: Tensor,
        words: Tensor,
    ) -> Decision:
        weights, _ = clip_weights(norms, valid, self.clip)
        return _plain(weights, self.noise_multiplier * self.clip, norms, passed=False)


@attrs.frozen(kw_only=True)
class TrimmedSum(Noisy):
    """The clipped sum without its F largest, with noise for its global sensitivity (TSGD+Gaussian).

    Attributes:
        clip: R.
        noise_multiplier: σ; trimming does not lower the global sensitivity, so the noise is σR.
        trim: How many are left out.
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
    def decide(
        self,
        norms: Tensor,
        valid: Tensor,
        trim: Tensor,
        words: Tensor,
    ) -> Decision:
        weights, clipped = clip_weights(norms, valid, self.clip)
        weights = weights * keep_smallest(clipped, valid, trim)
        return _plain(weights, self.noise_multiplier * self.clip, norms, passed=True)


@attrs.frozen(kw_only=True)
class ProposeTestRelease(Noisy):
    """Propose a bound on what one record can do to the trimmed sum, test it, release (TSGD+PTR).

    The margin of the trimmed sum is Δ = max(0, F - #{clipped norms > τ}) for every batch, empty or
    no larger than F included (Errata 1); adding a record can only lower it.

    Attributes:
        clip: R.
        propose: τ/R, below 1.
        noise_multiplier: σ; the noise is σR when the test fails, στ when it passes.
        test: The private test of the margin.
        failure: δ₀, how often a margin of 0 may pass.
        trim: How many are left out, fixed or adapted to the released branches.
        fallback: What is released when the test fails.
        reveals: What an observer learns of the test: by default the branch alone.
        fallback_scale: Factor on the update of the fallback branch: its own learning rate.
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
        _ = self.event  # checks the test and its failure

    @property
    def proposal(self) -> float:
        """τ."""
        return self.propose * self.clip

    @property
    def threshold(self) -> float:
        """What the noisy margin must exceed."""
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
    def decide(
        self,
        norms: Tensor,
        valid: Tensor,
        trim: Tensor,
        words: Tensor,
    ) -> Decision:
        weights, clipped = clip_weights(norms, valid, self.clip)
        trimmed = weights * keep_smallest(clipped, valid, trim)
        # Propose and test.
        above = (valid & (clipped > self.proposal)).sum()
        margin = (trim - above).clamp_min(0)
        noisy_margin = margin + margin_noise(self.test, words)
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
            torch.where(passed, self.noise_multiplier * self.proposal, full).to(norms.dtype),
            passed,
            noisy_margin,
            torch.where(passed, 1.0, self.fallback_scale).to(norms.dtype),
        )


@attrs.frozen(kw_only=True)
class Mean(Aggregation):
    """The plain mean, neither clipped nor private: what privacy is measured against."""

    clip: float = attrs.field(default=math.inf, init=False)
    trim: Trim = attrs.field(factory=lambda: FixedTrim(0.0), init=False)

    @property
    @override
    def event(self) -> dp.DpEvent:
        return dp.NonPrivateDpEvent()

    @override
    def decide(
        self,
        norms: Tensor,
        valid: Tensor,
        trim: Tensor,
        words: Tensor,
    ) -> Decision:
        weights = torch.where(valid & torch.isfinite(norms), 1.0, 0.0).to(norms.dtype)
        return _plain(weights, 0.0, norms, passed=False)
