"""Rendering of a table on the terminal."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from prudent.lab.paper.report.document import Cell, Grid, Tone

_STYLES = {
    Tone.GOOD: "green",
    Tone.BAD: "red",
    Tone.MISSING: "dim",
    Tone.WORST: "red",
    Tone.BEST: "bold green",
}


_WIDTH = 320  # wider than any table; a narrower terminal wraps lines instead of truncating numbers


def show(grid: Grid) -> None:
    """Print a table, with a line between its groups of rows."""
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=grid.title,
        title_justify="left",
        caption=grid.note or None,
        caption_justify="left",
        header_style="bold",
        pad_edge=False,
    )
    for column, name in enumerate(grid.header):
        table.add_column(name, justify="left" if column < grid.words else "right")
    for row, following in zip(grid.rows, (*grid.rows[1:], None), strict=True):
        ends = following is not None and following[0] is not None
        table.add_row(*map(_cell, row), end_section=ends)
    Console(highlight=False, width=max(Console().width, _WIDTH)).print(table)


def _cell(cell: Cell | None) -> Text:
    if cell is None:
        return Text()
    text = f"{cell.text} ({cell.detail})" if cell.detail else cell.text
    return Text(text, _STYLES.get(cell.tone, ""), no_wrap=True)
