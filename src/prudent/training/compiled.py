"""Steps as compiled programs, and their replay as CUDA graphs.

A step is compiled into one fused program: traced once, compiled by torch's inductor. Tracing
happens below autograd and vmap, where a step is a straight sequence of tensor operations, so the
compiler sees norms, test and weighted sum as one graph.

A replay is one launch instead of thousands, without Python in between.

A program is made for the shapes of a batch, and so for its number of chunks, which is secret. It
repeats what Python did when it was made. So all programs of a step must have been made in one state
of the model and the loss: as soon as that changes, the step drops all of them (`Step.programs`).
"""

import gc
import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode

from prudent._torch_private import (
    TorchDispatchMode,
    compile_graph,
    copied_to,
    make_fx,
    maybe_get_level,
    pytree,
)
from prudent.training.gradients.engine import native_products
from prudent.training.gradients.factors.products import whole_products
from prudent.training.gradients.record_streams import Branches, followed_branches, is_capturing

Program = Callable[..., Any]
Backend = Callable[[GraphModule, list[Tensor]], Callable[..., Any]]
_SETTLED = 1
"""Calls that run as they are after programs were dropped, lest one is compiled for every step.

Fewer than `_WARM_UP`: nothing can be compiled while a graph is captured.
"""


class Compiled:
    """Wraps a function of trees of tensors and compiles it for each set of input shapes.

    Random calls with a `generator=` argument are made outside the compiled program, in the same
    order and with the same calls, so the compiled function returns the numbers of the eager one up
    to rounding. Dropout, which takes no generator, is drawn inside the program and gets different
    numbers.

    The first call with new shapes runs the function eagerly, to see what it draws, and then once
    more for tracing. Neither result is kept, since a gradient is as large as the model: the program
    computes it again from the same draws. It contains no Python, so the function must depend only
    on the values of its arguments; if anything else changes, call `clear`.

    Args:
        function: Takes and returns trees of tensors.
        backend: Turns a traced graph into a callable.
    """

    def __init__(self, function: Callable[..., Any], backend: Backend = compile_graph) -> None:
        self._function = function
        self._backend = backend
        self._programs: dict[Any, tuple[Program, Branches]] = {}
        self._waits = 0

    def clear(self) -> None:
        """Drop all programs."""
        self._programs.clear()
        self._waits = _SETTLED

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns."""
        leaves = pytree.tree_leaves(arguments)
        key = kind_of(arguments)
        # On the CPU the program is compiled as one, so the layers, like the norms, must not use
        # reduced-precision products. On a GPU the products of norms and sums have settings of
        # their own.
        on_device = any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in leaves)
        precision = nullcontext() if on_device else whole_products()
        with torch.no_grad(), native_products(), precision:
            if key in self._programs:
                program, branches = self._programs[key]
                if not branches.holds():
                    return self._function(*arguments)
                if (outer := followed_branches()) is not None:
                    outer.include(branches)  # a graph of the program repeats its branches, too
                return program(*arguments)
            if self._waits:
                self._waits -= 1
                return self._function(*arguments)
            with _RandomCalls() as calls:
                self._function(*arguments)
            drawn, branches = [draw.example for draw in calls.made], Branches()
            try:
                with branches.followed():
                    program = self._compile(arguments, calls.made)
            except Exception as error:  # any operation that cannot be traced or compiled
                # Its text may come from values of the batch, so only its kind is shown.
                warnings.warn(
                    "The step could not be compiled and runs as it is, which changes no number "
                    f"({type(error).__name__}).",
                    RuntimeWarning,
                    stacklevel=2,
                )
                self._programs[key] = self._function, Branches()
                with _RandomCalls(drawn):
                    return self._function(*arguments)
            self._programs[key] = program, branches
            return program(*arguments, drawn=drawn)

    def _compile(self, arguments: tuple[Any, ...], draws: "Sequence[_RandomCall]") -> Program:
        leaves, structure = pytree.tree_flatten(arguments)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        shape: pytree.TreeSpec | None = None

        def on_tensors(*tensors: Tensor) -> list[Any]:
            nonlocal shape
            given = list(leaves)
            for place, tensor in zip(places, tensors, strict=False):
                given[place] = tensor
            with _RandomCalls(tensors[len(places) :]):
                result = self._function(*pytree.tree_unflatten(given, structure))
            results, shape = pytree.tree_flatten(result)
            return results

        examples = [*(leaves[place] for place in places), *(draw.example for draw in draws)]
        compiled = self._backend(make_fx(on_tensors)(*examples), examples)

        def program(*arguments: Any, drawn: Sequence[Tensor] | None = None) -> Any:
            assert shape is not None
            given = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)]
            drawn = [draw.call() for draw in draws] if drawn is None else drawn
            return pytree.tree_unflatten(compiled(*given, *drawn), shape)

        return program


class _RandomCall(NamedTuple):
    """A random call that can be repeated, and its first result: an example input."""

    call: Callable[[], Tensor]
    example: Tensor


class _RandomCalls(TorchFunctionMode):
    """Records every call with a `generator=` argument, or answers it with a given tensor.

    Args:
        given: The results of the calls, in their order; None: they are made and recorded.
    """

    def __init__(self, given: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.made: list[_RandomCall] = []
        self._given: Iterator[Tensor] | None = None if given is None else iter(given)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "generator" not in (kwargs or {}):
            return func(*args, **(kwargs or {}))
        if self._given is not None:
            return next(self._given)
        call = partial(func, *args, **kwargs)
        example = call()
        if maybe_get_level(example) != -1:
            raise RuntimeError("A model that draws with a generator of its own is not compiled.")
        self.made.append(_RandomCall(call, example))
        return example


def kind(leaf: Any) -> Any:
    """The cache key of one leaf: a tensor's form, or the value itself if it is no tensor."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad
    return leaf


def kind_of(tree: Any) -> Hashable:
    """The cache key of a tree."""
    leaves, structure = pytree.tree_flatten(tree)
    return repr(structure), tuple(map(kind, leaves))  # torch 2.6 hashes no dict


_WARM_UP = 2
"""Calls that run as they are before a capture."""
_MOST, _MOST_KEYS = 32, 1 << 10
_RESULTS = 1 / 8
"""Share of the device's memory for the results of graphs of one shape: each is a whole model."""
_LOG = logging.getLogger(__name__)

Split = Callable[[Callable[..., None], tuple[Tensor, ...]], None]
_SPLIT: ContextVar[Split | None] = ContextVar("divides a capture", default=None)


def exchanged(function: Callable[..., None], *tensors: Tensor) -> None:
    """Call a function that waits for others, now and whenever the step is repeated.

    It reads and overwrites the given tensors and returns nothing. A CUDA graph is divided here, and
    the function is called between its parts.
    """
    split = _SPLIT.get()
    if split is None:
        function(*tensors)
    else:
        split(function, tensors)


class Captured:
    """Wraps a function of trees of tensors and replays it as a CUDA graph for recurring shapes.

    The first calls with new shapes run as they are, which also prepares what a capture must not do.
    The next one is captured, and from then on the graph is replayed: its inputs are copied to where
    it reads them. What it returns is overwritten by the next call. Random numbers of torch's
    default generator, as dropout draws them, follow its seed at every replay, as without a graph.

    A graph repeats the branches that the function took by numbers drawn on the host; others that
    recur get a graph as well, if graphs share memory. Only a few get one, because each keeps its
    result; further shapes and branches, and functions that cannot be captured, run as they are.

    Args:
        function: Takes and returns trees of tensors on one CUDA device. The tensors of its first
            argument are read where they are, and must not move between calls. Tensors that it
            changes in place are changed by every replay; what it does on the host happens once in
            a capture, and not in a replay. If what it depends on there changes, call `clear`.
        generators: Generators that the function draws from, besides torch's default.
        shares: Whether a graph may use the memory of another, because one ends before the next
            begins.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        generators: Sequence[torch.Generator] = (),
        *,
        shares: bool = True,
    ) -> None:
        self._function = function
        self._generators = generators
        self._shares = shares
        self._warned = False
        self.clear()

    def clear(self) -> None:
        """Drop all graphs."""
        self._calls: dict[Any, int] = {}
        self._graphs: dict[Any, list[_Graph]] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._shares else None

    def __call__(self, fixed: Any, *arguments: Any) -> Any:
        """Return what the function returns."""
        if is_capturing():
            return self._function(fixed, *arguments)
        places = tuple(map(_place, pytree.tree_leaves(fixed)))
        key = kind_of(arguments), places
        graphs = self._graphs.get(key, [])
        graph = next((each for each in graphs if each.branches.holds()), None)
        if graph is None:
            if len(self._calls) > _MOST_KEYS:
                self._calls.clear()
            # Branches that recur, as with LayerDrop, get graphs of their own.
            path = key, graphs[0].branches.now() if graphs else ()
            calls = self._calls[path] = self._calls.get(path, 0) + 1
            if calls == _WARM_UP + 1 and self._has_room(graphs):
                graph = self._capture(fixed, arguments)
            if graph is None or not graph.branches.holds():
                return self._function(fixed, *arguments)
            self._graphs[key] = [*graphs, graph]
        return graph.replay(pytree.tree_leaves(arguments))

    def _has_room(self, graphs: "list[_Graph]") -> bool:
        """Whether one more graph may be kept beside those of the same shape."""
        if sum(map(len, self._graphs.values())) >= _MOST:
            return False
        if not graphs:
            return True
        results = pytree.tree_leaves(graphs[0].result)
        size = sum(leaf.nbytes for leaf in results if isinstance(leaf, Tensor))
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        return self._shares and size * (len(graphs) + 1) <= _RESULTS * device.total_memory

    def _capture(
        self, fixed: Any, arguments: tuple[Any, ...], placing: "PlacedNumbers | None" = None
    ) -> "_Graph | None":
        inputs = pytree.tree_map_only(Tensor, torch.clone, arguments)
        default = torch.cuda.default_generators[torch.cuda.current_device()]
        before = [(each, each.get_state()) for each in (default, *self._generators)]
        pool = torch.cuda.graph_pool_handle() if self._pool is None else self._pool
        parts, branches = _Parts(pool, self._generators), Branches()
        host = torch.get_rng_state()
        try:
            with _no_collection(), branches.followed(), parts, placing or nullcontext():
                result = self._function(fixed, *inputs)
                # As TorchScript may, where no mode sees it: a graph would repeat the number, and
                # which graph is replayed follows from the secret number of chunks.
                if not torch.equal(host, torch.get_rng_state()):
                    raise RuntimeError("A graph cannot follow a number that is drawn on the host.")
        except RuntimeError:  # its text may come from a kernel, so nothing of it is shown
            torch.set_rng_state(host)
            for generator, state in before:
                _renew(generator, state)
            if self._pool is not None:  # it cannot be used again while a part of it is held
                self._pool = torch.cuda.graph_pool_handle()
            if placing is None:  # every operation then takes longer to capture, so not at once
                placing = PlacedNumbers()  # type: ignore[no-untyped-call]
                return self._capture(fixed, arguments, placing)
            if not self._warned:
                self._warned = True
                warnings.warn(
                    "The step cannot be captured as a CUDA graph and runs as it is, which changes "
                    "no number but takes longer.",
                    RuntimeWarning,
                    stacklevel=5,
                )
            return None
        _LOG.info("The step is replayed as a CUDA graph.")
        return _Graph(parts, fixed, pytree.tree_leaves(inputs), result, branches)


class PlacedNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts single numbers of the host on a device by a kernel, which a graph can repeat.

    A graph cannot copy from the host, as functions of TorchScript do with numbers that they make of
    shapes. Nothing of a record is among these numbers: to read it, the host would have to wait. Nor
    are drawn ones: a capture ends if the host has drawn any.
    """

    passes_on = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        wanted = kwargs.get("device")
        number = args[0] if func is copied_to else None
        if number is None or wanted is None or not number.is_cpu or number.ndim:
            return func(*args, **kwargs)
        dtype = kwargs.get("dtype") or number.dtype
        return torch.full((), number.item(), dtype=dtype, device=wanted)


class _Parts:
    """Captures what is done in a context as graphs, divided where a step waits for others.

    Args:
        pool: The memory of the graphs, which are replayed one after another.
        generators: Generators that are drawn from, besides torch's default.
    """

    def __init__(self, pool: Any, generators: Sequence[torch.Generator]) -> None:
        self._pool, self._generators = pool, generators
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._between: list[Callable[[], None]] = []
        self._contexts = ExitStack()

    def __enter__(self) -> Self:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        # Library workspaces belong to a stream. Runs that use streams of their own must be captured
        # on them; otherwise graphs that run concurrently would share a workspace.
        current = torch.cuda.current_stream()
        own = current != torch.cuda.default_stream()
        stream = current if own else _capture_stream(torch.cuda.current_device())
        self._contexts.enter_context(torch.cuda.stream(stream))
        self._begin()
        token = _SPLIT.set(self._split)
        self._contexts.callback(_SPLIT.reset, token)
        return self

    def __exit__(self, *error: Any) -> None:
        with self._contexts:
            self._graphs[-1].capture_end()

    def replay(self) -> None:
        """Run the graphs, and between them what was not captured."""
        self._graphs[0].replay()
        for act, graph in zip(self._between, self._graphs[1:], strict=True):
            act()
            graph.replay()

    def _begin(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        # Other threads may go on as usual: a loader's thread allocates pinned memory for the
        # batches that it reads ahead, and under torch's default, which watches all threads, that
        # would abort the capture and fail itself.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        self._graphs.append(graph)

    def _split(self, function: Callable[..., None], tensors: tuple[Tensor, ...]) -> None:
        self._graphs[-1].capture_end()
        self._between.append(partial(function, *tensors))
        self._begin()


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """One stream for all captures on a device: its workspaces are never freed."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class _Graph(NamedTuple):
    """A captured call: where it reads its inputs, and where it writes its result."""

    parts: _Parts
    fixed: Any  # kept alive: the graph reads it by address
    inputs: list[Any]
    result: Any
    branches: Branches  # those that were captured

    def replay(self, leaves: list[Any]) -> Any:
        for place, leaf in zip(self.inputs, leaves, strict=True):
            if isinstance(place, Tensor):
                place.copy_(leaf)
        self.parts.replay()
        return self.result


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause garbage collection: freeing another run's graph would abort a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _renew(generator: torch.Generator, state: Tensor) -> None:
    """Give a generator a state again: an aborted capture leaves it unusable."""
    fresh = torch.Generator(generator.device)
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def _place(leaf: Any) -> Any:
    return (leaf.data_ptr(), *kind(leaf)) if isinstance(leaf, Tensor) else leaf
