"""`prudent paper`: the figures and comparisons of the paper, its curves beside the exact ones."""

import typer

app = typer.Typer(no_args_is_help=True, help="The paper's figures, its curves beside exact ones.")


@app.callback()
def _paper() -> None:
    """The paper's figures, its curves beside exact ones."""
