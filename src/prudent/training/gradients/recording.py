"""Programs of recorded operations: what a step computes, without Python, vmap and autograd.

An eager private step spends several times as long in Python as ordinary training does: every
function of the model passes through vmap and the book-keeping. Below them a step is a straight
sequence of torch's operations on plain tensors. This sequence is recorded while a step runs, as
lines of a Python function, and run in its place when batches of the same shape come again. The
numbers are the same, also those of dropout on a GPU: torch's default generator draws them in order.

A program contains no branch, so a function that reads values is not recorded.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from prudent._torch_private import (
    TorchDispatchMode,
    current_dispatch_mode,
    pytree,
    without_dispatch_modes,
)

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")
Program = Callable[[list[Any]], Any]
_MOST = 8
_NEAR = 0.05  # of the length of a tensor; some kernels add in any order, of short numbers
_MASKS = torch.bool, torch.uint8
_READS = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape


def kept_whole(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """A function that launches kernels of its own, which recorded programs call as one operation.

    All tensors are positional arguments, or results.
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
        self._names: Any = WeakIdKeyDictionary()
        self._known: dict[str, Any] = {}
        self._lines: list[tuple[list[str], str, list[str]]] = []  # results, call, what it reads
        self._count = 0
        self._arguments = [f"a{place}" for place in range(len(leaves))]
        for name, leaf in zip(self._arguments, leaves, strict=True):
            if isinstance(leaf, Tensor):
                self._names[leaf] = name

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and record it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
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
        if reads or leaves or not plain:  # on the host, code that is not recorded may go on
            self.is_straight = False
        self.add(func, args, kwargs, result)
        return result

    def add(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record a call."""
        reads: list[str] = []
        written = [self._text(arg, reads) for arg in args]
        written += [f"{name}={self._text(arg, reads)}" for name, arg in kwargs.items()]
        call = f"{self._constant(getattr(function, '_op', function))}({', '.join(written)})"
        if isinstance(result, (tuple, list)):
            names = [self._bound(each) for each in result]
            self._lines.append((names, call, reads))
        elif isinstance(result, Tensor) and result not in self._names:
            self._lines.append(([self._bound(result)], f"({call},)", reads))
        else:
            self._lines.append(([], call, reads))

    def program(self, result: Any) -> Program:
        """The function of the leaves that repeats all calls and returns the same tree."""
        leaves, structure = pytree.tree_flatten(result)
        kept: list[str] = []
        answer = f"return [{', '.join(self._text(leaf, kept) for leaf in leaves)}]"
        last = {
            name: number
            for number, (names, _, reads) in enumerate(self._lines)
            for name in (*names, *reads)
        }
        lines = [f"def program({', '.join(self._arguments)}):"]
        for number, (names, call, reads) in enumerate(self._lines):
            lines.append(f" {', '.join(names)}{', = ' if names else ''}{call}")
            over = {name for name in (*names, *reads) if last[name] == number and name[0] == "v"}
            if over := over.difference(kept):
                lines.append(f" del {', '.join(sorted(over))}")
        space = dict(self._known)
        exec("\n".join([*lines, f" {answer}"]), space)
        run = space["program"]

        def repeat(leaves: list[Any]) -> Any:
            device = next(leaf.device.type for leaf in leaves if isinstance(leaf, Tensor))
            with torch.no_grad(), torch.autocast(device, enabled=False):
                return pytree.tree_unflatten(run(*leaves), structure)

        return repeat

    def _bound(self, result: Any) -> str:
        """A name for a result of an operation."""
        self._count += 1
        name = f"v{self._count}"
        if isinstance(result, Tensor) and result not in self._names:
            self._names[result] = name
        return name

    def _text(self, value: Any, reads: list[str]) -> str:
        """How a program writes a value: the name of a tensor, or the value itself."""
        if isinstance(value, Tensor):
            name = self._names.get(value)
            if name is None:
                return self._constant(value)  # made before, or by no operation: the same again
            if name[0] == "v":
                reads.append(name)
            return str(name)
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            items = [self._text(item, reads) for item in value]
            return f"[{', '.join(items)}]"
        if value is None or type(value) in (bool, int):
            return repr(value)
        return self._constant(value)

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
        leaves, structure = pytree.tree_flatten(arguments)
        key = repr(structure), tuple(map(self._kind, leaves)), self._setting()
        calls = self._calls[key] = min(self._calls.get(key, 0) + 1, 4)
        if calls == 2 and len(self._programs) < _MOST:
            self._programs[key], result = self._recorded(leaves, arguments)
            return result
        program = self._programs.get(key)
        if program is None:
            return self._function(*arguments)
        if calls == 3 and not self._is_right(program, leaves, arguments):
            self._programs[key] = None
            return self._function(*arguments)
        return program(leaves)

    def _recorded(
        self, leaves: list[Any], arguments: tuple[Any, ...]
    ) -> tuple[Program | None, Any]:
        """A program of the function, if it is straight, and the result of the function."""
        restart = self._restarting()
        try:
            with Recording(leaves) as recording:
                result = self._function(*arguments)
            return recording.program(result) if recording.is_straight else None, result
        except Exception:  # of the function as well, which shows it again as it runs
            restart()
            return None, self._function(*arguments)

    def _is_right(self, program: Program, leaves: list[Any], arguments: tuple[Any, ...]) -> bool:
        """Whether a program gives the numbers of the function; both are of these arguments."""
        restart = self._restarting()
        first, lengths, sizes, missing = _sketch(self._function(*arguments)).unbind()
        restart()
        with _Unfilled():  # type: ignore[no-untyped-call]
            second, *_, others = _sketch(program(leaves)).unbind()
        restart()
        usual = (lengths.square().sum() / sizes.sum()).sqrt()  # of one number
        allowed = _NEAR * torch.maximum(lengths, usual * sizes.sqrt())
        return bool((((first - second).abs() <= allowed) & (missing == others)).all())


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
