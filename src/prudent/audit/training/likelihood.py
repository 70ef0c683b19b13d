"""What a release says about a canary: log-likelihood ratios of honest steps, and their exact ε.

With the canary in the batch, with probability q, a step draws from another distribution:

    p(seen | present) / p(seen | absent) = 1 - q + q p(seen | drawn) / p(seen | absent).

A step shows the branch (or the noisy margin) and a Gaussian around a mean that depends on the
branch. By Neyman and Pearson no test beats one on the sum of the logarithms over all steps.
"""

import math
from functools import lru_cache

import attrs
import dp_accounting as dp
import numpy as np

from prudent.accounting.domination import DominatedDpEvent, margin_pair
from prudent.accounting.events import DiscreteGaussianTest, GaussianTest, MarginTest, Reveals
from prudent.accounting.group_privacy import epsilon_of
from prudent.accounting.pairs import Dominating, MixturePair, Pair
from prudent.accounting.pld_accountant import PldAccountant
from prudent.audit.lower_bounds import FloatArray
from prudent.audit.training.observing import Releases
from prudent.audit.training.scenes import Scene
from prudent.training.aggregation import Fallback, FixedTrim, Noisy, ProposeTestRelease, TrimmedSum
from prudent.training.plan import Plan

_RARE = math.log(1e-6)


@attrs.frozen
class Branch:
    """One branch of a step: how likely it is, and what the canary changes in it.

    Attributes:
        absent: Logarithm of its probability without the canary.
        drawn: The same with the canary in the batch.
        mean: The mean of the released sum without the canary.
        shift: What the canary adds to it.
        noise: Standard deviation of the noise on it; 0 if nothing is released.
    """

    absent: float
    drawn: float
    mean: float
    shift: float
    noise: float

    @property
    def multiplier(self) -> float:
        """The noise relative to the shift; infinite if the sum says nothing."""
        return self.noise / abs(self.shift) if self.shift and self.noise else math.inf

    def log_ratio(self, along: FloatArray) -> FloatArray:
        """Log p(sum | drawn) / p(sum | absent)."""
        if math.isinf(self.multiplier):
            return np.zeros_like(along)
        z, shift = (along - self.mean) / self.noise, self.shift / self.noise
        return shift * (z - shift / 2)


@attrs.frozen(eq=False)
class Likelihood:
    """The law of what an honest step shows in a scene.

    Attributes:
        plan: The plan.
        scene: The records. Unless the rate is 1, those besides the canary must have no gradient.
    """

    plan: Plan
    scene: Scene

    @property
    def rule(self) -> Noisy:
        """The aggregation, a private one."""
        rule = self.plan.aggregation
        assert isinstance(rule, Noisy)
        return rule

    def score(self, seen: Releases) -> FloatArray:
        """The log-likelihood ratio of each run."""
        total = np.zeros(seen.along.shape)
        for trim in np.unique(seen.trim):
            failed, passed = self._branches(int(trim))
            here = seen.trim == trim
            total = np.where(here & seen.passed, passed.log_ratio(seen.along), total)
            total = np.where(here & ~seen.passed, failed.log_ratio(seen.along), total)
            total = np.where(here, total + self._log_ratio_of_test(seen, int(trim)), total)
        rate = self.plan.sampling_rate
        if rate < 1:
            total = np.logaddexp(math.log1p(-rate), math.log(rate) + total)
        return np.asarray(total.sum(1))

    def epsilon(self, delta: float) -> float | None:
        """The exact ε of the runs with and without the canary at δ; None if it has no closed form.

        An audit in this scene cannot find more.
        """
        if not isinstance(self.rule.trim, FixedTrim):
            return None
        pair = self._pair()
        if pair is None:
            return None
        step = dp.PoissonSampledDpEvent(
            self.plan.sampling_rate, DominatedDpEvent(Dominating((pair,)))
        )
        event = dp.SelfComposedDpEvent(step, self.plan.steps)
        return epsilon_of(event, delta, self.plan.relation, PldAccountant)

    def _pair(self) -> Pair | None:
        assert self.plan.expected_batch is not None
        failed, passed = self._branches(int(self.rule.trim.start(self.plan.expected_batch)))
        if not isinstance(self.rule, ProposeTestRelease):
            only = passed if isinstance(self.rule, TrimmedSum) else failed
            return MixturePair.of((1.0, 1.0, only.multiplier))
        told = failed.absent != failed.drawn
        if self.rule.reveals is Reveals.MARGIN and told:
            # A passed test tells less in a scene where it is rare: this bounds the pair from above.
            same = math.isclose(failed.multiplier, passed.multiplier) or passed.absent < _RARE
            return margin_pair(self.rule.test, failed.multiplier) if same else None
        return MixturePair.of(
            *((math.exp(b.absent), math.exp(b.drawn), b.multiplier) for b in (failed, passed))
        )

    def _log_ratio_of_test(self, seen: Releases, trim: int) -> FloatArray:
        """Log p(test | drawn) / p(test | absent): of the noisy margin if shown, else the branch."""
        if not isinstance(self.rule, ProposeTestRelease):
            return np.zeros(seen.along.shape)
        if self.rule.reveals is Reveals.MARGIN:
            absent, drawn = (self._margin(trim, present=p) for p in (False, True))
            return _margin_log_ratio(self.rule.test, seen.noisy_margin, absent, drawn)
        failed, passed = self._branches(trim)
        return np.where(seen.passed, passed.drawn - passed.absent, failed.drawn - failed.absent)

    def _margin(self, trim: int, *, present: bool) -> int:
        return self.scene.release(self.rule, trim, present=present).margin

    def _branches(self, trim: int) -> tuple[Branch, Branch]:
        """The branch of a failed test and that of a passed one."""
        return _branches(self.rule, self.scene, trim)


@lru_cache(maxsize=256)
def _branches(rule: Noisy, scene: Scene, trim: int) -> tuple[Branch, Branch]:
    absent, drawn = (scene.release(rule, trim, present=present) for present in (False, True))
    full = rule.noise_multiplier * rule.clip
    shift, trimmed_shift = drawn.total - absent.total, drawn.trimmed - absent.trimmed
    if not isinstance(rule, ProposeTestRelease):
        failed = Branch(0.0, 0.0, absent.total, shift, full)
        return failed, Branch(0.0, 0.0, absent.trimmed, trimmed_shift, full)
    passes = [rule.test.tail(rule.threshold - each.margin) for each in (absent, drawn)]
    less = [math.log(each) if each > 0 else -math.inf for each in passes]
    more = [math.log1p(-each) if each < 1 else -math.inf for each in passes]
    mean = absent.total
    if rule.fallback is Fallback.TRIMMED:
        mean, shift = absent.trimmed, trimmed_shift
    if rule.fallback is Fallback.SKIP:
        full = 0.0
    reduced, scale = rule.noise_multiplier * rule.proposal, rule.fallback_scale
    failed = Branch(more[0], more[1], scale * mean, scale * shift, scale * full)
    return failed, Branch(less[0], less[1], absent.trimmed, trimmed_shift, reduced)


def _margin_log_ratio(test: MarginTest, noisy: FloatArray, absent: int, drawn: int) -> FloatArray:
    """Log p(noisy margin | drawn) / p(noisy margin | absent), discrete or not."""
    if isinstance(test, GaussianTest | DiscreteGaussianTest):
        squares = (noisy - absent) ** 2 - (noisy - drawn) ** 2
        return np.asarray(squares / (2 * test.scale**2))
    return np.asarray((np.abs(noisy - absent) - np.abs(noisy - drawn)) / test.scale)
