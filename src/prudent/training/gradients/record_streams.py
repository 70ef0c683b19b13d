"""Random numbers of a model, drawn for each record from a stream of its own.

A model runs on one record at a time, but what it draws, such as the masks of dropout, comes from
torch's default generator for all rows at once: remove a record, and every later one gets other
masks. So on the CPU the random operations of a model fill every row from the seed of its record and
the number of the call, whichever records stand beside it; running a batch again repeats it.
Elsewhere, and in operations that are not known here, the default generators are used, which a
private step seeds; `keystream` proves what both give.
"""

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from prudent._torch_private import TorchDispatchMode, get_unwrapped, maybe_get_level, pytree
from prudent.training.gradients.factors.contributions import by_record


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured; no value can be read during a capture."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def restarting(device: torch.device) -> Callable[[], None]:
    """A function that sets torch's default generators back to where they are now."""
    if is_capturing():
        return lambda: None  # nothing is run twice in a captured step
    return Replay(device).restart


class Replay:
    """Saves the state of torch's generators; `with replay.again():` restarts from it.

    The norms of a batch bound its weighted sum only if both use the same random masks and round in
    the same way under autocast. Afterwards the generators continue from where they were, so no
    noise is ever drawn twice.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "A CUDA graph cannot repeat random numbers, as running a part of the model again "
                "must. Set Execution(cuda_graph=False)."
            )
        kind = device.type
        self._autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        self._devices = [device] if device.type == "cuda" else []
        self._cpu: Tensor = torch.get_rng_state()
        self._cuda = [torch.cuda.get_rng_state(device) for device in self._devices]

    @property
    def near(self) -> float:
        """Allowed difference between the runs, since some kernels sum in any order."""
        return 0.02 if self._autocast[2] else 1e-4

    @contextmanager
    def again(self) -> Iterator[None]:
        """Repeat the random draws made since this object was created."""
        with torch.random.fork_rng(devices=self._devices), torch.autocast(*self._autocast):
            self.restart()
            yield

    def restart(self) -> None:
        """Set the generators back to where they were."""
        torch.set_rng_state(self._cpu)
        for device, state in zip(self._devices, self._cuda, strict=True):
            torch.cuda.set_rng_state(state, device)


def sketch(batch: Any) -> list[Tensor]:
    """A checksum per record and tensor of a batch, which other values are unlikely to match.

    Comparing losses is not enough: they do not depend on a feature whose weight is still zero.
    """
    sums = []
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, Tensor):
            rows = by_record(leaf.detach())
            rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
            places = torch.arange(rows.shape[1], device=rows.device, dtype=torch.float64)
            with torch.autocast(rows.device.type, enabled=False):
                sums.append(rows @ (places + 1).sin().to(rows.dtype))
    return sums


def is_same(one: Sequence[Tensor], other: Sequence[Tensor], near: float) -> bool:
    """Whether the numbers of two runs agree up to differences from the order of summation."""
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=near, atol=near, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


Seeds = NDArray[np.uint64]

_NAMES = (
    *("_fractional_max_pool2d", "_fractional_max_pool3d", "_fused_dropout", "_sample_dirichlet"),
    *("_standard_gamma", "alpha_dropout", "alpha_dropout_", "bernoulli", "bernoulli_", "binomial"),
    *("cauchy_", "dropout", "dropout1d", "dropout2d", "dropout3d", "dropout_", "exponential_"),
    *("feature_alpha_dropout", "feature_alpha_dropout_", "feature_dropout", "feature_dropout_"),
    *("fractional_max_pool2d_with_indices", "fractional_max_pool3d_with_indices", "geometric_"),
    *("gumbel_softmax", "log_normal_", "multi_head_attention_forward", "multinomial"),
    *("native_dropout", "normal", "normal_", "poisson", "rand", "rand_like", "randint"),
    *("randint_like", "randn", "randn_like", "random_", "randperm", "rrelu", "rrelu_"),
    *("scaled_dot_product_attention", "uniform_"),
)
_PLACES = torch, Tensor, functional
RANDOM = {getattr(place, name) for name in _NAMES for place in _PLACES if hasattr(place, name)}
"""The functions of torch that draw random numbers, as a `TorchFunctionMode` sees them."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = 1 << 15  # words mixed at a time, few enough to stay in cache
_ACTIVE: ContextVar["RecordStreams | None"] = ContextVar("streams of records", default=None)


@attrs.frozen
class RecordStreams:
    """The streams of the records of one physical batch."""

    # Maps places in the batch to the seeds of the records there.
    seeds: Callable[[NDArray[np.int64]], Seeds]
    # The seed of choices that Python makes for all records at once, as with `random`.
    choices: int = 0

    def part(self, start: int) -> "RecordStreams":
        """The streams of the rows from a place on."""
        return attrs.evolve(self, seeds=lambda rows: self.seeds(rows + start))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the models that run in this context draw from these streams."""
        python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002 - models use it
        if active_streams() is not None:
            _check_draws()
        before = _ACTIVE.set(self)
        _mark_draws()
        try:
            yield
            _check_draws()
        finally:
            _ACTIVE.reset(before)
            random.setstate(python)
            np.random.set_state(arrays)  # noqa: NPY002
            _mark_draws()


_MARK: ContextVar[Any] = ContextVar("where the generators of the host were", default=None)


def _mark_draws() -> None:
    """Remember where the generators of the host are, after draws that a program follows."""
    if _BRANCHES.get() is not None:
        _MARK.set(_states())


def _check_draws() -> None:
    """Raise an error if a program is made that would repeat what a model did with its draws."""
    if _BRANCHES.get() is not None and _MARK.get() != _states():
        raise RuntimeError(_UNFOLLOWED)


def _states() -> tuple[Any, ...]:
    arrays: Any = np.random.get_state()  # noqa: NPY002 - models use it
    return random.getstate(), arrays[1].tobytes(), *arrays[2:]


class Branches:
    """The branches that a step took by numbers drawn on the host, as when it skips a layer.

    A captured graph repeats them, so it is good for the steps that take them again:
    before each of them the numbers are drawn and compared anew.
    """

    def __init__(self) -> None:
        self._numbers: list[Tensor] = []  # since the generator was seeded
        self._taken: list[tuple[int, torch.dtype, Callable[..., Any], Any, bool]] = []

    @contextmanager
    def followed(self) -> Iterator[None]:
        """A context in which a program is made."""
        before = _BRANCHES.set(self)
        _mark_draws()
        try:
            yield
        finally:
            _BRANCHES.reset(before)
            self._numbers.clear()

    def restart(self) -> None:
        """The generator was seeded again."""
        self._numbers.clear()

    def add(self, number: Tensor) -> None:
        """A number was drawn."""
        if not number.is_cpu or number.ndim:
            raise RuntimeError(_UNFOLLOWED)
        self._numbers.append(number)

    def compare(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """The result of a function of drawn numbers; NotImplemented if none of them is given."""
        if not self._numbers:
            return NotImplemented
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        found = [n for n, own in enumerate(self._numbers) if any(own is leaf for leaf in given)]
        if not found:
            return NotImplemented
        if func not in _COMPARISONS or kwargs or type(args[-1]) not in (int, float):
            raise RuntimeError(_UNFOLLOWED)
        result = func(*args)
        kind = self._numbers[found[0]].dtype
        self._taken.append((found[0], kind, func, args[-1], bool(result)))
        return result

    def now(self) -> tuple[bool, ...]:
        """The outcomes that the same comparisons have in the present step."""
        if not self._taken:
            return ()
        generator = random.Random(CHOICES.get())
        numbers = [generator.random() for _ in range(1 + max(n for n, *_ in self._taken))]
        return tuple(
            bool(func(torch.tensor(numbers[place], dtype=dtype), other))
            for place, dtype, func, other, _ in self._taken
        )

    def holds(self) -> bool:
        """Whether the present step takes the same branches."""
        return self.now() == tuple(taken for *_, taken in self._taken)


_BRANCHES: ContextVar[Branches | None] = ContextVar("branches of a program", default=None)
_COMPARISONS = {
    getattr(place, name)
    for place in (torch, Tensor)
    for name in ("lt", "gt", "le", "ge", "__lt__", "__gt__", "__le__", "__ge__")
    if hasattr(place, name)
}
_UNFOLLOWED = "A program cannot follow a number that is drawn on the host."


def followed_branches() -> Branches | None:
    """The branches of the program that is being made, if one is."""
    return _BRANCHES.get()


def shared_choice(call: Callable[..., Any], *size: Any, **options: Any) -> Tensor:
    """`torch.rand`; a single number is drawn once for all records: models skip a layer by it.

    It comes from Python's generator, which is seeded for every step; see `rows_of`.
    """
    if tuple(size) not in ((), ([],), ((),)):
        drawn: Tensor = call(torch.rand, *size, **options)
        return drawn
    branches = _BRANCHES.get()
    _check_draws()
    dtype, device = options.get("dtype"), options.get("device")
    number = torch.tensor(random.random(), dtype=dtype, device=device)
    if branches is not None:
        branches.add(number)
        _mark_draws()
    return number


def active_streams() -> RecordStreams | None:
    """The streams of the batch that is being run; None outside a private step."""
    return _ACTIVE.get()


def again(streams: RecordStreams | None) -> AbstractContextManager[None]:
    """A context with the streams of an earlier run."""
    return nullcontext() if streams is None else streams.active()


class Draws:
    """The random calls of one pass over a batch, in order."""

    def __init__(self, row: Tensor, streams: RecordStreams | None = None, number: int = 0) -> None:
        self.row, self.number = row, number
        self.streams = active_streams() if streams is None else streams
        while maybe_get_level(row) != -1:
            row = get_unwrapped(row)
        self._rows = row
        own = row.device.type == "cpu"
        self._is_own = own and self.streams is not None
        self._mode: _Drawing | None = None

    def run(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function that may draw random numbers."""
        if self.streams is not None and kwargs.get("generator") is not None:
            kwargs["generator"] = None  # it may be one whose numbers are known
        if not self._is_own or self._mode is not None:
            return func(*args, **kwargs)
        try:
            with _Drawing(self) as self._mode:
                return func(*args, **kwargs)
        finally:
            self._mode = None

    @functools.cached_property
    def _seeds(self) -> Seeds:
        assert self.streams is not None
        return self.streams.seeds(self._rows.numpy())

    def next_seeds(self) -> Seeds:
        """One seed per record for the next random call."""
        self.number += 1
        return mixed(self._seeds + _GOLDEN * np.full(1, self.number, np.uint64))


CHOICES: ContextVar[int] = ContextVar("the seed of choices for all records of a step")


def rows_of(batch: Any) -> Tensor:
    """The places of the records in a batch, to be mapped over beside them.

    Choices that the model makes for all records at once, with Python's or numpy's generator, start
    anew: they are the same for every chunk of a step, and when a batch is run again.
    """
    leaf = next(leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor))
    streams = active_streams()
    if streams is not None:
        _check_draws()
        CHOICES.set(streams.choices)
        random.seed(streams.choices)
        np.random.seed(streams.choices % 2**32)  # noqa: NPY002 - for models that use it
        _mark_draws()
        if (branches := followed_branches()) is not None:
            branches.restart()
    return torch.arange(len(leaf), device=leaf.device)


class _Drawing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Executes random operations with one generator state per record."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not wrapped by torch.compile, which would take longer than most operations."""
        return False

    def __init__(self, draws: Draws) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws = draws
        self._single: Iterator[int] = iter(())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _is_random(func) or _has_no_dropout(func, args, kwargs):
            return func(*args, **kwargs)
        kwargs |= {"generator": None} if "generator" in kwargs else {}
        records = len(self._draws._seeds)
        if func.overloadpacket is torch.ops.aten.randperm:  # vmap calls it once per record
            seed = next(self._single, None)
            if seed is None:
                self._single = iter(self._draws.next_seeds().tolist())
                seed = next(self._single)
            return _seeded(seed, func, args, kwargs)
        leading = _leading(args)
        if leading is None or leading % records:
            return func(*args, **kwargs)
        seeds = self._draws.next_seeds()
        if func in (torch.ops.aten.bernoulli.p, torch.ops.aten.bernoulli_.float):
            given, probability = args[0], args[1] if len(args) > 1 else kwargs.get("p", 0.5)
            drawn = _bernoulli(seeds, given.numel() // records, probability).view(given.shape)
            in_place = func is torch.ops.aten.bernoulli_.float
            return given.copy_(drawn) if in_place else drawn.to(given.dtype)
        size = leading // records
        parts = [
            _seeded(
                seed, func, [_own_rows(arg, leading, place * size, size) for arg in args], kwargs
            )
            for place, seed in enumerate(seeds.tolist())
        ]
        if func._schema.is_mutable:
            return args[0]
        if isinstance(parts[0], tuple):
            return tuple(map(torch.cat, zip(*parts, strict=True)))
        return torch.cat(parts)


@functools.cache
def _is_random(func: Any) -> bool:
    """Whether an operation draws; not all that take a generator have the tag."""
    tagged = torch.Tag.nondeterministic_seeded in func.tags
    return tagged or any(argument.name == "generator" for argument in func._schema.arguments)


def _has_no_dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation could drop values, as attention can, but is told to drop none."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)
            return bool(given == 0)
    return False


def _seeded(seed: int, func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation with the default generator seeded; its state is restored."""
    generator = torch.default_generator
    before = generator.get_state()
    try:
        generator.manual_seed(seed & (2**63 - 1))
        return func(*args, **kwargs)
    finally:
        generator.set_state(before)


def _leading(args: tuple[Any, ...]) -> int | None:
    """The number of rows that an operation fills: of its first tensor, or of the size given."""
    for arg in args:
        if isinstance(arg, Tensor):
            return len(arg) if arg.ndim else None
        if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], int):
            return arg[0]
    return None


def _own_rows(arg: Any, leading: int, start: int, size: int) -> Any:
    """An argument of an operation for one record: its rows, or a size of that many rows."""
    if isinstance(arg, Tensor):
        return arg[start : start + size] if arg.ndim and len(arg) == leading else arg
    if isinstance(arg, (list, tuple)) and arg and arg[0] == leading:
        return [size, *arg[1:]]
    return arg


def _bernoulli(seeds: Seeds, count: int, probability: float) -> Tensor:
    """Whether each of `count` numbers per record is below a probability, in steps of 2⁻³²."""
    below = np.empty((len(seeds), count), dtype=np.bool_)
    limit = round(probability * 2**32)
    if limit >= 2**32:
        below[:] = True
        return torch.from_numpy(below)
    places = (np.arange(-(-count // 2), dtype=np.uint64) + np.uint64(1)) * _GOLDEN
    step = max(1, _BLOCK // max(1, len(places)))
    for start in range(0, len(seeds), step):
        words = mixed(seeds[start : start + step, None] + places)
        below[start : start + step] = words.view(np.uint32)[:, :count] < np.uint32(limit)
    return torch.from_numpy(below)


def mixed(words: Seeds) -> Seeds:
    """The output function of SplitMix64 (Steele, Lea and Flood 2014), in place."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
