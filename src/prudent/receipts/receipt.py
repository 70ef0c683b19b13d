"""The receipt of one answer: a frozen value, its file, and the theorems that its claims rest on.

It needs nothing of the accountant: whoever checks a receipt reads it with this module alone.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from prudent import _files, _validate
from prudent._formats import check_format, reading

FORMAT = 1  # of receipts
KINDS = ("release", "model", "classifier", "training", "tuning", "federated")
"""What a receipt may be of."""

_LARGEST = 1 << 28  # bytes of a receipt
_DEEPEST = 64  # lists and fields inside each other
_ADJACENCIES = ("add-remove", "zero-out", "replace-one")
# A field of these names makes a certificate of a value.
_MARKS = {"needed", "withstands", "basis", "tolerance"}


def _of(kind: type, *, optional: bool = False) -> Any:
    """A validator of the type of a field: whoever wrote the file chose it."""
    own: Any = attrs.validators.instance_of(kind)
    return attrs.validators.optional(own) if optional else own


def _is_relation(_: Any, __: Any, value: Any) -> None:
    records = value["records"] if isinstance(value, Mapping) else None
    if type(records) is not int or records < 1 or value["adjacency"] not in _ADJACENCIES:
        raise ValueError("no relation")


def _are_theorems(_: Any, __: Any, value: Any) -> None:
    if not isinstance(value, list | tuple) or not all(
        isinstance(each, Mapping) and set(each) == {"claim", "theorem", "proof"} for each in value
    ):
        raise ValueError("no theorems")


def _is_signature(_: Any, __: Any, value: Any) -> None:
    if value is not None and (
        not isinstance(value, Mapping)
        or set(value) != {"key", "signature"}
        or not re.fullmatch("[0-9a-f]{64}", value["key"])
        or not re.fullmatch("[0-9a-f]{128}", value["signature"])
    ):
        raise ValueError("no signature")


@attrs.frozen(kw_only=True)
class Receipt:
    """What was asked, what it cost, what came of it and what that rests on; all of it public.

    Attributes:
        kind: One of `KINDS`.
        asked: What was asked, as the ledger notes it; of a training run the plan as well.
        event: The privacy event, as JSON holds it.
        relation: Which data sets are neighbours, as JSON holds it.
        unit: What one record stands for: "record", or the column of privacy units.
        epsilon: The ε that is claimed; infinite if nothing is.
        delta: The δ beside it.
        released: The values that were released.
        files: SHA-256 of each file that was released, by its name.
        digests: SHA-256 of the parts of the receipt that are compared on their own: the event, what
            was asked, what was released, and public feature maps.
        ledger: The row of the charge and those after it, linked by hashes; None without a ledger.
        theorems: What each claim rests on: a claim, and where its proof is.
        versions: Of the programs.
        predictable: Whether the noise was seeded, which voids the guarantee against whoever knows
            the seed.
        context: What an auditor asks for besides: the program (`program`), the source of randomness
            (`randomness`), the limits of the ledger (`budget`), and what the owner of the data
            declares about them (`data`), which nothing here can check.
        signature: The public key and the signature of the digest; None if it is not signed.
    """

    kind: str = attrs.field(validator=attrs.validators.in_(KINDS))
    asked: Mapping[str, Any] = attrs.field(validator=_of(Mapping))
    event: Mapping[str, Any] = attrs.field(validator=_of(Mapping))
    relation: Mapping[str, Any] = attrs.field(validator=_is_relation)
    unit: str = attrs.field(default="record", validator=_of(str))
    epsilon: float = attrs.field(validator=[_of(float), attrs.validators.ge(0)])
    delta: float = attrs.field(
        validator=[_of(float), attrs.validators.ge(0), attrs.validators.lt(1)]
    )
    released: Any = None
    files: Mapping[str, str] = attrs.field(factory=dict, validator=_of(Mapping))
    digests: Mapping[str, str] = attrs.field(factory=dict, validator=_of(Mapping))
    ledger: Mapping[str, Any] | None = attrs.field(
        default=None, validator=_of(Mapping, optional=True)
    )
    theorems: Sequence[Mapping[str, str]] = attrs.field(default=(), validator=_are_theorems)
    versions: Mapping[str, str] = attrs.field(factory=dict, validator=_of(Mapping))
    predictable: bool = attrs.field(default=False, validator=_of(bool))
    context: Mapping[str, Any] = attrs.field(factory=dict, validator=_of(Mapping))
    signature: Mapping[str, str] | None = attrs.field(default=None, validator=_is_signature)

    def plain(self) -> dict[str, Any]:
        """For JSON, with the format and the digest."""
        return {**self._fields(), "digest": self.digest}

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form of everything but the digest and the signature."""
        fields = self._fields()
        del fields["signature"]
        return digest_of(fields)

    def _fields(self) -> dict[str, Any]:
        epsilon = str(self.epsilon) if math.isinf(self.epsilon) else self.epsilon
        fields = attrs.asdict(self, recurse=False)
        if not self.context:  # as in receipts from before there was one
            del fields["context"]
        return {"format": FORMAT, **fields, "epsilon": epsilon, "theorems": list(self.theorems)}

    def expected_digests(self) -> dict[str, str]:
        """What the digests of the parts must be, as far as the receipt holds the parts."""
        parts = {"event": self.event, "asked": self.asked, "released": self.released}
        return {name: digest_of(part) for name, part in parts.items()}

    def certificates(self) -> list[Mapping[str, Any]]:
        """Every certificate among the released values, wherever it is."""
        return list(_certificates(self.released))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the receipt as JSON; the file is complete or absent."""
        text = json.dumps(self.plain(), indent=2, sort_keys=True, ensure_ascii=False)
        with _files.replacing(Path(path)) as file:
            file.write(text + "\n")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> tuple["Receipt", str]:
        """The receipt in a file, and the digest that stands there.

        Raises:
            DamagedFileError: If the file is no receipt.
            NewerFormatError: If a later version wrote it.
        """
        place = _validate.path(path=path)
        with reading(place, "a receipt of prudent"):
            if place.stat().st_size > _LARGEST:
                raise ValueError("too large")
            text = place.read_text(encoding="utf-8")
            content = json.loads(text, object_pairs_hook=_once)
            _check_depth(content)
            check_format(content, FORMAT, f"{place}")
            del content["format"]
            noted = content.pop("digest")
            if content["epsilon"] == "inf":
                content["epsilon"] = float("inf")
            found = cls(**content)
            # What has no canonical form, such as NaN or half a character, has no digest.
            if not isinstance(noted, str) or not found.digest:
                raise ValueError("no receipt")
            return found, noted


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of an object; of two with one name readers would choose differently."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field twice")
    return found


def _check_depth(value: Any) -> None:
    """Refuse what would exhaust the stack of those who walk through it."""
    level = [value]
    for _ in range(_DEEPEST):
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [inner for each in inside for inner in each if isinstance(inner, dict | list)]
        if not level:
            return
    raise ValueError("too deep")


def _certificates(value: Any, name: str = "") -> Iterator[Mapping[str, Any]]:
    """Certificates by their fields or their name."""
    if isinstance(value, Mapping):
        if name in ("certificate", "certificate_") or _MARKS & set(value):
            yield value
            return
        for inner, each in value.items():
            yield from _certificates(each, inner)
    elif isinstance(value, list):
        for each in value:
            yield from _certificates(each, name)


def digest_of(value: Any) -> str:
    """SHA-256 of the canonical form: sorted keys, no spaces, each double as its shortest text."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


_COQ = "checked by Coq"
_FINITE = "checked by Coq for finitely many outcomes, else proved on paper"
_PAPER = "proved on paper"
_PTR = {
    "margin": "ProposeTestRelease.ptr_releasing_the_margin",
    "branch": "ProposeTestRelease.ptr_releasing_the_branch",
    "monotone-branch": "ProposeTestRelease.ptr_releasing_a_monotone_branch",
}
_CHOICE = "the exponential mechanism", "Pure.bounded_range_dominates", _FINITE
_COMPOSED = "composition", "Finite.composition", _FINITE
_ALLOTTED = "each record in one step of an epoch", "accounting.losses.allocation", _PAPER
_SELECTED = "the best of many", "accounting.losses.repeated_selection", _PAPER
_ONE_OF = "one of several, chosen without the data, or several on disjoint records"
_EVENTS = {
    "GaussianDpEvent": ("Gaussian noise", "Balle and Wang 2018, theorem 8", _PAPER),
    "LaplaceDpEvent": ("Laplace noise", "Dwork, McSherry, Nissim and Smith 2006", _PAPER),
    "DiscreteLaplaceDpEvent": ("discrete Laplace noise", "Ghosh et al. 2009", _PAPER),
    "ExponentialMechanismDpEvent": _CHOICE,
    "ApproximateDpEvent": ("any (ε, δ)-DP mechanism", "Kairouz, Oh and Viswanath 2015", _PAPER),
    "ZCDpEvent": ("zero-concentrated DP", "Canonne, Kamath and Steinke 2020", _PAPER),
    "PoissonSampledDpEvent": ("Poisson sampling", "Errata 2.1, Subsampling", _PAPER),
    "ComposedDpEvent": _COMPOSED,
    "SelfComposedDpEvent": _COMPOSED,
    "WorstOfDpEvent": (_ONE_OF, "Zhu, Dong and Wang 2022", _PAPER),
    "RandomAllocationDpEvent": _ALLOTTED,
    "RepeatAndSelectDpEvent": _SELECTED,
    "BinomialSelectionDpEvent": _SELECTED,
}
_CERTIFICATES = {
    "distance": ("a noisy distance", "release.certificates"),
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
        found.append(("radii of predictions by counts", "Counts.released_certificate", _COQ))
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
