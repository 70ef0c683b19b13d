"""Programs of recorded operations: what a step computes, without Python, vmap and autograd.

An eager private step spends several times as long in Python as ordinary training does: every
function of the model passes through vmap and the book-keeping. Below them a step is a straight
sequence of torch's operations on plain tensors. This sequence is recorded while a step runs, as
lines of a Python function, and run in its place when batches of the same shape come again. The
numbers are the same, also those of dropout on a GPU: torch's default generator draws them in order.

Most recorded operations only say how memory is looked at, and the host would take longer for them
than the device for all others. So a program keeps none of them: whatever reads a tensor gets it by
one `as_strided` of the memory it lies in. Nor does it keep what nobody reads, what was computed
before, or what depends on no argument.

A program contains no branch, so a function that reads values is not recorded, nor one that draws
numbers of its own on the host.
"""

import functools
import random
from collections.abc import Callable, Hashable, Iterator
from contextlib import nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from prudent._torch_private import (
    TorchDispatchMode,
    current_dispatch_mode,
    foreach_copy_,
    pytree,
    without_dispatch_modes,
)

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


class Program(NamedTuple):
    """A recorded function of leaves."""

    run: Callable[[list[Any]], Any]  # gives NotImplemented if a number on the host was changed
    holds: Callable[[], bool]  # whether this step takes the branches that were recorded


def _always() -> bool:
    return True


_MOST, _MOST_KEYS = 8, 1 << 10
_NEAR = 0.05  # of the length of a tensor; some kernels add in any order, of short numbers
_MASKS = torch.bool, torch.uint8
_READS = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
_SHAPED = ("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full")
_SEEDED = "_scaled_dot_product"  # keeps the seed of its dropout on the host, for its backward pass
_CONVERTED = "converted"
_FEW = 4  # conversions that are made one by one
_APART = 64  # numbers, so that the results begin where kernels read fast
_CONSTANT, _REPEATED = 1 << 20, 1 << 24  # bytes of a result that is kept instead of computed again


def kept_whole(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """A function that launches kernels of its own, which recorded programs call as one operation.

    All tensors are positional arguments, or results, and it changes none that it is given.
    """

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        mode = current_dispatch_mode()
        if not isinstance(mode, Recording):
            return function(*args, **kwargs)
        with without_dispatch_modes():
            result = function(*args, **kwargs)
        mode.add(function, args, kwargs, result)
        return result

    return call


class _Exchanges:
    """What other processes said in a step, so that running it again asks them nothing twice."""

    def __init__(self) -> None:
        self._heard: list[list[Tensor]] = []
        self._place = 0

    def __call__(self, function: Callable[..., None], tensors: tuple[Tensor, ...]) -> None:
        """Call the function, or repeat what an earlier run heard at this place."""
        if self._place == len(self._heard):
            function(*tensors)
            self._heard.append([tensor.clone() for tensor in tensors])
        else:
            for tensor, heard in zip(tensors, self._heard[self._place], strict=True):
                tensor.copy_(heard)
        self._place += 1

    def run(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run a step from its beginning."""
        self._place = 0
        token = _EXCHANGES.set(self)
        try:
            return function(*arguments)
        finally:
            _EXCHANGES.reset(token)


_EXCHANGES: ContextVar[_Exchanges | None] = ContextVar("exchanges", default=None)
Split = Callable[[Callable[..., None], tuple[Tensor, ...]], None]
SPLIT: ContextVar[Split | None] = ContextVar("divides a capture", default=None)


def exchanged(function: Callable[..., None], *tensors: Tensor) -> None:
    """Call a function that waits for others, now and whenever the step is repeated.

    It reads and overwrites the given tensors and returns nothing. A CUDA graph is divided here, and
    the function is called between its parts.
    """
    split = SPLIT.get()
    if split is not None:
        split(function, tensors)
        return
    mode, exchanges = current_dispatch_mode(), _EXCHANGES.get()
    with without_dispatch_modes() if isinstance(mode, Recording) else nullcontext():
        if exchanges is None:
            function(*tensors)
        else:
            exchanges(function, tensors)
    if isinstance(mode, Recording):
        mode.add(exchanged, (function, *tensors), {}, None, writes=True)


def chosen_on_host(draw: Callable[[], Tensor]) -> Tensor:
    """A number for all records on which a model may branch, as when it skips a layer.

    A program repeats the branches that were taken, so it holds for the steps that take them again:
    before each of them the numbers are drawn and compared anew.
    """
    mode = current_dispatch_mode()
    if not isinstance(mode, Recording):
        return draw()
    has_drawn()
    with without_dispatch_modes():
        number = draw()
    mark_draws()
    mode.choose(draw, number)
    return number


def before_choices(seed: Callable[[], None]) -> None:
    """Seed the generator of `chosen_on_host`, now and before a step is repeated."""
    mode = current_dispatch_mode()
    if isinstance(mode, Recording):
        mode.choose(seed, None)
    seed()
    mark_draws()


_MARK: ContextVar[Any] = ContextVar("where the generators of the host were", default=None)


def mark_draws() -> None:
    """Remember where the generators of the host are, after draws that a program repeats."""
    _MARK.set(_states())


def has_drawn() -> bool:
    """Whether a model drew from them itself since; no program can follow what it did with that."""
    mode, drawn = current_dispatch_mode(), bool(_MARK.get() != _states())
    if isinstance(mode, Recording):
        mode.is_straight &= not drawn
    return drawn


def _states() -> tuple[Any, ...]:
    arrays: Any = np.random.get_state()  # noqa: NPY002 - models use it
    return random.getstate(), arrays[1].tobytes(), *arrays[2:]


def operation(
    name: str, schema: str | None = None, *, like: Callable[Arguments, Answer]
) -> Callable[[Callable[Arguments, Answer]], Callable[Arguments, Answer]]:
    """As `kept_whole`, for a function that traced programs keep as one operation of torch as well.

    torch's way to such an operation takes the host longer than most kernels take, so only a traced
    program goes it.

    Args:
        name: The name of the operation.
        schema: Its schema, for versions of torch that cannot derive it.
        like: Returns empty tensors like the results.
    """

    def made(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
        registered = torch.library.custom_op(name, function, mutates_args=(), schema=schema)
        registered.register_fake(like)
        whole = kept_whole(function)

        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
            mode = current_dispatch_mode()
            direct = mode is None or isinstance(mode, Recording)
            answer: Answer = (whole if direct else registered)(*args, **kwargs)
            return answer

        return call

    return made


class _Place(NamedTuple):
    """Where a tensor lies: the name of the tensor whose memory it is, and how it looks at it."""

    base: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _Call(NamedTuple):
    """A recorded call, with places for tensors."""

    function: Any
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    results: list[str]
    is_one: bool  # a tensor, not a sequence of results
    is_pure: bool  # the same whenever it is called, and changes nothing
    bytes: int  # of its results

    def reads(self) -> list[str]:
        """The tensors whose memory it reads."""
        return [place.base for place in _places([self.args, self.kwargs])]


def _places(tree: Any) -> Iterator[_Place]:
    if isinstance(tree, _Place):
        yield tree
    elif isinstance(tree, (list, dict)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _places(item)


def _renamed(tree: Any, names: dict[str, str]) -> Any:
    if isinstance(tree, _Place):
        return tree._replace(base=names.get(tree.base, tree.base))
    if isinstance(tree, dict):
        return {key: _renamed(item, names) for key, item in tree.items()}
    return [_renamed(item, names) for item in tree] if type(tree) is list else tree


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operation as a line of a program.

    Args:
        leaves: The arguments of the program.

    Attributes:
        repeats: Marks this mode, see `is_recorded`.
        is_straight: Whether no operation read a value, so that the program is the whole function.
    """

    repeats = True

    def __init__(self, leaves: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_straight = True
        self._where: Any = WeakIdKeyDictionary()  # the places of tensors
        self._own: dict[str, _Place] = {}  # those of tensors that are no views of others
        self._root: dict[str, str] = {}  # whose memory a view of another type is
        self._known: dict[str, Any] = {}  # constants
        self._numbers: list[tuple[Tensor, int]] = []  # those on the host, which could be changed
        self._fixed: dict[str, Any] = {}  # results that depend on no argument
        self._written: set[str] = set()
        self._calls: list[_Call] = []
        self._host: list[tuple[Any, Any]] = []  # calls on numbers of the host, and what was read
        self._chosen: set[str] = set()  # these numbers
        self._count = 0
        self._leaves = {f"a{place}": leaf for place, leaf in enumerate(leaves)}
        for name, leaf in self._leaves.items():
            if isinstance(leaf, Tensor):
                self._put(leaf, name)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and record it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._is_chosen(args):
            self._follow(func, args, kwargs, result)
            return result
        given, made = (pytree.tree_leaves(tree) for tree in ((args, kwargs), result))
        if not any(isinstance(leaf, Tensor) for leaf in (*given, *made)):
            return result  # about types or shapes alone
        # Numbers beside tensors, as attention returns them, are sizes.
        plain = not made or any(leaf is None or isinstance(leaf, Tensor) for leaf in made)
        reads = any(tag in func.tags for tag in _READS)
        if func is torch.ops.aten.index.Tensor:  # only masks decide about shapes
            reads = any(isinstance(leaf, Tensor) and leaf.dtype in _MASKS for leaf in given[1:])
        devices = {leaf.device.type for leaf in made if isinstance(leaf, Tensor)}
        leaves = "cpu" in devices and any(
            isinstance(leaf, Tensor) and leaf.is_cuda for leaf in given
        )
        leaves = leaves and not func.__name__.startswith(_SEEDED)
        if reads or leaves or not plain:  # on the host, code that is not recorded may go on
            self.is_straight = False
        self.add(func, args, kwargs, result, writes=func._schema.is_mutable)
        return result

    def choose(self, draw: Callable[[], Any], number: Tensor | None) -> None:
        """Record a number that is drawn on the host, or what is done before."""
        self._host.append((_Call(draw, "draw", [], {}, [], True, False, 0), None))
        if number is not None:
            self._chosen.add(f"h{len(self._host)}")
            self._put(number, f"h{len(self._host)}")
            self.is_straight &= not number.is_cuda

    def _is_chosen(self, args: tuple[Any, ...]) -> bool:
        given = [leaf for leaf in args if isinstance(leaf, Tensor) and leaf in self._where]
        return any(self._where[leaf].base in self._chosen for leaf in given)

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> None:
        """Record what is done with a number on the host, of which only branches may be made."""
        call = _Call(func, func.__name__, self._placed(list(args)), kwargs, [], True, True, 0)
        self._host.append((call, None if isinstance(result, Tensor) else result))
        if isinstance(result, Tensor):
            self._chosen.add(f"h{len(self._host)}")
            self._put(result, f"h{len(self._host)}")
        others = [place.base for place in _places(call.args) if place.base not in self._chosen]
        self._numbers += [
            (self._known[n], self._known[n]._version) for n in others if n in self._known
        ]
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        plain = len(given) == sum(isinstance(arg, Tensor) and not arg.is_cuda for arg in args)
        if func._schema.is_mutable or not plain or any(name not in self._known for name in others):
            self.is_straight = False

    def holds(self) -> bool:
        """Whether the numbers that are drawn on the host now lead to the same branches."""
        python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002 - models use it
        try:
            return self._is_same_way()
        finally:
            random.setstate(python)
            np.random.set_state(arrays)  # noqa: NPY002

    def _is_same_way(self) -> bool:
        drawn: dict[str, Tensor] = {}
        for number, (call, read) in enumerate(self._host, 1):
            args = [
                drawn.get(arg.base, self._known.get(arg.base)) if isinstance(arg, _Place) else arg
                for arg in call.args
            ]
            result = call.function(*args, **call.kwargs)
            if read is not None and result != read:
                return False
            drawn[f"h{number}"] = result
        return True

    def add(
        self, function: Any, args: Any, kwargs: Any, result: Any, *, writes: bool = False
    ) -> None:
        """Record a call; `writes` if it may change the tensors that it is given."""
        made = list(result) if isinstance(result, (tuple, list)) else [result]
        made = [] if result is None else made
        tensors = [each for each in made if isinstance(each, Tensor)]
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        call = _Call(
            getattr(function, "_op", function),
            function.__name__.split(".")[0],
            self._placed(list(args)),
            {name: self._placed(arg) for name, arg in kwargs.items()},
            [f"v{self._count + place}" for place in range(len(made))],
            isinstance(result, Tensor),
            not (writes or torch.Tag.nondeterministic_seeded in getattr(function, "tags", ())),
            sum(each.nbytes for each in tensors),
        )
        if not self._chosen.isdisjoint(call.reads()):
            self.is_straight = False
        if writes:
            self._written.update(self._root.get(name, name) for name in call.reads())
            if any(self._where[one] != _place(one, self._where[one].base) for one in given):
                self.is_straight = False  # a tensor was resized
        elif tensors and all(self._looks_at(each, given) for each in tensors):
            return
        self._count += len(made)
        for name, each in zip(call.results, made, strict=True):
            if isinstance(each, Tensor) and each not in self._where:
                self._put(each, name)
                for other in given:
                    if _share(each, other):
                        below = self._where[other].base
                        self._root[name] = self._root.get(below, below)
        self._calls.append(call)
        if call.is_pure and call.bytes <= _CONSTANT and self._is_fixed(call):
            self._fixed.update(zip(call.results, made, strict=True))

    def program(self, result: Any) -> Program:
        """The function of the leaves that repeats all calls and returns the same tree."""
        leaves, structure = pytree.tree_flatten(result)
        answer = [self._placed(leaf) for leaf in leaves]
        text = _Text(self._own, self._known, set(self._root))
        for call in self._together(self._useful({place.base for place in _places(answer)})):
            text.add(call)
        for place, leaf in zip(answer, leaves, strict=True):
            given = isinstance(place, _Place) and place.base in self._leaves
            text.answer(place, alias=given and leaf is not self._leaves[place.base])
        exec(text.function(list(self._leaves)), self._known)
        run, numbers = self._known["program"], self._numbers

        holds = self.holds if self._chosen else _always

        def repeat(leaves: list[Any]) -> Any:
            if any(number._version != version for number, version in numbers):
                return NotImplemented
            device = next(leaf.device.type for leaf in leaves if isinstance(leaf, Tensor))
            with torch.no_grad(), torch.autocast(device, enabled=False):
                return pytree.tree_unflatten(run(*leaves), structure)

        return Program(repeat, holds)

    def _useful(self, kept: set[str]) -> list[_Call]:
        """The calls without those that give a constant, the same again, or what nobody reads."""
        calls: list[_Call] = []
        same: dict[str, str] = {}
        seen: dict[Any, _Call] = {}
        for call in self._calls:
            call = call._replace(args=_renamed(call.args, same), kwargs=_renamed(call.kwargs, same))
            reads = call.reads()
            calm = call.is_pure and self._written.isdisjoint(
                self._root.get(name, name) for name in (*reads, *call.results)
            )
            if calm and kept.isdisjoint(call.results) and "empty" not in call.name:
                if (whole := self._copied(call)) is not None:
                    same[call.results[0]] = whole
                    continue
                near = call.bytes <= _REPEATED or all(name in self._leaves for name in reads)
                key = id(call.function), repr((call.args, call.kwargs))
                if near and key in seen:
                    same |= dict(zip(call.results, seen[key].results, strict=True))
                    continue
                seen[key] = call
                known = call.name in _SHAPED or all(name in self._known for name in reads)
                if known and all(name in self._fixed for name in call.results):
                    self._known |= {name: self._fixed[name] for name in call.results}
                    continue
            calls.append(call)
        useful, needed = [], set(kept)
        for call in reversed(calls):
            if not (call.is_pure and needed.isdisjoint(call.results)):
                useful.append(call)
                needed.update(call.reads())
        return useful[::-1]

    def _together(self, calls: list[_Call]) -> list[_Call]:
        """The calls with all conversions of arguments, such as parameters, made by the first."""
        groups: dict[Any, list[_Call]] = {}
        for call in calls:
            if call.name == "_to_copy" and self._is_conversion(call):
                device = self._leaves[call.args[0].base].device
                groups.setdefault((call.kwargs["dtype"], device), []).append(call)
        first, over = [], set()
        for (kind, device), group in groups.items():
            if len(group) < _FEW:
                continue
            names = [name for call in group for name in call.results]
            forms = [(self._own[name].size, self._own[name].stride) for name in names]
            convert = functools.partial(_converted, kind, device, forms)
            size = sum(call.bytes for call in group)
            given = [call.args[0] for call in group]
            first.append(_Call(convert, _CONVERTED, [given], {}, names, False, True, size))
            over |= set(names)
        return [*first, *(call for call in calls if over.isdisjoint(call.results))]

    def _is_conversion(self, call: _Call) -> bool:
        """Whether a call gives a whole argument another type and nothing else."""
        (given,), made = call.args, self._own[call.results[0]]
        return (
            given.base in self._leaves
            and given.base not in self._written
            and given == self._own[given.base]
            and given[1:3] == made[1:3]
            and set(call.kwargs) <= {"dtype"}
        )

    def _copied(self, call: _Call) -> str | None:
        """The tensor whose numbers a result has where that has them, as a copy or a list of one."""
        given = call.args[0] if call.name in ("clone", "cat") else None
        if isinstance(given, list) and len(given) == 1:
            (given,) = given
        if not isinstance(given, _Place) or given != self._own[given.base]:
            return None
        return given.base if given[1:] == self._own[call.results[0]][1:] else None

    def _is_fixed(self, call: _Call) -> bool:
        """Whether a result depends on no argument: on shapes alone, or numbers on the host."""
        if call.name in _SHAPED:
            return True
        reads = [name for name in call.reads() if name not in self._fixed]
        numbers = [self._known[name] for name in reads if name in self._known]
        if len(numbers) < len(reads) or any(each.ndim or each.is_cuda for each in numbers):
            return False
        self._numbers += [(number, number._version) for number in numbers]
        return True

    def _placed(self, value: Any) -> Any:
        """A tree with places for its tensors."""
        if isinstance(value, Tensor):
            if value not in self._where:  # made before, or by no operation: the same again
                name = f"k{id(value)}"
                self._put(value, name)
                self._known[name] = value
            return self._where[value]
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return [self._placed(item) for item in value]
        return value

    def _put(self, tensor: Tensor, name: str) -> None:
        self._own[name] = self._where[tensor] = _place(tensor, name)

    def _looks_at(self, result: Tensor, given: list[Tensor]) -> bool:
        """Whether a result is only another view of something given, whose place it then gets."""
        for other in given:
            if _share(result, other) and result.dtype == other.dtype and not _is_odd(result, other):
                self._where[result] = _place(result, self._where[other].base)
                return True
        return False


def _place(tensor: Tensor, base: str) -> _Place:
    return _Place(base, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


def _share(one: Tensor, other: Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _is_odd(*tensors: Tensor) -> bool:
    """Whether numbers are read with another sign than they have in memory."""
    return any(tensor.is_conj() or tensor.is_neg() for tensor in tensors)


def _converted(
    kind: torch.dtype, device: torch.device, forms: list[tuple[Any, Any]], given: list[Tensor]
) -> list[Tensor]:
    """The tensors in another type, each of a size and strides, by few kernels for all of them."""
    sizes = [-(-each.numel() // _APART) * _APART for each in given]
    memory = torch.empty(sum(sizes), dtype=kind, device=device)
    results, begin = [], 0
    for form, size in zip(forms, sizes, strict=True):
        results.append(torch.as_strided(memory, *form, begin))
        begin += size
    foreach_copy_(results, given)
    return results


class _Text:
    """Writes calls as the lines of a function.

    Args:
        own: The places of tensors that are no views of others.
        known: The constants, by their names; more are added.
        inside: Results that lie somewhere in the memory of others; more are added.
    """

    def __init__(self, own: dict[str, _Place], known: dict[str, Any], inside: set[str]) -> None:
        self._own, self._known, self._inside = own, known, inside
        self._known["view"] = torch.as_strided
        self._lines: list[tuple[list[str], str, list[str]]] = []  # results, call, what it reads
        self._answer: list[str] = []
        self._views: dict[_Place, str] = {}

    def add(self, call: _Call) -> None:
        """Write a call."""
        if call.name == _CONVERTED:
            self._inside.update(call.results)
        reads: list[str] = []
        written = [self._of(arg, reads) for arg in call.args]
        written += [f"{name}={self._of(arg, reads)}" for name, arg in call.kwargs.items()]
        text = f"{self._constant(call.function)}({', '.join(written)})"
        self._lines.append((call.results, f"({text},)" if call.is_one else text, reads))

    def answer(self, value: Any, *, alias: bool) -> None:
        """Write what the function returns next; as a tensor of its own, if it is an alias."""
        self._answer.append(self._view(value) if alias else self._of(value, []))

    def function(self, arguments: list[str]) -> str:
        """The source of the function, which forgets what is not needed any more."""
        last = {
            name: number
            for number, (names, _, reads) in enumerate(self._lines)
            for name in (*names, *reads)
            if name[0] in "vw" and name not in self._answer and name not in self._known
        }
        lines = [f"def program({', '.join(arguments)}):"]
        for number, (names, call, reads) in enumerate(self._lines):
            lines.append(f" {', '.join(names)}{', = ' if names else ''}{call}")
            if over := sorted({n for n in (*names, *reads) if last.get(n) == number}):
                lines.append(f" del {', '.join(over)}")
        return "\n".join([*lines, f" return [{', '.join(self._answer)}]"])

    def _of(self, value: Any, reads: list[str]) -> str:
        """How a program writes a value: the name of a tensor, or the value itself."""
        if isinstance(value, _Place):
            name = value.base if value == self._own[value.base] else self._view(value)
            reads.append(name)
            return name
        if type(value) is list:
            return f"[{', '.join(self._of(item, reads) for item in value)}]"
        if value is None or type(value) in (bool, int):
            return repr(value)
        return self._constant(value)

    def _view(self, place: _Place) -> str:
        if place not in self._views:
            self._views[place] = name = f"w{len(self._views)}"
            base, size, stride, offset = place
            if base in self._known:
                self._known[name] = self._known[base].as_strided(size, stride, offset)
            else:
                # What is given may begin elsewhere in its memory the next time.
                begin = f"{offset}"
                if base[0] == "a" or base in self._inside:
                    begin = f"{base}.storage_offset() + {offset - self._own[base].offset}"
                self._lines.append(([name], f"(view({base}, {size}, {stride}, {begin}),)", [base]))
        return self._views[place]

    def _constant(self, value: Any) -> str:
        name = f"k{id(value)}"
        self._known[name] = value
        return name


class Recorded:
    """Wraps a function of trees of tensors and runs recorded programs for recurring shapes.

    The first call with new shapes runs as it is and the second is recorded. The third, of other
    values, runs both: a program that gives other numbers than the function is dropped, and the
    function runs as it is from then on.

    Args:
        function: Takes and returns trees of tensors; what it does on the host happens no more.
        kind: The cache key of a leaf.
        restarting: Returns a function that sets the generators of a device back.
        setting: Returns what else the function depends on; another one is recorded anew.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        kind: Callable[[Any], Hashable],
        restarting: Callable[[], Callable[[], None]],
        setting: Callable[[], Hashable],
    ) -> None:
        self._function, self._kind, self._setting = function, kind, setting
        self._restarting = restarting
        self._calls: dict[Any, int] = {}
        self._programs: dict[Any, Program | None] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns."""
        key, leaves = self._key(arguments)
        if len(self._calls) > _MOST_KEYS:  # of a model that changes with every step
            self._calls = {kept: self._calls[kept] for kept in self._programs}
        calls = self._calls[key] = min(self._calls.get(key, 0) + 1, 4)
        if calls == 2 and len(self._programs) < _MOST:
            self._programs[key], result = self._recorded(leaves, arguments)
            return result
        program = self._programs.get(key)
        if program is None:
            return self._function(*arguments)
        if not program.holds():
            self._calls[key] -= calls == 3  # it is compared in a step for which it holds
            return self._function(*arguments)
        if calls == 3:
            self._calls[key] = 2  # it is compared later if this raises, as a capture may
            is_right, result = self._compared(program, leaves, arguments)
            self._calls[key] = 3
        else:
            result = program.run(leaves)
            is_right = result is not NotImplemented
        if not is_right:
            self._programs[key] = None
        return result if result is not NotImplemented else self._function(*arguments)

    def holds(self, *arguments: Any) -> Callable[[], bool]:
        """Whether the program for such arguments may be repeated, as a function to ask later."""
        program = self._programs.get(self._key(arguments)[0])
        return _always if program is None else program.holds

    def _key(self, arguments: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        first, names = arguments[0], None
        if type(first) is dict and all(isinstance(value, Tensor) for value in first.values()):
            names, arguments = tuple(first), arguments[1:]  # torch takes long for many parameters
        leaves, structure = pytree.tree_flatten(arguments)
        if names is not None:
            leaves = [*first.values(), *leaves]
        kinds = tuple(map(self._kind, leaves))
        return (names, repr(structure), kinds, self._setting()), leaves

    def _recorded(
        self, leaves: list[Any], arguments: tuple[Any, ...]
    ) -> tuple[Program | None, Any]:
        """A program of the function, if it is straight, and the result of the function."""
        restart, exchanges = self._restarting(), _Exchanges()
        try:
            with Recording(leaves) as recording:
                result = exchanges.run(self._function, *arguments)
            return recording.program(result) if recording.is_straight else None, result
        except Exception:  # of the function as well, which shows it again as it runs
            restart()
            return None, exchanges.run(self._function, *arguments)

    def _compared(
        self, program: Program, leaves: list[Any], arguments: tuple[Any, ...]
    ) -> tuple[bool, Any]:
        """Whether a program gives the numbers of the function for these arguments, and these."""
        restart, exchanges = self._restarting(), _Exchanges()
        first, lengths, sizes, missing = _sketch(exchanges.run(self._function, *arguments)).unbind()
        restart()
        with _Unfilled():  # type: ignore[no-untyped-call]
            result = exchanges.run(program.run, leaves)
        if result is not NotImplemented:
            second, *_, others = _sketch(result).unbind()
            usual = (lengths.square().sum() / sizes.sum()).sqrt()  # of one number
            allowed = _NEAR * torch.maximum(lengths, usual * sizes.sqrt())
            if bool((((first - second).abs() <= allowed) & (missing == others)).all()):
                return True, result
        restart()
        return False, exchanges.run(self._function, *arguments)


class _Unfilled(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fills new memory with NaN.

    Kernels that torch does not see are not recorded. What they should have written would often be
    there by chance, from the function that ran just before.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation."""
        result = func(*args, **(kwargs or {}))
        if "empty" in func.__name__ and isinstance(result, Tensor) and result.is_floating_point():
            result.fill_(torch.nan)
        return result


def _sketch(tree: Any) -> Tensor:
    """A sum with fixed coefficients, the length, the size and the number of NaN of each tensor.

    Tensors of other values have sums that differ by as much as their length. Some gradients are
    zero up to rounding, so differences are compared with the usual length as well.
    """
    found = []
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, Tensor) and leaf.numel():
            values = leaf.detach().double().flatten().nan_to_num(posinf=0.0, neginf=0.0)
            places = torch.arange(1, len(values) + 1, device=values.device, dtype=torch.float64)
            counts = values.new_tensor(len(values)), leaf.isnan().sum()
            found.append(torch.stack([values @ places.sin_(), torch.linalg.norm(values), *counts]))
    return torch.stack(found, 1)
