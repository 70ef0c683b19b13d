"""The blocks of a page, independent of how they are rendered."""

import enum

import attrs


class Tone(enum.Enum):
    """The emphasis of a cell."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"
    MISSING = "missing"
    WORST = "worst"
    BEST = "best"


@attrs.frozen
class Cell:
    """One cell of a grid.

    Attributes:
        text: Content of the cell.
        tone: Emphasis.
        detail: Additional text, shown smaller.
        rows: Number of rows that the cell spans; the rows below have None in its place.
    """

    text: str
    tone: Tone = Tone.PLAIN
    detail: str = ""
    rows: int = 1


@attrs.frozen
class Paragraph:
    """A paragraph of text; backquotes mark `code`, and `[text](page)` is a link to a docs page."""

    text: str


@attrs.frozen
class Bullets:
    """A bullet list."""

    items: tuple[str, ...]


@attrs.frozen
class Listing:
    """Lines of a file or of commands.

    Attributes:
        text: The lines.
        language: What they are written in, such as toml.
    """

    text: str
    language: str


@attrs.frozen
class Tile:
    """One highlighted number and its label."""

    value: str
    label: str
    tone: Tone = Tone.PLAIN


@attrs.frozen
class Tiles:
    """Highlighted numbers, side by side."""

    tiles: tuple[Tile, ...]


@attrs.frozen
class Grid:
    """A table of cells.

    Attributes:
        header: Names of the columns.
        rows: Rows of cells; None where a cell above spans this row.
        words: Number of leading columns that hold text rather than numbers.
        title: Title above the table.
        note: Note below the table.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Cell | None, ...], ...]
    words: int = 1
    title: str = ""
    note: str = ""


@attrs.frozen
class Key:
    """An entry of a legend: a name and how its line is drawn."""

    name: str
    colour: str
    dashes: str


@attrs.frozen
class Plots:
    """A group of drawings, as SVG text.

    Attributes:
        drawings: The drawings.
        legend: Entries of the legend, if the drawings have none of their own.
        title: Title above the drawings.
        wide: Whether each drawing needs the whole width.
    """

    drawings: tuple[str, ...]
    legend: tuple[Key, ...] = ()
    title: str = ""
    wide: bool = False


Block = Paragraph | Bullets | Listing | Tiles | Grid | Plots


@attrs.frozen
class Section:
    """A part of a page."""

    title: str
    anchor: str
    blocks: tuple[Block, ...]


@attrs.frozen
class Document:
    """A page.

    Attributes:
        title: Title of the page.
        lead: Introduction of a sentence or two.
        sections: Sections of the page.
        caveat: What a reader must know before any number; empty for nothing.
    """

    title: str
    lead: str
    sections: tuple[Section, ...]
    caveat: str = ""
