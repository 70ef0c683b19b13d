"""What the commands of `prudent audit` share: two options, and how a result is told."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prudent.cli import options
from prudent.cli.display import echo, echo_json

if TYPE_CHECKING:
    from prudent.audit import AuditResult

REFUTED = 1
"""Exit status of an audit that refutes its claim."""

Confidence = Annotated[float, options.number("1 minus the false-alarm rate, in [0.5, 1).")]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw the trade-off curve, SVG or PNG by its name."),
]


def tell(found: "AuditResult", *, plot: Path | None, as_json: bool) -> None:
    """Print a result, draw its curve, and end with status 1 if the claim is refuted."""
    if plot is not None:
        found.plot(plot)
    if as_json:
        echo_json(found.plain())
    else:
        echo("\n".join(found.lines()))
    if found.refuted:
        raise typer.Exit(REFUTED)
