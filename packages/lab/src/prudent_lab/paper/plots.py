"""Plots of the figures in one style, readable without colour and in print."""

import io
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, NullFormatter

from prudent_lab import declared
from prudent_lab.paper import panels

STYLE = "prudent_lab.paper.figures"
"""The style sheet of the figures, as matplotlib names it."""
_DECLARED = declared("prudent_lab.paper", "figures.toml")


@attrs.frozen
class Stroke:
    """The line style of a curve, the same in every figure."""

    colour: str
    dashes: str | tuple[float, ...] = "-"  # a style by name, or lengths of dashes and gaps
    width: float = 1.6
    marker: str = ""
    size: float = 2.8  # of the marker


STROKES = {name: Stroke(**told) for name, told in _DECLARED["strokes"].items()}
"""The strokes of the paper's figures, by curve."""


def save(figure: panels.Figure, directory: Path) -> list[Path]:
    """Write figureN.csv, figureN.png and figureN.svg; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    table, image, drawing = (
        directory / f"figure{figure.number}.{kind}" for kind in ("csv", "png", "svg")
    )
    panels.write_csv(figure, table)
    with style.context(STYLE):
        canvas = draw(figure)
        canvas.savefig(image, metadata={"Software": None})
        canvas.set_layout_engine("none")  # keeps the layout computed above
        canvas.savefig(drawing, metadata={"Date": None})
    return [table, image, drawing]


def inline(figure: panels.Figure, name: str, strokes: Mapping[str, Stroke] = STROKES) -> str:
    """A figure as SVG for embedding in a page, in the page's colours."""
    buffer = io.StringIO()
    with style.context(STYLE):
        unset = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        draw(figure, strokes).savefig(buffer, format="svg", transparent=True, metadata=unset)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"\s*\n\s*", "\n", text)
    for colour, variable in _DECLARED["page"].items():
        text = text.replace(colour.lower(), variable)
    return text.replace("<svg ", '<svg fill="currentColor" role="img" ', 1).strip()


def draw(figure: panels.Figure, strokes: Mapping[str, Stroke] = STROKES) -> Canvas:
    """Draw the panels of a figure above one legend and one note."""
    rows = -(-len(figure.panels) // figure.columns)
    heights = [2.5] * rows + ([1.5] if figure.reference else [])
    width = 3.2 * figure.columns + 0.6
    note = textwrap.wrap(figure.note, int(15.8 * width))
    foot_height = 0.55 + 0.17 * len(note)
    height = sum(heights) + (0.75 if figure.title else 0)
    canvas = Canvas(figsize=(width, height + foot_height), layout="constrained")
    FigureCanvasAgg(canvas)
    parts: Any = canvas.subfigures(2, 1, height_ratios=[height, foot_height])
    body, foot = parts
    if figure.title:
        body.suptitle(f"Figure {figure.number}. {figure.title}", x=0.01, ha="left", weight="bold")
    full = len(figure.panels) == rows * figure.columns
    grid = body.subplots(
        len(heights),
        figure.columns,
        squeeze=False,
        sharex="col" if full else False,
        sharey="row" if figure.y == "ε" else False,
        height_ratios=heights,
    )
    for axes in grid.flat[len(figure.panels) : rows * figure.columns]:
        axes.set_axis_off()
    for axes, panel in zip(grid.flat, figure.panels, strict=False):
        title = textwrap.fill(panel.title.replace(" = ", "\u00a0=\u00a0"), 38)
        axes.set_title(title, loc="left")  # broken between settings alone
        if "y" in figure.logarithmic:
            axes.set_yscale("log")
        for curve in panel.curves:
            _draw_curve(axes, curve, strokes[curve.name])
        if panel.limits is not None:
            low, high = panel.limits
            axes.set_ylim(low - 0.03 * (high - low), high + 0.03 * (high - low))
    if figure.reference:
        for axes, panel in zip(grid[-1], figure.panels, strict=True):
            # The ratio of every curve to the exact one, which shows how loose each bound is.
            (exact,) = (curve for curve in panel.curves if curve.name == figure.reference)
            for curve in panel.curves:
                if curve.name != panels.NO_TEST:
                    ratio = attrs.evolve(curve, y=curve.y / exact.y)
                    _draw_curve(axes, ratio, strokes[curve.name])
        grid[-1, 0].set_ylabel("over exact")
    for axes in grid[:rows, 0]:
        axes.set_ylabel(figure.y)
    for axes in grid[-1] if full else grid.flat[: len(figure.panels)]:
        axes.set_xlabel(figure.x)
    for axes in grid.flat:
        _ticks(axes, figure)
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        handles |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    columns = len(handles) if 2.6 * len(handles) < width else -(-len(handles) // 2)
    foot.legend(handles=[*handles.values()], loc="upper center", ncols=columns, handlelength=3.2)
    foot.text(0.01, 0.03, "\n".join(note), color="#555555", size=8.5, va="bottom")
    return canvas


def _draw_curve(axes: Any, curve: panels.Curve, stroke: Stroke) -> None:
    axes.plot(
        curve.x,
        curve.y,
        label=curve.name,
        color=stroke.colour,
        linestyle=stroke.dashes if isinstance(stroke.dashes, str) else (0, stroke.dashes),
        linewidth=stroke.width,
        marker=stroke.marker or ("." if len(curve.x) == 1 else ""),
        markersize=stroke.size,
    )
    if curve.spread is not None and curve.spread.any():
        low, high = curve.y - curve.spread, curve.y + curve.spread
        axes.fill_between(curve.x, low, high, color=stroke.colour, alpha=0.15, linewidth=0)


def _ticks(axes: Any, figure: panels.Figure) -> None:
    """Label axes with a small range by numbers rather than powers of ten."""
    if "x" in figure.logarithmic:
        axes.set_xscale("log")
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log" and high / low < 200:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif figure.reference and axes.get_yscale() == "linear" and high / max(low, 0.5) > 20:
        axes.set_yscale("log")
    if figure.x.startswith("order"):
        axes.set_xticks([2, 4, 8, 16, 32, 64], ["2", "4", "8", "16", "32", "64"])
        axes.xaxis.set_minor_formatter(NullFormatter())
