"""Tables of the report, as Markdown, as HTML and on the terminal."""

import enum
import html
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


class Tone(enum.Enum):
    """The emphasis of a cell."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"
    MISSING = "missing"
    WORST = "worst"
    BEST = "best"


@attrs.frozen
class GridCell:
    """One cell of a grid."""

    text: str  # content of the cell
    tone: Tone = Tone.PLAIN  # emphasis
    detail: str = ""  # additional text, shown smaller
    rows: int = 1  # number of rows that the cell spans; the rows below have None in its place


GridRow = tuple[GridCell | str, ...]
"""A row as it is given; a text is a plain cell."""


@attrs.frozen
class Grid:
    """A table of cells."""

    header: tuple[str, ...]  # names of the columns
    # Rows of cells; None where a cell above spans this row.
    rows: tuple[tuple[GridCell | None, ...], ...]
    words: int = 1  # number of leading columns that hold text rather than numbers
    title: str = ""  # title above the table
    note: str = ""  # note below the table

    @classmethod
    def of(
        cls,
        header: Iterable[str],
        rows: Iterable[GridRow],
        *,
        merged: bool = False,
        **told: Any,
    ) -> "Grid":
        """A table of cells and texts; if `merged`, equal names in the first column are one cell."""
        whole: list[tuple[GridCell | None, ...]] = [tuple(map(_cell, row)) for row in rows]
        if merged:
            names = _spans([row[0].text for row in whole if row[0]])
            whole = [(name, *row[1:]) for name, row in zip(names, whole, strict=True)]
        return cls(tuple(header), tuple(whole), **told)


def _cell(content: GridCell | str) -> GridCell:
    return GridCell(content) if isinstance(content, str) else content


def _spans(names: Sequence[str]) -> Iterator[GridCell | None]:
    """A column of names: equal neighbours become one cell, with None in the rows it spans."""
    for name, same in itertools.groupby(names):
        rows = len(list(same))
        yield GridCell(name, rows=rows)
        yield from [None] * (rows - 1)


_MARKS = {Tone.WORST: "*{}*", Tone.BEST: "**{}**", Tone.BAD: "**{}**"}
_STYLES = {
    Tone.GOOD: "green",
    Tone.BAD: "red",
    Tone.MISSING: "dim",
    Tone.WORST: "red",
    Tone.BEST: "bold green",
}
_WIDTH = 320  # wider than any table; a narrower terminal wraps lines instead of truncating numbers


def as_markdown(table: Grid) -> str:
    """A table as Markdown; a cell that spans rows appears in the first of them."""
    rule = ["---"] * table.words + ["---:"] * (len(table.header) - table.words)
    lines = [
        f"**{table.title}**\n" if table.title else "",
        "| " + " | ".join(map(_escaped, table.header)) + " |",
        "|" + "|".join(rule) + "|",
        *("| " + " | ".join(map(_markdown_cell, row)) + " |" for row in table.rows),
        f"\n{table.note}" if table.note else "",
    ]
    return "\n".join(line for line in lines if line)


def _markdown_cell(cell: GridCell | None) -> str:
    if cell is None or not cell.text:
        return ""
    text = _MARKS.get(cell.tone, "{}").format(_escaped(cell.text))
    return f"{text} ({cell.detail})" if cell.detail else text


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def tiles_as_markdown(tiles: Sequence[GridCell]) -> str:
    """Highlighted numbers with their labels, which are the details of the cells."""
    lines = [f"| {_escaped(tile.detail)} | **{tile.text}** |" for tile in tiles]
    return "\n".join(["| | |", "|---|---|", *lines])


def tiles_as_html(tiles: Sequence[GridCell]) -> str:
    """Highlighted numbers with their labels, side by side."""
    made = (
        f'<div class="tile {tile.tone.value}"><b>{inline(tile.text)}</b>'
        f"<span>{inline(tile.detail)}</span></div>"
        for tile in tiles
    )
    return '<div class="tiles">\n' + "\n".join(made) + "\n</div>"


def as_html(grid: Grid) -> str:
    """A table as HTML, with its title and its note."""
    rows = ((_html_cell(grid, place, cell) for place, cell in enumerate(row)) for row in grid.rows)
    head = "\n".join(f"<tr>{cells}</tr>" for cells in _header(grid))
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    title = f"<h3>{inline(grid.title)}</h3>\n" if grid.title else ""
    note = f'\n<p class="note">{inline(grid.note)}</p>' if grid.note else ""
    return (
        f'{title}<div class="scroll" tabindex="0"><table>\n<thead>{head}</thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>{note}"
    )


def _header(grid: Grid) -> Iterator[str]:
    """One row of names, or two where neighbours such as "PTR, RDP" and "PTR, PLD" share a word."""
    names = [name.split(", ", 1) for name in grid.header]
    runs = [list(same) for _, same in itertools.groupby(names, lambda name: (name[0], len(name)))]
    if all(len(same) == 1 or len(same[0]) == 1 for same in runs):
        cells = enumerate(grid.header)
        yield "".join(f"<th{_classes(grid, column)}>{inline(name)}</th>" for column, name in cells)
        return
    upper, lower, column = [], [], 0
    for same in runs:
        shared = len(same) > 1
        span = f' colspan="{len(same)}" scope="colgroup"' if shared else ' rowspan="2"'
        title = same[0][0] if shared else ", ".join(same[0])
        centred = ' class="over"' if shared else _classes(grid, column)
        upper.append(f"<th{centred}{span}>{inline(title)}</th>")
        if shared:
            lower += [
                f"<th{_classes(grid, column + place)}>{inline(', '.join(name[1:]))}</th>"
                for place, name in enumerate(same)
            ]
        column += len(same)
    yield "".join(upper)
    yield "".join(lower)


def _html_cell(grid: Grid, column: int, cell: GridCell | None) -> str:
    if cell is None:
        return ""
    span = f' rowspan="{cell.rows}"' if cell.rows > 1 else ""
    detail = f"<small>{inline(cell.detail)}</small>" if cell.detail else ""
    return f"<td{_classes(grid, column, cell.tone)}{span}>{inline(cell.text)}{detail}</td>"


def _classes(grid: Grid, column: int, tone: Tone = Tone.PLAIN) -> str:
    plain = tone is Tone.PLAIN
    wanted = {"first": column == 0, "word": column < grid.words, tone.value: not plain}
    names = " ".join(name for name, is_wanted in wanted.items() if is_wanted)
    return f' class="{names}"' if names else ""


def inline(text: str) -> str:
    """The text as escaped HTML, with backquoted parts as code.

    The page stands alone, so links to pages of the docs are shown as their text.
    """
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", html.escape(text, quote=False))
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", plain)


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
        table.add_row(*map(_terminal_cell, row), end_section=ends)
    Console(highlight=False, width=max(Console().width, _WIDTH)).print(table)


def _terminal_cell(cell: GridCell | None) -> Text:
    if cell is None:
        return Text()
    text = f"{cell.text} ({cell.detail})" if cell.detail else cell.text
    return Text(text, _STYLES.get(cell.tone, ""), no_wrap=True)
