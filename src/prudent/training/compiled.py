"""Compilation of a step into one fused program: traced once, compiled by torch's inductor.

Tracing happens below autograd and vmap, where a step is a straight sequence of tensor operations,
so the compiler sees norms, test and weighted sum as one graph.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode

from prudent._torch_private import compile_graph, make_fx, maybe_get_level, pytree
from prudent.training.gradients.engine import native_products
from prudent.training.gradients.factors.products import whole_products

Program = Callable[..., Any]
Backend = Callable[[GraphModule, list[Tensor]], Callable[..., Any]]


class Compiled:
    """Wraps a function of trees of tensors and compiles it for each set of input shapes.

    Random calls with a `generator=` argument are made outside the compiled program, in the same
    order and with the same calls, so the compiled function returns the numbers of the eager one up
    to rounding. Dropout, which takes no generator, is drawn inside the program and gets different
    numbers.

    The first call with new shapes runs the function eagerly, to see what it draws, and then once
    more for tracing. Neither result is kept, since a gradient is as large as the model: the program
    computes it again from the same draws. It contains no Python, so the function must depend only
    on the values of its arguments and on the setting.

    Args:
        function: Takes and returns trees of tensors.
        backend: Turns a traced graph into a callable.
        setting: Returns what else the function depends on; another one is compiled anew.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        backend: Backend = compile_graph,
        setting: Callable[[], Hashable] = tuple,
    ) -> None:
        self._function = function
        self._backend = backend
        self._setting = setting
        self._programs: dict[Any, Program] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns."""
        leaves, structure = pytree.tree_flatten(arguments)
        key = structure, tuple(map(kind, leaves)), self._setting()
        # On the CPU the program is compiled as one, so the layers, like the norms, must not use
        # reduced-precision products. On a GPU the products of norms and sums have settings of
        # their own.
        on_device = any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in leaves)
        precision = nullcontext() if on_device else whole_products()
        with torch.no_grad(), native_products(), precision:
            if key in self._programs:
                return self._programs[key](*arguments)
            with _Recorded() as recorded:
                self._function(*arguments)
            drawn = [draw.example for draw in recorded.draws]
            try:
                program = self._compile(arguments, recorded.draws)
            except Exception as error:  # any operation that cannot be traced or compiled
                # Its text may come from values of the batch, so only its kind is shown.
                warnings.warn(
                    "The step could not be compiled and runs as it is, which changes no number "
                    f"({type(error).__name__}).",
                    RuntimeWarning,
                    stacklevel=2,
                )
                self._programs[key] = self._function
                with _Replayed(drawn):
                    return self._function(*arguments)
            self._programs[key] = program
            return program(*arguments, drawn=drawn)

    def _compile(self, arguments: tuple[Any, ...], draws: "Sequence[_Draw]") -> Program:
        leaves, structure = pytree.tree_flatten(arguments)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        shape: pytree.TreeSpec | None = None

        def on_tensors(*tensors: Tensor) -> list[Any]:
            nonlocal shape
            given = list(leaves)
            for place, tensor in zip(places, tensors, strict=False):
                given[place] = tensor
            with _Replayed(tensors[len(places) :]):
                result = self._function(*pytree.tree_unflatten(given, structure))
            results, shape = pytree.tree_flatten(result)
            return results

        examples = [*(leaves[place] for place in places), *(draw.example for draw in draws)]
        compiled = self._backend(make_fx(on_tensors)(*examples), examples)

        def program(*arguments: Any, drawn: Sequence[Tensor] | None = None) -> Any:
            assert shape is not None
            given = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)]
            drawn = [draw() for draw in draws] if drawn is None else drawn
            return pytree.tree_unflatten(compiled(*given, *drawn), shape)

        return program


class _Draw:
    """A random call that can be repeated; its first result is kept as an example input."""

    def __init__(self, call: Callable[[], Tensor]) -> None:
        self._call = call
        self.example = call()
        if maybe_get_level(self.example) != -1:
            raise RuntimeError("A model that draws with a generator of its own is not compiled.")

    def __call__(self) -> Tensor:
        return self._call()


class _Recorded(TorchFunctionMode):
    """Records every call with a `generator=` argument."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[_Draw] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "generator" not in (kwargs or {}):
            return func(*args, **(kwargs or {}))
        self.draws.append(_Draw(lambda: func(*args, **kwargs)))
        return self.draws[-1].example


class _Replayed(TorchFunctionMode):
    """Returns given tensors from the same calls, in the same order."""

    def __init__(self, drawn: Sequence[Tensor]) -> None:
        super().__init__()
        self._drawn: Iterator[Tensor] = iter(drawn)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "generator" in (kwargs or {}):
            return next(self._drawn)
        return func(*args, **(kwargs or {}))


def kind(leaf: Any) -> Any:
    """The cache key of one leaf: a tensor's form, or the value itself if it is no tensor."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad
    return leaf
