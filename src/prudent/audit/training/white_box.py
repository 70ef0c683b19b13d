"""Audit of private training by an attacker who sees every release: a canary at every step.

    plan = Plan(sampling_rate=0.2, steps=10, aggregation=Sum(clip=1.0, noise_multiplier=1.0))
    white_box(plan, delta=1e-5, lanes=1_000_000).share

An attack is a scene (see `scenes`) and a score. Which one to use is decided on pilot runs; the runs
that are counted are others, so the choice costs no confidence.

Two bounds compete. *Guesses* (see `prudent.audit.lower_bounds`) counts right guesses on both sides
and suits releases that look alike with the canary and without. *Alarms* looks at high scores only:
(ε, δ)-DP says TPR <= e^ε FPR + δ, so Clopper-Pearson bounds on the two rates, each failing with
probability (1 - confidence)/2, refute every smaller ε. It suits sampled canaries, whose absence is
never certain.
"""

import math
from collections.abc import Callable, Collection, Sequence

import attrs
import numpy as np
from scipy import special

from prudent import _validate
from prudent.audit.auditing import CONFIDENCE, AuditResult, MeasuredCurve, check_claim, tossed
from prudent.audit.lower_bounds import (
    BoolArray,
    Bound,
    FloatArray,
    Thresholds,
    choose_thresholds,
    clopper_pearson,
    epsilon_of_guesses,
)
from prudent.audit.training.scenes import (
    Likelihood,
    Releases,
    Scene,
    dirac,
    displaced,
    observe,
    observe_lanes,
    opposed,
)
from prudent.training.aggregation import FixedTrim, Noisy, ProposeTestRelease, Sum
from prudent.training.plan import Plan

_CANDIDATES = 400
_BATCH = 64.0  # the public batch size of a plan without one
_PILOT = 0.25  # pilot runs, relative to those that are counted

Score = Callable[[Releases], FloatArray]


@attrs.frozen
class ScoreReading:
    """Thresholds on a score, and the bound that counts what is beyond them."""

    thresholds: Thresholds  # when the attacker guesses
    alarms: bool = False  # whether the bound is that of alarms; else that of guesses

    def bound(self, scores: FloatArray, coins: BoolArray, **claim: float) -> Bound:
        """The largest ε that runs with these scores refute, at this δ and confidence."""
        bound = self.thresholds.bound(scores, coins, **claim)
        if not self.alarms:
            return bound
        groups = int(coins.sum()), int((~coins).sum())
        lower = epsilon_of_alarms(bound.right, bound.guesses - bound.right, *groups, **claim)
        return attrs.evolve(bound, lower=float(lower))


def epsilon_of_alarms(
    true: float | FloatArray,
    false: float | FloatArray,
    with_runs: float,
    without_runs: float,
    *,
    delta: float,
    confidence: float,
) -> FloatArray:
    """Return the largest ε that true and false alarms refute, for numbers or arrays of them.

    Guarantee:
        If the mechanism is (ε, δ)-DP and the test was fixed before the runs, the bound exceeds ε
        with a probability of at most 1 - confidence.
    """
    error = (1 - confidence) / 2
    least, _ = clopper_pearson(true, with_runs, error)
    _, most = clopper_pearson(false, without_runs, error)
    return np.asarray(np.log(np.maximum((least - delta) / most, 1.0)))


def best_reading(
    scores: FloatArray, coins: BoolArray, runs: int, *, odds: bool, **claim: float
) -> tuple[ScoreReading, float]:
    """The reading that should refute most of so many runs, and about how much, from pilot runs.

    If scores are the log-odds of an honest run, the pilot runs say how many guesses there will be,
    and the odds how many will be right: a few lucky guesses do not matter. A fault shows in the
    other reading, which is learned from the coins.
    """
    thresholds, share = choose_thresholds(scores, coins, **claim)
    readings = [(ScoreReading(thresholds), float(special.logit(max(share, 0.5))))]
    if odds:
        # Guesses at large log-odds s, of which e^|s|/(1 + e^|s|) are right; alarms at high ones.
        sizes, said, right = _expected(np.abs(scores), runs)
        guessed = epsilon_of_guesses(right, said, runs, **claim)
        best = int(np.argmax(guessed))
        confident = ScoreReading(Thresholds(-float(sizes[best]), float(sizes[best])))
        readings.append((confident, float(guessed[best])))
        sizes, said, true = _expected(scores, runs)
        half = runs / 2
        raised = np.minimum(true, half), np.minimum(said - true, half)
        alarmed = epsilon_of_alarms(*raised, half, half, **claim)
        best = int(np.argmax(alarmed))
        alarming = ScoreReading(Thresholds(-np.inf, float(sizes[best])), alarms=True)
        readings.append((alarming, float(alarmed[best])))
    return max(readings, key=lambda rated: rated[1])


def _expected(odds: FloatArray, runs: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Log-odds to cut at, descending, and how many guesses, and right ones, are expected there."""
    ordered = np.sort(odds)[::-1]
    places = np.unique(np.geomspace(1, len(ordered), _CANDIDATES).astype(np.intp)) - 1
    right = np.cumsum(special.expit(ordered))[places] * runs / len(ordered)
    return ordered[places], (places + 1) * runs / len(ordered), right


@attrs.frozen(eq=False)
class CanaryAttack:
    """A way to tell runs with the canary from runs without it."""

    name: str  # what is done
    scene: Scene  # the records and the canary
    score: Score  # high where a run speaks for the canary
    runs: int  # the number of runs to count
    in_lanes: bool = False  # whether many runs share one, each in a coordinate of its own
    is_likelihood: bool = True  # whether the score is the log-likelihood ratio of an honest run
    # If given, the canary is a person with so many records, all of which count in a step.
    slots: int | None = None

    def releases(self, plan: Plan, coins: BoolArray) -> Releases:
        """Run the plan once for each coin."""
        if self.in_lanes:
            return Releases.of_sums(observe_lanes(plan, coins, self.slots))
        counts = [int(np.sum(coins == value)) for value in (False, True)]
        parts = [
            observe(plan, self.scene, present=present, runs=count, slots=self.slots)
            for present, count in zip((False, True), counts, strict=True)
            if count
        ]
        # Runs of one kind are alike, so each coin takes the next one of its kind.
        places = np.empty(len(coins), np.intp)
        places[~coins], places[coins] = np.arange(counts[0]), counts[0] + np.arange(counts[1])
        return Releases.joined(parts).ordered(places)


def white_box(
    plan: Plan,
    *,
    delta: float,
    epsilon: float | None = None,
    runs: int = 1000,
    lanes: int = 100_000,
    scenes: Collection[str] = ("dirac", "displaced", "opposed"),
    records_per_person: int | None = None,
    confidence: float = CONFIDENCE,
) -> AuditResult:
    """Try to refute the price of a plan with canaries that move every step as far as they can.

    The steps are those of `fit`, with its sampling, test and noise. The attacker sees the released
    gradient of every step, the branch, and the noisy margin if the plan reveals it.

    Guarantee:
        If runs of the plan are (ε, δ)-DP and independent, the result is `refuted` with a
        probability of at most 1 - confidence. Lanes are independent if the draws of records and the
        noise of coordinates are.

    Args:
        plan: The plan; without an `expected_batch` it is given one, of 64.
        delta: δ of the claim.
        epsilon: ε of the claim; None: `plan.epsilon(delta)`.
        runs: The number of runs to count, with and without the canary together.
        lanes: For DP-SGD: the number of runs to count that share a run, each in a coordinate of
            its own. 0: none do.
        scenes: Which of the scenes to try; see `prudent.audit.training.scenes`.
        records_per_person: Audit training with a privacy unit: the canary is a person with so many
            records, and the claim is about people. None: about records.
        confidence: 1 minus the false-alarm rate.
    """
    plan = with_batch(plan)
    claimed = plan.epsilon(delta) if epsilon is None else epsilon
    check_claim(claimed, delta, confidence)
    if records_per_person is not None:
        _validate.count(1, records_per_person=records_per_person)
    possible = _attacks(plan, _validate.count(runs=runs), _validate.count(lanes=lanes))
    attacks = [
        attrs.evolve(attack, slots=records_per_person)
        for attack in possible
        if attack.scene.name in scenes
    ]
    if not attacks:
        names = sorted({attack.scene.name for attack in possible})
        raise _validate.ArgumentError(
            "scenes", f"some of {', '.join(names)}, with enough runs for it", got=tuple(scenes)
        )
    attack, reading = _best(plan, attacks, delta=delta, confidence=confidence)
    coins = tossed(attack.runs)
    scores = attack.score(attack.releases(plan, coins))
    bound = reading.bound(scores, coins, delta=delta, confidence=confidence)
    where = "a coordinate of its own in one run" if attack.in_lanes else "a run of its own"
    return AuditResult.of(
        bound,
        name=f"training, white box ({attack.name})",
        claimed=claimed,
        delta=delta,
        confidence=confidence,
        exact=Likelihood(plan, attack.scene).epsilon(delta) if attack.is_likelihood else None,
        curve=MeasuredCurve.of(scores, coins, confidence),
        notes=(f"Each canary had {where}; the attacker saw every release of every step.",),
    )


def with_batch(plan: Plan) -> Plan:
    """The plan with a public batch size, under which records may be added and removed."""
    if not isinstance(plan.aggregation, Noisy):
        raise _validate.ArgumentError(
            "plan", "with a private aggregation", got=type(plan.aggregation).__name__
        )
    if plan.expected_batch is not None:
        return plan
    return attrs.evolve(plan, expected_batch=_BATCH, relation=None)


def most_telling_trim(plan: Plan, delta: float) -> Plan:
    """The plan with the fixed trim at which a canary has the largest exact ε.

    A canary of the clip lowers the margin by one and moves the fallback. It tells most at a trim of
    0 (Case 1), of 1 if the noisy margin is shown, or where the test passes sometimes.
    """
    rule = plan.aggregation
    if not isinstance(rule, ProposeTestRelease):
        return with_batch(plan)
    near = [math.floor(rule.threshold) - back for back in (0, 1, math.ceil(rule.test.scale))]
    offers = []
    for trim in sorted({0, 1, *(max(1, place) for place in near)}):
        batch = max(_BATCH, 2.0 * (trim + 1))
        fixed = attrs.evolve(rule, trim=FixedTrim((trim + 0.5) / batch))
        offer = attrs.evolve(plan, aggregation=fixed, expected_batch=batch, relation=None)
        exact = [
            Likelihood(offer, attack.scene).epsilon(delta)
            for attack in _attacks(offer, 1, 0)
            if attack.is_likelihood
        ]
        offers.append((max(price or 0.0 for price in exact), -trim, offer))
    return max(offers, key=lambda rated: rated[:2])[2]


def _attacks(plan: Plan, runs: int, lanes: int) -> list[CanaryAttack]:
    """Every attack that suits a plan."""
    rule, batch = plan.aggregation, plan.expected_batch
    assert batch is not None
    trim = math.floor(rule.trim.start(batch))
    # With the canary the batch is as large as expected, where trims by batch size would change.
    others = max(1, trim, round(batch / plan.sampling_rate) - 1)
    if plan.num_bands > 1:  # all runs in a row would share one draw of the parts, and the noise
        runs = 0
    scenes = [opposed(rule, others)] if runs else []
    if isinstance(rule, ProposeTestRelease) and trim and plan.sampling_rate == 1:
        scenes.append(displaced(rule, trim))
    attacks = []
    if isinstance(rule, Sum) and lanes:
        attacks += _readings(plan, dirac(rule), lanes, in_lanes=True)
    elif runs:
        scenes.insert(0, dirac(rule))
    for scene in scenes:
        attacks += _readings(plan, scene, runs)
    return attacks


def _readings(plan: Plan, scene: Scene, runs: int, *, in_lanes: bool = False) -> list[CanaryAttack]:
    """Every score of a scene."""
    likelihood = CanaryAttack(
        f"{scene.name} canary, likelihood ratio",
        scene,
        Likelihood(plan, scene).score,
        runs,
        in_lanes,
        # Records with a gradient are drawn too, which their likelihood does not allow for.
        is_likelihood=scene.name == "dirac" or plan.sampling_rate == 1,
    )
    others: dict[str, Score] = {}
    if plan.steps > 1:
        others["spread over steps"] = spread_over_steps
    if isinstance(plan.aggregation, ProposeTestRelease):
        others["failed tests"] = failed_tests
    named = ((f"{scene.name} canary, {name}", score) for name, score in others.items())
    return [
        likelihood,
        *(attrs.evolve(likelihood, name=n, score=s, is_likelihood=False) for n, s in named),
    ]


def failed_tests(seen: Releases) -> FloatArray:
    """The number of failed tests of a run: a canary lowers the margin, and noise must hide it."""
    return np.asarray(np.sum(~seen.passed, 1, dtype=np.float64))


def spread_over_steps(seen: Releases) -> FloatArray:
    """The largest minus the smallest release of a run: if noise is used twice it cancels here."""
    return np.asarray(seen.along.max(1) - seen.along.min(1))


def _best(
    plan: Plan, attacks: Sequence[CanaryAttack], **claim: float
) -> tuple[CanaryAttack, ScoreReading]:
    """The attack that refutes most on pilot runs, and how to read its scores."""
    pilots: dict[int, tuple[BoolArray, Releases]] = {}
    rated = []
    for place, attack in enumerate(attacks):
        if id(attack.scene) not in pilots:
            coins = tossed(math.ceil(_PILOT * attack.runs))
            pilots[id(attack.scene)] = coins, attack.releases(plan, coins)
        coins, seen = pilots[id(attack.scene)]
        scores = attack.score(seen)
        reading, rating = best_reading(
            scores, coins, attack.runs, odds=attack.is_likelihood, **claim
        )
        rated.append((rating, -place, attack, reading))
    best = max(rated, key=lambda entry: entry[:2])
    return best[2], best[3]
