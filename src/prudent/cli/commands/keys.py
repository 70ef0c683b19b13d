"""`prudent keys`: keys that sign receipts."""

from typing import Annotated

import typer

from prudent.cli.display import echo, note

app = typer.Typer(no_args_is_help=True, help="Make and show the keys that sign receipts.")


@app.command()
def make(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the new key.")] = "default",
) -> None:
    """Make an Ed25519 key. Its secret part stays on this machine, readable by you alone.

    [b]Example[/b]

    $ prudent keys make research
    """
    from prudent.receipts import keys

    echo(keys.make(name))
    note(f"The secret part is in {keys.folder() / name}.key: whoever has it signs as you.")


@app.command()
def show() -> None:
    """Show the public part of every key, to hand to those who check receipts."""
    from prudent.receipts import keys

    for name, public in keys.public_keys().items():
        echo(f"{public}  {name}")
