"""One place that takes passwords out of text before anyone sees it.

Addresses of databases come as `scheme://user:password@host/name?password=…` or as
`host=… password=…`. A driver may quote any part of one in its messages, also a part of a password
that it took for something else, so what is hidden is every secret of the address itself and
whatever looks like one.
"""

import re
import urllib.parse

HIDDEN = "***"

# With one slash as well: a path that was made of an address has lost the other.
_AUTHORITY = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*:/+)(?P<secret>\S*)@")
_NAMED = re.compile(
    r"(?P<name>\b\w*(?:password|passwd|pwd|passphrase|secret|token|credential|signature|api_?key|access_?key|private_?key)\w*\s*=\s*)"
    r"(?P<value>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\S+)",
    re.IGNORECASE,
)
_SHORTEST_PART = 3  # characters of a password that a message might quote by accident


def redacted(text: object, *addresses: object) -> str:
    """A text without passwords.

    Args:
        text: What is about to be shown.
        *addresses: Whose secrets are taken out wherever they occur, whole or in part.
    """
    shown = str(text)
    for address in addresses:
        for secret in sorted(secrets_of(str(address)), key=len, reverse=True):
            shown = shown.replace(secret, HIDDEN)
    shown = _AUTHORITY.sub(_without_password, shown)
    return _NAMED.sub(lambda match: match["name"] + HIDDEN, shown)


def _without_password(match: re.Match[str]) -> str:
    user, colon, _ = match["secret"].partition(":")
    return f"{match['scheme']}{user}:{HIDDEN}@" if colon else match[0]


def without_password(address: str) -> str:
    """An address as it may be printed, without its password and its options."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return redacted(address)
    user_and_password, at, place = rest.rpartition("@")
    user, colon, _ = user_and_password.partition(":")
    hidden = f"{user}:{HIDDEN}" if colon else user
    return redacted(f"{scheme}://{hidden}{at}{place}").partition("?")[0]


def secrets_of(address: str) -> set[str]:
    """Every password in an address, as written and decoded, with its parts between separators."""
    found = {match["value"].strip("'\"") for match in _NAMED.finditer(address)}
    user_and_password = address.partition("://")[2].rpartition("@")[0]
    found.add(user_and_password.partition(":")[2])
    found |= {urllib.parse.unquote(secret) for secret in found}
    found |= {re.sub(r"\\(.)", r"\1", secret) for secret in found}
    parts = {part for secret in found for part in re.split(r"[/?#@:&=\s]", secret)}
    return {secret for secret in found if secret} | {p for p in parts if len(p) >= _SHORTEST_PART}
