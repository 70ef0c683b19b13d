"""`prudent budget`: the privacy budget of a data set, kept in a ledger."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prudent._rounding import rounded_down, rounded_up
from prudent.cli import options
from prudent.cli.display import complain, echo, neutral

if TYPE_CHECKING:
    from prudent.release.budget.balance import Balance

TAMPERED = 1

app = typer.Typer(no_args_is_help=True, help="The privacy budget of a data set.")

Location = Annotated[
    str,
    typer.Argument(
        metavar="LEDGER",
        help="A file, or an address such as postgresql://user@host/database.",
        show_default=False,
    ),
]
Dataset = Annotated[str, typer.Option(metavar="NAME", help="Whose budget.")]


@app.command()
def create(
    location: Location,
    epsilon: Annotated[float, options.number("The budget's ε.")],
    delta: Annotated[float, options.number("The budget's δ, in (0, 1).")],
    dataset: Dataset = "default",
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive/--fixed",
            help="Whether releases may be chosen after seeing earlier answers, or their list "
            "is fixed in advance: that buys more of them, and you vouch for it.",
        ),
    ] = True,
    relation: options.RelationOption = "add-remove",
    records_per_person: options.RecordsPerPerson = 1,
    as_json: options.Json = False,
) -> None:
    r"""Create a ledger, or the budget of one more data set in it.

    A budget is never changed: to spend more, decide so, and create another.

    [b]Examples[/b]

    $ prudent budget create budget.db --epsilon 1 --delta 1e-6

    $ prudent budget create postgresql://team@db/privacy \
        --dataset salaries --epsilon 1 --delta 1e-6

    $ prudent budget create people.db --epsilon 1 --delta 1e-6 \
        --records-per-person 5
    """
    from prudent.release.budget.ledger import Ledger

    with Ledger.create(
        location,
        epsilon=epsilon,
        delta=delta,
        dataset=dataset,
        adaptive=adaptive,
        relation=options.relation(relation, records_per_person),
    ) as ledger:
        _print_balance(ledger.balance(), as_json)


@app.command()
def show(location: Location, dataset: Dataset = "default", as_json: options.Json = False) -> None:
    """Show what is spent, what remains, and what would still fit.

    [b]Example[/b]

    $ prudent budget show budget.db
    """
    from prudent.release.budget.ledger import Ledger

    with Ledger.open(location, dataset=dataset) as ledger:
        _print_balance(ledger.balance(), as_json)


@app.command()
def history(
    location: Location, dataset: Dataset = "default", as_json: options.Json = False
) -> None:
    """List every charge, the first first.

    [b]Example[/b]

    $ prudent budget history budget.db --json
    """
    from prudent.accounting import describe
    from prudent.release.budget.ledger import Ledger

    with Ledger.open(location, dataset=dataset) as ledger:
        charges = ledger.history()
    if as_json:
        echo(json.dumps([charge.to_plain() for charge in charges]))
        return
    rows = [
        (
            str(charge.sequence),
            f"{charge.time:%Y-%m-%d %H:%M:%S}",
            charge.label,
            describe(charge.event),
            rounded_up(charge.spent),
        )
        for charge in charges
    ]
    _print_table(("#", "time (UTC)", "label", "event", "ε spent"), rows)


@app.command()
def verify(
    location: Location,
    dataset: Dataset = "default",
    digest: Annotated[
        str | None,
        typer.Option(
            metavar="HASH",
            help="A digest that `show` gave earlier: with it, also missing last rows are noticed.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Check that no row was changed, and price every charge again.

    Exits with status 0 if all is well and 1 if the ledger was tampered with.

    [b]Example[/b]

    $ prudent budget verify budget.db
    """
    from prudent.release.budget.ledger import Ledger, TamperedLedgerError

    try:
        with Ledger.open(location, dataset=dataset) as ledger:
            charges = ledger.verify(digest)
            last = ledger.balance().digest
    except TamperedLedgerError as error:
        if as_json:
            echo(json.dumps({"verified": False, "error": str(error)}))
        complain(error)
        raise typer.Exit(TAMPERED) from None
    if as_json:
        echo(json.dumps({"verified": True, "charges": charges, "digest": last}))
    else:
        echo(f"All is well. Charges: {charges}; digest: {last}.")


def _print_balance(balance: "Balance", as_json: bool) -> None:
    if as_json:
        echo(json.dumps(balance.to_plain()))
        return
    chosen = "after earlier answers" if balance.adaptive else "in advance"
    rows = [
        ("data set", balance.dataset),
        ("budget", f"ε = {balance.epsilon:g}, δ = {balance.delta:g}"),
        ("protects", str(balance.relation)),
        *_per_record(balance),
        ("releases chosen", chosen),
        ("charges", str(balance.charges)),
        ("spent", f"ε = {rounded_up(balance.spent)}"),
        ("remaining", f"ε = {rounded_down(balance.remaining)}"),
        ("would fit", str(balance.fits)),
        ("digest", balance.digest),
    ]
    _print_table(None, rows)


def _per_record(balance: "Balance") -> list[tuple[str, str]]:
    """What one record may use, where that is less than the budget."""
    if balance.relation.distance == 1:
        return []
    epsilon, delta = balance.epsilon_per_record, balance.delta_per_record
    return [("for one record", f"ε = {rounded_down(epsilon)}, δ = {rounded_down(delta)}")]


def _print_table(header: tuple[str, ...] | None, rows: list[Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    columns = [Column(name, overflow="fold") for name in header or ("", "")]
    table = Table(*columns, box=box.SIMPLE_HEAD, show_header=header is not None)
    for row in rows:
        # Labels are shown as they are: neither markup nor control characters are obeyed.
        table.add_row(*(Text(neutral(cell)) for cell in row))
    Console().print(table)
