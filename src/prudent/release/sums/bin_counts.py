"""A released histogram, and the distribution function that follows from it."""

import html
import itertools
import math
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from prudent._rounding import nearest, rounded_up
from prudent.release.outcome import NoiseSpread

_BAR = 40  # characters of the longest bar in text


@attrs.frozen(kw_only=True)
class Histogram:
    """Noisy counts of the records in each bin; it may be published.

    A bin holds its left edge and not its right one, but the last bin holds both. Counts are as
    released: a few may be negative, and sums of them have no bias.

    Attributes:
        edges: The edges of the bins, as values of the column's type.
        numbers: The edges as numbers, in the unit of the column's scale.
        counts: The noisy number of records in each bin.
        below: The noisy number of records below the first edge.
        above: The noisy number of records above the last edge.
        spread: The spread of each of these numbers.
        event: The privacy event, for any accountant.
        mechanism: The name of the mechanism.
        column: The name of the column; None if it has none.
        epsilon: ε that the release cost.
        delta: δ that it cost; 0 for a pure mechanism.
        notes: What was done to the records, one sentence each.
    """

    edges: tuple[Any, ...]
    numbers: tuple[float, ...] = attrs.field(repr=False)
    counts: tuple[int, ...]
    below: int
    above: int
    spread: NoiseSpread = attrs.field(repr=False)
    event: Any = attrs.field(repr=False)
    mechanism: str
    column: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    notes: tuple[str, ...] = ()

    def half_width(self, confidence: float = 0.95) -> float:
        """The distance from its true count that a count exceeds with probability 1 - confidence."""
        return self.spread.half_width(confidence)

    def cdf(self) -> tuple[float, ...]:
        """The fraction of records below each edge (for the last edge: or at it).

        It is made monotone: the mean of the least sequence that never falls above the noisy one,
        and the greatest that never falls below it.
        """
        sums = np.cumsum([self.below, *self.counts, self.above])
        fractions = sums[:-1] / max(1, sums[-1])
        upper = np.maximum.accumulate(fractions)
        lower = np.minimum.accumulate(fractions[::-1])[::-1]
        return tuple(np.clip((upper + lower) / 2, 0.0, 1.0).tolist())

    def lines(self) -> list[str]:
        """The histogram in words and bars, one line per bin."""
        longest = max(1, *self.counts)
        edges = list(map(_label, self.edges))
        rows = [
            (f"{low} to {high}", each, max(0, each))
            for (low, high), each in zip(itertools.pairwise(edges), self.counts, strict=True)
        ]
        if self.below > 0:
            rows.insert(0, (f"below {edges[0]}", self.below, 0))
        if self.above > 0:
            rows.append((f"above {edges[-1]}", self.above, 0))
        width = max(len(name) for name, *_ in rows) + 1
        found = [
            f"{name + ':':{width}} {each:>9,} {'█' * round(_BAR * drawn / longest)}".rstrip()
            for name, each, drawn in rows
        ]
        half = math.ceil(self.half_width())
        return [*found, f"each count ± {half:,} with probability 95 %", *self.notes]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def plain(self) -> dict[str, Any]:
        """The histogram as JSON holds it."""
        return {
            "status": "released",
            "edges": list(self.edges),
            "counts": list(self.counts),
            "below": self.below,
            "above": self.above,
            "half_width": self.half_width(),
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        """The histogram for a notebook."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def plot(self, path: str | Path, *, cumulative: bool = False) -> None:
        """Draw the histogram to a file, SVG or PNG by its name.

        Args:
            path: The file to write.
            cumulative: Whether to draw the distribution function instead of the counts.
        """
        from matplotlib.figure import Figure  # a heavy import, for pictures only

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot()
        edges = np.array(self.numbers)
        if cumulative:
            axes.plot(edges, self.cdf(), drawstyle="default", color="#1f6f8b")
            axes.set(ylabel="fraction of records at or below", ylim=(0, 1))
        else:
            error = self.half_width()
            axes.bar(
                (edges[:-1] + edges[1:]) / 2,
                np.maximum(self.counts, 0),
                np.diff(edges) * 0.96,
                yerr=error,
                color="#1f6f8b",
                ecolor="#b0b0b0",
            )
            axes.set(ylabel="records (bars: 95 % of the noise)")
            axes.set_ylim(bottom=0)
        ticks = np.linspace(0, len(edges) - 1, min(len(edges), 7)).round().astype(int)
        axes.set_xticks(edges[ticks], [_label(self.edges[place]) for place in ticks.tolist()])
        price = "" if self.epsilon is None else f"ε = {rounded_up(self.epsilon, 6)}"
        axes.set(xlabel=self.column or "", title=price)
        figure.savefig(path)


def _label(edge: Any) -> str:
    """An edge, which is public: nine digits tell edges apart that a person would choose."""
    return nearest(edge, 9) if isinstance(edge, float) else str(edge)
