"""Which theorem each claim of a receipt rests on, and where its proof is."""

from collections.abc import Iterator, Mapping
from typing import Any

from prudent.receipts.receipt import Receipt

_COQ = "checked by Coq"
_FINITE = "checked by Coq for finitely many outcomes, else proved on paper"
_PAPER = "proved on paper"

_PTR = {
    "margin": "ProposeTestRelease.ptr_releasing_the_margin",
    "branch": "ProposeTestRelease.ptr_releasing_the_branch",
    "monotone-branch": "ProposeTestRelease.ptr_releasing_a_monotone_branch",
}

_EVENTS = {
    "GaussianDpEvent": ("Gaussian noise", "Balle and Wang 2018, theorem 8", _PAPER),
    "LaplaceDpEvent": ("Laplace noise", "Dwork, McSherry, Nissim and Smith 2006", _PAPER),
    "DiscreteLaplaceDpEvent": ("discrete Laplace noise", "Ghosh et al. 2009", _PAPER),
    "ExponentialMechanismDpEvent": (
        "the exponential mechanism",
        "Exponential.exponential_mechanism_profile",
        _FINITE,
    ),
    "ApproximateDpEvent": ("any (ε, δ)-DP mechanism", "Kairouz, Oh and Viswanath 2015", _PAPER),
    "PoissonSampledDpEvent": ("Poisson sampling", "Errata 2.1, Subsampling", _PAPER),
    "ComposedDpEvent": ("composition", "Finite.composition", _FINITE),
    "SelfComposedDpEvent": ("composition", "Finite.composition", _FINITE),
    "WorstOfDpEvent": (
        "one of several, chosen without the data, or several on disjoint records",
        "Zhu, Dong and Wang 2022",
        _PAPER,
    ),
    "RepeatAndSelectDpEvent": ("the best of many", "accounting.losses.repeated_selection", _PAPER),
    "BinomialSelectionDpEvent": (
        "the best of many",
        "accounting.losses.repeated_selection",
        _PAPER,
    ),
}

_CERTIFICATES = {
    "distance": ("a noisy distance", "release.certificates"),
    "votes": ("noisy votes", "estimators.aggregation.answers"),
    "SlopeBasis": ("a noisy gradient and curvature", "estimators.certificate"),
}


def theorems_of(event: Mapping[str, Any], receipt: Receipt) -> list[dict[str, str]]:
    """What the claims of a receipt rest on, each theorem once.

    The conditions of the Coq theorems, and what remains on paper, are stated in docs/proofs.md.
    """
    found = [*_of_event(event)]
    if receipt.relation["adjacency"] == "replace-one" or receipt.relation["records"] > 1:
        bounds = "Finite.group_privacy, or a sharper bound of accounting.group_privacy"
        found.append(("several records of a person", bounds, _PAPER))
    for certificate in receipt.certificates():
        basis = certificate.get("basis")
        kind = basis.get("kind") if isinstance(basis, Mapping) else None
        by, place = _CERTIFICATES.get(str(kind), _CERTIFICATES["distance"])
        found.append((f"a certificate by {by}", place, _PAPER))
    if receipt.kind == "classifier":
        found.append(("radii of predictions by counts", "Counts.certificate", _COQ))
    names = ("claim", "theorem", "proof")
    return [dict(zip(names, each, strict=True)) for each in dict.fromkeys(found)]


def _of_event(event: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    kind = event["kind"]
    if kind == "ProposeTestReleaseDpEvent":
        yield "Propose-Test-Release", _PTR[event["reveals"]], _FINITE
        yield "its pairs for continuous noise", "Errata 2.1 to 2.5", _PAPER
    elif kind.endswith("Test"):
        yield "a noisy margin", "Errata 2.1 to 2.5", _PAPER
    elif kind in _EVENTS:
        yield _EVENTS[kind]
    inside = [event.get("event"), *(event.get("events") or ())]
    for each in filter(None, inside):
        yield from _of_event(each)
