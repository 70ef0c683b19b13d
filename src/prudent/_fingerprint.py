"""Fingerprints of code and data: equal only if what they are of computes the same.

A function is known by its bytecode, constants, defaults, closure and the globals that it names; an
object by its class and its state; code of an installed package by its name and the version of the
package.

What cannot be known without running it has no fingerprint: objects without a state that can be
read, such as connections and locks, and data sets that read their records from elsewhere.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import itertools
import site
import sys
import sysconfig
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prudent import __version__

_SIZE = 16
_PLAIN = (int, float, complex, str, bytes, bool, types.NoneType, types.EllipsisType)
_CODE = (
    *("code", "consts", "names", "varnames", "freevars", "flags", "argcount"),
    *("kwonlyargcount", "posonlyargcount", "exceptiontable"),
)
_NOT_CODE = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__"),
    *("__static_attributes__", "__annotations__", "__annotate__", "__annotate_func__"),
    *("__annotations_cache__", "__attrs_attrs__", "__attrs_props__", "__dataclass_fields__"),
    *("__dataclass_params__", "__match_args__", "__parameters__", "__orig_bases__"),
    *("__abstractmethods__", "_abc_impl", "__slots__"),
    "__hash__",  # attrs makes one that varies from process to process
}
"""Members of a class that do not change what it does."""


def fingerprint(*values: Any, restored: Any = None) -> str:
    """The fingerprint of some values together; empty if one of them has none.

    Args:
        *values: The values.
        restored: A torch module whose parameters and persistent buffers a checkpoint restores:
            wherever it occurs, their values are left out.
    """
    try:
        parts = () if restored is None else restored.modules()
        found: str = _Walk(frozenset(id(part) for part in parts)).of(values).hexdigest()
    except Exception:  # any object may refuse to be looked at, in its own way
        return ""
    return found


class _Walk:
    """Adds to a digest what values are, but the state of modules at the addresses `restored`."""

    def __init__(self, restored: frozenset[int] = frozenset()) -> None:
        self._restored = restored
        self._digest = hashlib.blake2b(digest_size=_SIZE)
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # else the address of a temporary value could be used again

    def of(self, value: Any) -> Any:
        """The digest after one more value."""
        self._add(value)
        return self._digest

    def _say(self, *words: Any) -> None:
        self._digest.update(repr(words).encode())

    def _add(self, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self._say(kind.__name__, value)
        elif kind is tuple:
            self._all("tuple", value)
        elif kind in (set, frozenset):
            each = sorted(_Walk(self._restored).of(one).hexdigest() for one in value)
            self._say(kind.__name__, each)
        elif isinstance(value, types.CodeType):
            self._all("code", [getattr(value, f"co_{part}") for part in _CODE])
        elif (place := self._seen.setdefault(id(value), len(self._seen))) < len(self._kept):
            self._say("seen", place)
        else:
            self._kept.append(value)
            self._object(value)

    def _all(self, name: str, values: Iterable[Any]) -> None:
        values = list(values)
        self._say(name, len(values))
        if all(type(value) in _PLAIN for value in values):
            self._say(values)
            return
        for value in values:
            self._add(value)

    def _object(self, value: Any) -> None:
        """Adds what may hold itself, and is therefore followed once."""
        if type(value) is list:
            self._all("list", value)
        elif isinstance(value, dict) and type(value).__module__ in ("builtins", "collections"):
            self._all(type(value).__name__, itertools.chain.from_iterable(value.items()))
        elif isinstance(value, types.ModuleType):
            self._say("module", value.__name__, _package(value.__name__) or _unknown(value))
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._all("method", [value.__func__, value.__self__])
        elif isinstance(value, types.BuiltinFunctionType):
            owner = value.__self__
            self._say("builtin", value.__qualname__, _package(value.__module__ or "builtins"))
            self._add(None if isinstance(owner, types.ModuleType) else owner)
        elif isinstance(value, classmethod | staticmethod):
            self._all(type(value).__name__, [value.__func__])
        elif isinstance(value, property):
            self._all("property", [value.fget, value.fset, value.fdel])
        else:
            self._instance(value)

    def _function(self, function: types.FunctionType) -> None:
        package = _package(function.__module__ or "")
        if package is not None and _is_member(function):
            self._say("function", function.__module__, function.__qualname__, package)
            return
        self._say("function")
        self._add(function.__code__)
        self._all("defaults", [function.__defaults__, function.__kwdefaults__, function.__dict__])
        self._all("closure", [cell.cell_contents for cell in function.__closure__ or ()])
        if package is None:
            names = _names(function.__code__)
            for name in filter(function.__globals__.__contains__, names):
                self._global(name, function.__globals__[name], names)

    def _global(self, name: str, value: Any, names: list[str]) -> None:
        """Adds a global of a function; of a module that is not installed, what this one names."""
        self._say("global", name)
        if not isinstance(value, types.ModuleType) or _package(value.__name__) is not None:
            self._add(value)
            return
        found = [other for other in names if hasattr(value, other)]
        self._say("module", value.__name__, len(found))
        for other in found:
            member = getattr(value, other)
            if member is not value:
                self._global(other, member, [one for one in names if one != name])

    def _class(self, kind: type) -> None:
        package = _package(kind.__module__)
        self._say("class", kind.__qualname__, package and (kind.__module__, package))
        if package is not None:
            return
        self._all("bases", kind.__bases__)
        for name, member in kind.__dict__.items():
            described = isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType)
            if name not in _NOT_CODE and not described:
                self._say("member", name)
                self._add(member)

    def _instance(self, value: Any) -> None:
        tensor, module = _named("torch", "Tensor"), _named("torch.nn", "Module")
        torch_data = _named("torch.utils.data", "Dataset")
        own_data = _named("datasets", "Dataset")
        if own_data is not None and isinstance(value, own_data):
            self._say("datasets", value._fingerprint or _unknown(value))
        elif torch_data is not None and isinstance(value, torch_data):
            self._data(value)
        elif tensor is not None and isinstance(value, tensor):
            import torch

            self._say("tensor", str(value.dtype), tuple(value.shape), value.requires_grad)
            flat = value.detach().cpu().contiguous().flatten()
            self._digest.update(flat.view(torch.uint8).numpy().data)
        elif module is not None and isinstance(value, module):
            self._module(value)
        else:
            self._state(value)

    def _data(self, data: Any) -> None:
        """Adds a data set of torch that holds its records in memory."""
        if type(data) is _named("torch.utils.data", "TensorDataset"):
            self._all("tensors", data.tensors)
        elif type(data) is _named("torch.utils.data", "Subset"):
            self._say("subset", [int(index) for index in data.indices])
            self._add(data.dataset)
        else:
            _unknown(data)

    def _module(self, module: Any) -> None:
        """Adds the structure of a module and whatever its state does not hold."""
        self._class_of(module)
        apart = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
        for name, value in module.__dict__.items():
            if name not in apart:
                self._say("attribute", name)
                self._add(value)
        kept: Any = () if id(module) in self._restored else (*module._parameters, *module._buffers)
        kept = {*kept, *module._non_persistent_buffers_set}
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            if value is None or name in kept:
                self._say("value", name)
                self._add(value)
            else:
                self._say(name, str(value.dtype), tuple(value.shape), value.requires_grad)
        for name, value in module._modules.items():
            self._say("part", name)
            self._add(value)

    def _class_of(self, value: Any) -> None:
        self._say("instance")
        self._add(type(value))

    def _state(self, value: Any) -> None:
        """Adds the state of any other object, as pickle would read it."""
        self._class_of(value)
        array = _named("numpy", "ndarray")
        if array is not None and type(value) is array and value.dtype.kind != "O":
            self._say(value.dtype.str, value.shape)
            self._digest.update(value.copy(order="C").reshape(-1).view("u1").data)
            return
        reduced = value.__reduce_ex__(4)
        if isinstance(reduced, str):
            self._say("named", reduced)
            return
        make, arguments, state, *items = (*reduced, None, None, None)[:5]
        self._all("made", [make, tuple(arguments), state])
        for some in items:
            self._all("items", () if some is None else some)


def _names(code: types.CodeType) -> list[str]:
    """The names that code and the functions in it look up, in the order of their first use."""
    inner = [_names(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return list(dict.fromkeys(itertools.chain(code.co_names, *inner)))


def _is_member(function: types.FunctionType) -> bool:
    """Whether a function is what its module has under its name, and not made within another."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _unknown(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} has no fingerprint.")


def _named(module: str, name: str) -> Any:
    """A class of a module, if anything has imported it; else nothing can be an instance of it."""
    return getattr(sys.modules.get(module), name, None)


@functools.cache
def _package(name: str) -> str | None:
    """The installed package of a module, with its version; None of code that may be edited."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"python {sys.version}"
    if top == "prudent":
        return f"prudent {__version__}"
    file = getattr(sys.modules.get(top), "__file__", None)
    if file is None or not any(Path(file).is_relative_to(place) for place in _installed()):
        return None
    version = getattr(sys.modules[top], "__version__", None)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = version or importlib.metadata.version(top)
    return None if version is None else f"{top} {version}"


@functools.cache
def _installed() -> tuple[str, ...]:
    """The folders of installed packages."""
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return tuple({*paths, *site.getsitepackages(), site.getusersitepackages()})
