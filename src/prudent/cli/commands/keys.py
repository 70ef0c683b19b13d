"""`prudent keys`: keys that sign receipts."""

import typer

from prudent.cli import options
from prudent.cli.display import echo, echo_json, note

app = typer.Typer(no_args_is_help=True, help="Make and show the keys that sign receipts.")


@app.command()
def make(
    name: str = typer.Argument("default", metavar="NAME", help="Of the new key."),
    as_json: options.Json = False,
) -> None:
    """Make an Ed25519 key. Its secret part stays on this machine, readable by you alone.

    [b]Example[/b]

    $ prudent keys make research
    """
    from prudent.receipts import keys

    public = keys.make(name)
    if as_json:
        echo_json({"name": name, "public": public})
        return
    echo(public)
    note(f"The secret part is in {keys.folder() / name}.key: whoever has it signs as you.")


@app.command()
def show(as_json: options.Json = False) -> None:
    """Show the public part of every key, to hand to those who check receipts.

    [b]Example[/b]

    $ prudent keys show
    """
    from prudent.receipts import keys

    if as_json:
        echo_json({"keys": keys.public_keys()})
        return
    for name, public in keys.public_keys().items():
        echo(f"{public}  {name}")
