"""What the command line prints: nothing from outside can move the cursor, hide text or fake a line.

A value, a label, the name of a column and the message of an engine come from whoever wrote the
data. Terminals obey the control characters in them, so they are printed as escapes.
"""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.text import Text


def neutral(text: object, *, keep: str = "") -> str:
    r"""The text with every character that is not printable as an escape: ESC becomes `\x1b`.

    That takes in line ends, characters that turn the direction of writing, and halves of
    surrogate pairs, which no stream can write.

    Args:
        text: Anything; its `str`.
        keep: Characters to leave as they are.
    """
    return "".join(
        each if each.isprintable() or each in keep else repr(each)[1:-1] for each in str(text)
    )


def as_text(text: object) -> "Text":
    """The text for a console of rich, which would take `[red]` in it for a colour."""
    from rich.text import Text

    return Text(neutral(text))


def echo(text: object, *, err: bool = False) -> None:
    """Prints lines that may hold texts from outside."""
    typer.echo(neutral(text, keep="\n"), err=err)


def complain(message: object) -> None:
    """Prints a message on standard error, as one line."""
    typer.echo(neutral(" ".join(str(message).split())), err=True)
