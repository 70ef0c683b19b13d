"""`verify`: what of a receipt is proved, what is assumed, what could not be checked, what fails."""

import contextlib
import decimal
import enum
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from prudent_verify import certificates, plans
from prudent_verify.descriptions import Description, described
from prudent_verify.events import Event, Relation, UnknownEventError, parsed
from prudent_verify.prices import NoPurePriceError, prove
from prudent_verify.receipt import (
    Receipt,
    ReceiptError,
    certificates_in,
    digest_of,
    load,
    once,
    public_key,
    read,
    theorems_of,
)

_LARGEST_DELTA = 1e-3  # with probability δ anything may be revealed


class Standing(enum.StrEnum):
    """Where a claim stands after the check."""

    FAILED = "failed"
    BRACKETED = "within bounds"
    PROVED = "proved"
    ASSUMED = "assumed"
    UNCHECKED = "not checked"


_SUMMARIES = {
    1: "Refuted: at least one claim does not hold.",
    2: "Not verified: a claim that matters could not be checked here.",
}
_STATUSES = {0: "verified", 1: "refuted", 2: "not verified", 4: "not proved"}


@attrs.frozen
class Finding:
    """What the check says of one claim."""

    standing: Standing  # where the claim stands
    claim: str  # what it is about: "price", "certificate", "ledger" and so on
    words: str  # what was found, in words
    decisive: bool = False  # whether the receipt is not verified while this is not checked


_failed = partial(Finding, Standing.FAILED)
_proved = partial(Finding, Standing.PROVED)
_assumed = partial(Finding, Standing.ASSUMED)
_unchecked = partial(Finding, Standing.UNCHECKED)


def _ok(condition: bool, claim: str, good: str, bad: str) -> Finding:
    return _proved(claim, good) if condition else _failed(claim, bad)


def _reason(error: Exception, otherwise: str) -> str:
    """What an error of this package says; of any other whoever wrote the receipt chooses which."""
    return str(error) if isinstance(error, UnknownEventError | _ContradictionError) else otherwise


@attrs.frozen
class Verdict:
    """What the check of a receipt found."""

    receipt: Receipt | Description  # what was checked
    findings: Sequence[Finding]  # about each claim
    epsilon: float | None  # what was proved, which may be a little above the claim; None: nothing
    signer: str | None  # whose signature was checked: "named", "unknown"; None: nobody's
    head: bool  # whether a digest from the keeper of the ledger was compared

    @property
    def status(self) -> int:
        """The exit status: 0 verified, 1 refuted, 2 neither, 4 but for a price between bounds."""
        standings = {each.standing for each in self.findings}
        if Standing.FAILED in standings:
            return 1
        if any(each.decisive for each in self.findings if each.standing is Standing.UNCHECKED):
            return 2
        return 4 if Standing.BRACKETED in standings else 0

    @property
    def summary(self) -> str:
        """The verdict in one sentence: if the receipt is verified, what was shown and what not."""
        if self.status in _SUMMARIES:
            return _SUMMARIES[self.status]
        assert self.epsilon is not None
        price = f"ε = {_rounded(self.epsilon)} at δ = {_exact(self.receipt.delta)} was proved"
        if self.status:
            return f"Not proved: {price}, and not the ε = {_exact(self.receipt.epsilon)} claimed."
        if isinstance(self.receipt, Description):
            return f"Verified: {price}, if the run was as described."
        signed = {"named": "signed by the key you named", "unknown": "signed by a key nobody named"}
        ledger = "the head of its ledger was compared" if self.head else "no ledger was asked"
        return f"Verified: {price}; {signed.get(str(self.signer), 'not signed')}; {ledger}."

    def lines(self) -> list[str]:
        """The verdict in words: what fails first, then what is proved, assumed, not checked."""
        found = sorted(self.findings, key=lambda each: [*Standing].index(each.standing))
        return [self.summary, *(f"{each.standing}: {each.claim}: {each.words}" for each in found)]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        told = ("standing", "claim", "words")
        findings = [{name: str(getattr(each, name)) for name in told} for each in self.findings]
        shown = {name: getattr(self, name) for name in ("epsilon", "signer", "head")}
        shown["delta"] = self.receipt.delta
        return {"status": _STATUSES[self.status], "shown": shown, "findings": findings}


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
    content = load(path)
    if "claim" in content:
        return _of_description(content, path)
    receipt, noted = read(content, path)
    event, unreadable = None, "the event cannot be read."
    try:
        event = parsed(receipt.event)
    except Exception as error:
        unreadable = _reason(error, unreadable)
    price, proved = _price(receipt.epsilon, receipt.delta, receipt.neighbours, event, unreadable)
    findings = [
        *_digests(receipt, event, noted),
        _signature(receipt, signer),
        price,
        *_request(receipt, event),
        *_certificates(receipt, event),
        *_ledger(receipt, head),
        *_files(receipt, Path(path).parent),
        *_context(receipt),
        *_assumptions(receipt),
    ]
    checked = {each.claim for each in findings if each.standing is Standing.PROVED}
    by = None if "signature" not in checked else "unknown" if signer is None else "named"
    return Verdict(receipt, findings, proved, by, head is not None and "ledger" in checked)


def _of_description(content: Mapping[str, Any], path: str | os.PathLike[str]) -> Verdict:
    try:
        found = described(content)
    except Exception as error:
        raise ReceiptError(f"{path}: {_reason(error, 'not a description of a run.')}") from None
    price, proved = _price(found.epsilon, found.delta, found.relation, found.event, "")
    words = "that it was run, once, as it is described, with noise that nobody can predict."
    findings = [price, _assumed("run", words)]
    if found.problem is not None:
        findings.append(_failed("map", found.problem))
    return Verdict(found, findings, proved, None, head=False)


def _exact(value: Any) -> str:
    """A number with all its digits, and no more than it needs to be read back."""
    # Zero is added to -0.0, which is 0.
    return repr(value + 0.0).removesuffix(".0") if isinstance(value, float) else str(value)


def _rounded(bound: float, rounding: str = decimal.ROUND_CEILING) -> str:
    """A bound from above, or from below, in six significant digits."""
    context = decimal.Context(prec=6, rounding=rounding)
    return _exact(float(context.plus(decimal.Decimal(repr(bound)))))


def _digests(receipt: Receipt, event: Event | None, noted: str) -> Iterator[Finding]:
    price = {"epsilon": receipt.epsilon, "delta": receipt.delta}
    for part in (receipt.asked, receipt.released):
        for name, each in part.items() if isinstance(part, Mapping) else ():
            if each is not None and price.get(name.removesuffix("_"), each) != each:
                yield _failed("price", f"the receipt has two of {name}.")
    if event is not None and list(receipt.theorems) != theorems_of(event, receipt):
        yield _failed("theorem", "the theorems are not those of the event.")
    yield _ok(
        noted == receipt.digest,
        "digest",
        f"the receipt is as it was written, SHA-256 {noted[:16]}…",
        "the receipt was changed after it was written.",
    )
    wanted = receipt.part_digests()
    if receipt.kind == "classifier" and isinstance(receipt.released, Mapping):
        wanted["features"] = receipt.released.get("partition", "")
    for name in wanted.keys() | receipt.digests.keys():
        if receipt.digests.get(name) != wanted.get(name):
            yield _failed("digest", f"that of what was {name} does not match.")


def _signature(receipt: Receipt, signer: str | os.PathLike[str] | None) -> Finding:
    wanted = None if signer is None else public_key(signer)
    if receipt.signature is None:
        if wanted is not None:
            return _failed("signature", "the receipt is not signed.")
        return _unchecked("signature", "it is not signed: anyone can write it.")
    key = receipt.signature["key"]
    try:
        if not receipt.is_signed():
            return _failed("signature", "it is not one of this receipt.")
    except ModuleNotFoundError:
        command = "pip install -c constraints.txt './packages/verify[signatures]'"
        words = f"to check it, in a clone of prudent: {command}"  # no full stop: it is copied
        return _unchecked("signature", words, decisive=True)
    whose = "whose owner this check does not know" if wanted is None else "whose owner you named"
    bad = f"it is by another key, {key}."
    return _ok(wanted in (None, key), "signature", f"by the key {key}, {whose}.", bad)


def _price(
    claimed: float, delta: float, relation: Relation, event: Event | None, unreadable: str
) -> tuple[Finding, float | None]:
    """What was found of the price, and the ε that was proved."""

    def unchecked(words: str) -> tuple[Finding, None]:
        return _unchecked("price", words, decisive=True), None

    if math.isinf(claimed):
        return unchecked("no finite ε is claimed.")
    claim = f"ε = {_exact(claimed)} at δ = {_exact(delta)}"
    if delta > _LARGEST_DELTA:
        return unchecked(f"{claim}: with probability δ everything may be revealed, and δ is large.")
    if event is None:
        return unchecked(f"{claim}: {unreadable}")
    try:
        found = prove(event, relation, claimed, delta)
    except Exception as error:
        return unchecked(f"{claim}: {_reason(error, 'the event cannot be priced.')}")
    shown = f"ε = {_rounded(found.epsilon)} at δ = {_exact(delta)}, by {found.method}"
    if found.epsilon <= claimed * (1 + found.rounding):
        return _proved("price", f"{shown}."), found.epsilon
    least = _rounded(found.least, decimal.ROUND_FLOOR)
    if claimed < found.least:
        words = f"{claim} is claimed. At least ε = {least} is spent; what can be shown is {shown}."
        return _failed("price", words), None
    if found.least > 0:
        words = f"{claim} is claimed, within [{least}, {_rounded(found.epsilon)}], not proved. "
        words += f"What can be shown is {shown}."
        return Finding(Standing.BRACKETED, "price", words), found.epsilon
    words = f"{claim} is claimed. What can be shown is {shown}: coarser than the claim's proof."
    return unchecked(words)


def _request(receipt: Receipt, event: Event | None) -> Iterator[Finding]:
    """Whether what was asked, the unit and the event are of one release."""
    unit = receipt.asked.get("unit")
    if receipt.unit != ("record" if unit is None else unit):
        yield _failed("unit", "it is not that for which was asked.")
    if event is None:
        return
    try:
        problem = plans.problem_of(receipt.kind, receipt.asked, event, receipt.neighbours)
        problem = problem or _problem_of_answers(receipt, {each.kind for each in event.walk()})
    except Exception:  # whoever wrote the receipt chooses which one
        problem = "what was asked cannot be read."
    if problem is not None:
        yield _failed("request", problem)
    elif receipt.kind in ("training", "federated"):
        yield _proved("request", "the event is that of the plan.")


def _certificates(receipt: Receipt, event: Event | None) -> Iterator[Finding]:
    for each, beside, asked in _certified(receipt):
        if event is None or not each.get("basis"):
            words = "what was paid for it cannot be read."
            if not each.get("basis"):
                words = "the numbers that it follows from are not in the receipt."
            yield _unchecked("certificate", words, decisive=True)
            continue
        try:
            problem = certificates.problem_of(each, event, beside, asked)
        except Exception:  # whoever wrote the receipt chooses what goes wrong
            problem = "its fields cannot be read."
        shown = f"at least {each.get('needed')} records must change"
        if "records" in each:
            shown = f"the slopes withstand {each['records']} records"
        words = f"{shown}, from the released numbers, with confidence "
        words += f"{_exact(each.get('confidence'))}."
        yield _ok(problem is None, "certificate", words, str(problem))
    if event is not None and not _are_paid_for(receipt, event):
        yield _failed("certificate", "several certificates are from noise that was paid for once.")
    if receipt.kind == "classifier":
        problem = certificates.problem_of_counts(receipt.released)
        words = "the counts are whole; the radius of every prediction follows from them."
        yield _ok(problem is None, "certificate", words, str(problem))
        words = "the radius of a query takes the public feature map as well, known here by digest."
        yield _unchecked("certificate", words)


def _tables(receipt: Receipt) -> list[Any]:
    """What was released for each part of a request: an answer, or answers by group."""
    found = receipt.released
    several = isinstance(found, Mapping) and isinstance(found.get("answers"), list)
    return list(found["answers"]) if several and len(found) == 1 else [found]


def _certified(receipt: Receipt) -> Iterator[tuple[Mapping[str, Any], ...]]:
    """Each certificate, what it stands in, and what was asked, of several parts with its own."""
    asked, tables = receipt.asked, _tables(receipt)
    parts = asked.get("parts")
    several = isinstance(parts, list) and len(parts) == len(tables)
    for place, table in enumerate(tables):
        own = {**asked, "parts": parts[place : place + 1]} if several and parts else asked
        yield from ((*each, own) for each in certificates_in(table))


def _are_paid_for(receipt: Receipt, event: Event) -> bool:
    """Whether the certificates of each group are from noises that are all in the event."""
    needs: dict[str, Counter[tuple[str, float]]] = {}
    for table in _tables(receipt):
        named = isinstance(table, Mapping) and not _is_answer(table)
        grouped = named and receipt.asked.get("groups") is not None
        for name, each in table.items() if grouped else [("", table)]:
            own = needs.setdefault(name, Counter())
            for certificate, _ in certificates_in(each):
                with contextlib.suppress(Exception):  # such a certificate is refused by itself
                    own += certificates.needs_of(certificate)
    paid = certificates.paid_noises(event)
    return all(own <= paid for own in needs.values())


class _ContradictionError(ValueError):
    """What is wrong with the rows of a ledger."""


def _ledger(receipt: Receipt, head: str | None) -> Iterator[Finding]:
    noted = receipt.ledger
    if noted is None:
        if head is not None:
            yield _failed("ledger", "no ledger was charged.")
        else:
            words = "none was charged: other releases from these data are not counted."
            yield _unchecked("ledger", words)
        return
    try:
        rows, answer = _rows(receipt, noted)
        if head is not None and head not in {row["digest"] for row in noted["rows"]}:
            raise _ContradictionError("its rows do not lead to the digest that was given.")
    except Exception as error:
        yield _failed("ledger", _reason(error, "its rows cannot be read."))
        return
    for row in rows:
        if "event" in row and (wrong := _price_of_row(receipt, row)) is not None:
            yield wrong
    words = "the charge, of this event, request, unit and relation, is row by row linked to the "
    words += f"head {str(noted.get('head'))[:16]}…"
    if head is None:
        words += ", which the ledger itself must confirm: `prudent budget verify --digest`."
    yield _proved("ledger", words)
    if answer is None:
        words = "the ledger does not note which answer was released."
        # Of a search that is noted when it begins: a later row would tell how long it took.
        yield _unchecked("answer", words, decisive=receipt.kind != "tuning")
        return
    good, bad = "the ledger notes this one.", "the ledger notes another one."
    yield _ok(answer == receipt.part_digests()["released"], "answer", good, bad)


_COARSER = 0.05  # a ledger prices events by bounds that may be a little above what is proved
_LEDGER = {"dataset", "before", "rows", "head"}
_CHARGE = {"dataset", "delta", "details", "event", "label", "price", "sequence", "spent", "time"}
_OUTCOME = {"charge", "dataset", "outcome", "sequence"}


def _rows(receipt: Receipt, noted: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
    """The rows of a ledger, and the digest of the answer that the last one notes.

    They are linked, are written as a ledger writes them, and charge the event for what was asked.
    The rows between the charge and its outcome are of other releases.
    """

    def need(holds: Any, words: str) -> None:
        if not holds:
            raise _ContradictionError(words)

    need(set(noted) == _LEDGER, "it has other fields than the rows of a ledger.")
    last, found = noted["before"], list[dict[str, Any]]()
    for row in noted["rows"]:
        linked = hashlib.sha256(f"{last}\n{row['record']}".encode()).hexdigest()
        fits = linked == row["digest"] and set(row) == {"record", "digest"}
        need(fits, "a row does not fit the one before it.")
        last, own = linked, json.loads(row["record"], object_pairs_hook=once)
        text = json.dumps(own, sort_keys=True, separators=(",", ":"), allow_nan=False)
        sound = text == row["record"] and own["dataset"] == noted["dataset"]
        need(sound, "a row is not one that a ledger of these data writes.")
        need(not found or own["sequence"] == found[-1]["sequence"] + 1, "a row is missing.")
        need(type(own["sequence"]) is int, "a row has no number.")
        found.append(own)
    charge, outcome = found[0], found[-1]
    need(last == noted["head"], "its rows do not end at its head.")
    event = digest_of(charge.get("event"))  # exactly: to Python 1, 1.0 and true are the same
    sound = set(charge) == _CHARGE and event == receipt.part_digests()["event"]
    need(sound, "what was charged is not the event of this receipt.")
    details, asked = {**charge["details"]}, receipt.asked
    sound = details.pop("request", None) == receipt.request()
    sound = sound and all(asked.get(name, each) == each for name, each in details.items())
    need(sound, "what was asked, its unit or its relation is not what the ledger notes.")
    if "run" in asked:
        label = f"{'tuning' if receipt.kind == 'tuning' else 'training'} run {asked['run']}"
    else:
        column = asked["column"]
        label = f"{asked['statistic']}{'' if column is None else f' of {column}'}"
    need(charge["label"] == label, "the label of the charge is that of another release.")
    price, most = charge["price"], (1 + _COARSER) * receipt.epsilon
    sound = charge["delta"] in (None, receipt.delta)
    sound = sound and (price["delta"] != receipt.delta or price["epsilon"] <= most)
    need(sound, "the ledger notes another price.")
    if len(found) == 1:
        return found, None
    need(_OUTCOME <= set(outcome) <= {*_OUTCOME, "answer"}, "its last row notes no outcome.")
    sound = type(outcome["charge"]) is int and outcome["charge"] == charge["sequence"] >= 1
    need(sound, "its last row notes the outcome of another charge.")
    refusals = {each["status"] == "refused" for each in _answers(receipt.released)}
    told = {"refused" if each else "released" for each in refusals}
    noted_so = {name for name, count in outcome["outcome"].items() if count > 0}
    need(not told or told == noted_so, "it notes another outcome than was released.")
    return found, outcome.get("answer")


def _price_of_row(receipt: Receipt, row: Mapping[str, Any]) -> Finding | None:
    """What is wrong if a charge notes less than the ε that its event takes of one record.

    A ledger notes it at δ = 0, at the δ that it was told, or at its budget's.
    """
    limit = receipt.context.get("budget", {}).get("delta", _LARGEST_DELTA)
    try:
        at, epsilon = row["price"]["delta"], row["price"]["epsilon"]
        charged = math.inf if epsilon == "inf" else epsilon
        sound = all(type(each) in (int, float) for each in (at, charged)) and charged >= 0
        if not sound or not (at in (0, row["delta"]) or 0 < at <= limit < 1):
            return _failed("ledger", "a price is none that a ledger notes.")
        words = f"row {row['sequence']} notes ε = {_exact(charged)} at δ = {_exact(at)}"
        if charged == math.inf:
            return None
        found = prove(parsed(row["event"]), _ONE, charged, at)
    except NoPurePriceError:
        return _failed("ledger", f"{words}, and its event has no pure ε.")
    except Exception:  # whoever wrote the receipt chooses which one
        return _unchecked("ledger", "the price of a row was not shown here: it cannot be proved.")
    if charged < found.least:
        least = _rounded(found.least, decimal.ROUND_FLOOR)
        return _failed("ledger", f"{words}, and its event takes at least ε = {least}.")
    if found.epsilon > charged * (1 + found.rounding):
        return _unchecked("ledger", f"{words}, which was not shown here.")
    return None


_ONE = Relation("add-remove", 1)


def _is_answer(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("status"), str)


def _answers(value: Any) -> Iterator[Mapping[str, Any]]:
    """The answers among the released values: what has a status."""
    if _is_answer(value):
        yield value
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _answers(each)


def _problem_of_answers(receipt: Receipt, kinds: Set[str]) -> str | None:
    """What contradicts itself among the answers, or between them, what was asked and the event."""
    for each in _answers(receipt.released):
        value, interval = each.get("value"), each.get("interval")
        if not set(each) <= _ANSWER or each["status"] not in _STATUSES_OF_ANSWERS:
            return "an answer has other fields, or another status, than answers have."
        if each["status"] == "refused" and value is not None:
            return "an answer that was refused has a value."
        if _MECHANISMS.get(str(each.get("mechanism"))) not in (None, *kinds):
            return "an answer is by a mechanism that is not in the event."
        if interval is not None and type(value) in (int, float):
            low, high = interval
            if not low <= value <= high:
                return "an interval does not hold its answer."
    groups, parts = receipt.asked.get("groups"), receipt.asked.get("parts", ())
    if isinstance(receipt.asked.get("by"), str) and isinstance(groups, list):
        known = {str(each) for each in groups}
        if not all(isinstance(each, Mapping) and set(each) <= known for each in _tables(receipt)):
            return "there are answers of groups that were not asked for."
    if len(parts) == 1 and any(
        each.get(name) not in (None, getattr(receipt, name))
        for each in _answers(receipt.released)
        for name in ("epsilon", "delta")
    ):
        return "an answer has another price than the receipt."
    if receipt.asked.get("statistic") == "table" and len(_tables(receipt)) != len(parts):
        return "there is not one answer for each part of the request."
    for certificate, _, own in _certified(receipt):
        if any(
            certificate["confidence"] != part.get("confidence") for part in own.get("parts", ())
        ):
            return "a certificate has another confidence than was asked for."
    return None


_STATUSES_OF_ANSWERS = ("released", "refused", "too few records")
_ANSWER = {"status", "value", "values", "interval", "intervals", "mechanism", "branch", "delta"}
_ANSWER |= {"noise_scale", "epsilon", "notes", "about", "clipped_share", "certificate"}
_ANSWER |= {"count", "mean", "deviation", "quantiles"}  # of a summary
_ANSWER |= {"edges", "counts", "below", "above", "half_width"}  # of a histogram
_MECHANISMS = {
    "exponential": "ExponentialMechanismDpEvent",
    "propose-test-release": "ProposeTestReleaseDpEvent",
}


def _files(receipt: Receipt, folder: Path) -> Iterator[Finding]:
    runs = receipt.kind in ("training", "federated")
    released = receipt.released if isinstance(receipt.released, Mapping) else {}
    if (runs or receipt.files) and released.get("files") != receipt.files:
        yield _failed("file", "the files are not those that were released.")
    elif not receipt.files and (runs or receipt.kind == "tuning"):
        words = "the receipt names no file of a model: it vouches for none that is beside it."
        yield _unchecked("file", words)
    for name, wanted in receipt.files.items():
        place = folder / name
        if name in ("", ".", "..") or set(name) & set("/\\\0") or len(name.encode()) > 255:
            yield _failed("file", "its name leads to another folder.")
        elif not place.is_file():
            yield _unchecked("file", f"{name} is not beside the receipt.")
        else:
            with place.open("rb") as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() == wanted
            yield _ok(same, "file", f"{name} is the one.", f"{name} is another one.")


def _context(receipt: Receipt) -> Iterator[Finding]:
    """What stands beside the claims: it must not contradict them, and what is declared is told."""
    context = receipt.context
    source = "a seed" if receipt.predictable else "the operating system"
    if context and context.get("randomness") != source:
        yield _failed("noise", "two sources of randomness are named.")
    limits = context.get("budget")
    if (limits is None) != (receipt.ledger is None or not context):
        yield _failed("budget", "the limits of its ledger are not named.")
    elif limits is not None and receipt.ledger is not None:
        try:
            yield _budget(receipt, limits, receipt.ledger["rows"][0]["record"])
        except Exception:  # whoever wrote the receipt chooses which one
            yield _failed("budget", "its limits cannot be read.")
    for name, each in context.get("data", {}).items():
        yield _assumed("data", f"its owner declares: {name}: {each!s:.200}")


def _budget(receipt: Receipt, limits: Mapping[str, Any], record: str) -> Finding:
    """Whether no more was spent than the limits, and no less than the charge of this row costs."""
    charge, relation = json.loads(record), Relation.parsed(limits["relation"])
    spent, most, delta = charge["spent"], limits["epsilon"], limits["delta"]
    held = relation.distance >= receipt.neighbours.distance
    held = held and set(limits) == {"epsilon", "delta", "relation"} and 0 <= delta < 0.5
    held = held and {type(spent), type(most)} <= {int, float} and 0 <= spent <= most < math.inf
    with contextlib.suppress(UnknownEventError):  # all charges cost no less than this one
        held = held and spent >= prove(parsed(charge["event"]), _ONE, spent, delta).least
    words = f"ε = {_exact(spent)} of {_exact(most)} was spent with this charge, at δ = "
    words += f"{_exact(delta)}; its keeper knows the limit."
    bad = "more was spent than its limit or than it notes, or for other neighbours."
    return _assumed("budget", words) if held else _failed("budget", bad)


def _assumptions(receipt: Receipt) -> Iterator[Finding]:
    if receipt.predictable:
        yield _failed("noise", "the noise was seeded: whoever knows the seed can subtract it.")
    else:
        words = "the program drew it as the event states, and its key stayed secret."
        yield _assumed("noise", words)
    yield _assumed("program", "it computed what was asked, and one record changes it as stated.")
    yield _assumed("unit", f"one {receipt.unit} is all that a person has in the data.")
    for each in receipt.theorems:
        claim, theorem, proof = (each.get(name) for name in ("claim", "theorem", "proof"))
        yield _assumed("theorem", f"{claim}: {theorem}, {proof}.")
