"""Data sets on which one record changes a step as much as it can: the stages of a white-box audit.

The model is linear and its loss is its output, so the gradient of a record is the record itself:
whoever chooses the records chooses the gradients, at every step, whatever the weights are. A
*Dirac canary* is a record whose clipped gradient is the clip along a known direction.

| scene | others | canary | tight for |
|---|---|---|---|
| `dirac` | zero gradients | R along u | DP-SGD at every rate; both cases of the test |
| `displaced` | τ along u | R along u, so one more τ is kept if the test passes | Case 2 at rate 1 |
| `opposed` | τ (or R) along -u | slightly shorter, along u | division, and trims by batch size |

The records of the last two are drawn too, which hides the canary unless the sampling rate is 1.

A white-box attacker sees every release of every step. The steps are those of `prudent.fit`, taken
by the same `Run`: real sampling, clipping, test, trim, noise and division. As the model is
linear, what a step releases does not depend on earlier ones, and `runs` times `plan.steps` steps in
a row are `runs` runs of the plan.

What these releases say about the canary is known exactly (`Likelihood`). With the canary in the
batch, with probability q, a step draws from another distribution:

    p(seen | present) / p(seen | absent) = 1 - q + q p(seen | drawn) / p(seen | absent).

A step shows the branch (or the noisy margin) and a Gaussian around a mean that depends on the
branch. By Neyman and Pearson no test beats one on the sum of the logarithms over all steps.
"""

import math
from functools import lru_cache

import attrs
import dp_accounting as dp
import numpy as np
import torch
from scipy import signal, special
from torch import Tensor, nn

from prudent import _validate
from prudent._progress import track
from prudent.accounting.events import DiscreteGaussianTest, GaussianTest, MarginTest, Reveals
from prudent.accounting.group_privacy import epsilon_of
from prudent.accounting.losses.domination import DominatedDpEvent, margin_pair
from prudent.accounting.losses.pairs import Dominating, MixturePair, Pair
from prudent.accounting.pld_accountant import PldAccountant
from prudent.audit.lower_bounds import BoolArray, FloatArray
from prudent.records.people import Unit
from prudent.training.aggregation import (
    Aggregation,
    Fallback,
    FixedTrim,
    Noisy,
    ProposeTestRelease,
    TrimmedSum,
    clip_weights,
    keep_smallest,
)
from prudent.training.noise import coefficients
from prudent.training.plan import Plan
from prudent.training.run.execution import Execution
from prudent.training.run.run import Run

_SHORTER = 1 - 1e-6  # a norm that ranks below those of the other records, and moves a sum as far
_RARE = math.log(1e-6)


@attrs.frozen(eq=False)
class Scene:
    """Records with and without a canary."""

    name: str  # which scene
    others: Tensor  # the gradients of the other records, shape (records, 2)
    canary: Tensor  # the gradient of the canary
    direction: Tensor  # the direction in which the canary moves the sum

    def records(self, *, present: bool) -> Tensor:
        """The data set, the canary first if it is present."""
        return torch.cat([self.canary[None], self.others]) if present else self.others

    def release(self, rule: Aggregation, trim: int, *, present: bool) -> "Expected":
        """What an honest step releases of all records, apart from the noise."""
        records = self.records(present=present)
        norms = torch.linalg.vector_norm(records, dim=1)
        valid = torch.ones(len(records), dtype=torch.bool)
        weights, clipped = clip_weights(norms, valid, rule.clip)
        kept = weights * keep_smallest(clipped, valid, torch.tensor(float(trim)))
        along = records @ self.direction
        above = 0
        if isinstance(rule, ProposeTestRelease):
            above = int((clipped > rule.proposal).sum())
        return Expected(
            margin=max(0, trim - above),
            total=float((weights * along).sum()),
            trimmed=float((kept * along).sum()),
        )


@attrs.frozen
class Expected:
    """What a step computes before its noise."""

    margin: int  # the margin of the test
    total: float  # the clipped sum along the direction of the scene
    trimmed: float  # the trimmed sum along it


def dirac(rule: Aggregation) -> Scene:
    """A canary of the clip, among records without a gradient."""
    canary = torch.tensor([2 * rule.clip, 0.0], dtype=torch.float64)
    return Scene("dirac", torch.zeros(1, 2, dtype=torch.float64), canary, _unit())


def displaced(rule: ProposeTestRelease, trim: int) -> Scene:
    """A canary that is trimmed in place of a record of norm τ, which lowers the margin by one."""
    others = rule.proposal * _unit().expand(max(1, trim), 2)
    return Scene("displaced", others.clone(), 2 * rule.clip * _unit(), _unit())


def opposed(rule: Aggregation, count: int) -> Scene:
    """A canary against the sum of all others: any effect on their weights adds to its own."""
    norm = rule.proposal if isinstance(rule, ProposeTestRelease) else rule.clip
    others = -norm * _unit().expand(_validate.count(1, count=count), 2)
    return Scene("opposed", others.clone(), _SHORTER * norm * _unit(), _unit())


def _unit() -> Tensor:
    return torch.tensor([1.0, 0.0], dtype=torch.float64)


@attrs.frozen(eq=False)
class Releases:
    """What an attacker sees of many runs; every array has the shape (runs, steps)."""

    # The released gradient along the direction of the canary, times the expected batch.
    along: FloatArray
    passed: BoolArray  # whether the test passed
    noisy_margin: FloatArray  # the noisy margin of the test; to be used only if the plan reveals it
    trim: FloatArray  # F of each step

    @classmethod
    def of_sums(cls, along: FloatArray) -> "Releases":
        """The releases of runs without a test."""
        blank = np.zeros(along.shape)
        return cls(along, blank > 0, blank, blank)

    @classmethod
    def joined(cls, parts: "list[Releases]") -> "Releases":
        """The runs of all parts, one after the other."""
        names = [field.name for field in attrs.fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def ordered(self, places: "np.ndarray[tuple[int], np.dtype[np.intp]]") -> "Releases":
        """The runs in another order."""
        return Releases(*(value[places] for value in attrs.astuple(self, recurse=False)))


def observe(
    plan: Plan, scene: Scene, *, present: bool, runs: int, slots: int | None = None
) -> Releases:
    """Take the steps of many runs on the records of a scene, with its canary or without.

    With `slots`, every record is a person, and the canary is one with so many copies of its record.
    """
    records = scene.records(present=present)
    copies = torch.ones(len(records), dtype=torch.int64)
    copies[0] = slots if present and slots else 1
    model = nn.Linear(records.shape[1], 1, bias=False, dtype=torch.float64)
    run = _prepared(plan, plan.steps * runs, model, records, copies, slots)
    seen: list[Tensor] = []
    for number in track(range(plan.steps * runs), "training runs", plan.steps * runs):
        run.take()
        outcome = run.last
        gradient = model.weight.grad
        assert outcome is not None
        assert gradient is not None
        along = gradient[0] @ scene.direction * run.step.expected_batch
        values = (along, outcome.passed, outcome.noisy_margin, outcome.trim)
        seen.append(torch.stack([torch.as_tensor(v, dtype=torch.float64) for v in values]))
        if (number + 1) % plan.steps == 0:  # the next step is the first of another run
            run.step.state.trim.fill_(plan.aggregation.trim.start(run.step.expected_batch))
    table = torch.stack(seen).view(runs, plan.steps, 4).numpy()
    return Releases(table[..., 0], table[..., 1] > 0, table[..., 2], table[..., 3])


def observe_lanes(plan: Plan, present: BoolArray, slots: int | None = None) -> FloatArray:
    """Take the steps of one run in which each lane is a run of its own; shape (lanes, steps).

    A lane is a coordinate of the model. Where `present`, a Dirac canary has its gradient there, of
    twice the clip, so that it is clipped. The canaries of other lanes add nothing to this one, each
    is drawn on its own, and each coordinate has noise of its own: for the clipped sum, what a lane
    shows is distributed as in a run with this canary alone, and lanes are independent. With
    `slots`, every canary is a person with so many copies of its record.
    """
    model = nn.Embedding(len(present), 1, dtype=torch.float64)  # a record is the number of its lane
    nn.init.zeros_(model.weight)
    records = torch.from_numpy(np.flatnonzero(present))
    copies = torch.full((len(records),), slots or 1)
    run = _prepared(plan, plan.steps, model, records, copies, slots, 2 * plan.aggregation.clip)
    seen = np.empty((len(present), plan.steps))
    for number in range(plan.steps):
        run.take()
        assert model.weight.grad is not None
        seen[:, number] = run.step.expected_batch * model.weight.grad[:, 0].numpy()
    return seen


def _prepared(
    plan: Plan,
    steps: int,
    model: nn.Module,
    records: Tensor,
    copies: Tensor,
    slots: int | None,
    length: float = 1.0,
) -> Run:
    """A run of the plan's steps, whose updates leave the model as it is.

    The loss of a record is its output, times a length: so is its gradient the record.
    """
    people = None if slots is None else torch.arange(len(records)).repeat_interleave(copies)
    records = records.repeat_interleave(copies, 0)
    return Run(
        attrs.evolve(plan, steps=steps),
        model,
        lambda outputs, targets: length * outputs[:, 0],
        (records, torch.zeros(len(records))),
        options={"lr": 0.0},
        execution=Execution(distributed=False),
        unit=Unit.given(people, slots, None),
    )


@attrs.frozen
class StepBranch:
    """One branch of a step: how likely it is, and what the canary changes in it."""

    absent: float  # logarithm of its probability without the canary
    drawn: float  # the same with the canary in the batch
    mean: float  # the mean of the released sum without the canary
    shift: float  # what the canary adds to it
    noise: float  # standard deviation of the noise on it; 0 if nothing is released

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
    """The distribution of what an honest step shows in a scene."""

    plan: Plan  # the plan
    # The records. Unless the rate is 1, those besides the canary must have no gradient.
    scene: Scene

    @property
    def rule(self) -> Noisy:
        """The aggregation, a private one."""
        rule = self.plan.aggregation
        assert isinstance(rule, Noisy)
        return rule

    def score(self, seen: Releases) -> FloatArray:
        """The log-likelihood ratio of each run."""
        if self.plan.num_bands > 1:
            return self._score_in_turns(seen)
        total = np.zeros(seen.along.shape)
        for trim in np.unique(seen.trim):
            failed, passed = _branches(self.rule, self.scene, int(trim))
            here = seen.trim == trim
            total = np.where(here & seen.passed, passed.log_ratio(seen.along), total)
            total = np.where(here & ~seen.passed, failed.log_ratio(seen.along), total)
            total = np.where(here, total + self._log_ratio_of_test(seen, int(trim)), total)
        rate = self.plan.sampling_rate
        if rate < 1:
            total = np.logaddexp(math.log1p(-rate), math.log(rate) + total)
        return np.asarray(total.sum(1))

    def _score_in_turns(self, seen: Releases) -> FloatArray:
        """The log-likelihood ratio for correlated noise; the part of the canary is unknown.

        With C of `prudent.training.noise`, C times the releases has independent noise, to which a
        canary drawn in step t adds column t of C.
        """
        failed, passed = _branches(self.rule, self.scene, int(seen.trim.flat[0]))
        only = passed if isinstance(self.rule, TrimmedSum) else failed
        steps = self.plan.steps
        column = np.array(coefficients(self.plan.num_bands, steps))
        white = signal.lfilter(column, [1.0], (seen.along - only.mean) / only.noise, axis=1)
        found = signal.lfilter(column, [1.0], white[:, ::-1], axis=1)[:, ::-1]
        left = np.minimum(steps - np.arange(steps), len(column))
        squares, shift = np.cumsum(column**2)[left - 1], only.shift / only.noise
        total, rate = shift * (found - shift * squares / 2), self.plan.turn_rate
        if rate < 1:
            total = np.logaddexp(math.log1p(-rate), math.log(rate) + total)
        turns = np.stack([total[:, p :: len(column)].sum(1) for p in range(len(column))])
        return np.asarray(special.logsumexp(turns, axis=0) - math.log(len(column)))

    def epsilon(self, delta: float) -> float | None:
        """The exact ε of the runs with and without the canary at δ; None if it has no closed form.

        An audit in this scene cannot find more.
        """
        if not isinstance(self.rule.trim, FixedTrim) or self.plan.num_bands > 1:
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
        failed, passed = _branches(
            self.rule, self.scene, int(self.rule.trim.start(self.plan.expected_batch))
        )
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
            both = [self.scene.release(self.rule, trim, present=p).margin for p in (False, True)]
            return _margin_log_ratio(self.rule.test, seen.noisy_margin, *both)
        failed, passed = _branches(self.rule, self.scene, trim)
        return np.where(seen.passed, passed.drawn - passed.absent, failed.drawn - failed.absent)


@lru_cache(maxsize=256)
def _branches(rule: Noisy, scene: Scene, trim: int) -> tuple[StepBranch, StepBranch]:
    """The branch of a failed test and that of a passed one."""
    absent, drawn = (scene.release(rule, trim, present=present) for present in (False, True))
    full = rule.noise_multiplier * rule.clip
    shift, trimmed_shift = drawn.total - absent.total, drawn.trimmed - absent.trimmed
    if not isinstance(rule, ProposeTestRelease):
        failed = StepBranch(0.0, 0.0, absent.total, shift, full)
        return failed, StepBranch(0.0, 0.0, absent.trimmed, trimmed_shift, full)
    passes = [rule.test.tail(rule.threshold - each.margin) for each in (absent, drawn)]
    less = [math.log(each) if each > 0 else -math.inf for each in passes]
    more = [math.log1p(-each) if each < 1 else -math.inf for each in passes]
    mean = absent.total
    if rule.fallback is Fallback.TRIMMED:
        mean, shift = absent.trimmed, trimmed_shift
    if rule.fallback is Fallback.SKIP:
        full = 0.0
    reduced, scale = rule.noise_multiplier * rule.proposal, rule.fallback_scale
    failed = StepBranch(more[0], more[1], scale * mean, scale * shift, scale * full)
    return failed, StepBranch(less[0], less[1], absent.trimmed, trimmed_shift, reduced)


def _margin_log_ratio(test: MarginTest, noisy: FloatArray, absent: int, drawn: int) -> FloatArray:
    """Log p(noisy margin | drawn) / p(noisy margin | absent), discrete or not."""
    if isinstance(test, GaussianTest | DiscreteGaussianTest):
        squares = (noisy - absent) ** 2 - (noisy - drawn) ** 2
        return np.asarray(squares / (2 * test.scale**2))
    return np.asarray((np.abs(noisy - absent) - np.abs(noisy - drawn)) / test.scale)
