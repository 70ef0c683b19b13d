"""`prudent budget`: the privacy budget of a data set, kept in a ledger."""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from prudent import _files
from prudent._rounding import exact, nearest, rounded_down, rounded_up
from prudent._validate import ArgumentError
from prudent.cli import options
from prudent.cli.commands.checks import checker
from prudent.cli.display import as_text, echo, echo_json, neutral
from prudent.cli.errors import Fault, print_error

if TYPE_CHECKING:
    from prudent.budget.allowance import Charge
    from prudent.budget.ledger import Ledger

TAMPERED = 1
_REPORT_KINDS = ".html", ".md", ".json"

_WIDTH_OF_A_FILE = 300  # characters

_HISTORY = (
    *("row", "time (UTC)", "release", "groups", "unit"),
    *("ε", "δ", "outcome", "ε spent"),
)

app = typer.Typer(no_args_is_help=True, help="The privacy budget of a data set.")

Location = Annotated[
    str,
    typer.Argument(
        metavar="LEDGER",
        help="A file, or an address such as postgresql://user@host/database.",
        show_default=False,
    ),
]


@app.command()
def create(
    location: Location,
    epsilon: float = options.number("The budget's ε."),
    delta: float = options.number("The budget's δ, in (0, 0.5)."),
    dataset: options.Dataset = "default",
    relation: options.RelationOption = "add-remove",
    records_per_person: options.RecordsPerPerson = 1,
    data: str | None = options.value(
        "NAME",
        "The data that the budget is for: a file, an address or a name; joined tables as "
        "'a.csv + b.csv'. A second ledger for the same data is then noticed.",
        default=None,
    ),
    another: bool = typer.Option(
        False, "--another", help="Allow a second budget for the same data; both add up."
    ),
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

    $ prudent budget create budget.db --epsilon 1 --delta 1e-6 \
        --data salaries.parquet
    """
    from prudent.budget.ledger import Ledger

    with Ledger.create(
        location,
        epsilon=epsilon,
        delta=delta,
        dataset=dataset,
        relation=options.relation(relation, records_per_person),
        data=data,
        another=another,
    ) as ledger:
        _print_balance(ledger, as_json)


@app.command()
def show(
    location: Location,
    charges: bool = typer.Option(
        False,
        "--charges",
        help="List every charge, oldest first: what was asked, its price, and what came of it.",
    ),
    dataset: options.Dataset = "default",
    as_json: options.Json = False,
) -> None:
    """Show what is spent, and which releases still fit; or every charge.

    [b]Examples[/b]

    $ prudent budget show budget.db

    $ prudent budget show budget.db --charges
    """
    from prudent.budget.ledger import Ledger

    with Ledger.open(location, dataset=dataset) as ledger:
        if charges:
            _print_charges(ledger.history(), as_json)
        else:
            _print_balance(ledger, as_json)


@app.command()
def verify(
    location: Location,
    dataset: options.Dataset = "default",
    digest: str | None = options.value(
        "HASH",
        "A digest that `show` gave earlier: with it, also missing last rows are noticed.",
        default=None,
    ),
    as_json: options.Json = False,
) -> None:
    """Check that no row was changed, and price every charge again.

    Exits with status 0 if all is well and 1 if the ledger was tampered with.

    [b]Example[/b]

    $ prudent budget verify budget.db
    """
    from prudent.budget.ledger import Ledger, TamperedLedgerError

    try:
        with Ledger.open(location, dataset=dataset) as ledger:
            charges = ledger.verify(digest)
            last = ledger.balance().digest
    except TamperedLedgerError as error:
        if as_json:
            echo_json({"verified": False, "error": str(error)})
        print_error(Fault(str(error), status=TAMPERED))
        raise typer.Exit(TAMPERED) from None
    if as_json:
        echo_json({"verified": True, "charges": charges, "digest": last})
    else:
        echo(f"All is well. Charges: {charges}; digest: {last}.")


def _print_charges(charges: "Sequence[Charge]", as_json: bool) -> None:
    if as_json:
        echo_json([charge.to_plain() for charge in charges])
    elif not charges:
        echo("Nothing was charged yet.")
    else:
        rows = [_history_row(charge) for charge in charges]
        used = [index for index in range(len(_HISTORY)) if any(row[index] for row in rows)]
        header, *rows = [tuple(row[index] for index in used) for row in (_HISTORY, *rows)]
        _print_table(header, rows)


def _history_row(charge: "Charge") -> tuple[str, ...]:
    from prudent.accounting import describe

    details = charge.details
    asked = " of ".join(filter(None, (details.statistic, details.column)))
    mechanism = details.mechanism or ""
    if (given := details.proposal) is not None:  # what the mechanism was told to expect
        proposal = f"proposal {nearest(given, 6) if isinstance(given, float) else given}"
        mechanism = ", ".join(filter(None, (mechanism, proposal)))
    described = "; ".join(describe(charge.event).splitlines())
    groups = details.groups or ""
    if isinstance(groups, tuple):
        groups = f"{len(groups)}: {', '.join(groups)}"
    return (
        str(charge.sequence),
        f"{charge.time:%Y-%m-%d %H:%M}",
        f"{asked or charge.label}: {mechanism or described}",
        str(groups),
        details.unit or "",
        rounded_up(charge.asked_epsilon),
        rounded_up(charge.at_delta),
        charge.outcome_text,
        rounded_up(charge.spent),
    )


def _print_balance(ledger: "Ledger", as_json: bool) -> None:
    from prudent.budget.filters import Offer

    balance, offers = ledger.balance(), ledger.offers()
    if as_json:
        plain = [attrs.asdict(one) for one in offers]
        echo_json({**balance.to_plain(), "offers": plain})
        return
    fits = Offer.sentence(offers)
    if offers:
        fits += ", at δ = 0"
        if balance.fits.delta > 0:
            fits += f" or at δ that add up to at most {rounded_down(balance.fits.delta, 3)}"
    epsilon, delta = balance.epsilon_per_record, balance.delta_per_record
    share = f"ε = {rounded_down(epsilon)}, δ = {rounded_down(delta)}"
    rows = [
        ("data set", balance.dataset),
        *([] if balance.data is None else [("data", balance.data)]),
        ("budget", f"ε = {exact(balance.epsilon)}, δ = {exact(balance.delta)}"),
        ("protects", str(balance.relation)),
        *([] if balance.relation.distance == 1 else [("for one record", share)]),
        ("charges", str(balance.charges)),
        ("spent", f"ε = {rounded_up(balance.spent)}"),
        ("still fits", fits),
        ("as one release", str(balance.fits)),
        ("digest", balance.digest),
    ]
    _print_table(None, rows)


def _print_table(header: tuple[str, ...] | None, rows: Sequence[tuple[str, ...]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table

    columns = [Column(name, overflow="fold") for name in header or ("", "")]
    table = Table(
        *columns, box=box.SIMPLE_HEAD, show_header=header is not None, padding=(0, 1, 0, 0)
    )
    for row in rows:
        # Labels are shown as they are: neither markup nor control characters are obeyed.
        table.add_row(*map(as_text, row))
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width: one line for each row
        console = Console(width=_WIDTH_OF_A_FILE)
    console.print(table)


@app.command()
def report(
    location: list[str] = typer.Argument(
        metavar="LEDGER…",
        help="A ledger, as for `prudent budget`; or receipts, files that end in .json.",
    ),
    out: Path | None = options.value(
        "FILE",
        "Where to write it; its ending says how: .html, .md or .json. By default "
        "Markdown is printed.",
        default=None,
    ),
    dataset: options.Dataset = "default",
    digest: str | None = options.value(
        "HASH",
        "A digest that an earlier report gave: with it, also missing last rows are noticed.",
        default=None,
    ),
    as_json: options.Json = False,
) -> None:
    """Report on a budget: what was asked, by whom, at which price, and what is left.

    One page to hand to a data-protection officer. It says what is protected, why numbers differ
    from those that were typed, what an attacker could learn, and whether the ledger is intact.

    [b]Example[/b]

    $ prudent budget report budget.db --out report.html

    $ prudent budget report median.json regression.json --out report.md
    """
    from prudent.budget.ledger import Ledger
    from prudent.budget.report import BudgetReport

    if out is not None and out.suffix not in _REPORT_KINDS:
        raise ArgumentError("out", f"a file that ends in {', '.join(_REPORT_KINDS)}", got=str(out))
    if all(place.endswith(".json") for place in location):
        if digest is not None:
            raise ArgumentError("digest", "left out with receipts: it is of a ledger", got=digest)
        _on_receipts(location, out, as_json=as_json)
        return
    if len(location) > 1:
        raise ArgumentError("location", "one ledger, or receipts", got=" ".join(location))
    with Ledger.open(location[0], dataset=dataset) as ledger:
        found = BudgetReport.of(ledger, digest)
    _hand_over(found.plain(), found.markdown, found.html, out, as_json)


def _on_receipts(places: list[str], out: Path | None, *, as_json: bool) -> None:
    """Report on receipts, each of which is checked."""
    from prudent.receipts import pages
    from prudent.receipts.receipt import Receipt

    check = checker()
    receipts = {place: Receipt.read(place)[0] for place in places}
    verdicts = {place: check.verify(place) for place in places}
    plain = {place: receipts[place].plain() | each.plain() for place, each in verdicts.items()}
    found = {place: (receipts[place], each.summary) for place, each in verdicts.items()}
    html = functools.partial(pages.officers_page, found, as_html=True)
    _hand_over(plain, functools.partial(pages.officers_page, found), html, out, as_json)


def _hand_over(
    plain: Any,
    markdown: Callable[[], str],
    html: Callable[[], str],
    out: Path | None,
    as_json: bool,
) -> None:
    """Write a report in the form that the ending of a file names, and print it or say where."""
    if out is not None:
        forms = {".html": html, ".md": markdown}
        text = json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
        with _files.replacing(out) as file:
            file.write(forms[out.suffix]() if out.suffix in forms else text)
    if as_json:
        echo_json(plain)
    else:
        echo(markdown() if out is None else neutral(f"Wrote {out}."))
