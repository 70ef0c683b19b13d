"""Replay of a step as a CUDA graph: one launch instead of thousands, without Python in between."""

import gc
import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prudent._torch_private import pytree
from prudent.training.compiled import kind
from prudent.training.gradients.record_streams import is_capturing

_WARM_UP = 2
_MOST = 8
_LOG = logging.getLogger(__name__)


class Captured:
    """Wraps a function of trees of tensors and replays it as a CUDA graph for recurring shapes.

    The first calls with new shapes run as they are, which also prepares what a capture must not do.
    The next one is captured, and from then on the graph is replayed: its inputs are copied to where
    it reads them. What it returns is overwritten by the next call. Random numbers of torch's
    default generator, as dropout draws them, follow its seed at every replay, as without a graph.

    Only a few shapes get a graph, because each keeps memory; others, and functions that cannot be
    captured, run as they are.

    Args:
        function: Takes and returns trees of tensors on one CUDA device. The tensors of its first
            argument are read where they are, and must not move between calls. Tensors that it
            changes in place are changed by every replay; what it does on the host happens once in
            a capture, and not in a replay.
        setting: Returns what else the function depends on; another one is captured anew.
        generators: Generators that the function draws from, besides torch's default.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        setting: Callable[[], Hashable] = tuple,
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        self._function = function
        self._setting = setting
        self._generators = generators
        self._calls: dict[Any, int] = {}
        self._graphs: dict[Any, _Graph | None] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, fixed: Any, *arguments: Any) -> Any:
        """Return what the function returns."""
        if is_capturing():
            return self._function(fixed, *arguments)
        leaves, structure = pytree.tree_flatten(arguments)
        places = tuple(map(_place, pytree.tree_leaves(fixed)))
        key = structure, tuple(map(kind, leaves)), places, self._setting()
        if key not in self._graphs:
            self._calls[key] = self._calls.get(key, 0) + 1
            if self._calls[key] <= _WARM_UP or len(self._graphs) >= _MOST:
                return self._function(fixed, *arguments)
            self._graphs[key] = self._capture(fixed, arguments)
        graph = self._graphs[key]
        return self._function(fixed, *arguments) if graph is None else graph.replay(leaves)

    def _capture(self, fixed: Any, arguments: tuple[Any, ...]) -> "_Graph | None":
        inputs = pytree.tree_map_only(Tensor, torch.clone, arguments)
        graph = torch.cuda.CUDAGraph()
        default = torch.cuda.default_generators[torch.cuda.current_device()]
        before = [(each, each.get_state()) for each in (default, *self._generators)]
        for generator in self._generators:
            graph.register_generator_state(generator)
        # Library workspaces belong to a stream. Runs that use streams of their own must be captured
        # on them; otherwise graphs that run concurrently would share a workspace.
        current = torch.cuda.current_stream()
        stream = None if current == torch.cuda.default_stream() else current
        # Other threads may go on as usual: a loader's thread allocates pinned memory for the
        # batches that it reads ahead, and under torch's default, which watches all threads, that
        # would abort the capture and fail itself.
        capture = torch.cuda.graph(
            graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
        )
        try:
            with _no_collection(), capture:
                result = self._function(fixed, *inputs)
        except RuntimeError as error:
            for generator, state in before:
                _renew(generator, state)
            # The text may come from a kernel, so only the kind of error is shown.
            warnings.warn(
                "The step cannot be captured as a CUDA graph and runs as it is, which changes no "
                f"number but takes longer ({type(error).__name__}).",
                RuntimeWarning,
                stacklevel=4,
            )
            return None
        _LOG.info("The step is replayed as a CUDA graph.")
        return _Graph(graph, fixed, pytree.tree_leaves(inputs), result)


class _Graph(NamedTuple):
    """A captured call: where it reads its inputs, and where it writes its result."""

    graph: torch.cuda.CUDAGraph
    fixed: Any  # kept alive: the graph reads it by address
    inputs: list[Any]
    result: Any

    def replay(self, leaves: list[Any]) -> Any:
        for place, leaf in zip(self.inputs, leaves, strict=True):
            if isinstance(place, Tensor):
                place.copy_(leaf)
        self.graph.replay()
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
