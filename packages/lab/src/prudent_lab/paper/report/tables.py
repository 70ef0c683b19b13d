"""Tables of the report, as Markdown; `page.html.j2` makes them HTML."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal

import attrs

from prudent_lab.paper.report import display_names
from prudent_lab.paper.results import Estimate

Tone = Literal["", "good", "bad", "missing", "worst", "best"]
"""The emphasis of a cell: a class of the style sheet."""


@attrs.frozen
class Cell:
    """One cell of a table."""

    text: str
    tone: Tone = ""
    detail: str = ""  # additional text, shown smaller
    span: int = 1  # number of rows that the cell spans; the rows below have None in its place

    @classmethod
    def of(
        cls,
        found: Estimate | None,
        usual_seeds: int | None = None,
        *,
        tone: Tone = "",
        paper: float | None = None,
        run: bool = False,
    ) -> "Cell":
        """The cell of an estimate, with its number of seeds unless that is the usual one.

        Beside a number of the paper it shows the difference. A `run` without an estimate had no
        step within ε.
        """
        if found is None:
            return cls("no step within ε", "missing") if run else NOT_RUN
        detail = []
        if paper is not None:
            tone = "good" if found.mean >= paper else "bad"
            detail.append(display_names.difference(found.mean - paper))
        if found.seeds != usual_seeds:
            detail.append("1 seed" if found.seeds == 1 else f"{found.seeds} seeds")
        return cls(display_names.estimate(found), tone, ", ".join(detail))


NOT_RUN = Cell("not run", "missing")


def _merged(rows: Iterable[Sequence[Cell | str]]) -> tuple[tuple[Cell | None, ...], ...]:
    """The rows as cells; equal neighbours in the first column become one cell, None below it."""
    whole = [tuple(Cell(c) if isinstance(c, str) else c for c in row) for row in rows]
    made: list[tuple[Cell | None, ...]] = []
    for first, group in itertools.groupby(whole, lambda row: row[0].text):
        same = list(group)
        names = [Cell(first, span=len(same)), *[None] * (len(same) - 1)]
        made += [(name, *row[1:]) for name, row in zip(names, same, strict=True)]
    return tuple(made)


@attrs.frozen
class Table:
    """A table with its title and its note."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell | None, ...], ...] = attrs.field(converter=_merged)
    title: str = ""
    note: str = ""
    words: int = 1  # number of leading columns that hold text rather than numbers

    @property
    def heads(self) -> list[tuple[str, dict[int, str]]]:
        """Columns by what neighbours share, such as "PTR" in "PTR, RDP" and "PTR, PLD"."""
        names = [(place, *name.partition(", ")) for place, name in enumerate(self.header)]
        found = []
        for (shared, _), group in itertools.groupby(names, lambda name: name[1:3]):
            same = {place: rest for place, _, _, rest in group}
            several = len(same) > 1 and all(same.values())
            whole = {place: self.header[place] for place in same}
            found.append((shared, same) if several else ("", whole))
        return found


_MARKS = {"worst": "*{}*", "best": "**{}**", "bad": "**{}**"}


def as_markdown(table: Table, *, aligned: bool = False) -> str:
    """A table as Markdown; a cell that spans rows appears in the first of them.

    Its columns are `aligned` for a terminal.
    """

    def shown(cell: Cell | None) -> str:
        if cell is None or not cell.text:
            return ""
        text = _MARKS.get(cell.tone, "{}").format(cell.text)
        return (f"{text} ({cell.detail})" if cell.detail else text).replace("|", "\\|")

    rows = [[name.replace("|", "\\|") for name in table.header]]
    rows += [list(map(shown, row)) for row in table.rows]
    widths = [max(map(len, column)) if aligned else 0 for column in zip(*rows, strict=True)]

    def line(cells: Iterable[str]) -> str:
        padded = (
            cell.ljust(width) if place < table.words else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = ["---"] * table.words + ["---:"] * (len(table.header) - table.words)
    title = [f"**{table.title}**\n"] if table.title else []
    note = [f"\n{table.note}"] if table.note else []
    head, *body = map(line, rows)
    return "\n".join([*title, head, "|" + "|".join(rule) + "|", *body, *note])
