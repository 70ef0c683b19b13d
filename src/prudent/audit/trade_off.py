"""The trade-off curve of an audit: which errors an attacker could choose between."""

import math

import attrs
import numpy as np
import numpy.typing as npt

from prudent.accounting.losses.trade_off import TradeOff
from prudent.audit.lower_bounds import BoolArray, FloatArray

_MOST_POINTS = 400


@attrs.frozen(eq=False)
class MeasuredCurve:
    """The errors of all tests that compare one score with a threshold, as measured.

    Guarantee:
        With probability `confidence` at least, both true errors of every threshold are within
        `half_widths` of the measured ones at once (the Dvoretzky-Kiefer-Wolfowitz inequality with
        Massart's constant, for the scores with and without the record).

    Attributes:
        false_positives: For each threshold, the fraction of runs without the record said to have
            it; ascending.
        false_negatives: The fraction of runs with the record said to lack it.
        half_widths: The error of the false positives, and of the false negatives.
        confidence: Probability with which all of them hold.
    """

    false_positives: FloatArray
    false_negatives: FloatArray
    half_widths: tuple[float, float]
    confidence: float

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

    def draw(self, axes: object) -> None:
        """Draw the curve and its confidence region on matplotlib's axes."""
        left = np.clip(self.false_positives - self.half_widths[0], 0, 1)
        right = np.clip(self.false_positives + self.half_widths[0], 0, 1)
        low = np.clip(self.false_negatives - self.half_widths[1], 0, 1)
        high = np.clip(self.false_negatives + self.half_widths[1], 0, 1)
        grid = np.linspace(0, 1, 401)
        # Errors fall from left to right, so the lower left curve bounds all others from below.
        lower = np.interp(grid, left, low)
        upper = np.interp(grid, right, high, left=1.0)
        axes.fill_between(grid, lower, upper, color="#1f6f8b", alpha=0.2, linewidth=0)  # type: ignore[attr-defined]
        axes.plot(  # type: ignore[attr-defined]
            self.false_positives, self.false_negatives, color="#1f6f8b", label="measured"
        )


def claimed_curve(false_positives: npt.ArrayLike, epsilon: float, delta: float) -> FloatArray:
    """Return the least false negatives that (ε, δ)-DP allows at these false positives."""
    alpha = np.asarray(false_positives, np.float64)
    profile = np.array([epsilon]), np.array([delta])
    with np.errstate(over="ignore", invalid="ignore"):
        least = TradeOff(profile, profile).least(1 - alpha, alpha)
    return np.fmax(0.0, least)  # ∞ × 0 at an infinite ε
