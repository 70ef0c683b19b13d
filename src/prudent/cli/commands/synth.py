"""`prudent synth`: a synthetic table from one private release."""

from pathlib import Path
from typing import Any

import typer

from prudent.cli import options
from prudent.cli.answering import Request, budget, listed, print_json, receipt_file
from prudent.cli.display import echo, neutral, note
from prudent.cli.progress import only_elapsed

_SHARED = ("where", "unit", "connect", "table", "ledger", "dataset", "receipt", "sign", "as_json")


@options.spread(Request, _SHARED)
def synth(
    source: options.Source = None,
    *,
    out: Path = options.value("FILE", "Where to write the table: a .parquet or .csv file."),
    epsilon: float = options.number("ε of the whole table, at least 0.01."),
    delta: float = options.number("δ of the whole table."),
    columns: str | None = options.value("NAME,…", "The columns to make. \\[all]", default=None),
    constraint: list[str] = typer.Option(
        [], metavar="CONDITION", help="A public condition on a row: 'start <= end'. Repeatable."
    ),
    rows: int | None = options.whole_number(
        "About how many rows the table has, if that is public: too few are refused for free.",
        default=None,
    ),
    identifiers: bool = typer.Option(False, "--identifiers", help="Make rare texts anew, as ids."),
    most_rows: int = options.whole_number("With --unit: rows to use of each unit.", default=8),
    **shared: Any,
) -> None:
    r"""Make a synthetic table with the columns of a private one.

    No domain and no bounds are needed: frequent values, ranges and the columns
    that belong together are found privately, and the whole table costs (ε, δ)
    once. The report says what was measured, and how exact it is.

    [b]Examples[/b]

    With the real table that prudent sample salaries writes:
    $ prudent synth salaries.parquet --epsilon 1 --delta 1e-6 \
        --out synthetic.parquet --ledger budget.db --receipt synth.json

    $ prudent synth visits.csv --unit patient --most-rows 4 --epsilon 2 \
        --delta 1e-6 --constraint 'age >= 0' --out synthetic.csv
    """
    from prudent.synth import synthesize

    asked = Request(epsilon=epsilon, **shared)
    if source is None and asked.connect is None:
        raise ValueError("FILE: expected a file, or --connect with --table, got nothing.")
    with budget(asked) as keeper, only_elapsed():
        made = synthesize(
            source,
            epsilon=epsilon,
            delta=delta,
            columns=listed(columns),
            constraints=constraint,
            rows=rows,
            identifiers=identifiers,
            unit=asked.unit,
            most_rows=most_rows,
            where=asked.where,
            connect=asked.connect,
            table=asked.table,
            ledger=keeper,
            receipt=receipt_file(asked.receipt, asked.sign),
            out=out,
        )
    if asked.as_json:
        price = {"epsilon": made.epsilon, "delta": made.delta}
        print_json({"status": "released", "out": str(out), **made.plain(), **price})
    else:
        for line in made.report.splitlines():
            echo(neutral(line))
    if asked.ledger is None:
        note("No --ledger: not charged to any budget.")
