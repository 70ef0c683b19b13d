"""Arrays, lists and texts from a pickle, without executing it.

A pickle is a program, and running one runs what its author likes. CIFAR-10 is published as pickles
of Python 2. Here the opcodes are parsed by `pickletools`, which executes nothing, and the few that
build dictionaries, lists, texts, numbers and numpy arrays are interpreted; every other is an error.
A name such as `numpy.ndarray` stays a name: nothing is imported or called.
"""

import codecs
import pickletools
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_PLAIN = frozenset(
    (
        *("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"),
    )
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()
_DTYPES = {b"u1": "u1", b"f4": "<f4"}
_DEEPEST = 4


@attrs.define(eq=False)
class _Call:
    """A name with the arguments it would be called with, and the state it would be given."""

    name: str
    arguments: tuple[Any, ...]
    state: tuple[Any, ...] = ()


def read_batch(content: bytes) -> dict[Any, Any]:
    """The arrays and the lists of whole numbers in a pickled dictionary, its keys as bytes.

    Other entries are left out. A list is taken only if it is flat: lists that hold each other can
    stand for more numbers than there are atoms.

    Raises:
        ValueError: If the pickle holds anything but dictionaries, lists, texts, numbers and arrays.
    """
    found = _Machine().run(content)
    if not isinstance(found, dict):
        raise ValueError("Expected a pickled dictionary.")
    return {
        _text(key): _array(value) if isinstance(value, _Call) else value
        for key, value in found.items()
        if isinstance(value, _Call) or _is_flat(value)
    }


def read_nested(content: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of pickled dictionaries within dictionaries, by their keys joined by "/".

    Entries that are not arrays are left out.

    Raises:
        ValueError: As for `read_batch`, and for dictionaries nested deeper than four levels.
    """
    found = _Machine().run(content)
    if not isinstance(found, dict):
        raise ValueError("Expected a pickled dictionary.")
    return dict(_leaves(found, "", _DEEPEST))


def _leaves(
    values: dict[Any, Any], prefix: str, levels: int
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    if not levels:  # a dictionary may also hold itself
        raise ValueError(f"Expected dictionaries nested at most {_DEEPEST} levels deep.")
    for key, value in values.items():
        name = prefix + _text(key).decode("latin1")
        if isinstance(value, dict):
            yield from _leaves(value, f"{name}/", levels - 1)
        elif isinstance(value, _Call):
            yield name, _array(value)


@attrs.define
class _Machine:
    """A stack and a memo, as the pickle protocol describes them."""

    stack: list[Any] = attrs.field(factory=list)
    memo: dict[int, Any] = attrs.field(factory=dict)

    def run(self, content: bytes) -> Any:
        """What the opcodes build."""
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "STOP":
                return self.stack.pop()
            self._step(opcode.name, argument)
        raise ValueError("Expected the end of a pickle.")

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _PLAIN:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _TUPLES:
            stack.append(tuple(self._popped(_TUPLES[name])))
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        else:
            self._build(name, argument)

    def _build(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name == "GLOBAL":
            stack.append(_Call(str(argument), ()))
        elif name == "STACK_GLOBAL":
            module, attribute = self._popped(2)
            stack.append(_Call(f"{module} {attribute}", ()))
        elif name == "REDUCE":
            called, arguments = self._popped(2)
            stack.append(_called(called, arguments))
        elif name == "BUILD":
            state = stack.pop()
            stack[-1].state = tuple(state)
        elif name in ("SETITEM", "SETITEMS"):
            pairs = self._popped(2) if name == "SETITEM" else self._since_mark()
            stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))
        elif name in ("APPEND", "APPENDS"):
            items = self._popped(1) if name == "APPEND" else self._since_mark()
            stack[-1].extend(items)
        else:
            raise ValueError(f"Expected a batch of arrays only, got the opcode {name}.")

    def _popped(self, count: int) -> list[Any]:
        found = self.stack[len(self.stack) - count :] if count else []
        if len(found) < count:
            raise ValueError("Expected more on the stack.")
        del self.stack[len(self.stack) - count :]
        return found

    def _since_mark(self) -> list[Any]:
        place = len(self.stack) - 1 - self.stack[::-1].index(_MARK)
        found = self.stack[place + 1 :]
        del self.stack[place:]
        return found


def _called(called: Any, arguments: Any) -> Any:
    """A call that stays a value, but for the one by which Python 3 writes bytes for Python 2."""
    if not isinstance(called, _Call) or not isinstance(arguments, tuple):
        raise ValueError("Expected a name and its arguments.")
    if called.name == "_codecs encode" and arguments[1:] == ("latin1",):
        return codecs.encode(arguments[0], "latin1")
    return _Call(called.name, arguments)


def _is_flat(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)


def _array(call: _Call) -> np.ndarray[Any, Any]:
    """The array that a `_reconstruct` with its state describes: bytes or little-endian floats."""
    _, shape, kind, fortran, raw = call.state
    if call.name not in _RECONSTRUCT or not isinstance(kind, _Call) or fortran:
        raise ValueError("Expected an array in the order of C.")
    dtype = _DTYPES.get(_text(kind.arguments[0])) if kind.name == "numpy dtype" else None
    if dtype is None or (dtype != "u1" and _text(kind.state[1]) != b"<"):
        raise ValueError("Expected an array of bytes or of little-endian 32-bit floats.")
    return np.frombuffer(_text(raw), dtype).reshape(shape)


def _text(value: Any) -> bytes:
    """A text as Python 2 stored it: its bytes."""
    return value.encode("latin1") if isinstance(value, str) else bytes(memoryview(value))
