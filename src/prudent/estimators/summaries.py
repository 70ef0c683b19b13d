"""Models with coefficients as text and as pictures."""

import abc
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from prudent._rounding import nearest, outward, rounded_up
from prudent.accounting.relations import ADD_REMOVE


class CoefficientSummary(abc.ABC):
    """What `summary` and `plot` show of a fitted model with coefficients.

    Attributes:
        no_interval_: Why some interval is missing; empty if none is.
    """

    no_interval_: str

    @abc.abstractmethod
    def coefficients(self) -> Iterator[tuple[str, float, tuple[float, float]]]:
        """The name, the value and the ends of the interval of each, the intercept first."""

    def _facts(self) -> list[str]:
        """Further lines of the summary."""
        return []

    def summary(self) -> str:
        """The model as text: coefficients with intervals, what was clipped, and the price."""
        check_is_fitted(self)
        fitted: Any = self
        rows = [("", "coefficient", "95 % interval")]
        for term, value, (low, high) in self.coefficients():
            ends = "–" if math.isnan(low) else " to ".join(outward(low, high))
            rows.append((term, nearest(value), ends))
        first, second = (max(len(row[place]) for row in rows) for place in (0, 1))
        lines = [f"{a:<{first}}  {b:>{second}}  {c}".rstrip() for a, b, c in rows]
        clipped = ""
        if hasattr(self, "n_clipped_"):
            clipped = f", of which about {round(self.n_clipped_):,} were clipped"
        lines.append(f"about {max(0, round(fitted.n_records_)):,} records{clipped}")
        if self.no_interval_:
            lines.append(f"no interval (–): {self.no_interval_}")
        price = f"({rounded_up(fitted.epsilon_, 6)}, {rounded_up(fitted.delta_, 6)})-DP"
        neighbours = ADD_REMOVE.sentence(fitted._protected)
        return "\n".join([*lines, *self._facts(), f"{price} for {neighbours}"])

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the slopes with their intervals; one that has none is drawn without.

        Args:
            path: The file to write, SVG or PNG by its name; None only returns the figure, which a
                notebook shows.
        """
        from matplotlib.figure import Figure  # a heavy import, for pictures only

        check_is_fitted(self)
        fitted: Any = self
        slopes = [each for each in self.coefficients() if "(intercept)" not in each[0]]
        terms, values, ends = zip(*slopes, strict=True)
        errors = np.abs(np.nan_to_num(np.array(ends).T - values))
        figure = Figure(figsize=(7, 1 + 0.4 * len(terms)), layout="constrained")
        axes = figure.add_subplot()
        axes.axvline(0.0, color="#b0b0b0", linewidth=1)
        axes.errorbar(
            values, range(len(terms)), xerr=errors, fmt="o", color="#1f6f8b", ecolor="#b0b0b0"
        )
        axes.set_yticks(range(len(terms)), terms)
        axes.invert_yaxis()
        axes.set(xlabel=f"slope (bars: 95 % intervals), ε = {rounded_up(fitted.epsilon_, 6)}")
        if path is not None:
            figure.savefig(path)
        return figure
