"""Pictures as SVG that are readable on light and on dark pages."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK = "#0f1e2d"  # no line has this colour; the saved file replaces it by that of the reader
_SCHEME = (
    "<style>svg { color: #1f2328 } "
    "@media (prefers-color-scheme: dark) { svg { color: #e6edf3 } }</style>"
)
_STYLE: dict[str, Any] = {
    "axes.edgecolor": _INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": _INK,
    "axes.titlesize": 10.5,
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.alpha": 0.2,
    "grid.color": _INK,
    "legend.frameon": False,
    "legend.labelcolor": _INK,
    "svg.hashsalt": "prudent",  # the same picture is the same file
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def panels(count: int) -> "tuple[Figure, list[Axes]]":
    """An empty figure with panels side by side, to be drawn on and given to `save`."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.2 * count, 4.2), layout="constrained")
        axes = figure.subplots(1, count, squeeze=False)
    return figure, list(axes[0])


def save(figure: "Figure", path: Path) -> None:
    """Write a figure of `panels` as SVG, in the colours of the reader's scheme."""
    import matplotlib as mpl

    drawn = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    head, opening, rest = drawn.getvalue().partition("<svg ")
    tag, closing, body = rest.partition(">")
    text = head + opening + tag + closing + _SCHEME + body
    path.write_text(text.replace(_INK, "currentColor"), "utf-8")
