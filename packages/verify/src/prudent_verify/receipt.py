"""A receipt as its file holds it: its fields, its digest, and the theorems its claims rest on.

Written from the description of the format (docs/receipts.md), not shared with the program that
writes receipts: whoever distrusts that program reads its files with this module alone.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from prudent_verify.events import Event, Relation

FORMAT = 1  # the newest that is read
KINDS = ("release", "model", "classifier", "training", "tuning", "federated")

_LARGEST = 1 << 28  # bytes of a receipt
_DEEPEST = 64  # lists and fields inside each other
_PURPOSE = b"prudent receipt 1\n"  # a signature of a receipt is one of nothing else
_KEY = re.compile(r"[0-9a-f]{64}")


class ReceiptError(ValueError):
    """A file that is no receipt, or one that only a later version can read."""


def _if(holds: Callable[[Any], Any], **given: Any) -> Any:
    """A field of which this holds: whoever wrote the file chose its value."""

    def check(_: Any, __: Any, value: Any) -> None:
        if not holds(value):
            raise ValueError("no receipt")

    return attrs.field(validator=check, **given)


def _of(*kinds: type) -> Any:
    return _if(lambda value: isinstance(value, kinds))


def _below(limit: float) -> Any:
    """A double of at least zero, below a limit or infinite as well as the limit."""
    return _if(
        lambda value: type(value) is float and (0 <= value < limit or value == limit == math.inf)
    )


def _texts(pattern: str = ".*", *names: str) -> Callable[[Any], bool]:
    """Texts by name, with a pattern; with `names`, by no others."""
    return lambda value: (
        isinstance(value, Mapping)
        and (not names or set(value) <= set(names))
        and all(isinstance(each, str) and re.fullmatch(pattern, each) for each in value.values())
    )


def _is_signature(value: Any) -> bool:
    return value is None or bool(
        set(value) == {"key", "signature"}
        and _KEY.fullmatch(value["key"])
        and re.fullmatch("[0-9a-f]{128}", value["signature"])
    )


_CONTEXT: Mapping[str, Callable[[Any], bool]] = {
    "data": _texts("(?s:.*)", "schema", "snapshot", "digest"),
    "program": _texts(".*", "record", "commit"),
    "randomness": lambda _: True,  # compared with another field
    "budget": lambda value: isinstance(value, Mapping),
}
_THEOREM = {"claim", "theorem", "proof"}


@attrs.frozen(kw_only=True)
class Receipt:
    """The fields of a receipt; whoever wrote the file chose them, so each is checked."""

    kind: str = _if(KINDS.__contains__)
    asked: Mapping[str, Any] = _of(Mapping)
    event: Mapping[str, Any] = _of(Mapping)
    relation: Mapping[str, Any] = _if(Relation.parsed)
    unit: str = _of(str)
    epsilon: float = _below(math.inf)
    delta: float = _below(0.5)  # else more may be revealed than not
    released: Any
    files: Mapping[str, str] = _if(_texts("[0-9a-f]{64}"))
    digests: Mapping[str, str] = _if(_texts())
    ledger: Mapping[str, Any] | None = _of(Mapping, type(None))
    theorems: Sequence[Mapping[str, str]] = _if(
        lambda value: (
            isinstance(value, list)
            and all(isinstance(each, dict) and set(each) == _THEOREM for each in value)
        )
    )
    versions: Mapping[str, str] = _if(_texts())
    predictable: bool = _of(bool)
    signature: Mapping[str, str] | None = _if(_is_signature)
    context: Mapping[str, Any] = _if(
        lambda value: (
            isinstance(value, Mapping) and all(_CONTEXT[name](value[name]) for name in value)
        ),
        factory=dict,
    )

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form of everything but the digest and the signature."""
        fields = {"format": FORMAT, **attrs.asdict(self, recurse=False)}
        del fields["signature"]
        if not self.context:  # as in receipts from before there was one
            del fields["context"]
        if math.isinf(self.epsilon):
            fields["epsilon"] = str(self.epsilon)
        return digest_of(fields)

    def part_digests(self) -> dict[str, str]:
        """What the digests of the parts must be."""
        return {name: digest_of(getattr(self, name)) for name in ("event", "asked", "released")}

    def request(self) -> str:
        """The digest of all that was asked, under which the ledger was charged."""
        return digest_of(
            {name: getattr(self, name) for name in ("kind", "asked", "unit", "relation")}
        )

    @property
    def neighbours(self) -> Relation:
        """The relation, as a value."""
        return Relation.parsed(self.relation)

    def is_signed(self) -> bool:
        """Whether the signature is one of this receipt by the key beside it (Ed25519)."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        assert self.signature is not None
        key, signature = (bytes.fromhex(self.signature[name]) for name in ("key", "signature"))
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(
                signature, _PURPOSE + self.digest.encode()
            )
        except (InvalidSignature, ValueError):
            return False
        return True

    def certificates(self) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Every certificate among the released values, wherever it is, and what it stands in."""
        return list(certificates_in(self.released))


def digest_of(value: Any) -> str:
    """SHA-256 of the canonical form: sorted keys, no spaces, each double as its shortest text."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields in a file, of a receipt or of a description."""
    place = Path(path)
    with place.open("rb") as file:
        data = file.read(_LARGEST + 1)
    try:
        if len(data) > _LARGEST:
            raise ValueError("too large")
        content = json.loads(data.decode("utf-8"), object_pairs_hook=once)
        _check_depth(content)
        found: dict[str, Any] = {**content}
    except Exception:  # whoever wrote the file chooses which one
        raise ReceiptError(f"{place} is not a receipt: damaged, or of another kind.") from None
    return found


def read(content: dict[str, Any], place: str | os.PathLike[str]) -> tuple[Receipt, str]:
    """The receipt among the fields of a file, and the digest that stands there."""
    try:
        newest = content.pop("format")
        if type(newest) is not int or newest < 1:
            raise ValueError("no format")
        if newest > FORMAT:
            raise ReceiptError(f"{place} is a receipt of format {newest}; this reads {FORMAT}.")
        noted = content.pop("digest")
        if content["epsilon"] == "inf":
            content["epsilon"] = math.inf
        found = Receipt(**content)
        # What has no canonical form, such as NaN or half a character, has no digest.
        if not isinstance(noted, str) or not found.digest:
            raise ValueError("no digest")
    except ReceiptError:
        raise
    except Exception:  # whoever wrote the file chooses which one
        raise ReceiptError(f"{place} is not a receipt: damaged, or of another kind.") from None
    return found, noted


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
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


# A field of these names makes a certificate of a value.
_MARKS = {"needed", "withstands", "basis", "tolerance"}
_NAMES = ("certificate", "certificate_")


def certificates_in(
    value: Any, name: str = "", beside: Any = None
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Certificates by their fields or their name, each with the value that it is a field of."""
    if isinstance(value, Mapping):
        if name in _NAMES or _MARKS & set(value):
            yield value, beside if isinstance(beside, Mapping) else {}
            return
        for inner, each in value.items():
            yield from certificates_in(each, inner, value)
    elif isinstance(value, list):
        for each in value:
            yield from certificates_in(each, name, beside)
    elif name in _NAMES and value is not None:
        yield {}, {}  # in words, or as a number: it follows from nothing


def public_key(given: str | os.PathLike[str]) -> str:
    """A public key, given as its digits or as the file that holds them."""
    text = os.fspath(given)
    if not _KEY.fullmatch(text) and Path(text).is_file():
        text = Path(text).read_text(encoding="ascii", errors="replace").strip()
    if not _KEY.fullmatch(text):
        raise ValueError(f"Expected the signer as 64 hexadecimal digits or a file, got {given!r}.")
    return text


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


def theorems_of(event: Event, receipt: Receipt) -> list[dict[str, str]]:
    """What the claims of a receipt rest on, each theorem once.

    The conditions of the Coq theorems, and what remains on paper, are stated in docs/proofs.md.
    """
    found = []
    for each in event.walk():
        if each.kind == "ProposeTestReleaseDpEvent":
            found.append(("Propose-Test-Release", _PTR[each["reveals"]], _FINITE))
            found.append(("its pairs for continuous noise", "Errata 2.1 to 2.5", _PAPER))
        else:
            found.append(_EVENTS.get(each.kind, ("a noisy margin", "Errata 2.1 to 2.5", _PAPER)))
    if receipt.relation["adjacency"] == "replace-one" or receipt.relation["records"] > 1:
        bounds = "Finite.group_privacy, or a sharper bound of accounting.group_privacy"
        found.append(("several records of a person", bounds, _PAPER))
    for certificate, _ in receipt.certificates():
        basis = certificate.get("basis")
        kind = basis.get("kind") if isinstance(basis, Mapping) else None
        by, place = _CERTIFICATES.get(str(kind), _CERTIFICATES["distance"])
        found.append((f"a certificate by {by}", place, _PAPER))
    if receipt.kind == "classifier":
        found.append(("radii of predictions by counts", "Counts.released_certificate", _COQ))
    names = ("claim", "theorem", "proof")
    return [dict(zip(names, each, strict=True)) for each in dict.fromkeys(found)]
