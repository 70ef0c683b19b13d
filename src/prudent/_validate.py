"""One place for checking arguments: keyword in, message out.

Every function takes exactly one keyword argument, names it in the message and returns the value,
so that a check reads like the sentence it prints: `Expected sampling_rate in [0, 1], got 1.7.`
The error carries its parts, so that a caller never has to read the text.

Here, too, is what takes passwords out of a text before anyone sees it. Addresses of databases come
as `scheme://user:password@host/name?password=…` or as `host=… password=…`. A driver may quote any
part of one in its messages, also a part of a password that it took for something else, so what is
hidden is every secret of the address itself and whatever looks like one.
"""

import difflib
import enum
import functools
import math
import numbers
import os
import re
import urllib.parse
from collections.abc import Callable, Collection, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    import torch

_NOTHING = object()
_LONGEST = 1000  # characters of a value in a message
_LONGEST_NAME = 200  # bytes of a file name; most systems allow 255, and an ending may be added
_DEVICES = frozenset(
    ("CON", "PRN", "AUX", "NUL", *(f"{port}{n}" for port in ("COM", "LPT") for n in range(10)))
)

HIDDEN = "***"

# With one slash as well: a path that was made of an address has lost the other.
_AUTHORITY = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*:/+)(?P<secret>\S*)@")
_NAMED = re.compile(
    r"(?P<name>\b\w*(?:password|passwd|pwd|passphrase|secret|token|credential|signature|api_?key|access_?key|private_?key)\w*\s*=\s*)"
    r"(?P<value>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\S+)",
    re.IGNORECASE,
)
_SHORTEST_PART = 3  # characters of a password that a message might quote by accident

T = TypeVar("T")


def neutral(text: object, *, keep: str = "") -> str:
    r"""The text with every character that is not printable as an escape: ESC becomes `\x1b`.

    So are line ends, what turns the direction of writing and halves of surrogate pairs, but not
    the characters in `keep`.
    """
    kept = (each if each.isprintable() or each in keep else repr(each)[1:-1] for each in str(text))
    return "".join(kept)


def redacted(text: object, *addresses: object) -> str:
    """A text without passwords."""
    shown = str(text)
    for address in addresses:
        for secret in sorted(secrets_of(str(address)), key=len, reverse=True):
            shown = shown.replace(secret, HIDDEN)

    def user_alone(match: re.Match[str]) -> str:
        user, colon, _ = match["secret"].partition(":")
        return f"{match['scheme']}{user}:{HIDDEN}@" if colon else match[0]

    shown = _AUTHORITY.sub(user_alone, shown)
    return _NAMED.sub(lambda match: match["name"] + HIDDEN, shown)


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


class ArgumentError(ValueError):
    """An argument that is not allowed. It carries its data, so that nobody has to read its text.

    Its text is "Expected ‹argument› ‹allowed›, got ‹value›: ‹why›. ‹hint›".

    Attributes:
        argument: The name of the argument.
        allowed: What is allowed.
        value: What was given; None where nothing is shown.
        expectation: The text after the name of the argument.
        hint: What to do next; may be empty.
    """

    def __init__(
        self,
        argument: str,
        allowed: str,
        *,
        got: object = _NOTHING,
        shown: str | None = None,
        why: str = "",
        hint: str = "",
    ) -> None:
        """Stores the parts and makes the text of them.

        Args:
            argument: The name of the argument.
            allowed: What is allowed, as the end of the sentence "Expected ‹argument› …".
            got: What was given, shown as its repr.
            shown: Instead of `got`, words for what was given, shown as they are.
            why: Why no other value is allowed; may be empty.
            hint: What to do next, one sentence or more; may be empty.
        """
        self.argument, self.allowed, self.hint = argument, allowed, hint
        self.value = shown if got is _NOTHING else got
        given = shown if got is _NOTHING else _repr(got)
        self.expectation = (
            allowed
            + ("" if given is None else f", got {redacted(given)}")
            + (f": {why}." if why else ".")
            + (f" {hint}" if hint else "")
        )
        super().__init__(argument, allowed)

    def __str__(self) -> str:
        return f"Expected {self.argument} {self.expectation}"

    @property
    def problem(self) -> str:
        """The text without the name of the argument, for a line that begins with it."""
        return f"expected {self.expectation}"


class UnknownColumnError(ArgumentError):
    """A column that a table does not have; the most similar one is named."""

    def __init__(
        self, argument: str, given: object, columns: Collection[str], hint: str = ""
    ) -> None:
        """Stores the parts, as of an `ArgumentError`."""
        named = sorted(map(str, columns))
        small = {name.lower(): name for name in named}
        near = difflib.get_close_matches(str(given).lower(), small, 1)
        similar = f"; did you mean {small[near[0]]!r}?" if near else "."
        super().__init__(argument, f"one of {', '.join(named)}", got=given, hint=hint)
        self.args = (argument, given, named, hint)  # by which it is copied
        unknown = f"unknown column {redacted(_repr(given))}{similar}"
        self._problem = f"{unknown} Columns: {', '.join(named)}.{hint and ' '}{hint}"

    def __str__(self) -> str:
        return f"{self.argument}: {self.problem}"

    @property
    def problem(self) -> str:
        """Which column is unknown, the most similar one, and all there are."""
        return self._problem


def _repr(value: object) -> str:
    """The repr of a value, cut where it is long; its type where it has none, or too many digits."""
    try:
        text = repr(value)
    except Exception:  # also Python's own, for an integer of thousands of digits
        return f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … ({len(text)} characters)"


def _fail(name: str, allowed: str, value: object) -> NoReturn:
    raise ArgumentError(name, allowed, got=value)


def _only(argument: dict[str, Any]) -> tuple[str, Any]:
    ((name, value),) = argument.items()
    return name, value


def _checked(argument: dict[str, Any], allowed: str, holds: Callable[[float], bool]) -> float:
    """The one argument as a float, if it is a number for which a condition holds."""
    name, value = _only(argument)
    # A tensor or a Decimal has a value as well, and fails later, in arithmetic with other numbers.
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        other = hasattr(value, "__float__") and not isinstance(value, bool)
        hint = "Write float(…) around it." if other else ""
        raise ArgumentError(name, allowed, got=value, hint=hint)
    try:
        number = float(value)
    except OverflowError:
        _fail(name, allowed, value)
    if math.isnan(number):
        _fail(name, allowed, number)
    if not holds(number):
        _fail(name, allowed, value)
    return number


def positive(**argument: Any) -> float:
    """Finite and above zero."""
    return _checked(argument, "finite and > 0", lambda number: 0 < number < math.inf)


def positive_or_infinite(**argument: Any) -> float:
    """Above zero; infinity is allowed."""
    return _checked(argument, "> 0", lambda number: number > 0)


def non_negative(**argument: Any) -> float:
    """Finite and not below zero."""
    return _checked(argument, "finite and >= 0", lambda number: 0 <= number < math.inf)


def between(low: float, high: float, *, ends: str = "[]", **argument: Any) -> float:
    """In an interval, its ends open or closed as `ends` is written: "[]", "()", "(]", "[)"."""

    def inside(number: float) -> bool:
        above = low <= number if ends[0] == "[" else low < number
        return above and (number <= high if ends[1] == "]" else number < high)

    return _checked(argument, f"in {ends[0]}{low:g}, {high:g}{ends[1]}", inside)


def small_delta(least: float = 0.0, *, ends: str = "()", **argument: Any) -> float:
    """δ of a guarantee: below one half, since with probability δ everything may be revealed."""
    return between(least, 0.5, ends=ends, **argument)


def count(minimum: int = 0, maximum: float = math.inf, **argument: Any) -> int:
    """A whole number of at least `minimum`, and at most `maximum`."""

    def whole(number: float) -> bool:
        return not math.isinf(number) and number.is_integer() and minimum <= number <= maximum

    at_most = f" and <= {maximum:,}" if maximum < math.inf else ""
    _checked(argument, f"a whole number >= {minimum}{at_most}", whole)
    return int(_only(argument)[1])  # a float does not hold every whole number


def real(**argument: Any) -> float:
    """A number, perhaps infinite."""
    return _checked(argument, "a number", lambda number: True)


def values(**argument: Any) -> list[Any]:
    """The entries of a list, or of anything that can be iterated over, but a text."""
    name, value = _only(argument)
    if isinstance(value, str | bytes):
        _fail(name, "a list", value)
    try:
        return list(value)
    except Exception:  # whatever an object raises that is no list
        _fail(name, "a list", value)


def instance(kind: type[T] | tuple[type[T], ...], allowed: str, **argument: Any) -> T:
    """An object of a class; `allowed` says which."""
    name, value = _only(argument)
    if not isinstance(value, kind):
        raise ArgumentError(name, allowed, shown=type(value).__name__)
    return value


def function(**argument: Any) -> Callable[..., Any]:
    """Something that can be called."""
    name, value = _only(argument)
    if not callable(value):
        _fail(name, "a function", value)
    found: Callable[..., Any] = value
    return found


def device(**argument: Any) -> "torch.device":
    """A device of torch."""
    import torch

    name, value = _only(argument)
    if isinstance(value, str | torch.device):
        try:
            return torch.device(value)
        except RuntimeError:
            pass
    _fail(name, "a device such as 'cpu' or 'cuda:0'", value)


def one_of(choices: Collection[Any], **argument: Any) -> Any:
    """One of a small set of choices."""
    name, value = _only(argument)
    # An array or a tensor is equal to many things at once, and a list cannot be looked up.
    try:
        found = isinstance(value, Hashable) and value in choices
    except Exception:  # whatever an object raises that cannot be compared
        found = False
    if not found:
        named = sorted(map(str, choices))
        near = difflib.get_close_matches(value, named, 1) if isinstance(value, str) else []
        hint = f"Did you mean {near[0]!r}?" if near else ""
        raise ArgumentError(name, "one of " + ", ".join(named), got=value, hint=hint)
    return value


def column(columns: Collection[str], /, **argument: Any) -> Any:
    """The name of a column of a table, which may be of an argument called `columns`."""
    name, value = _only(argument)
    if isinstance(value, str) and value not in columns:
        raise UnknownColumnError(name, value, columns)
    return one_of(columns, **argument)


def flag(**argument: Any) -> bool:
    """True or False."""
    return bool(one_of((False, True), **argument))


def path(**argument: Any) -> Path:
    """A path of this system, whatever is there."""
    name, value = _only(argument)
    if not isinstance(value, str | os.PathLike):
        raise ArgumentError(name, "a path", shown=type(value).__name__)
    text = os.fspath(value)
    if not isinstance(text, str) or not text or "\0" in text:
        _fail(name, "a path", value)
    return Path(text)


def file_name(**argument: Any) -> str:
    """A relative path of plain names: no root, `..`, device or other stream, on any system."""
    name, value = _only(argument)
    allowed = "a plain file name, such as a/b.npz"
    if not isinstance(value, str):
        _fail(name, allowed, value)
    for part in value.split("/"):
        stem = part.partition(".")[0].rstrip().upper()
        odd = not part.isprintable() or any(each in part for each in '\\:*?"<>|')
        if odd or not part.strip(". ") or stem in _DEVICES or len(part.encode()) > _LONGEST_NAME:
            _fail(name, allowed, value)
    return value


def fields(instance: object, check: Callable[..., Any], *names: str) -> None:
    """Checks fields of a frozen value; what the check returns is kept: of a scalar, a number."""
    for name in names:
        object.__setattr__(instance, name, check(**{name: getattr(instance, name)}))


def given_fields(instance: object, check: Callable[..., Any], *names: str) -> None:
    """As `fields`, for those that are not None."""
    fields(instance, check, *(name for name in names if getattr(instance, name) is not None))


def by(check: Callable[..., Any], *limits: Any, **options: Any) -> Callable[[Any, Any, Any], None]:
    """A validator for a field of attrs, by one of the checks above and its limits."""
    return lambda _, field, value: check(*limits, **options, **{field.name: value})


def kept(
    check: Callable[..., Any], *limits: Any, **options: Any
) -> Callable[[Any, Any, Any], None]:
    """As `by`, and the field keeps what the check returns: a scalar of numpy is a number then."""
    checked = functools.partial(check, *limits, **options)
    return lambda instance, field, _: fields(instance, checked, field.name)


class _Unique(enum.EnumType):
    """Looks members up by values that can be looked up: an array is equal to many at once."""

    def __call__(cls, value: Any, *others: Any, **named: Any) -> Any:
        return super().__call__(
            value if isinstance(value, Hashable) else _NOTHING, *others, **named
        )


class Choice(enum.Enum, metaclass=_Unique):
    """An enumeration that says what it allows."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__.removesuffix("Choice")).lower()
        allowed = "one of " + ", ".join(repr(member.value) for member in cls)
        if value is _NOTHING:
            raise ArgumentError(name, allowed)
        _fail(name, allowed, value)
