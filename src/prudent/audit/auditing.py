"""Audit a mechanism: run it on two neighbouring data sets and try to tell them apart.

An `AuditResult` is the largest ε that the runs refute, beside the claim.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track

from prudent import _progress, _validate
from prudent._rounding import exact, nearest, rounded_down, rounded_up
from prudent.accounting.losses.loss_tables import TradeOff
from prudent.audit.lower_bounds import (
    BoolArray,
    Bound,
    FloatArray,
    Outputs,
    Score,
    best_score,
    bound_of_scores,
    each,
)

Data = TypeVar("Data")

CONFIDENCE = 0.95
"""Confidence of an audit by default: one in twenty audits of an exact claim is a false alarm."""

_HELD_OUT = {False: 0.25, True: 0.5}
"""Fraction of the runs on which thresholds are chosen; more where the score is learned alone."""

_COINS = 0xC015  # tells the stream of the coins from others with the same seed
_PARTS = 100  # of the work, for the progress bar
_MOST_POINTS = 400


@attrs.frozen(eq=False)
class MeasuredCurve:
    """The errors of all tests that compare one score with a threshold, as measured.

    Guarantee:
        With probability `confidence` at least, both true errors of every threshold are within
        `half_widths` of the measured ones at once (the Dvoretzky-Kiefer-Wolfowitz inequality with
        Massart's constant, for the scores with and without the record).
    """

    # For each threshold, the fraction of runs without the record said to have it; ascending.
    false_positives: FloatArray
    false_negatives: FloatArray  # the fraction of runs with the record said to lack it
    half_widths: tuple[float, float]  # the error of the false positives, and of the false negatives
    confidence: float  # probability with which all of them hold

    @classmethod
    def of(cls, scores: FloatArray, present: BoolArray, confidence: float) -> "MeasuredCurve":
        """Measure the curve on runs that were not used to find the score."""
        groups = np.sort(scores[~present]), np.sort(scores[present])
        values = np.unique(scores)[::-1]
        if len(values) > _MOST_POINTS:
            values = values[np.linspace(0, len(values) - 1, _MOST_POINTS).round().astype(int)]
        values = np.concatenate([[math.inf], values])
        below = [np.searchsorted(each, values, side="left") / max(1, len(each)) for each in groups]
        error = (1 - confidence) / 2
        half = [math.sqrt(math.log(2 / error) / (2 * max(1, len(each)))) for each in groups]
        return cls(1 - below[0], below[1], (half[0], half[1]), confidence)

    def region(self, grid: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The least and the largest true false negatives at these true false positives."""
        ends = zip((self.false_positives, self.false_negatives), self.half_widths, strict=True)
        (left, right), (low, high) = (
            np.clip([errors - half, errors + half], 0, 1) for errors, half in ends
        )
        # Errors fall from left to right, so the lower left curve bounds all others from below.
        return np.interp(grid, left, low), np.interp(grid, right, high, left=1.0)


def claimed_curve(false_positives: npt.ArrayLike, epsilon: float, delta: float) -> FloatArray:
    """Return the least false negatives that (ε, δ)-DP allows at these false positives."""
    alpha = np.asarray(false_positives, np.float64)
    profile = np.array([epsilon]), np.array([delta])
    with np.errstate(over="ignore", invalid="ignore"):
        least = TradeOff(profile, profile).least(1 - alpha, alpha)
    return np.fmax(0.0, least)  # ∞ × 0 at an infinite ε


@attrs.frozen(kw_only=True)
class AuditResult:
    """A lower bound on ε, measured, beside the upper bound that is claimed.

    Guarantee:
        If the claim is true, `refuted` is true with a probability of at most 1 - `confidence`, the
        false-alarm rate. If `refuted` is false nothing is proved: an attack that was not tried may
        do better.

    Attributes:
        name: What was audited.
        claimed: ε of the claim.
        delta: δ of the claim.
        lower: The largest ε that the runs refute at this δ.
        confidence: Probability, over the runs, with which `lower` is a lower bound.
        runs: The number of runs, or canaries, that were counted.
        guesses: How often the attacker guessed whether the record was there.
        right: How many guesses were right.
        exact: The exact ε of the pair of data sets at δ, where it is known; an audit of this pair
            cannot find more.
        curve: The measured trade-off curve; None if there is none.
        notes: Settings and remarks, one sentence each.
    """

    name: str
    claimed: float
    delta: float
    lower: float
    confidence: float
    runs: int
    guesses: int
    right: int
    exact: float | None = None
    curve: MeasuredCurve | None = attrs.field(default=None, repr=False, eq=False)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, bound: Bound, **known: Any) -> Self:
        """The result of a bound, and what else is known."""
        counts = {name: getattr(bound, name) for name in ("lower", "runs", "guesses", "right")}
        return cls(**counts, **known)

    @property
    def share(self) -> float:
        """The lower bound as a fraction of the claim; above 1 the claim is refuted."""
        return self.lower / self.claimed

    @property
    def refuted(self) -> bool:
        """Whether the runs contradict the claim, at this confidence."""
        return self.lower > self.claimed

    @property
    def allowed(self) -> float:
        """The largest expected fraction of right guesses under the claim.

        In expectation right ≤ e^ε wrong + δ runs, because both coins are equally likely.
        """
        odds = math.exp(-self.claimed)
        revealed = self.delta * self.runs / self.guesses if self.guesses else self.delta
        return min(1.0, (1 + odds * revealed) / (1 + odds))

    @property
    def sentence(self) -> str:
        """The risk in one plain sentence."""
        claim = f"ε = {exact(self.claimed)} and δ = {exact(self.delta)}"
        allowed = f"{rounded_up(100 * self.allowed, 3)}%"
        if not self.guesses:
            return (
                f"An attacker who knows every record but one never learned enough to guess "
                f"whether it was there; {claim} would allow {allowed} right guesses."
            )
        right = f"{nearest(100 * self.right / self.guesses, 3)}%"
        verdict = "is refuted" if self.refuted else "stands"
        return (
            f"An attacker who knows every record but one guessed whether it was there in "
            f"{self.guesses:,} of {self.runs:,} cases and was right in "
            f"{right} of them; {claim} allow {allowed} on "
            f"average, so the claim {verdict} at confidence {exact(self.confidence)}."
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The result in words, one line or more."""
        bound = rounded_down(self.lower, 4)
        lines = [
            f"{self.name}: ε >= {bound} measured, {exact(self.claimed)} claimed "
            f"({rounded_down(100 * self.share, 3)}%) at δ = {exact(self.delta)}, confidence "
            f"{exact(self.confidence)}"
        ]
        if self.exact is not None:
            lines.append(f"the exact ε of this pair of data sets is {nearest(self.exact)}")
        return [*lines, self.sentence, *self.notes]

    def plain(self) -> dict[str, Any]:
        """The result as JSON holds it."""
        names = [field.name for field in attrs.fields(AuditResult) if field.name != "curve"]
        values = {name: getattr(self, name) for name in (*names, "share", "refuted", "sentence")}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.plain(), ensure_ascii=False)

    def plot(self, path: str | Path) -> None:
        """Draw the measured trade-off curve beside that of the claim, SVG or PNG by its name.

        Raises:
            ValueError: if the audit has no curve, as one of many canaries in one run has none.
        """
        if self.curve is None:
            raise ValueError("Expected an audit with a trade-off curve, got one without.")
        from matplotlib.figure import Figure  # a heavy import, for pictures only

        figure = Figure(figsize=(5.4, 5), layout="constrained")
        axes = figure.add_subplot()
        grid = np.linspace(0, 1, 1001)
        allowed = claimed_curve(grid, self.claimed, self.delta)
        axes.fill_between(grid, 0, allowed, color="#c44536", alpha=0.12, linewidth=0)
        claim = f"claimed: ε = {exact(self.claimed)}, δ = {exact(self.delta)}"
        axes.plot(grid, allowed, color="#c44536", label=claim)
        axes.plot(grid, 1 - grid, color="#999999", linestyle=":", label="a blind guess")
        region = self.curve.region(grid)
        axes.fill_between(grid, *region, color="#1f6f8b", alpha=0.2, linewidth=0)
        measured = self.curve.false_positives, self.curve.false_negatives
        axes.plot(*measured, color="#1f6f8b", label="measured")
        axes.set(
            xlabel="false positives: said there, was not",
            ylabel="false negatives: said not there, was",
            xlim=(0, 1),
            ylim=(0, 1),
            title=f"{self.name}: ε ≥ {rounded_down(self.lower, 3)} of {exact(self.claimed)}",
        )
        axes.legend(loc="upper right")
        figure.savefig(path)


def audit(
    mechanism: Callable[[Data], Any],
    with_record: Data,
    without_record: Data,
    *,
    epsilon: float,
    delta: float = 0.0,
    runs: int = 20_000,
    confidence: float = CONFIDENCE,
    score: Callable[[Any], float] | None = None,
    seed: int | None = None,
    progress: bool = False,
    name: str | None = None,
) -> AuditResult:
    """Try to refute that a mechanism is (epsilon, delta)-DP, on one pair of neighbours.

        audit(lambda data: sum(data) + laplace(scale=1), [1, 1, 1], [1, 1], epsilon=1.0)

    A fair coin decides for each run which of the two data sets the mechanism sees. Where no score
    is given, one is learned on half of the runs: from the frequencies of categories (a refusal is
    one) and of numbers. The other half is counted. See `prudent.audit.lower_bounds` for the bound
    and its proof.

    Guarantee:
        If the mechanism is (epsilon, delta)-DP and its runs are independent, the result is
        `refuted` with a probability of at most 1 - confidence.

    Args:
        mechanism: A function from data to an output: a number, an array, a category, an outcome of
            `prudent.release`, or tuples and mappings of these. Each call is a run.
        with_record: A data set.
        without_record: Its neighbour. The bound holds for any two data sets that the claim calls
            neighbours; choose the pair that is hardest to hide.
        epsilon: ε of the claim.
        delta: δ of the claim.
        runs: The number of runs on each of the two data sets, on average.
        confidence: 1 minus the false-alarm rate.
        score: A function from an output to a number that is high where the output speaks for the
            record, fixed before the runs. None: it is learned.
        seed: Of the coins, to repeat an audit; None draws new ones.
        progress: Whether to show a progress bar on standard error.
        name: What to call the mechanism; its own name by default.
    """
    check_claim(epsilon, delta, confidence)
    coins = fair_coins(runs, seed)
    data = (without_record, with_record)
    outputs = run_all(mechanism, data, coins, progress=progress)
    return judge(
        outputs,
        coins,
        name=name or str(getattr(mechanism, "__name__", type(mechanism).__name__)),
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        scores=() if score is None else (each(score),),
        learn=score is None,
    )


MOST_RUNS = 10**8
"""More runs than anyone waits for."""


def fair_coins(runs: int, seed: int | None = None) -> BoolArray:
    """Return one coin for each of 2 `runs` runs; without a seed, different ones each time."""
    runs = _validate.count(8, MOST_RUNS, runs=runs)
    return tossed(2 * runs, seed)


def tossed(count: int, seed: int | None = None) -> BoolArray:
    """Return so many fair coins."""
    # Not the stream that a mechanism with the same seed draws its noise from.
    generator = np.random.default_rng(None if seed is None else [seed, _COINS])
    return generator.random(count) < 0.5


def check_claim(epsilon: float, delta: float, confidence: float) -> None:
    """Refuse what no runs can judge, before any are made."""
    _validate.positive(epsilon=epsilon)
    _validate.between(0, 1, ends="[)", delta=delta)
    _validate.between(0.5, 1, ends="[)", confidence=confidence)


def judge(
    outputs: Sequence[Any],
    present: BoolArray,
    *,
    name: str,
    epsilon: float,
    delta: float,
    confidence: float,
    scores: Sequence[Score] = (),
    learn: bool = True,
) -> AuditResult:
    """Return what the outputs of runs refute, given the coins that chose their data.

    Learned scores compete with those that were fixed before the runs if `learn` is true; the
    best is chosen on held-out runs.
    """
    held_out = _HELD_OUT[not scores]
    first = math.ceil(held_out * len(outputs))
    outputs = Outputs(outputs)
    if learn:
        _ = outputs.told  # described once, for all slices
    score = best_score(
        scores, outputs[:first], present[:first], delta=delta, confidence=confidence, learn=learn
    )
    found = score(outputs)
    bound = bound_of_scores(found, present, delta=delta, confidence=confidence, held_out=held_out)
    return AuditResult.of(
        bound,
        name=name,
        claimed=epsilon,
        delta=delta,
        confidence=confidence,
        curve=MeasuredCurve.of(found[first:], present[first:], confidence),
    )


def run_all(
    mechanism: Callable[[Data], Any],
    data: tuple[Data, Data],
    coins: BoolArray,
    *,
    progress: bool = False,
) -> list[Any]:
    """Return the outputs of all runs, in the order of their coins.

    `data` are the data without the record, and with it.
    """
    bar: Any = {"console": Console(stderr=True), "transient": True, "disable": not progress}
    outputs: list[Any] = []
    with _progress.part("runs", len(coins)):
        for part in track(np.array_split(coins, min(_PARTS, len(coins))), "runs", **bar):
            outputs += [mechanism(data[coin]) for coin in part.astype(int).tolist()]
            _progress.advance(len(part))
    return outputs
