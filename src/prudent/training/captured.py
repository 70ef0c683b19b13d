"""Replay of steps as CUDA graphs: one launch instead of thousands, without Python in between.

A graph is made for the shapes of a batch, and so for its number of chunks, which is secret. It
repeats what Python did when it was made. So all graphs of a step must have been made in one state
of the model and the loss: as soon as that changes, the step drops all of them (`Step.refresh`).
"""

import gc
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from prudent._torch_private import TorchDispatchMode, copied_to, pytree
from prudent.training.gradients.record_streams import Branches, is_capturing


def kind(leaf: Any) -> Any:
    """The cache key of one leaf: a tensor's form, or the type and value of what is no tensor."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad
    return type(leaf), repr(leaf) if isinstance(leaf, float | complex) else leaf  # 0.0 == -0.0


def place(leaf: Any) -> Any:
    """The cache key of one leaf that is read where it is."""
    if not isinstance(leaf, Tensor):
        return kind(leaf)
    if leaf.layout is torch.strided:
        return leaf.data_ptr(), *kind(leaf)
    names = _PARTS.get(leaf.layout, ("ccol_indices", "row_indices", "values"))
    return leaf.layout, leaf.shape, *(place(getattr(leaf.detach(), name)()) for name in names)


_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    **dict.fromkeys(
        [torch.sparse_csr, torch.sparse_bsr], ("crow_indices", "col_indices", "values")
    ),
}  # what a sparse tensor consists of


def kind_of(tree: Any, kind: Callable[[Any], Any] = kind) -> Hashable:
    """The cache key of a tree."""
    leaves, structure = pytree.tree_flatten(tree)
    return repr(structure), tuple(map(kind, leaves))  # torch 2.6 hashes no dict


_WARM_UP = 2
"""Calls that run as they are before a capture."""
_MOST, _MOST_KEYS = 32, 1 << 10

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
    recur get a graph as well. Graphs share their memory and their results, which may be as large as
    a model: every graph writes to the result of the first, if the forms are equal. Only some shapes
    and branches get a graph; others, and functions that cannot be captured, run as they are.

    Args:
        function: Takes and returns trees of tensors on one CUDA device; what it returns is its own,
            or an argument but the first. The tensors of its first argument are read where they
            are, and must not move between calls. Tensors that it
            changes in place are changed by every replay; what it does on the host happens once in
            a capture, and not in a replay. If what it depends on there changes, call `clear`.
        generators: Generators that the function draws from, besides torch's default.
    """

    def __init__(
        self, function: Callable[..., Any], generators: Sequence[torch.Generator] = ()
    ) -> None:
        self._function = function
        self._generators = generators
        self._warned = False
        self.clear()

    def clear(self) -> None:
        """Drop all graphs."""
        self._calls: dict[Any, int] = {}
        self._graphs: dict[Any, list[_Graph]] = {}
        self._result: Any = None  # of the first graph; others overwrite it
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, fixed: Any, *arguments: Any) -> Any:
        """Return what the function returns."""
        if is_capturing():
            return self._function(fixed, *arguments)
        key = kind_of(arguments), kind_of(fixed, place)
        graphs = self._graphs.get(key, [])
        graph = next((each for each in graphs if each.branches.holds()), None)
        if graph is None:
            if len(self._calls) > _MOST_KEYS:
                self._calls.clear()
            # Branches that recur, as with LayerDrop, get graphs of their own.
            path = key, graphs[0].branches.now() if graphs else ()
            calls = self._calls[path] = self._calls.get(path, 0) + 1
            if calls == _WARM_UP + 1 and sum(map(len, self._graphs.values())) < _MOST:
                graph = self._capture(fixed, arguments)
            if graph is None or not graph.branches.holds():
                return self._function(fixed, *arguments)
            self._graphs[key] = [*graphs, graph]
        return graph.replay(pytree.tree_leaves(arguments))

    def _written(self, result: Any) -> Any:
        """The result of the first graph, overwritten by one of equal form; or this one itself."""
        if kind_of(self._result, _form) != kind_of(result, _form):
            return result
        leaves = pytree.tree_leaves(self._result), pytree.tree_leaves(result)
        for written, leaf in zip(*leaves, strict=True):
            if isinstance(leaf, Tensor):
                written.copy_(leaf)
        return self._result

    def _capture(
        self, fixed: Any, arguments: tuple[Any, ...], placing: "PlacedNumbers | None" = None
    ) -> "_Graph | None":
        inputs = pytree.tree_map_only(Tensor, torch.clone, arguments)
        default = torch.cuda.default_generators[torch.cuda.current_device()]
        before = [(each, each.get_state()) for each in (default, *self._generators)]
        parts, branches = _Parts(self._pool, self._generators), Branches()
        host = torch.get_rng_state()
        try:
            with _no_collection(), branches.followed(), parts, placing or nullcontext():
                result = self._function(fixed, *inputs)
                # As TorchScript may, where no mode sees it: a graph would repeat the number, and
                # which graph is replayed follows from the secret number of chunks.
                if not torch.equal(host, torch.get_rng_state()):
                    raise RuntimeError("A graph cannot follow a number that is drawn on the host.")
                result = self._written(result)
        except RuntimeError:  # its text may come from a kernel, so nothing of it is shown
            torch.set_rng_state(host)
            for generator, state in before:
                # An aborted capture leaves a generator unusable.
                fresh = torch.Generator(generator.device)
                fresh.set_state(state)
                generator.graphsafe_set_state(fresh.graphsafe_get_state())
            # The pool cannot be used again while a part of it is held.
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
        self._result = result if self._result is None else self._result
        return _Graph(parts, fixed, pytree.tree_leaves(inputs), result, branches)


class PlacedNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts single numbers of the host on a device by a kernel, which a graph can repeat.

    A graph cannot copy from the host, as functions of TorchScript do with numbers that they make of
    shapes. Nothing of a record is among these numbers: to read it, the host would have to wait. Nor
    are drawn ones: a capture ends if the host has drawn any.
    """

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
    """Captures what is done in a context as graphs, divided where a step waits for others."""

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


_capture_stream = cache(torch.cuda.Stream)  # one for all: its workspaces are never freed


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


def _form(leaf: Any) -> Any:
    """The shape and type of a tensor, or another value itself."""
    return (leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else kind(leaf)
