"""`prudent compare`: what error to expect, before anything is spent."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prudent.cli import completion, options
from prudent.cli.completion import among
from prudent.cli.display import echo_json, remark

if TYPE_CHECKING:
    from prudent.release.comparison import Row, Shape

_LARGEST = 10_000_000


def _read_epsilons(text: str | list[float]) -> list[float]:
    """Parses a comma-separated list of numbers, as typer wants it."""
    return (
        [options.read_number(part) for part in text.split(",")] if isinstance(text, str) else text
    )


def compare(
    public: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="A file of PUBLIC data to compare on, with --column; instead of --shape.",
            show_default=False,
        ),
    ] = None,
    shape: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Made-up data: normal, lognormal, ties or unbounded.",
            autocompletion=among(*completion.SHAPES),
        ),
    ] = "lognormal",
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column of the public file.")
    ] = None,
    records: Annotated[int, options.whole_number("How many records to expect.")] = 20_000,
    epsilons: Annotated[
        Any, typer.Option(metavar="A,B,…", parser=_read_epsilons, help="Compare at each ε.")
    ] = "0.1,0.3,1,3",
    delta: Annotated[float, options.number("δ of Propose-Test-Release.")] = 1e-6,
    propose: Annotated[
        float | None,
        options.number("τ, in the unit of the data; by default what suits the shape at each ε."),
    ] = None,
    trials: Annotated[int, options.whole_number("Releases by each mechanism.")] = 50,
    seed: Annotated[int, options.whole_number("Of the made-up data.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw it, as .png, .svg or .pdf.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    r"""Compare the error of a private median by Propose-Test-Release and by the exponential mechanism.

    No private data is read and nothing is spent: the data are made up, or
    public. The first mechanism needs a proposal and may refuse; the second
    needs none, and no bounds either, and always answers.

    [b]Examples[/b]

    $ prudent compare --shape lognormal --records 20000 --epsilons 0.1,0.3,1

    $ prudent compare --shape unbounded --out compare.svg

    $ prudent compare census.parquet --column income
    """  # noqa: E501
    from prudent import _validate
    from prudent.release import comparison

    _validate.between(1, _LARGEST, records=records)
    _validate.between(1, 10_000, trials=trials)
    _validate.count(seed=seed)
    for epsilon in epsilons:
        _validate.between(1e-3, 50, epsilons=epsilon)
    if out is not None:
        _validate.one_of((".png", ".svg", ".pdf"), out=out.suffix)
    chosen = _shape(public, column, shape)
    rows = comparison.compare_mechanisms(
        chosen,
        records=records,
        epsilons=epsilons,
        delta=delta,
        propose=None if propose is None else _validate.positive(propose=propose),
        trials=trials,
        seed=seed,
    )
    if out is not None:
        _draw(rows, out, f"{public or shape}, {records:,} records")
    if as_json:
        echo_json([_plain(row) for row in rows])
    else:
        _print_table(rows)


def _shape(public: str | None, column: str | None, name: str) -> "Shape":
    """What to draw data from."""
    from prudent import _validate
    from prudent.release.comparison import SHAPES, Shape

    if public is None:
        _validate.one_of(SHAPES, shape=name)
        return SHAPES[name]
    from prudent.release.columns.opening import open_column

    opened = open_column(public, column)
    values = opened.order_statistics(1, _LARGEST)
    values = values[abs(values) < float("inf")]
    if len(values) == 0:
        raise ValueError(f"Expected numbers in column {column!r} of {public!r}, got none.")
    return Shape.of(values)


def _plain(row: "Row") -> dict[str, Any]:
    import attrs

    return attrs.asdict(row)


def _print_table(rows: list["Row"]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("ε", "proposed τ", "error, tested", "refused", "error, exponential")
    for row in rows:
        table.add_row(
            f"{row.epsilon:g}",
            f"{row.propose:.4g}",
            "-" if row.tested is None else f"{row.tested:.4g}",
            f"{row.refused:.0%}",
            f"{row.exponential:.4g}",
        )
    Console().print(table)
    remark(
        "Median errors of a private median. Propose-Test-Release was told τ; the exponential "
        "mechanism was told nothing."
    )


def _draw(rows: list["Row"], path: Path, title: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axes = figure.add_subplot()
    tested = [row for row in rows if row.tested]
    axes.plot(
        [row.epsilon for row in tested],
        [row.tested for row in tested if row.tested],
        "o-",
        color="#0072B2",
        label="propose, test, release",
    )
    known = [row for row in rows if row.exponential > 0]
    axes.plot(
        [row.epsilon for row in known],
        [row.exponential for row in known],
        "s--",
        color="#D55E00",
        label="exponential mechanism",
    )
    if tested or known:
        axes.set(xscale="log", yscale="log")
    axes.set(xlabel="ε", ylabel="median error, in the unit of the data", title=title)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=200)
