"""`prudent report`: a budget in one page, for whoever answers for the data."""

import json
from pathlib import Path

import typer

from prudent._validate import ArgumentError
from prudent.cli import options
from prudent.cli.display import echo, echo_json

_KINDS = ".html", ".md", ".json"


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

    $ prudent report budget.db --out report.html

    $ prudent report median.json regression.json --out report.md
    """
    from prudent import _files
    from prudent.budget.ledger import Ledger
    from prudent.budget.report import BudgetReport

    if out is not None and out.suffix not in _KINDS:
        raise ArgumentError("out", f"a file that ends in {', '.join(_KINDS)}", got=str(out))
    if all(place.endswith(".json") for place in location):
        _on_receipts(location, out, as_json=as_json)
        return
    if len(location) > 1:
        raise ArgumentError("location", "one ledger, or receipts", got=" ".join(location))
    with Ledger.open(location[0], dataset=dataset) as ledger:
        found = BudgetReport.of(ledger, digest)
    if out is not None:
        page = found.html() if out.suffix == ".html" else found.markdown()
        text = _json(found.plain()) if out.suffix == ".json" else page
        with _files.replacing(out) as file:
            file.write(text)
    if as_json:
        echo_json(found.plain())
    elif out is None:
        echo(found.markdown())
    else:
        echo(f"Wrote {out}.")


def _on_receipts(places: list[str], out: Path | None, *, as_json: bool) -> None:
    """Report on receipts, each of which is checked."""
    from prudent import _files
    from prudent.receipts import pages
    from prudent.verification.checks import verify

    verdicts = {place: verify(place) for place in places}
    plain = {place: each.receipt.plain() | each.plain() for place, each in verdicts.items()}
    found = {place: (each.receipt, each.summary) for place, each in verdicts.items()}
    if out is not None:
        page = pages.officers_html(found) if out.suffix == ".html" else pages.officers_page(found)
        with _files.replacing(out) as file:
            file.write(_json(plain) if out.suffix == ".json" else page)
    if as_json:
        echo_json(plain)
    else:
        echo(pages.officers_page(found) if out is None else f"Wrote {out}.")


def _json(plain: object) -> str:
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
