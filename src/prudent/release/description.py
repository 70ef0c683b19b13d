"""What `describe` returns: a summary of a column, released at one price."""

import html
from collections.abc import Mapping
from typing import Any

import attrs

from prudent._rounding import outward
from prudent.release.outcome import TOO_FEW, Released


@attrs.frozen(kw_only=True)
class Description:
    """Count, mean, deviation and quantiles of a column; it may be published.

    Attributes:
        count: The number of records.
        mean: The mean of the clipped values.
        deviation: The standard deviation of the clipped values.
        quantiles: The value of each probability, as its text: "0.25", "0.5", …
        event: The privacy event of all of it, for any accountant.
        mechanism: The names of the mechanisms.
        epsilon: ε that all of it cost.
        delta: δ that all of it cost; 0 for pure mechanisms.
        notes: What was done to the records and what to keep in mind, one sentence each.
    """

    count: Released
    mean: Released
    deviation: Released
    quantiles: Mapping[str, Released]
    event: Any = attrs.field(repr=False)
    mechanism: str = "exponential, laplace"
    epsilon: float | None = None
    delta: float | None = None
    notes: tuple[str, ...] = ()

    def __getitem__(self, p: Any) -> Released:
        """The quantile of a probability, given as a number or its text."""
        return self.quantiles[str(p)]

    @property
    def median(self) -> Released:
        """The quantile of probability one half."""
        return self.quantiles["0.5"]

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value and 95 % interval of each number, in words.

        A number that is too uncertain for an interval is left out.
        """
        named = {"count": self.count, "mean": self.mean, "deviation": self.deviation}
        named |= {f"{p}-quantile": each for p, each in self.quantiles.items()}
        return [(name, *_value_and_interval(each)) for name, each in named.items()]

    def lines(self) -> list[str]:
        """The summary as a table of text."""
        rows = self.rows()
        widths = [max(len(row[place]) for row in rows) for place in (0, 1)]
        return [
            *(f"{name:<{widths[0]}}  {value:>{widths[1]}}  {end}" for name, value, end in rows),
            *self.notes,
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def plain(self) -> dict[str, Any]:
        """The summary as JSON holds it."""
        moments = {name: getattr(self, name) for name in ("count", "mean", "deviation")}
        return {
            "status": "released",
            **{name: each.value for name, each in moments.items()},
            "quantiles": {p: each.value for p, each in self.quantiles.items()},
            "intervals": {
                name: list(each.usual_interval)
                for name, each in {**moments, **self.quantiles}.items()
                if each.usual_interval is not None
            },
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        """The summary for a notebook."""
        cells = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td>"
            f"<td>{html.escape(interval)}</td></tr>"
            for name, value, interval in self.rows()
        )
        head = "<tr><th></th><th>value</th><th>95 % interval</th></tr>"
        notes = html.escape(" ".join(self.notes))
        return f"<table>{head}{cells}</table><small>{notes}</small>"


def _value_and_interval(released: Released) -> tuple[str, str]:
    ends = released.usual_interval
    if ends is None:
        return "", f"({TOO_FEW})"
    return released.shown, " to ".join(outward(*ends))
