"""`prudent keys`, `verify` and `budget report`: signing, checking and reporting releases."""

import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from prudent import _extras
from prudent._validate import ArgumentError
from prudent.cli import options
from prudent.cli.display import echo, echo_json, neutral, note

UNUSABLE = 2
_KINDS = ".html", ".md", ".json"


def keys(
    make: str | None = options.value(
        "NAME",
        "Make a key first; its secret part stays on this machine.",
        default=None,
    ),
    as_json: options.Json = False,
) -> None:
    """Show the public part of every key that signs receipts, to hand to those who check them.

    Keys are Ed25519. The secret part of a new one is readable by you alone: whoever has it signs as
    you.

    [b]Examples[/b]

    $ prudent keys --make research

    $ prudent keys
    """
    from prudent.receipts import keys as kept

    if make is not None:
        kept.make(make)
        note(f"The secret part is in {kept.folder() / make}.key: whoever has it signs as you.")
    if as_json:
        echo_json({"keys": kept.public_keys()})
        return
    for name, public in kept.public_keys().items():
        echo(f"{public}  {name}")


def verify(
    receipt: Path = typer.Argument(metavar="RECEIPT", help="What --receipt wrote."),
    signer: str | None = options.value(
        "PUBKEY", "Whose signature it must have: a public key.", default=None
    ),
    head: str | None = options.value(
        "HASH", "The digest of the ledger, from its keeper.", default=None
    ),
    checklist: Path | None = options.value(
        "FILE",
        "Also write a checklist after NIST SP 800-226, filled as far as the receipt goes.",
        default=None,
    ),
    export: Path | None = options.value(
        "FILE",
        "Also write the fields of public registries of deployments, as JSON.",
        default=None,
    ),
    as_json: options.Json = False,
) -> None:
    """Check a receipt, offline: its price, certificate, digests, ledger rows and signature.

    The price is proved again by ball arithmetic, in code that shares nothing with the accountant.
    It ends with status 0 if the receipt is verified, with 1 if a claim is refuted, with 2 if the
    file is none, or a claim that matters could not be checked, with 3 if the check itself failed,
    and with 4 if the claimed ε is between proved bounds, and not itself proved. A description of a
    run made elsewhere is checked the same way.

    [b]Example[/b]

    $ prudent verify answer.json --signer 3f0a…
    """
    from prudent import _files
    from prudent.cli.errors import Fault, UncheckedError, print_error
    from prudent.receipts import keys as kept
    from prudent.receipts import pages
    from prudent.receipts.receipt import Receipt

    check = _checker()
    key = None if signer is None else kept.public_key(signer)
    try:
        found = check.verify(receipt, signer=key, head=head)
    except check.ReceiptError as error:
        print_error(Fault(str(error), status=UNUSABLE))
        raise typer.Exit(UNUSABLE) from None
    except OSError:
        raise
    except Exception as error:
        text = "Could not check the receipt, by a bug of this program: nothing is said about it."
        raise UncheckedError(text) from error
    if as_json:
        echo_json(found.plain())
    else:
        for line in found.lines():
            echo(neutral(line))
    for place, form in ((checklist, pages.checklist), (export, pages.registry)):
        if place is not None:
            with _files.replacing(place) as file:
                file.write(form(Receipt.read(receipt)[0], found.summary))
    if found.status:
        raise typer.Exit(found.status)


def _checker() -> Any:
    """The package prudent-verify, which shares nothing with this one.

    Raises:
        MissingPackageError: If it is not installed.
    """
    try:
        return importlib.import_module("prudent_verify")
    except ModuleNotFoundError as error:
        name = "prudent-verify" if error.name == "prudent_verify" else str(error.name)
        raise _extras.MissingPackageError("prudent verify", [name], []) from error


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

    if out is not None and out.suffix not in _KINDS:
        raise ArgumentError("out", f"a file that ends in {', '.join(_KINDS)}", got=str(out))
    if all(place.endswith(".json") for place in location):
        _on_receipts(location, out, as_json=as_json)
        return
    if len(location) > 1:
        raise ArgumentError("location", "one ledger, or receipts", got=" ".join(location))
    with Ledger.open(location[0], dataset=dataset) as ledger:
        found = BudgetReport.of(ledger, digest)
    _hand_over(found.plain(), found.markdown, found.html, out, as_json=as_json)


def _on_receipts(places: list[str], out: Path | None, *, as_json: bool) -> None:
    """Report on receipts, each of which is checked."""
    from prudent.receipts import pages
    from prudent.receipts.receipt import Receipt

    check = _checker()
    receipts = {place: Receipt.read(place)[0] for place in places}
    verdicts = {place: check.verify(place) for place in places}
    plain = {place: receipts[place].plain() | each.plain() for place, each in verdicts.items()}
    found = {place: (receipts[place], each.summary) for place, each in verdicts.items()}
    markdown = functools.partial(pages.officers_page, found)
    html = functools.partial(pages.officers_html, found)
    _hand_over(plain, markdown, html, out, as_json=as_json)


def _hand_over(
    plain: Any,
    markdown: Callable[[], str],
    html: Callable[[], str],
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Write a report in the form that the ending of a file names, and print it or say where."""
    from prudent import _files

    if out is not None:
        forms = {".html": html, ".md": markdown}
        text = json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
        with _files.replacing(out) as file:
            file.write(forms[out.suffix]() if out.suffix in forms else text)
    if as_json:
        echo_json(plain)
    else:
        echo(markdown() if out is None else f"Wrote {out}.")
