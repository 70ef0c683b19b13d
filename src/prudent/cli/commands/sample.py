"""`prudent sample`: a table to try things on."""

from pathlib import Path

import typer

from prudent.cli import completion, options
from prudent.cli.completion import among
from prudent.cli.display import echo, echo_json, remark


def sample(
    name: str = typer.Argument(
        metavar="NAME",
        help="Which table: salaries.",
        autocompletion=among(*completion.SAMPLES),
    ),
    out: Path | None = options.value(
        "FILE", "Where to write it; by default NAME.parquet, here.", default=None
    ),
    force: bool = typer.Option(False, help="Replace a file that is there."),
    as_json: options.Json = False,
) -> None:
    """Write a small real table to try things on.

    It ships with the package and its records are public, so that you can
    compare private answers with exact ones.

    [b]Example[/b]

    $ prudent sample salaries

    $ prudent release median salaries.parquet --column salary --epsilon 0.3
    """
    from prudent.samples import SAMPLES, write

    path = write(name, out, force=force)
    known = SAMPLES[name]
    if as_json:
        echo_json({"file": str(path), "about": known.about, "source": known.source})
        return
    echo(f"Wrote {path}.")
    remark(known.about)
    remark(f"Source: {known.source}")
