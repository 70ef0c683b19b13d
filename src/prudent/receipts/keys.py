"""Ed25519 keys: made once, kept by their owner, and used to sign receipts.

A key is a file `NAME.key` that only its owner may read, beside `NAME.pub`, which is public: one
line of hexadecimal digits each.
"""

import hmac
import os
import re
from pathlib import Path
from typing import Any

import attrs

from prudent import _extras, _files
from prudent._formats import reading
from prudent._validate import ArgumentError
from prudent.receipts.receipt import Receipt

_NAME = re.compile(r"[\w.-]{1,64}")
_PURPOSE = b"prudent receipt 1\n"  # a signature of a receipt is one of nothing else


def folder() -> Path:
    """Where keys are kept: $PRUDENT_KEYS, or ~/.config/prudent/keys."""
    given = os.environ.get("PRUDENT_KEYS")
    return Path(given) if given else Path.home() / ".config" / "prudent" / "keys"


def make(name: str) -> str:
    """Make a key of this name, and return its public part.

    Raises:
        ArgumentError: If there is one of this name, which is never replaced.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("."):
        raise ArgumentError("name", "letters, digits, - and _", got=name)
    secret = folder() / f"{name}.key"
    if secret.exists():
        raise ArgumentError("name", "one that has no key yet", got=name)
    key = _private().generate()
    secret.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _files.replacing(secret, owner_only=True) as file:
        file.write(key.private_bytes_raw().hex() + "\n")
    public = str(key.public_key().public_bytes_raw().hex())
    with _files.replacing(secret.with_suffix(".pub")) as file:
        file.write(public + "\n")
    return public


def public_keys() -> dict[str, str]:
    """The public part of every key, by name."""
    return {
        path.stem: path.read_text(encoding="ascii").strip()
        for path in sorted(folder().glob("*.pub"))
    }


def public_key(given: str | os.PathLike[str]) -> str:
    """A public key, given as its digits, as the name of a key, or as a .pub file."""
    text = os.fspath(given)
    if re.fullmatch(r"[0-9a-f]{64}", text):
        return text
    return key_digits(text, ".pub")


def signed(receipt: Receipt, key: str | os.PathLike[str]) -> Receipt:
    """The receipt, signed with a key that is named or whose file is given."""
    secret = secret_key(key)
    public = secret.public_key().public_bytes_raw().hex()
    signature = secret.sign(_PURPOSE + receipt.digest.encode()).hex()
    return attrs.evolve(receipt, signature={"key": public, "signature": signature})


def data_digest(path: str | os.PathLike[str], key: str | os.PathLike[str]) -> str:
    """A digest of a file of data under a secret key (HMAC-SHA-256), to declare in receipts.

    Without the key it tells nothing: a plain digest would let anyone test guesses of the data.
    """
    own = hmac.new(bytes.fromhex(key_digits(key)), _PURPOSE + b"data\n", "sha256")
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            own.update(block)
    return own.hexdigest()


def secret_key(key: str | os.PathLike[str]) -> Any:
    """The secret part of a key, which is named or found by its name."""
    return _private().from_private_bytes(bytes.fromhex(key_digits(key)))


def key_digits(given: str | os.PathLike[str], suffix: str = ".key") -> str:
    """The digits in a file of a key, which is named or found by its name."""
    given = os.fspath(given)
    path = Path(given).expanduser()
    if not path.is_file():
        path = folder() / f"{given}{suffix}"
    if not path.is_file():
        raise ArgumentError(
            "key",
            f"the name of a key, or a {suffix} file",
            got=given,
            hint="Make one with `prudent keys --make NAME`.",
        )
    with reading(path, f"a {suffix} file of `prudent keys`"):
        digits = path.read_text(encoding="ascii").strip()
        if not re.fullmatch(r"[0-9a-f]{64}", digits):
            raise ValueError("no key")
        return digits


def _private() -> Any:
    with _extras.needed("A signed receipt"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey
