"""The receipt of one answer: a frozen value, its canonical form, its digest and its file.

It needs nothing of the accountant: whoever checks a receipt reads it with this module alone.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from prudent import _files, _validate
from prudent._formats import check_format, reading

FORMAT = 1
"""Of receipts."""

KINDS = ("release", "model", "classifier", "training", "tuning", "federated")
"""What a receipt may be of."""

_LARGEST = 1 << 28  # bytes of a receipt
_DEEPEST = 64  # lists and fields inside each other
_NOT_SIGNED = ("digest", "signature")
_ADJACENCIES = ("add-remove", "zero-out", "replace-one")


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
        set(each) == {"claim", "theorem", "proof"} for each in value
    ):
        raise ValueError("no theorems")


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
    signature: Mapping[str, str] | None = attrs.field(
        default=None, validator=_of(Mapping, optional=True)
    )

    def plain(self) -> dict[str, Any]:
        """For JSON, with the format and the digest."""
        fields = attrs.asdict(self, recurse=False)
        fields |= {"epsilon": written(self.epsilon), "theorems": list(self.theorems)}
        return {"format": FORMAT, **fields, "digest": self.digest}

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form of everything but the digest and the signature."""
        fields = attrs.asdict(self, recurse=False)
        fields |= {"epsilon": written(self.epsilon), "theorems": list(self.theorems)}
        signed = {name: each for name, each in fields.items() if name not in _NOT_SIGNED}
        return digest_of({"format": FORMAT, **signed})

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


def _certificates(value: Any) -> Any:
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name in ("certificate", "certificate_") and isinstance(each, Mapping):
                yield each
            else:
                yield from _certificates(each)
    elif isinstance(value, list):
        for each in value:
            yield from _certificates(each)


def written(number: float) -> float | str:
    """A number as JSON holds it: infinity as text, everything else exactly."""
    return float(number) if float("-inf") < number < float("inf") else str(float(number))


def canonical(value: Any) -> bytes:
    """The one text of a value: sorted keys, no spaces, numbers as the shortest text of a double."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def digest_of(value: Any) -> str:
    """SHA-256 of the canonical form."""
    return hashlib.sha256(canonical(value)).hexdigest()


def digest_of_file(path: str | os.PathLike[str]) -> str:
    """SHA-256 of the content of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
