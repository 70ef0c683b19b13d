"""Plots of the figures in one style, readable without colour and in print."""

import io
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, NullFormatter

from prudent_lab.paper import panels

# Okabe and Ito's colour-blind safe palette.
_BLACK, _GREY = "#000000", "#8c8c8c"
_ORANGE, _SKY, _GREEN, _BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
_VERMILION, _PURPLE = "#D55E00", "#CC79A7"

# A drawing inside a page uses the page's colours, so that both follow dark mode.
_PAGE_COLOURS = {
    _BLACK: "currentColor",
    "#444444": "currentColor",
    "#555555": "currentColor",
    "#e6e6e6": "var(--line)",
    _GREY: "var(--grey)",
    _ORANGE: "var(--orange)",
    _SKY: "var(--sky)",
    _GREEN: "var(--green)",
    _BLUE: "var(--blue)",
    _VERMILION: "var(--vermilion)",
    _PURPLE: "var(--purple)",
}

_SETTINGS: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "svg.fonttype": "path",
    "svg.hashsalt": "prudent",  # makes the output file reproducible
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
}


@attrs.frozen
class Stroke:
    """The line style of a curve, the same in every figure."""

    colour: str
    dashes: str | tuple[int, tuple[float, ...]] = "-"
    width: float = 1.6
    marker: str = ""
    size: float = 2.8  # of the marker


_STROKES: Mapping[str, Stroke] = {
    panels.DIRECT: Stroke(_VERMILION, (0, (6, 2))),
    panels.COMPOSED: Stroke(_VERMILION, (0, (6, 2))),
    panels.SHARPENED: Stroke(_GREEN, (0, (1, 1.2)), 2.0),
    panels.RENYI: Stroke(_BLUE, (0, (4, 1.5, 1, 1.5))),
    panels.BLACK_BOX: Stroke(_SKY, (0, (6, 2))),
    panels.WHITE_BOX: Stroke(_ORANGE, "-", 1.8, "o"),
    panels.PLUG_IN: Stroke(_GREEN, (0, (1, 1.2)), 2.0),
    panels.EXACT_RENYI: Stroke(_BLUE, (0, (4, 1.5, 1, 1.5))),
    panels.EXACT: Stroke(_BLACK, "-", 2.0),
    panels.LOSS: Stroke(_BLACK, "-", 2.0),
    panels.NO_TEST: Stroke(_GREY, (0, (2, 2)), 1.4),
}


def save(figure: panels.Figure, directory: Path) -> list[Path]:
    """Write figureN.csv, figureN.png and figureN.svg; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    table, image, drawing = (
        directory / f"figure{figure.number}.{kind}" for kind in ("csv", "png", "svg")
    )
    panels.write_csv(figure, table)
    with mpl.rc_context(_SETTINGS):
        canvas = draw(figure)
        canvas.savefig(image, metadata={"Software": None})
        canvas.set_layout_engine("none")  # keeps the layout computed above
        canvas.savefig(drawing, metadata={"Date": None})
    return [table, image, drawing]


def inline(figure: panels.Figure, name: str, strokes: Mapping[str, Stroke] = _STROKES) -> str:
    """A figure as SVG for embedding in a page, in the page's colours."""
    buffer = io.StringIO()
    with mpl.rc_context(_SETTINGS):
        unset = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        draw(figure, strokes).savefig(buffer, format="svg", transparent=True, metadata=unset)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"\s*\n\s*", "\n", text)
    for colour, variable in _PAGE_COLOURS.items():
        text = text.replace(colour.lower(), variable)
    return text.replace("<svg ", '<svg fill="currentColor" role="img" ', 1).strip()


def draw(figure: panels.Figure, strokes: Mapping[str, Stroke] = _STROKES) -> Canvas:
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
        linestyle=stroke.dashes,
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
