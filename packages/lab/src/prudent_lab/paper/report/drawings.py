"""The plots of a report, as HTML: accuracy over ε."""

import html
import re
from collections.abc import Mapping, Sequence

import numpy as np

from prudent_lab import declared
from prudent_lab.paper import plots
from prudent_lab.paper.jobs import published_for
from prudent_lab.paper.panels import Curve, Figure, Panel
from prudent_lab.paper.plots import Stroke
from prudent_lab.paper.report import display_names
from prudent_lab.paper.report.comparison import tuned_columns
from prudent_lab.paper.results import Results

_STROKES = declared("prudent_lab.paper", "figures.toml")["accuracy"]
_PAPER = "the paper's TSGD+PTR"


def drawing(figure: Figure, name: str, kind: str = "wide", **strokes: Mapping[str, Stroke]) -> str:
    """A figure; one with few panels is not stretched to the whole width."""
    drawn = plots.inline(figure, name, **strokes)
    box = re.search(r'viewBox="[\d.]+ [\d.]+ ([\d.]+)', drawn)
    natural = f' style="--natural: {box[1]}px"' if box else ""
    return f'<div class="{kind}" tabindex="0"{natural}>{drawn}</div>'


def accuracy_over_epsilon(results: Results, dataset: str) -> str:
    """Accuracy over ε, one panel per corruption of the paper; empty if nothing was run."""
    best, rival = tuned_columns(results, dataset)
    columns = {name: display_names.method(name) for name in ("ptr", "trimmed", "dpsgd")}
    columns |= {best: f"tuned: {display_names.method(best)}", rival: "DP-SGD, same tuning"}
    *styles, crosses = (Stroke(**told) for told in _STROKES)
    strokes = dict(zip(columns.values(), styles, strict=False))
    strokes[_PAPER] = crosses
    panels = []
    for corrupt in dict.fromkeys(cell.corrupt for cell in published_for(dataset)):
        curves = []
        for column, name in columns.items():
            epsilons = sorted({reading.epsilon for reading in results.of(dataset, corrupt, column)})
            rows = ((e, results.row((dataset, corrupt, e))) for e in epsilons)
            cells = [(e, row[column, "pld"]) for e, row in rows if (column, "pld") in row]
            if cells:
                values = ((e, cell.mean, cell.deviation or 0.0) for e, cell in cells)
                curves.append(Curve(name, *map(np.array, zip(*values, strict=True))))
        if curves:
            same = (c for c in published_for(dataset) if (c.corrupt, c.method) == (corrupt, "ptr"))
            printed = sorted({(cell.epsilon, cell.accuracy) for cell in same})
            curves.append(Curve(_PAPER, *map(np.array, zip(*printed, strict=True))))
            panels.append(Panel(display_names.corruption(corrupt), tuple(curves), limits(curves)))
    figure = Figure(panels=tuple(panels), x="ε", y="accuracy, %", columns=4)
    if not panels:
        return ""
    drawn = drawing(figure, f"curve-{dataset}", "wide curves", strokes=strokes)
    return f"<h3>{html.escape(display_names.dataset(dataset))}</h3>\n{drawn}"


def limits(curves: Sequence[Curve]) -> tuple[float, float] | None:
    """The range of accuracies at the paper's ε and above, where methods differ by little.

    The last curve is the paper's; None if no other one reaches its ε.
    """
    *ours, paper = curves
    reached = np.concatenate(
        [
            (curve.y + sign * (0 if curve.spread is None else curve.spread))[curve.x >= paper.x[0]]
            for curve in ours
            for sign in (-1, 1)
        ]
    )
    if not reached.size:
        return None
    values = [*map(float, reached), *map(float, paper.y)]
    middle, half = (max(values) + min(values)) / 2, max(max(values) - min(values), 1.0) / 2
    return middle - half, middle + half
