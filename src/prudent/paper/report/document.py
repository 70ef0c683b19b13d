"""A page as plain blocks, which every rendering shows in its own way."""

import enum

import attrs


class Tone(enum.Enum):
    """What a cell says at a glance."""

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
        text: What stands in it.
        tone: What it says at a glance.
        detail: Something smaller beside it.
        rows: How many rows it spans; those below it have None in its place.
    """

    text: str
    tone: Tone = Tone.PLAIN
    detail: str = ""
    rows: int = 1


@attrs.frozen
class Paragraph:
    """Words; `code` in backquotes."""

    text: str


@attrs.frozen
class Bullets:
    """A list of words."""

    items: tuple[str, ...]


@attrs.frozen
class Tile:
    """One number that stands out, and what it counts."""

    value: str
    label: str
    tone: Tone = Tone.PLAIN


@attrs.frozen
class Tiles:
    """Numbers that stand out, side by side."""

    tiles: tuple[Tile, ...]


@attrs.frozen
class Grid:
    """A table of cells.

    Attributes:
        header: Names of the columns.
        rows: Of as many cells; None where one above reaches down.
        words: How many columns, from the left, hold words rather than numbers.
        title: What stands above it.
        note: What stands below it.
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
    """Drawings that belong together, as text of SVG.

    Attributes:
        drawings: The drawings.
        legend: What the lines are, where the drawings do not say it themselves.
        title: What stands above them.
        wide: Whether each needs the whole width.
    """

    drawings: tuple[str, ...]
    legend: tuple[Key, ...] = ()
    title: str = ""
    wide: bool = False


@attrs.frozen
class Fold:
    """Blocks that a reader may open."""

    title: str
    blocks: tuple["Block", ...]


Block = Paragraph | Bullets | Tiles | Grid | Plots | Fold


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
        title: Of the page.
        lead: What it is, in a sentence or two.
        sections: Its parts.
    """

    title: str
    lead: str
    sections: tuple[Section, ...]
