"""What a model and its loss compute with besides tensors they are given: their state on the host.

A release must be a function of its records and of what is public. But a captured graph repeats what
Python did when it was made; and how often forward runs in a step depends on the drawn records, so
whatever one run leaves behind must not reach the next. `HostState` finds everything that the code
can read, says whether any of it has changed, and puts it back.
"""

import array
import functools
import gc
import os
import random
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from operator import is_
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from prudent._fingerprint import _names, _package
from prudent._torch_private import (
    dispatch_modes,
    function_modes,
    is_functorch_wrapped_tensor,
    is_record,
)
from prudent.training.gradients.factors.products import precisions
from prudent.training.gradients.factors.tape import tensors
from prudent.training.gradients.record_streams import (
    RecordStreams,
    is_capturing,
    is_same,
    restarting,
)

_PLAIN = frozenset(
    (
        *(int, float, complex, str, bytes, bool, types.NoneType, types.EllipsisType, range, slice),
        *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
    )
)
_NOT_CODE = frozenset(("__dict__", "__weakref__", "__doc__", "__annotations__"))
_ARGUMENTS = frozenset(("_parameters", "_buffers"))  # of a module; every step is given them
_OPAQUE = (  # packages of objects that compute nothing of a record, and hold much else
    *("logging.", "threading.", "_thread.", "io.", "_io.", "weakref.", "_weakref.", "queue."),
    *("contextlib.", "_contextvars.", "multiprocessing.", "concurrent.", "asyncio.", "socket."),
    *("lightning.", "pytorch_lightning.", "lightning_fabric.", "accelerate.", "torch.optim."),
    *("torch.distributed.", "torch.utils.data.", "torch._dynamo.", "torch._C.", "torch.fx."),
    *("torch.cuda.", "prudent.training."),
)
_MISSING = object()


class HostState:
    """The state of some objects, as it was when it was last read.

    It consists of attributes, entries of containers, closures, hooks, members of classes, context
    variables, generators and arrays, and of the globals that functions name; what parameters and
    buffers hold is not of it. Code of installed packages is known by identity, and what any other
    object of C keeps to itself is not seen.

    Args:
        **roots: The objects, with the names by which messages call them.

    Attributes:
        version: Number of times that a change was found.
        choices: What a model decided in this state by tensors that hold nothing of records.
        kept_all: Whether the last `kept` context found nothing changed.
        iterators: The names of iterators, whose position cannot be read.
    """

    def __init__(self, **roots: Any) -> None:
        self._roots = roots
        self.version = 0
        self.kept_all = False
        self._advances = False
        self._read()

    def refresh(self) -> int:
        """Read the state anew if it has changed; returns the version."""
        if not self.holds():
            self._read()
            self.version += 1
        return self.version

    def holds(self) -> bool:
        """Whether nothing has changed."""
        return not any(self._empty) and all(part.holds() for part in self._full)

    def arguments(self) -> list[tuple[str, Tensor | None]]:
        """The parameters and buffers of all modules, in order, with their names there."""
        return [item for space in self._spaces for item in space.items()]

    def changes(self) -> list[str]:
        """The names of what has changed."""
        found = [name for part in self._parts if not part.holds() for name in part.changes()]
        return list(dict.fromkeys(found))

    def restore(self) -> None:
        """Put everything back that has changed."""
        for part in self._parts:
            if not part.holds():
                part.restore()

    def written(self) -> list[str]:
        """The names of tensors that were written to, which are not put back."""
        return [p.named("") for p in self._parts if p.put is None and not p.holds()]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """A context after which the state is what it was before, but for `advancing`."""
        self.kept_all = False
        if self._advances:
            yield
            return
        self.refresh()
        try:
            yield
        finally:
            self.kept_all = self.holds()
            if not self.kept_all:
                self.restore()

    @contextmanager
    def advancing(self) -> Iterator[None]:
        """A context in which changes stay."""
        self._advances = True
        try:
            yield
        finally:
            self._advances = False

    def _read(self) -> None:
        self.choices: dict[Any, Any] = {}
        self._parts: list[_Part] = []
        # Most containers, such as those of hooks, are empty; these are looked at all at once.
        self._empty: list[Any] = []
        self._full: list[_Part] = []
        self._seen: dict[Any, Any] = {}  # kept, or an address could be used again
        self.iterators: list[str] = []
        self._coming: deque[tuple[Any, str]] = deque()
        modules = (r.modules() for r in self._roots.values() if isinstance(r, nn.Module))
        parts = chain.from_iterable(modules)
        self._spaces = [space for part in parts for space in (part._parameters, part._buffers)]
        self._seen |= {id(tensor): tensor for _, tensor in self.arguments()}
        self._all((root, name) for name, root in self._roots.items())
        for name, value in vars(module_hooks).items():
            if name.startswith("_global_") and isinstance(value, dict):
                self._add(value, name.strip("_"))
        self._add(os.environ, "os.environ")
        while self._coming:
            self._follow(*self._coming.popleft())
        del self._coming

    def _add(self, value: Any, name: str) -> None:
        if type(value) not in _PLAIN and id(value) not in self._seen:
            self._seen[id(value)] = value
            self._coming.append((value, name))

    def _all(self, values: Iterable[tuple[Any, str]]) -> None:
        for value, name in values:
            self._add(value, name)

    def _follow(self, value: Any, name: str) -> None:
        kind = type(value)
        if isinstance(value, Tensor):
            self._put_part(lambda: {"": _written(value)}, None, lambda _: name)
        elif isinstance(value, dict):
            self._mapping(value, name, lambda key: f"{name}[{key!r}]")
        elif isinstance(value, list | deque | set):
            self._items(value, name)
            self._all((item, f"{name}[{place}]") for place, item in enumerate(value))
        elif isinstance(value, tuple | frozenset):
            self._all((item, f"{name}[{place}]") for place, item in enumerate(value))
        elif isinstance(value, types.FunctionType):
            self._function(value, name)
        elif isinstance(value, types.MethodType):
            self._all([(value.__func__, name), (value.__self__, name)])
        elif isinstance(value, functools.partial):
            self._all([(value.func, name), (value.args, name), (value.keywords, name)])
        elif isinstance(value, classmethod | staticmethod):
            self._add(value.__func__, name)
        elif isinstance(value, property):
            self._all((part, name) for part in (value.fget, value.fset))
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, tuple(_STATES)):
            read, write = next(way for kind, way in _STATES.items() if isinstance(value, kind))
            saved = read(value)
            self._put_part(
                lambda: {"": repr(read(value))}, lambda _: write(value, saved), lambda _: name
            )
            if hasattr(value, "__dict__"):
                self._object(value, name)
        elif isinstance(value, ContextVar):
            self._values(
                lambda: {"": _contents(value)},
                lambda _, before: before is _MISSING or value.set(before),
                name,
            )
            self._add(_contents(value), name)
        elif hasattr(kind, "__next__") and (
            kind.__module__ in ("builtins", "itertools") or isinstance(value, types.GeneratorType)
        ):
            self.iterators.append(name)
        elif not isinstance(value, types.ModuleType):
            self._object(value, name)

    def _put_part(
        self, now: Any, put: Any, named: Any, skip: Any = frozenset(), owner: Any = None
    ) -> None:
        part = _Part(now, put, named, skip)
        self._parts.append(part)
        if owner is not None and not part.before:
            self._empty.append(owner)
        else:
            self._full.append(part)

    def _items(self, owner: Any, name: str) -> None:
        def put(before: dict[int, Any]) -> None:
            owner.clear()
            (owner.update if isinstance(owner, set) else owner.extend)(before.values())

        self._put_part(
            lambda: dict(enumerate(owner)), put, lambda place: f"{name}[{place}]", owner=owner
        )

    def _values(
        self, now: Callable[[], dict[str, Any]], put: Callable[[str, Any], Any], path: str
    ) -> None:
        """Some names of an object, of which each is put back by itself."""

        def back(before: dict[str, Any]) -> None:
            changed = now()
            for name, old in before.items():
                if not _same(changed[name], old):
                    put(name, old)

        self._put_part(now, back, lambda name: _path(path, name))

    def _mapping(
        self, owner: Any, name: str, named: Callable[[Any], str], skip: frozenset[str] = frozenset()
    ) -> None:
        def put(before: dict[Any, Any]) -> None:
            owner.clear()
            owner.update(before)

        self._put_part(lambda: owner, put, named, skip, owner)
        self._all((item, named(key)) for key, item in owner.items() if key not in skip)

    def _object(self, value: Any, name: str) -> None:
        kind = type(value)
        is_opaque = f"{kind.__module__}.".startswith(_OPAQUE)
        if is_opaque and not isinstance(value, nn.Module | threading.local):
            return
        self._add(kind, kind.__qualname__)
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            skip = _ARGUMENTS if isinstance(value, nn.Module) else frozenset()
            self._mapping(own, name, lambda key: _path(name, key), skip)
        slots = [slot for base in kind.__mro__ for slot in _slots(base) if hasattr(value, slot)]
        if slots:
            self._values(
                lambda: {slot: getattr(value, slot, _MISSING) for slot in slots},
                functools.partial(object.__setattr__, value),
                name,
            )
            self._all((getattr(value, slot), f"{name}.{slot}") for slot in slots)

    def _class(self, kind: type) -> None:
        if kind is object or kind.__module__ == "builtins":
            return
        own = _package(kind.__module__) is None
        members, space = [name for name in vars(kind) if name not in _NOT_CODE], vars(kind)
        self._values(
            lambda: {name: space.get(name, _MISSING) for name in members},
            functools.partial(setattr, kind),
            kind.__qualname__,
        )
        self._all((base, base.__qualname__) for base in kind.__bases__)
        if own:
            self._all((vars(kind)[name], f"{kind.__qualname__}.{name}") for name in members)

    def _function(self, function: types.FunctionType, name: str) -> None:
        for variable, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self._put_part(
                lambda cell=cell: {"": _contents(cell)},
                lambda before, cell=cell: setattr(cell, "cell_contents", before[""]),
                lambda _, variable=variable: variable,
            )
            self._add(_contents(cell), variable)
        self._all((part, name) for part in (function.__defaults__, function.__kwdefaults__))
        self._add(vars(function), name)
        self._add(getattr(function, "__wrapped__", None), name)
        if _package(function.__module__ or "") is None:
            self._globals(function.__globals__, _names(function.__code__), "")

    def _globals(self, space: dict[str, Any], names: list[str], path: str) -> None:
        """What code that looks up these names finds in a module."""
        found = [name for name in names if name in space]
        if found:
            self._values(
                lambda: {name: space.get(name, _MISSING) for name in found}, space.__setitem__, path
            )
        for name in found:
            value = space[name]
            if not isinstance(value, types.ModuleType):
                if not path or _package(path) is None:
                    self._add(value, f"{path}.{name}".strip("."))
            elif (value.__name__, tuple(names)) not in self._seen:
                self._seen[value.__name__, tuple(names)] = value
                rest = [other for other in names if other != name]
                self._globals(vars(value), rest, value.__name__)


class _Part:
    """Named values that can change together: the entries of one container, or one state."""

    __slots__ = "before", "named", "now", "put", "skip"

    def __init__(
        self,
        now: Callable[[], Mapping[Any, Any]],
        put: Callable[[dict[Any, Any]], Any] | None,
        named: Callable[[Any], str],
        skip: frozenset[str] = frozenset(),
    ) -> None:
        self.now, self.put, self.named, self.skip = now, put, named, skip
        self.before = dict(now())

    def holds(self) -> bool:
        now, before = self.now(), self.before
        same = len(now) == len(before) and all(map(is_, now.values(), before.values()))
        return (same and all(map(is_, now, before))) or not self._changed()

    def _changed(self) -> list[Any]:
        now, before = self.now(), self.before
        return [
            key
            for key in dict.fromkeys((*before, *now))
            if key not in self.skip and not _same(now.get(key, _MISSING), before.get(key, _MISSING))
        ]

    def changes(self) -> list[str]:
        return [self.named(key) for key in self._changed()]

    def restore(self) -> None:
        if self.put is not None:
            now = self.now()
            self.put(self.before | {key: now[key] for key in self.skip if key in now})


def _written(tensor: Tensor) -> tuple[int, int, bool]:
    """Where a tensor is and how often it was written to."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    # What a pass under a transform leaves behind has no memory of its own.
    place = tensor.data_ptr() if plain and not is_functorch_wrapped_tensor(tensor) else 0
    return place, 0 if tensor.is_inference() else tensor._version, tensor.requires_grad


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same object, or equal and without a state."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is tuple:
        return len(one) == len(other) and all(map(_same, one, other))
    if kind is float and one == 0:
        return bool(repr(one) == repr(other))
    return kind in _PLAIN and bool(one == other)


def _contents(place: Any) -> Any:
    """What a cell of a closure or a context variable holds."""
    try:
        return place.get() if isinstance(place, ContextVar) else place.cell_contents
    except (LookupError, ValueError):  # not assigned yet
        return _MISSING


def _slots(kind: type) -> list[str]:
    names = vars(kind).get("__slots__", ())
    names = (names,) if isinstance(names, str) else names
    private = f"_{kind.__name__.lstrip('_')}"
    return [
        f"{private}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in names
        if name not in ("__dict__", "__weakref__")
    ]


def _path(name: str, key: Any) -> str:
    """The name of an attribute, as a person would write it."""
    if key in ("_modules", "__dict__"):
        return name
    return f"{name}.{key}".strip(".")


_Way = tuple[Callable[[Any], Any], Callable[[Any, Any], None]]
_STATES: dict[type, _Way] = {
    random.SystemRandom: (lambda own: None, lambda own, saved: None),  # it has none
    random.Random: (lambda own: own.getstate(), lambda own, saved: own.setstate(saved)),
    np.random.RandomState: (
        lambda own: own.get_state(legacy=False),
        lambda own, saved: own.set_state(saved),
    ),
    np.random.Generator: (
        lambda own: own.bit_generator.state,
        lambda own, saved: setattr(own.bit_generator, "state", saved),
    ),
    np.random.BitGenerator: (
        lambda own: own.state,
        lambda own, saved: setattr(own, "state", saved),
    ),
    np.ndarray: (
        lambda own: (own.dtype.str, own.shape, own.tobytes()),
        lambda own, saved: own.__setitem__(
            ..., np.frombuffer(saved[2], own.dtype).reshape(saved[1])
        ),
    ),
    array.array: (
        array.array.tobytes,
        lambda own, saved: own.__setitem__(slice(None), array.array(own.typecode, saved)),
    ),
    bytearray: (bytes, lambda own, saved: own.__setitem__(slice(None), saved)),
}
"""How to read and to write what an object of C keeps to itself, the more special types first."""


_REDUCED = (  # of products, other than those of single precision
    "allow_fp16_accumulation",
    *(f"allow_{kind}_reduced_precision_reduction" for kind in ("fp16", "bf16")),
    *(f"allow_{kind}_reduced_precision_reduction_split_k" for kind in ("fp16", "bf16")),
)


def settings() -> tuple[Any, ...]:
    """The settings of torch on which the results of a forward pass depend."""
    kinds = ("cpu", "cuda")
    cudnn: Any = torch.backends.cudnn
    device: Any = torch.backends.cuda
    modes: Any = function_modes, dispatch_modes
    attention = [name for name in dir(device) if name.endswith(("_sdp_enabled", "_sdp_allowed"))]
    precision = precisions()
    return (
        *((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds),
        torch.is_autocast_cache_enabled(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        torch.backends.mkldnn.enabled,
        (device.preferred_blas_library(), device.preferred_linalg_library()),
        *(getattr(device, name)() for name in attention),
        *(getattr(device.matmul, name, None) for name in _REDUCED),
        (precision, precision[-1] is None and cudnn.allow_tf32),  # where torch has no other
        *(tuple(active()) for active in modes),  # themselves: an address is used again
    )


class KeptRecordError(ValueError):
    """A model kept a tensor of a record, or changed its state, in a forward pass."""


class EscapedTensorGuard:
    """A context for a pass: rejects a model that keeps a tensor of it, and restores other state.

    Guarantee:
        If the context ends without an error, no tracked tensor is alive, wherever it was kept, no
        buffer of the model was changed, and the state on the host is what it was, also if the pass
        raised an error. So the next pass can read nothing of this pass's records, and nothing that
        reveals how many passes a batch took.
    """

    def __init__(self, model: nn.Module, host: HostState) -> None:
        self._model, self.host = model, host
        self._kept = host.kept()
        self._noted: list[weakref.ref[Tensor]] = []
        self._versions = {
            name: (buffer, buffer._version)
            for name, buffer in model.named_buffers()
            if not buffer.is_inference()
        }

    def __enter__(self) -> Self:
        self._kept.__enter__()
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        try:
            if kind is None:
                self._refuse()
        finally:
            self._kept.__exit__(None, None, None)
        same = kind is not None or self.host.kept_all or self.host.holds()
        written = [] if same else self.host.written()
        if written:
            raise KeptRecordError(_CHANGED.format("tensor", written))

    def note(self, result: Any) -> None:
        """Track the tensors of records in the result of a function, without keeping them alive."""
        found = (result,) if isinstance(result, Tensor) else tensors(result)
        self._noted += [weakref.ref(tensor) for tensor in found if is_record(tensor)]

    def _refuse(self) -> None:
        """Raise an error if anything was left behind."""
        changed = [name for name, (buffer, v) in self._versions.items() if buffer._version != v]
        if changed:
            raise KeptRecordError(_CHANGED.format("buffer", changed))
        if not self._is_left() or is_capturing():  # the warm-up runs before a capture were checked
            return
        raise KeptRecordError(
            "Expected a model that keeps nothing of a record from one forward to the next, got a "
            f"tensor kept {self._place()}: records of one batch would reach the gradients of "
            "another. Pass the state on as an argument, or set it back to None before forward "
            "returns."
        )

    def _is_left(self) -> bool:
        """Whether a tracked tensor is alive, other than in an unreachable reference cycle."""
        if not any(reference() is not None for reference in self._noted):
            return False
        if is_capturing():  # freeing another run's graph would abort the capture
            return True
        for generation in range(3):  # youngest first: older generations are slow to collect
            gc.collect(generation)
            if not any(reference() is not None for reference in self._noted):
                return False
        return True

    def _place(self) -> str:
        kept = {id(tensor) for reference in self._noted if (tensor := reference()) is not None}
        for path, module in self._model.named_modules():
            for name, value in vars(module).items():
                if name not in _OWN and any(id(t) in kept for t in tensors(value)):
                    return f"at {f'{path}.{name}'.strip('.')!r}"
        return "outside of its attributes"


_OWN = frozenset(vars(nn.Module())) - {"_buffers"}

_CHANGED = (
    "Expected a model whose forward changes no {0}, got a change of {1}: a batch in two chunks "
    "would change it twice. Call .eval() on that layer, or update the {0} between steps."
)
_SAME_STREAMS = RecordStreams(lambda rows: rows.astype("uint64"))


def check_repeatable(
    host: HostState, run: Callable[[], Sequence[Tensor]], device: torch.device
) -> None:
    """Raise an error if what a run returns depends on what the run before it has left behind.

    The state after the first run is kept, such as what a model computes once for all. Later runs
    begin with it, whatever they change (`EscapedTensorGuard`). A change on which no result depends,
    such as a counter, does no harm; any other would be undone without a word.
    """
    restart, found = restarting(device), []
    with host.advancing(), _SAME_STREAMS.active():
        try:
            run()
            host.refresh()
            for _ in range(2):
                restart()
                found.append(run())
                if host.holds():
                    break
            changed, unread = host.changes(), host.iterators
        finally:
            host.restore()
    near = 0.0 if device.type == "cpu" else 1e-5
    if unread or (len(found) == 2 and not is_same(found[0], found[1], near)):
        raise KeptRecordError(
            "Expected a model and a loss whose results do not depend on earlier calls, got "
            f"{', '.join(map(repr, unread or changed))}, which forward changes: how often it runs "
            "depends on the drawn records. Change it between steps instead, by the number of the "
            "step, and draw random numbers from torch's default generator, which is seeded for "
            "every record."
        )
