"""Pages for people: a checklist, and one for whoever answers for the data."""

import html
import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

from prudent._rounding import exact, rounded_up
from prudent._validate import neutral
from prudent.accounting._numeric import float_above
from prudent.accounting.relations import Relation
from prudent.receipts.receipt import Receipt

YOURS = "open: yours to answer"  # marks what no receipt can say
_TRUST = {
    "federated": "Central: the server sees every update of a client, and which clients were drawn.",
}
_CENTRAL = "Central: whoever runs the program sees the records, and is trusted with them."


def relation_sentence(receipt: Receipt) -> str:
    """Which data sets are neighbours, in words."""
    relation = Relation(receipt.relation["adjacency"], receipt.relation["records"])
    return f"data sets that differ by {relation.sentence(receipt.unit)}"


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
    header = "Question", "Answer"
    sections: Sections = {
        title: [PageTable(header, [(question, answer or YOURS) for question, answer in rows])]
        for title, rows in _questions(receipt, verdict).items()
    }
    return markdown_page("Differential privacy checklist", sections)


def officers_page(found: Mapping[str, tuple[Receipt, str]], *, as_html: bool = False) -> str:
    """A page on receipts, by file and with what checking them found, as Markdown or HTML."""
    rows = [
        (name, asked(receipt), claim(receipt), relation_sentence(receipt), verdict)
        for name, (receipt, verdict) in found.items()
    ]
    header = "Receipt", "What was asked", "Guarantee", "For", "Verdict"
    page = html_page if as_html else markdown_page
    return page("Privacy report on receipts", {"": [PageTable(header, rows), _total(found)]})


def _total(found: Mapping[str, tuple[Receipt, str]]) -> str:
    receipts = [receipt for receipt, _ in found.values()]
    if not all(verdict.startswith("Verified") for _, verdict in found.values()):
        return "Not all of them are verified, so nothing is said about all of them together."
    if len({relation_sentence(each) for each in receipts}) > 1:
        return "They protect different things, so their prices do not add up to one for all."
    epsilon, delta = (
        float_above(sum((Fraction(getattr(each, name)) for each in receipts), Fraction(0)))
        for name in ("epsilon", "delta")
    )
    return (
        f"Together, if all are from the same data: at most ε = {rounded_up(epsilon, 6)} at "
        f"δ = {exact(delta)}, by adding up. A ledger that all of them charged may prove less."
    )


class PageTable(NamedTuple):
    """A table of a page: a header, unless it lists names and values, rows, and a CSS class."""

    header: Sequence[str] | None
    rows: Sequence[Sequence[str]]
    kind: str = ""


Sections: TypeAlias = Mapping[str, Sequence[str | list[str] | PageTable]]
"""Paragraphs, lists and tables of plain text below each heading; the first may have none."""


def markdown_page(title: str, sections: Sections) -> str:
    """A page as Markdown, in which no text has a meaning of its own."""
    lines = [f"# {_escaped(title)}", ""]
    for heading, blocks in sections.items():
        lines += [f"## {heading}", ""] if heading else []
        for block in blocks:
            match block:
                case PageTable(header, rows):
                    columns = header or [""] * len(rows[0])
                    body = (tuple(map(_escaped, row)) for row in rows)
                    every = (columns, ["---"] * len(columns), *body)
                    lines += [f"| {' | '.join(line)} |" for line in every]
                case str():
                    lines.append(_escaped(block))
                case _:
                    lines += [f"- {_escaped(each)}" for each in block]
            lines.append("")
    return "\n".join(lines)


def _escaped(text: Any) -> str:
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|&~" else c for c in neutral(text))


def html_page(title: str, sections: Sections) -> str:
    """A page of HTML that loads nothing and prints well."""
    parts = [f"<h1>{_text(title)}</h1>"]
    for heading, blocks in sections.items():
        parts += [f"<h2>{_text(heading)}</h2>"] if heading else []
        for block in blocks:
            match block:
                case PageTable(header, rows, kind):
                    head = "" if header is None else f"<thead>{_html_row(header, 'th')}</thead>"
                    body = "".join(_html_row(row, "td") for row in rows)
                    table = f'<table class="{kind}">{head}<tbody>{body}</tbody></table>'
                    parts.append(f'<div class="scroll">{table}</div>')
                case str():
                    parts.append(f"<p>{_text(block)}</p>")
                case _:
                    items = "".join(f"<li>{_text(each)}</li>" for each in block)
                    parts.append(f"<ul>{items}</ul>")
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(title)}'
        f'</title><meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body>\n{body}\n</body></html>\n"
    )


def _html_row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{_text(each)}</{tag}>" for each in cells) + "</tr>"


def _text(text: object) -> str:
    return html.escape(neutral(text))


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1a1a1a;background:#fff}h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}"
    "table{border-collapse:collapse;font-size:.9em}td,th{padding:.3rem .6rem;text-align:left;"
    "vertical-align:top;border-bottom:1px solid #ddd}th{border-bottom:2px solid #888}"
    ".facts td:first-child{font-weight:600;white-space:nowrap}.facts td{overflow-wrap:anywhere}"
    ".charges td:nth-child(n+6){white-space:nowrap}.scroll{overflow-x:auto}"
    "@media print{body{margin:0;max-width:none;font-size:11px}.scroll{overflow:visible}"
    "tr{break-inside:avoid}h2{break-after:avoid}}"
)
