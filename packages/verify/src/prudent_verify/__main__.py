"""Check a receipt, or the claimed ε of a run made elsewhere: offline, by mathematics of its own."""

import argparse
import json
import sys
from collections.abc import Sequence

from prudent_verify import ReceiptError, verify

_STATUS = """It ends with status 0 if the receipt is verified, 1 if a claim is refuted, 2 if the
file is no receipt or a claim that matters could not be checked, 3 if the check itself failed, 4 if
the claimed ε is between proved bounds, and not itself proved."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the receipt that the arguments name, print the verdict and return the exit status."""
    parser = argparse.ArgumentParser("prudent-verify", description=__doc__, epilog=_STATUS)
    parser.add_argument("receipt", metavar="RECEIPT", help="what --receipt wrote, or a description")
    whose = "whose signature it must have: digits, or a .pub file"
    parser.add_argument("--signer", metavar="KEY", help=whose)
    parser.add_argument("--head", metavar="HASH", help="the digest of the ledger, from its keeper")
    parser.add_argument("--json", action="store_true", help="answer as JSON")
    given = parser.parse_args(arguments)

    def printable(line: str) -> str:  # without controls, which could overwrite the verdict
        return "".join(each if each.isprintable() else "�" for each in line)

    try:
        found = verify(given.receipt, signer=given.signer, head=given.head)
        lines = [json.dumps(found.plain(), ensure_ascii=False)] if given.json else found.lines()
        print(*map(printable, lines), sep="\n")
    except (ReceiptError, ValueError, OSError) as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    except Exception:
        print("The check itself failed: nothing is said about the receipt.", file=sys.stderr)
        return 3
    return found.status


if __name__ == "__main__":
    sys.exit(main())
