"""Pictures as SVG that are readable on light and on dark pages."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#0f1e2d"  # no line has this colour; the saved file replaces it by that of the reader
_SCHEME = (
    "<style>svg { color: #1f2328 } "
    "@media (prefers-color-scheme: dark) { svg { color: #e6edf3 } }</style>"
)
_STYLE: Any = {
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


@contextlib.contextmanager
def panels(count: int, path: Path) -> "Iterator[list[Axes]]":
    """Panels side by side to draw on; at the end they are written to an SVG file.

    Text and axes take the colour of the reader's scheme, lines keep their own.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawn = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.2 * count, 4.2), layout="constrained")
        yield list(figure.subplots(1, count, squeeze=False)[0])
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    head, opening, rest = drawn.getvalue().partition("<svg ")
    tag, closing, body = rest.partition(">")
    text = head + opening + tag + closing + _SCHEME + body
    path.write_text(text.replace(_INK, "currentColor"), "utf-8")
