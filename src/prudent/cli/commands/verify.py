"""`prudent verify`: a receipt, checked without trusting whoever wrote it."""

from pathlib import Path

import typer

from prudent.cli import options
from prudent.cli.display import echo, echo_json, neutral

UNUSABLE = 2


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
    as_json: options.Json = False,
) -> None:
    """Check a receipt, offline: its price, certificate, digests, ledger rows and signature.

    The price is proved again by ball arithmetic, in code that shares nothing with the accountant.
    It ends with status 0 if the receipt is verified, with 1 if a claim is refuted, with 2 if the
    file is none, or a claim that matters could not be checked, and with 3 if the check itself
    failed.

    [b]Example[/b]

    $ prudent verify answer.json --signer 3f0a…
    """
    from prudent import _files
    from prudent._formats import DamagedFileError, NewerFormatError
    from prudent.cli.errors import Fault, UncheckedError, tell
    from prudent.verification.checks import verify as check

    try:
        found = check(receipt, signer=signer, head=head)
    except (DamagedFileError, NewerFormatError) as error:
        tell(Fault(str(error), status=UNUSABLE))
        raise typer.Exit(UNUSABLE) from None
    except (ValueError, ImportError, OSError):  # of an option, of what is not installed, of a file
        raise
    except Exception as error:
        text = "Could not check the receipt, by a bug of this program: nothing is said about it."
        raise UncheckedError(text) from error
    if as_json:
        echo_json(found.plain())
    else:
        for line in found.lines():
            echo(neutral(line))
    if checklist is not None:
        from prudent.receipts.pages import checklist as filled

        with _files.replacing(checklist) as file:
            file.write(filled(found.receipt, found.summary))
    if found.status:
        raise typer.Exit(found.status)
