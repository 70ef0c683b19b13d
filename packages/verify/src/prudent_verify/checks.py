"""`verify`: what of a receipt is proved, what is assumed, what could not be checked, what fails."""

import decimal
import enum
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from prudent_verify import certificates
from prudent_verify.pairs import UnknownEventError
from prudent_verify.prices import prove
from prudent_verify.receipt import Receipt, is_signed, public_key, read, theorems_of


class Standing(enum.StrEnum):
    """Where a claim stands after the check."""

    PROVED = "proved"
    FAILED = "failed"
    UNCHECKED = "not checked"
    ASSUMED = "assumed"


@attrs.frozen
class Finding:
    """What the check says of one claim."""

    standing: Standing  # where the claim stands
    claim: str  # what it is about: "price", "certificate", "ledger" and so on
    words: str  # what was found, in words
    decisive: bool = False  # whether the receipt is not verified while this is not checked


@attrs.frozen
class Verdict:
    """What the check of a receipt found."""

    receipt: Receipt  # the receipt
    findings: Sequence[Finding]  # about each claim

    @property
    def status(self) -> int:
        """The exit status: 0 verified, 1 refuted, 2 neither."""
        if any(each.standing is Standing.FAILED for each in self.findings):
            return 1
        open_ = (each.decisive for each in self.findings if each.standing is Standing.UNCHECKED)
        return 2 if any(open_) else 0

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        return (
            "Verified: every claim that matters was proved again.",
            "Refuted: at least one claim does not hold.",
            "Not verified: a claim that matters could not be checked here.",
        )[self.status]

    def lines(self) -> list[str]:
        """The verdict in words: what fails first, then what is proved, assumed, not checked."""
        order = (Standing.FAILED, Standing.PROVED, Standing.ASSUMED, Standing.UNCHECKED)
        found = [
            f"{standing.value}: {each.claim}: {each.words}"
            for standing in order
            for each in self.findings
            if each.standing is standing
        ]
        return [self.summary, *found]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        findings = [
            {"standing": each.standing.value, "claim": each.claim, "words": each.words}
            for each in self.findings
        ]
        names = ("verified", "refuted", "not verified")
        return {"status": names[self.status], "findings": findings}


def verify(
    path: str | os.PathLike[str],
    *,
    signer: str | os.PathLike[str] | None = None,
    head: str | None = None,
) -> Verdict:
    """Check a receipt, without the accountant, a network or the data.

    Args:
        path: The receipt. Files that it names are looked for beside it.
        signer: Whose signature it must have: a public key, its name or its file.
        head: The digest of a ledger, from elsewhere, that its rows must lead to.

    Raises:
        ReceiptError: If the file is no receipt.
        ValueError: If the signer is no key.
    """
    receipt, noted = read(path)
    findings = [
        *_digests(receipt, noted),
        *_signature(receipt, signer),
        *_price(receipt),
        *_certificates(receipt),
        *_ledger(receipt, head),
        *_files(receipt, Path(path).parent),
        *_assumptions(receipt),
    ]
    return Verdict(receipt, findings)


def _exact(value: Any) -> str:
    """A number with all its digits, and no more than it needs to be read back."""
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _rounded_up(bound: float) -> str:
    """A bound from above, in six significant digits."""
    context = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)
    return _exact(float(context.plus(decimal.Decimal(repr(bound)))))


def _ok(condition: bool, claim: str, good: str, bad: str) -> Finding:
    return Finding(
        Standing.PROVED if condition else Standing.FAILED, claim, good if condition else bad
    )


def _digests(receipt: Receipt, noted: str) -> Iterator[Finding]:
    price = {"epsilon": receipt.epsilon, "delta": receipt.delta, "unit": receipt.unit}
    for part in (receipt.asked, receipt.released):
        for name, each in part.items() if isinstance(part, Mapping) else ():
            if each is not None and price.get(name, each) != each:
                yield Finding(Standing.FAILED, "price", f"the receipt has two of {name}.")
    try:
        theorems = theorems_of(receipt.event, receipt)
    except (AttributeError, KeyError, TypeError):  # of an event that cannot be read
        theorems = None
    if list(receipt.theorems) != theorems:
        yield Finding(Standing.FAILED, "theorem", "the theorems are not those of the event.")
    yield _ok(
        noted == receipt.digest,
        "digest",
        f"the receipt is as it was written, SHA-256 {noted[:16]}…",
        "the receipt was changed after it was written.",
    )
    for name, wanted in receipt.part_digests().items():
        if receipt.digests.get(name) != wanted:
            yield Finding(Standing.FAILED, "digest", f"that of what was {name} does not match.")


def _signature(receipt: Receipt, signer: str | os.PathLike[str] | None) -> Iterator[Finding]:
    wanted = None if signer is None else public_key(signer)
    if receipt.signature is None:
        if signer is not None:
            yield Finding(Standing.FAILED, "signature", "the receipt is not signed.")
        else:
            yield Finding(Standing.UNCHECKED, "signature", "it is not signed: anyone can write it.")
        return
    key = str(receipt.signature.get("key"))
    try:
        own = is_signed(receipt)
    except ModuleNotFoundError:
        words = "to check it, install prudent-verify[signatures]."
        yield Finding(Standing.UNCHECKED, "signature", words, decisive=True)
        return
    if not own:
        yield Finding(Standing.FAILED, "signature", "it is not one of this receipt.")
    elif wanted not in (None, key):
        yield Finding(Standing.FAILED, "signature", f"it is by another key, {key}.")
    else:
        whose = "whose owner you named" if signer else "whose owner this check does not know"
        yield Finding(Standing.PROVED, "signature", f"by the key {key}, {whose}.")


def _price(receipt: Receipt) -> Iterator[Finding]:
    claimed, delta = receipt.epsilon, float(receipt.delta)
    if math.isinf(claimed):
        yield Finding(Standing.UNCHECKED, "price", "no finite ε is claimed.", decisive=True)
        return
    claim = f"ε = {_exact(claimed)} at δ = {_exact(delta)}"
    try:
        found = prove(receipt.event, receipt.relation, claimed, delta)
    except Exception as error:  # whoever wrote the receipt chooses which one
        known = isinstance(error, UnknownEventError)
        words = str(error) if known else "the event cannot be read."
        yield Finding(Standing.UNCHECKED, "price", f"{claim}: {words}", decisive=True)
        return
    if found.epsilon <= claimed:
        yield Finding(Standing.PROVED, "price", f"{claim}, by {found.method}.")
        return
    shown = f"{claim} is claimed; what can be shown is ε = {_rounded_up(found.epsilon)}"
    if found.epsilon <= claimed * (1 + found.tolerance):
        grid = "above it by less than this check can tell"
        yield Finding(Standing.PROVED, "price", f"{shown}, {grid}, by {found.method}.")
    elif found.coarse:
        words = f"{shown}, by {found.method}, which is coarser than the claim's own proof."
        yield Finding(Standing.UNCHECKED, "price", words, decisive=True)
    else:
        yield Finding(Standing.FAILED, "price", f"{shown}, by {found.method}.")


def _certificates(receipt: Receipt) -> Iterator[Finding]:
    for each in receipt.certificates():
        if not each.get("basis"):
            words = "the numbers that it follows from are not in the receipt."
            yield Finding(Standing.UNCHECKED, "certificate", words, decisive=True)
            continue
        try:
            problem = certificates.problem_of(each, receipt.event)
        except Exception:  # whoever wrote the receipt chooses what goes wrong
            problem = "its fields cannot be read."
        shown = f"at least {each.get('needed')} records must change"
        if "records" in each:
            shown = f"the slopes withstand {each['records']} records"
        words = (
            f"{shown}, from the released numbers, with confidence {_exact(each.get('confidence'))}."
        )
        yield _ok(problem is None, "certificate", words, str(problem))
    if receipt.kind == "classifier":
        problem = certificates.problem_of_counts(receipt.released)
        words = "the counts are whole; the radius of every prediction follows from them."
        yield _ok(problem is None, "certificate", words, str(problem))
        words = "the radius of a query takes the public feature map as well, known here by digest."
        yield Finding(Standing.UNCHECKED, "certificate", words)


def _ledger(receipt: Receipt, head: str | None) -> Iterator[Finding]:
    noted = receipt.ledger
    if noted is None:
        if head is not None:
            yield Finding(Standing.FAILED, "ledger", "no ledger was charged.")
        else:
            words = "none was charged: other releases from these data are not counted."
            yield Finding(Standing.UNCHECKED, "ledger", words)
        return
    problem = _problem_of_rows(receipt, noted)
    if (
        problem is None
        and head is not None
        and head not in {row["digest"] for row in noted["rows"]}
    ):
        problem = "its rows do not lead to the digest that was given."
    words = f"the charge is row by row linked to the head {str(noted.get('head'))[:16]}…"
    if head is None:
        words += ", which the ledger itself must confirm: `prudent budget verify --digest`."
    yield _ok(problem is None, "ledger", words, str(problem))


def _problem_of_rows(receipt: Receipt, noted: Mapping[str, Any]) -> str | None:
    """What is wrong with the rows of the ledger; None if they are linked and charge the event."""
    try:
        last, rows = noted["before"], noted["rows"]
        for row in rows:
            linked = hashlib.sha256(f"{last}\n{row['record']}".encode()).hexdigest()
            if linked != row["digest"]:
                return "a row does not fit the one before it."
            last = linked
        first = json.loads(rows[0]["record"])
        if last != noted["head"]:
            return "its rows do not end at its head."
        if first["dataset"] != noted["dataset"]:
            return "its rows are of another data set."
        if first["event"] != receipt.event:
            return "what was charged is not the event of this receipt."
        told = first["details"]
        if any(told.get(name, each) != each for name, each in receipt.asked.items()):
            return "what was asked is not what the ledger notes."
        price = first["price"]
        if price["delta"] == receipt.delta and price["epsilon"] > 1.01 * receipt.epsilon:
            return "the ledger notes a higher price."
    except Exception:  # whoever wrote the receipt chooses which one
        return "its rows cannot be read."
    return None


def _files(receipt: Receipt, folder: Path) -> Iterator[Finding]:
    for name, wanted in receipt.files.items():
        place = folder / Path(str(name)).name
        if not place.is_file():
            yield Finding(Standing.UNCHECKED, "file", f"{name} is not beside the receipt.")
            continue
        with place.open("rb") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == wanted
        yield _ok(same, "file", f"{name} is the one.", f"{name} is another one.")


def _assumptions(receipt: Receipt) -> Iterator[Finding]:
    def assumed(claim: str, words: str) -> Finding:
        return Finding(Standing.ASSUMED, claim, words)

    if receipt.predictable:
        words = "the noise was seeded: whoever knows the seed can subtract it."
        yield Finding(Standing.FAILED, "noise", words)
    else:
        yield assumed(
            "noise", "the program drew it as the event states, and its key stayed secret."
        )
    yield assumed("program", "it computed what was asked, and one record changes it as stated.")
    yield assumed("unit", f"one {receipt.unit} is all that a person has in the data.")
    for each in receipt.theorems:
        claim, theorem, proof = (each.get(name) for name in ("claim", "theorem", "proof"))
        yield assumed("theorem", f"{claim}: {theorem}, {proof}.")
