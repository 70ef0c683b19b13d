"""What an audit found: the largest ε that the runs refute, beside the claim."""

import json
import math
from pathlib import Path
from typing import Any, Self

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._rounding import exact, nearest, rounded_down, rounded_up
from prudent.accounting.losses.loss_tables import TradeOff
from prudent.audit.lower_bounds import BoolArray, Bound, FloatArray

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

    def __attrs_post_init__(self) -> None:
        _validate.positive(claimed=self.claimed)
        _validate.between(0, 1, ends="[)", delta=self.delta)
        _validate.between(0, 1, ends="()", confidence=self.confidence)

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
