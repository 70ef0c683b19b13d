"""What a release would cost and how accurate it would be, known before anything is paid."""

from typing import Any

import attrs

from prudent._rounding import nearest, rounded_up


@attrs.frozen(kw_only=True)
class Preview:
    """The public facts of a release, before it: price, mechanism, noise.

    Attributes:
        statistic: The name of the statistic, such as "median".
        mechanism: The name of the mechanism; see `Released.mechanism`.
        epsilon: ε that would be charged.
        delta: δ that would be charged; 0 for a pure mechanism.
        event: The privacy event of the release, for any accountant.
        proposal: τ, in the unit of the data; None if there is none.
        noise_scale: Standard deviation of the noise, in the unit of the data; None if no noise is
            added to the value.
        half_width: Half the width of the 95 % interval; None if it depends on the data.
        threshold: The number of records that the noisy margin must exceed; None without a test.
        rank_error: The number of records by which the rank of the answer may be off, with
            probability 95 %; None if the value is not chosen by rank.
        notes: What public facts already decide, one sentence each.
    """

    statistic: str
    mechanism: str
    epsilon: float
    delta: float
    event: Any = attrs.field(repr=False)
    proposal: float | None = None
    noise_scale: float | None = None
    half_width: float | None = None
    threshold: int | None = None
    rank_error: int | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The facts in words, one per line."""
        price = "" if not self.delta else f", δ = {rounded_up(self.delta, 6)}"
        epsilon = rounded_up(self.epsilon, 6)
        found = [f"{self.statistic} by {self.mechanism}: ε = {epsilon}{price}"]
        if self.noise_scale is not None:
            found.append(f"noise of standard deviation {nearest(self.noise_scale)}")
        if self.half_width is not None:
            found.append(f"95 % interval: the answer ± {rounded_up(self.half_width)}")
        if self.rank_error is not None:
            found.append(
                f"rank: within {self.rank_error:,} records of the exact one, with probability 95 %"
            )
        if self.threshold is not None:
            found.append(
                f"released if the noisy margin exceeds {self.threshold:,} records, else refused"
            )
        return [*found, *self.notes]
