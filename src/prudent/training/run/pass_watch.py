"""Messages about tests that hardly ever pass, made from the plan and released branches alone."""

import math

import attrs
from scipy import stats

from prudent._rounding import exact, nearest, rounded_up
from prudent._warning import warn
from prudent.training.aggregation import AdaptiveTrim, FixedTrim, ProposeTestRelease
from prudent.training.plan import Plan

_FAIR = 0.2
"""A test that passes this often would be worth its price."""

_RARE = 0.05
_SURPRISE = 1e-3
EARLY_LOOKS = frozenset({50, 200, 1000})
"""Steps after which to look even if no evaluation is due."""

_ADVICE = (
    'The section "Choosing clip, propose and trim" of the training guide says how to choose them '
    "from public data."
)


@attrs.define
class PassWatch:
    """Says once, early, that the test of a plan hardly ever passes, and what to change.

    A run whose test fails pays for the test and gets what DP-SGD gives for less. Branches are
    released, so the messages reveal nothing else.

    Attributes:
        plan: The plan.
        expected_batch: The public batch size.
        said: Whether it was said already.
    """

    plan: Plan
    expected_batch: float
    said: bool = False

    def before(self) -> None:
        """Warn if no data could pass the test often. Nothing is charged yet."""
        rule = self.plan.aggregation
        if self.said or not isinstance(rule, ProposeTestRelease):
            return
        most = self._most(rule)
        chance = rule.test.tail(rule.threshold - most)
        if chance < _RARE:
            self._say(
                f"The test hardly ever passes, whatever the data: the noisy margin must exceed "
                f"{nearest(rule.threshold, 3)} records, and the margin is at most {most}, the "
                f"largest number of trimmed gradients in batches of {exact(self.expected_batch)}. "
                f"It passes with probability at most {rounded_up(chance, 1)}. Use a test of a "
                "smaller scale, a larger batch or a larger failure; prudent.Sum costs less than a "
                "test that fails. "
            )

    def after(self, steps: int, passes: float) -> None:
        """Warn if the test passed in too few of the steps so far."""
        rule = self.plan.aggregation
        if self.said or not isinstance(rule, ProposeTestRelease) or passes > _RARE * steps:
            return
        if stats.binom.cdf(passes, steps, _FAIR) < _SURPRISE:
            allowed = max(0, self._most(rule) - math.ceil(rule.threshold))
            self._say(
                f"The test passed in {passes:.0f} of the first {steps} steps; all others were "
                f"released with the full noise, which prudent.Sum does for less. A test passes "
                f"when fewer than about {allowed} of {self.expected_batch:g} gradients are longer "
                f"than propose * clip = {rule.proposal:g}. Raise clip or propose, allow a larger "
                "trim, or use a test of a smaller scale. "
            )

    def _most(self, rule: ProposeTestRelease) -> int:
        """The largest number of gradients that the plan ever trims."""
        trim = rule.trim
        share = 1.0
        if isinstance(trim, AdaptiveTrim):
            share = trim.most
        elif isinstance(trim, FixedTrim):
            share = trim.share
        return math.floor(share * self.expected_batch)

    def _say(self, sentence: str) -> None:
        self.said = True
        warn(sentence + _ADVICE)
