"""Pages for people: a checklist, and one for whoever answers for the data."""

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from prudent._rounding import exact, rounded_up
from prudent.receipts.receipt import Receipt

YOURS = "**open: yours to answer**"  # marks what no receipt can say
_ADJACENCY = {
    "add-remove": "data sets that differ by adding or removing {some}",
    "zero-out": "data sets that differ by zeroing out {some}; their number is public",
    "replace-one": "data sets that differ by replacing {some}; their number is public",
}
_TRUST = {
    "federated": "Central: the server sees every update of a client, and which clients were drawn.",
}
_CENTRAL = "Central: whoever runs the program sees the records, and is trusted with them."


def relation_sentence(receipt: Receipt) -> str:
    """Which data sets are neighbours, in words."""
    records = receipt.relation["records"]
    some = f"one {receipt.unit}" if records == 1 else f"up to {records:,} {receipt.unit}s"
    return _ADJACENCY[str(receipt.relation["adjacency"])].format(some=some)


def claim(receipt: Receipt) -> str:
    """The (ε, δ) that is claimed, rounded up."""
    if math.isinf(receipt.epsilon):
        return "none: no finite ε is claimed"
    return f"ε = {rounded_up(receipt.epsilon, 6)}, δ = {rounded_up(receipt.delta, 6)}"


def asked(receipt: Receipt) -> str:
    """What was asked, in a few words."""
    facts = receipt.asked
    named = [facts.get(name) for name in ("statistic", "column")]
    return " of ".join(str(each) for each in named if each) or receipt.kind


def _questions(receipt: Receipt, verdict: str) -> dict[str, list[tuple[str, str | None]]]:
    """What auditors and registries ask, answered from a receipt; None is left open."""
    mechanisms = ", ".join(dict.fromkeys(each["claim"] for each in receipt.theorems))
    proofs = "; ".join(f"{each['claim']}: {each['theorem']}" for each in receipt.theorems)
    composition = "This receipt is of one answer; no ledger counts others from the same data."
    if receipt.ledger is not None:
        head = str(receipt.ledger["head"])[:16]
        composition = f"Charged to a ledger, whose head was {head}…; see `prudent budget report`."
    certified = [
        f"at least {each['needed']} records" if "needed" in each else f"over {each.get('records')}"
        for each in receipt.certificates()
    ]
    context = receipt.context
    declared, limits = context.get("data", {}), context.get("budget")
    program = "; ".join(f"{name} {each}" for name, each in context.get("program", {}).items())
    budget = None
    if limits is not None:
        spent = json.loads(receipt.ledger["rows"][0]["record"])["spent"] if receipt.ledger else "?"
        budget = f"ε = {exact(limits['epsilon'])}, δ = {exact(limits['delta'])}, for "
        budget += f"{limits['relation']['adjacency']}; ε = {spent} was spent with this charge"
    return {
        "The guarantee (after NIST SP 800-226)": [
            ("Privacy parameters", claim(receipt)),
            ("Unit of privacy", f"one {receipt.unit}"),
            ("Neighbouring relation", relation_sentence(receipt)),
            ("Flavour", "pure ε-DP" if receipt.delta == 0 else "(ε, δ)-DP"),
            ("Composition over all releases from these data", composition),
            ("Limit of the budget, and what was spent", budget),
            ("Is ε small enough for what the data could do to a person?", None),
            ("Can a person have several units?", None),
        ],
        "Algorithms and their proofs": [
            ("Mechanisms", mechanisms or "none"),
            ("Proofs", proofs or "none"),
            ("Was the claim checked by other code?", verdict),
            (
                "Robustness: records to add or remove before the answer moves",
                ", ".join(certified) or None,
            ),
            ("Accuracy and bias for the groups that matter", None),
        ],
        "Deployment": [
            ("Trust model", _TRUST.get(receipt.kind, _CENTRAL)),
            (
                "Hazard: predictable noise",
                f"noise from {context.get('randomness', 'a source that is not named')}",
            ),
            ("Hazard: floating point", "noise is drawn on a lattice of whole numbers, or rounded"),
            ("Hazard: time and other side channels", None),
            ("Hazard: results published besides this one", None),
            ("Data: schema (declared)", declared.get("schema")),
            ("Data: date of the snapshot (declared)", declared.get("snapshot")),
            ("Data: keyed digest (declared)", declared.get("digest")),
            ("Who may read the records, and how access is logged", None),
            ("Consent and data minimisation", None),
        ],
        "For a public registry of deployments": [
            ("Kind of data product", receipt.kind),
            ("What was asked", asked(receipt)),
            ("Software", ", ".join(f"{name} {each}" for name, each in receipt.versions.items())),
            ("Build of the program", program or None),
            ("Digest of the receipt", receipt.digest),
            ("Digest of what was released", receipt.digests.get("released")),
            ("Signed by", None if receipt.signature is None else str(receipt.signature["key"])),
            ("Data curator, intended use, region, date of publication", None),
            ("Why these parameters were chosen", None),
        ],
    }


def registry(receipt: Receipt, verdict: str) -> str:
    """The fields of public registries of deployments as JSON; what a receipt cannot say is null."""
    finite = not math.isinf(receipt.epsilon)
    parameters = {"epsilon": receipt.epsilon if finite else None, "delta": receipt.delta}
    fields = {
        "deployment_name": None,
        "data_curator": None,
        "intended_use": None,
        "data_product_type": receipt.kind,
        "data_product_region": None,
        "publication_date": None,
        "dp_flavor": "pure DP" if receipt.delta == 0 else "approximate DP",
        "privacy_loss": {
            "parameters": parameters,
            "privacy_unit": receipt.unit,
            "neighboring_relation": receipt.relation,
            "relation_in_words": relation_sentence(receipt),
        },
        "model": _TRUST.get(receipt.kind, _CENTRAL),
        "accounting": {"budget": receipt.context.get("budget"), "ledger": receipt.ledger},
        "mechanisms": [dict(each) for each in receipt.theorems],
        "implementation": {"versions": receipt.versions, **receipt.context},
        "released": receipt.released,
        "justification": None,
        "evidence": {"receipt": receipt.digest, "signature": receipt.signature, "check": verdict},
        "checklist": {part: dict(rows) for part, rows in _questions(receipt, verdict).items()},
    }
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


def checklist(receipt: Receipt, verdict: str) -> str:
    """A checklist after NIST SP 800-226 and the registry of deployments, as Markdown.

    Each question is answered from the receipt, or left open and marked.

    Args:
        receipt: What answers.
        verdict: What checking it found, in one sentence.
    """
    lines = ["# Differential privacy checklist", ""]
    for title, rows in _questions(receipt, verdict).items():
        lines += [f"## {title}", ""]
        cells = [(question, YOURS if each is None else cell(each)) for question, each in rows]
        lines += [*table(("Question", "Answer"), cells), ""]
    return "\n".join(lines)


_HEADER = ("Receipt", "What was asked", "Guarantee", "For", "Verdict")


def officers_page(found: Mapping[str, tuple[Receipt, str]]) -> str:
    """A page on receipts, by file and with what checking them found, as Markdown."""
    lines = ["# Privacy report on receipts", "", *table(_HEADER, _rows(found)), "", _total(found)]
    return "\n".join([*lines, ""])


def officers_html(found: Mapping[str, tuple[Receipt, str]]) -> str:
    """The same page as HTML that loads nothing."""
    title = "Privacy report on receipts"
    rows = html_table(_HEADER, _rows(found, escaped=False), "receipts")
    return html_page(title, f"<h1>{title}</h1>{rows}<p>{html.escape(_total(found))}</p>")


def _rows(
    found: Mapping[str, tuple[Receipt, str]], *, escaped: bool = True
) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (name, asked(receipt), claim(receipt), relation_sentence(receipt), verdict)
        for name, (receipt, verdict) in found.items()
    ]
    return [tuple(map(cell, row)) for row in rows] if escaped else rows


def _total(found: Mapping[str, tuple[Receipt, str]]) -> str:
    receipts = [receipt for receipt, _ in found.values()]
    if not all(verdict.startswith("Verified") for _, verdict in found.values()):
        return "Not all of them are verified, so nothing is said about all of them together."
    if len({relation_sentence(each) for each in receipts}) > 1:
        return "They protect different things, so their prices do not add up to one for all."
    epsilon = rounded_up(_sum(each.epsilon for each in receipts), 6)
    delta = exact(_sum(each.delta for each in receipts))
    return (
        f"Together, if all are from the same data: at most ε = {epsilon} at "
        f"δ = {delta}, by adding up. A ledger that all of them charged may prove less."
    )


def _sum(numbers: Iterable[float]) -> float:
    """The least double that is not below the sum of finite numbers."""
    total = sum(map(Fraction, numbers), Fraction(0))
    found = float(total)
    return math.nextafter(found, math.inf) if Fraction(found) < total else found


def cell(text: Any) -> str:
    """Text in a cell of a Markdown table: what has a meaning there is escaped."""
    escaped = "".join(f"\\{c}" if c in "\\`*_{}[]<>#|" else c for c in str(text))
    return escaped.replace("\n", " ")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown, whose cells are escaped already."""
    return [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows)]


def html_table(header: Sequence[str] | None, rows: Sequence[Sequence[str]], kind: str) -> str:
    """A table in HTML of some class, in which every cell is escaped."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(each)}</{tag}>" for each in cells) + "</tr>"

    head = "" if header is None else f"<thead>{line(header, 'th')}</thead>"
    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table class="{kind}">{head}<tbody>{body}</tbody></table></div>'


def html_page(title: str, body: str) -> str:
    """A page of HTML that loads nothing and prints well; the body is escaped already."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}'
        f'</title><meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body>\n{body}\n</body></html>\n"
    )


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1a1a1a;background:#fff}h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}"
    "table{border-collapse:collapse;font-size:.9em}td,th{padding:.3rem .6rem;text-align:left;"
    "vertical-align:top;border-bottom:1px solid #ddd}th{border-bottom:2px solid #888}"
    ".facts td:first-child{font-weight:600;white-space:nowrap}.facts td{overflow-wrap:anywhere}"
    ".charges td:nth-child(n+6){white-space:nowrap}"
    ".scroll{overflow-x:auto}.good,.bad{padding:.6rem .9rem;border-left:5px solid #2c7a4b;"
    "background:#eef7f1}.bad{border-color:#b3261e;background:#fdeceb}"
    ".bar{height:.8rem;background:#e4e4e4;margin:1rem 0}.bar div{height:100%;background:#2b5c9e}"
    ".side{display:flex;flex-wrap:wrap;gap:2rem;align-items:flex-start}"
    "svg{width:260px;font-size:11px}polyline{fill:none;stroke-width:2}.sees{stroke:#b3261e}"
    ".blind{stroke:#666;stroke-dasharray:4 3}.sees-text{fill:#b3261e}.blind-text{fill:#555}"
    "@media print{body{margin:0;max-width:none;font-size:11px}.scroll{overflow:visible}"
    "tr,.side{break-inside:avoid}h2{break-after:avoid}"
    ".bar,.bar div,.good,.bad{print-color-adjust:exact}}"
)
