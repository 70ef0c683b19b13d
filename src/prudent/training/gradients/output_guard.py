"""What a training loop does with the records of a batch, checked without running it again.

A loop is private only if each row of the model's inputs comes from one record, and the loss is a
mean or a sum, as declared, of terms that each depend on one record. Mixup or class weights in a
mean break it: then one record moves the gradients of all others. So the tensors of a batch, and the
outputs of the model, note which functions they go through. These are run again on made-up records,
of which one is changed: nothing about the others may change. With fewer records, the gradient of
each must change as a mean or a sum prescribes. The verdict depends on the code and the number of
records, never on their values. What cannot be run again is not judged. Values that a loop reads
(`item()`, `numpy()`, `if x.max() > 5`) are not followed, so none may be read before the loss is
complete, but by what replaces the inputs.

A mean with ignored labels, which every `cross_entropy` is by default (`ignore_index=-100`), is
divided by the number of all labels: then no term depends on another record.
"""

import contextlib
import functools
import inspect
import itertools
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn import functional

from prudent._torch_private import DisableTorchFunctionSubclass, pytree, storage_uses
from prudent._validate import ArgumentError

_LOSSES = {
    functional.cross_entropy: inspect.signature(functional.cross_entropy),
    functional.nll_loss: inspect.signature(functional.nll_loss),
}
_SAME, _NEAR = 1e-6, 1e-3  # differences of runs of one shape, and of two
_FEW = 8  # so small a number may mean anything, such as a power or an axis
_Change = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
"""What is changed of floating-point numbers, and of integers."""


def _alternating(row: Tensor) -> Tensor:
    return (0.01 + 0.98 * (torch.arange(row.numel()) % 2)).view(row.shape)


def _other(row: Tensor) -> Tensor:
    return 1 - row


# Of the first record. The second and third give it, one or the other, the largest and the smallest
# term, by which a loss may select the records that count; then beyond thresholds. The last three
# are classes that no other record has, and a record whose outputs are not numbers.
_CHANGES: tuple[_Change, ...] = (
    (lambda row: 0.97 - 0.05 * row, _other),
    (_alternating, _other),
    (lambda row: 1.0 - _alternating(row), _other),
    (lambda row: 40 * _alternating(row) - 20, _other),
    (lambda row: 20 - 40 * _alternating(row), _other),
    (lambda row: 1e4 * row, lambda row: 1000 + row),
    (lambda row: 0.97 - 0.05 * row, lambda row: row + 2),
    (lambda row: 0.97 - 0.05 * row, lambda row: row - 2),
    (lambda row: torch.full_like(row, torch.nan), _other),
)
_ALIKE: _Change = _other, _other  # all records, each like the first
_NOW = itertools.count(1)
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device)


@attrs.define
class Batch:
    """What a loop has done with a batch as a whole, whichever tensor of it."""

    is_counted: bool = False  # whether the number of its rows was read
    has_run: bool = False  # whether the model has returned outputs
    read: tuple[int, str] | None = None  # when a value first left torch, and on which line


@attrs.define(eq=False)
class Node:
    """How a tensor was made: by a function of others, or as a source with records on an axis."""

    function: Callable[..., Any] | None
    args: Any = ()  # with nodes in place of tensors that have one
    kwargs: Any = attrs.Factory(dict)
    place: int | None = None  # of a result that is a sequence: which of them
    shape: tuple[int, ...] = ()  # of a source
    dtype: torch.dtype = torch.float32
    device: torch.device | None = None
    is_output: bool = False  # whether a source is an output of the model
    batch: Batch = attrs.Factory(Batch)  # of a source
    read: tuple[int, str] | None = None  # as of a batch, by what may replace the source
    made: int = attrs.field(factory=_NOW.__next__)


class Traced(Tensor):
    """A tensor like any other, with a note of how it was made from the records of a batch."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call `func` on ordinary tensors, and note what it did."""
        kwargs = kwargs or {}
        _note_read(func, args, kwargs)
        if func.__name__ in ("__format__", "__repr__", "__reduce_ex__", "__deepcopy__"):
            return func(plain(args[0]), *args[1:], **kwargs)
        if func is Tensor.backward and (node := node_of(args[0])) is not None:
            if (given := args[1] if len(args) > 1 else kwargs.get("gradient")) is not None:
                node = Node(torch.mul, *_linked((args[0], given), {}))
            if check := next((n.args for n in _sources(node) if n.is_output), None):
                check(node)
        if func is Tensor.register_hook:
            args = args[0], _looking(args[1])
        with DisableTorchFunctionSubclass():
            is_new = args and _writes(func) and type(args[0]) is Tensor  # and has no note yet
            before: Any = (args[0].detach().clone(), *args[1:]) if is_new else args
            is_mean = isinstance(args[0] if args else kwargs.get("input"), Computed)
            run: Any = (is_mean and _TOTAL.get(func)) or _INDEXED.get(func, _checked)
            return _noted(run(func, args, kwargs), func, args, before, kwargs)


def _looking(hook: Callable[[Tensor], Any]) -> Callable[[Tensor], None]:
    """A hook that may look at a gradient: a change of it is not in the loss that is judged."""

    def look(gradient: Tensor) -> None:
        returned = hook(given := gradient.clone())
        if given._version or not (returned is None or returned is given):
            why = "whether the gradient of a record depends on others cannot be checked"
            hint = "Let the hook return None, and leave clipping to the step."
            shown, allowed = "a hook that changes them", "to have the gradients of backward()"
            raise ArgumentError("loss", allowed, shown=shown, why=why, hint=hint)

    return look


_SIZES = {
    *(Tensor.shape.__get__, Tensor.size, Tensor.__len__, Tensor.numel, Tensor.nelement),  # type: ignore[attr-defined]
    torch.numel,
}
_READS = {
    *("item", "tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage"),
    *("__float__", "__int__", "__bool__", "__index__", "__complex__", "__format__", "__repr__"),
    *("equal", "allclose", "is_nonzero", "__contains__", "__deepcopy__", "__reduce_ex__"),
}
_ROWS_DIVIDED = {Tensor.unbind, torch.unbind}  # also by iterating
_EQUAL = {Tensor.__eq__, Tensor.eq, torch.eq}
_SELECTIONS = {"nonzero", "argwhere", "where", "unique", "unique_consecutive", "bincount"}


def _note_read(func: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Note that a size or values are read on the host, or written to where they are not noted."""
    is_size, is_read = func in _SIZES, func.__name__ in _READS
    is_written = kwargs.get("out") is not None or (_writes(func) and _is_shared(*args))
    if not (is_size or is_read or is_written or func in (Tensor.detach, *_ROWS_DIVIDED)):
        return
    for tensor in pytree.tree_leaves((args, kwargs)):
        if (node := node_of(tensor)) is None:
            continue
        with DisableTorchFunctionSubclass():
            count, is_scalar = tensor.numel(), not tensor.ndim
        made_of = _ordered(node)
        sources = [each for each in made_of if each.function is None]
        # A scalar is detached to be shown, and has no node from then on.
        is_left = is_read or is_written or (func is Tensor.detach and is_scalar)
        # The number of right answers is shown before the loss, too.
        counts = func.__name__ != "__bool__" and any(each.function in _EQUAL for each in made_of)
        is_shown = is_scalar and counts and len({each.is_output for each in sources}) == 2
        has_left = (is_left and not is_shown) or any(
            _selects(each) for each in made_of if each.function
        )
        read = (next(_NOW), _line()) if has_left else None
        for each in sources:
            each.batch.is_counted, each.read = each.batch.is_counted or is_size, each.read or read
            of_rows = node.function in _ROWS_DIVIDED or not count % max(1, each.shape[0])
            if each.batch.has_run or not of_rows:  # else it may take the place of the inputs
                each.batch.read = each.batch.read or read


def _selects(node: Node) -> bool:
    """Whether values decide how many numbers a function returns."""
    given, name = pytree.tree_leaves(node.args[1:]), getattr(node.function, "__name__", "")
    if any(isinstance(leaf, Node) and leaf.dtype == torch.bool for leaf in given):
        return name in ("__getitem__", "masked_select")
    return name in _SELECTIONS and not given


def _line() -> str:
    """The line of a loop that is running."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"].split(".")[0] in ("prudent", "torch"):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _is_shared(tensor: Any = None, *values: Any) -> bool:
    """Whether what is written to a tensor may be read from another, which has no note of it."""
    with DisableTorchFunctionSubclass():
        if not (type(tensor) is Tensor or isinstance(tensor, Traced)):
            return True
        if (is_part := tensor._is_view()) and node_of(tensor._base) is None:
            return True
        parts = is_part + sum(isinstance(x, Tensor) and x._base is tensor for x in values)
        return storage_uses(tensor.untyped_storage()._cdata) > 2 + parts


class Computed(Traced):
    """A tensor that was computed from the outputs of several records, or these outputs."""


def node_of(tensor: Any) -> Node | None:
    """How a tensor was made, if that is known."""
    return getattr(tensor, "_node", None) if isinstance(tensor, Traced) else None


def plain(tensor: Tensor) -> Tensor:
    """The tensor without any note."""
    with DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor) if isinstance(tensor, Traced) else tensor


def traced_batch(batch: Any) -> Any:
    """A batch of a loader, of which every tensor is noted as a source."""
    noted = functools.partial(as_outputs, batch=Batch(), is_output=False)
    return pytree.tree_map_only(Tensor, noted, batch)


def batch_of(tensors: Sequence[Tensor]) -> Batch | None:
    """The batch that tensors were made from; None if that is not known."""
    sources = [each for node in map(node_of, tensors) if node for each in _sources(node)]
    for each in sources:
        each.batch.read = each.batch.read or each.read  # which has not been replaced
    return next((each.batch for each in sources), None)


def as_outputs(
    tensor: Tensor,
    check: Callable[[Node], None] | None = None,
    batch: Batch | None = None,
    is_output: bool = True,
) -> Tensor:
    """A tensor with the records on its first axis as a source; one without axes stays.

    `check` is called with the node of the loss when backward is called; `batch` is that of the
    model's inputs.
    """
    if not tensor.ndim:
        return tensor
    with DisableTorchFunctionSubclass():
        shape, batch = tuple(tensor.shape), batch or Batch()
        node = Node(None, check, {}, None, shape, tensor.dtype, tensor.device, is_output, batch)
        node.batch.has_run |= is_output
        own = tensor.as_subclass(Tensor) if is_output else tensor
        return _with_node(own, Computed if is_output else Traced, node)


def _kind(func: Callable[..., Any], args: Any, kwargs: Any) -> type[Tensor]:
    """The class of what a function returns."""
    is_row = func in _ROWS_DIVIDED and (*args[1:], *kwargs.values()) in ((), (0,))
    is_row |= func is Tensor.__getitem__ and type(args[1]) is int
    if is_row and (node := node_of(args[0])) is not None and node.is_output:
        return Traced
    leaves = pytree.tree_leaves((args, kwargs))
    return Computed if any(isinstance(leaf, Computed) for leaf in leaves) else Traced


def _noted(result: Any, func: Any, args: Any, before: Any, kwargs: Any) -> Any:
    """The result of a function, whose tensors have nodes; `before` are `args` before the call."""
    first: Any = args[0] if args else None
    kind, linked = _kind(func, before, kwargs), _linked(before, kwargs)
    if _writes(func) and (type(first) is Tensor or isinstance(first, Traced)):
        _with_node(first, kind, Node(func, *linked))
        if (base := first._base) is not None and node_of(base):
            placed = node_of(base), node_of(first), first.stride(), first.storage_offset()
            _with_node(base, kind, Node(_put, placed))
    if any(result is leaf for leaf in pytree.tree_leaves((args, kwargs))):
        return result
    if isinstance(result, Tensor):
        if func is Tensor.detach and not result.ndim:
            return result  # kept to be shown, not to compute with
        if func is Tensor.div and type(args[-1]) is int and args[1:] == (1,) and not result.ndim:
            return first  # as trainers divide a loss by a number of parts
        return _with_node(result, kind, Node(func, *linked))
    if isinstance(result, tuple | list) and any(isinstance(part, Tensor) for part in result):
        parts = [
            _with_node(part, kind, Node(func, *linked, place)) if isinstance(part, Tensor) else part
            for place, part in enumerate(result)
        ]
        made_of: Any = type(result)
        return made_of(parts) if made_of in (tuple, list) else made_of(tuple(parts))
    return result


def _put(whole: Tensor, part: Tensor, stride: Any, offset: int) -> Tensor:
    """A tensor of which a part, which shares its memory, was written to."""
    whole = whole.clone()
    whole.as_strided(part.shape, stride, offset).copy_(part)
    return whole


def _with_node(tensor: Tensor, kind: type[Tensor], node: Node) -> Tensor:
    tensor.__class__ = kind
    tensor._node, node.dtype = node, tensor.dtype  # type: ignore[attr-defined]
    return tensor


def _writes(func: Any) -> bool:
    """Whether a function changes its first argument."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name == "__setitem__" or name in _IN_PLACE


_IN_PLACE = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "pow", "and", "or", "xor")}


def _linked(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments with nodes in place of tensors that have one."""
    return pytree.tree_map(lambda leaf: node_of(leaf) or leaf, (args, kwargs))  # type: ignore[no-any-return]


def _sources(node: Node) -> list[Node]:
    """The sources that a node was made from, each once."""
    return [each for each in _ordered(node) if each.function is None]


def _ordered(node: Node) -> list[Node]:
    """A node and all that it was made from, each after what it needs."""
    found: dict[int, Node] = {}
    waiting = [(node, False)]
    while waiting:
        each, is_done = waiting.pop()
        if id(each) in found:
            continue
        if is_done or each.function is None:
            found[id(each)] = each
            continue
        waiting.append((each, True))
        leaves = pytree.tree_leaves((each.args, each.kwargs))
        waiting += [(leaf, False) for leaf in leaves if isinstance(leaf, Node)]
    return list(found.values())


class Replay:
    """Runs again how a tensor was made, on made-up records."""

    def __init__(self, node: Node) -> None:
        self._nodes = _ordered(node)
        self._last = node
        self._sources = [each for each in self._nodes if each.function is None]
        self.given = [x for each in self._nodes for x in pytree.tree_leaves(each.args)]
        self.rows = self._sources[0].shape[0] if self._sources else 0
        self.counts = any(source.batch.is_counted for source in self._sources)
        self.is_random = False  # whether a run drew random numbers

    @property
    def signature(self) -> tuple[Any, ...]:
        """What the verdict depends on: the functions, what they are given, and plain arguments."""
        places = {id(each): place for place, each in enumerate(self._nodes)}

        def one(leaf: Any) -> Any:
            if isinstance(leaf, Node):
                return "of", places[id(leaf)]
            if self.counts and isinstance(leaf, Tensor) and not leaf.ndim:
                return float(leaf)
            return leaf if type(leaf) in _PLAIN else None

        leaves = (map(one, pytree.tree_leaves((n.args, n.kwargs))) for n in self._nodes)
        own = ((n.function, n.place, n.is_output, n.shape[1:]) for n in self._nodes)
        return tuple((*each, *given) for each, given in zip(own, leaves, strict=True))

    @property
    def read(self) -> str | None:
        """The line that read a value of the batch before the last function was called, if any."""
        last = max((each.made for each in self._nodes if each.function is not None), default=0)
        reads = (read for source in self._sources for read in (source.read, source.batch.read))
        return min((read for read in reads if read and read[0] < last), default=(0, None))[1]

    def run(self, rows: int, change: _Change | None = None) -> tuple[Tensor, list[Tensor]]:
        """The tensor for so many records, of which the first may be changed, and their outputs."""
        known: dict[int, Any] = {}
        outputs = []
        devices = [d for d in {s.device for s in self._sources} if d and d.type == "cuda"]
        with torch.random.fork_rng(devices), torch.enable_grad(), DisableTorchFunctionSubclass():
            torch.default_generator.manual_seed(0)  # torch.manual_seed formats the stack
            if devices:
                torch.cuda.manual_seed_all(0)
            drawn = torch.get_rng_state()
            for each in self._nodes:
                if each.function is None:
                    own = each.shape[0] if rows == self.rows else rows  # of a batch before, others
                    known[id(each)] = made = _made_up(each, own, change)
                    if each.is_output and made.is_floating_point():
                        outputs.append(made.requires_grad_())
                    continue
                args, kwargs = pytree.tree_map(
                    lambda leaf: self._scaled(leaf, known, rows), (each.args, each.kwargs)
                )
                if _writes(each.function):
                    known[id(each)] = args[0].clone()
                    each.function(known[id(each)], *args[1:], **kwargs)
                    continue
                run = _TOTAL.get(each.function) or _INDEXED.get(each.function, _checked)
                result: Any = run(each.function, tuple(args), kwargs)
                known[id(each)] = result if each.place is None else result[each.place]
            self.is_random |= not torch.equal(torch.get_rng_state(), drawn)
        return known[id(self._last)], outputs

    def _scaled(self, leaf: Any, known: dict[int, Any], rows: int) -> Any:
        if isinstance(leaf, Node):
            return known[id(leaf)]
        if rows == self.rows:
            return leaf
        if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == self.rows:
            return leaf[:rows]
        scaled = leaf * (rows / self.rows) ** power if (power := self.power(leaf)) else leaf
        return round(scaled) if type(leaf) is int else scaled

    def power(self, leaf: Any) -> int:
        """The power of the number of rows that a number is a multiple of, or one divided by it."""
        is_number = type(leaf) in (int, float) or (isinstance(leaf, Tensor) and not leaf.ndim)
        if not (self.counts and is_number and float(leaf)):
            return 0
        for value, sign in ((float(leaf), 1), (1 / float(leaf), -1)):
            times = abs(value) / self.rows
            if times >= 1 and abs(times - round(times)) < _SAME:
                widest = max(math.prod(source.shape[1:]) for source in self._sources)
                return sign * (2 if round(times) == self.rows > widest else 1)
        return 0

    def mixes(self, run: Callable[..., Sequence[Tensor]]) -> bool:
        """Whether a change of the first record changes what is run of another."""
        before = run(self.rows)
        for change in _CHANGES:
            with contextlib.suppress(Exception):  # such as a class that is out of range
                after = run(self.rows, change)
                if not all(_close(a[1:], b[1:], _SAME) for a, b in zip(before, after, strict=True)):
                    return True
        return False

    def gradients(self, rows: int, change: _Change | None = None) -> list[Tensor]:
        """The gradients of a loss with respect to the outputs that it uses."""
        loss, outputs = self.run(rows, change)
        found = torch.autograd.grad(loss.sum(), outputs, allow_unused=True)
        return [gradient for gradient in found if gradient is not None]


def _made_up(source: Node, rows: int, change: _Change | None) -> Tensor:
    shape = (rows, *source.shape[1:])
    places = torch.arange(max(1, torch.Size(shape).numel()), dtype=torch.float64)
    floating = source.dtype.is_floating_point
    # Values that are fit to be logits as well as probabilities, and classes 0 and 1.
    values = 0.5 + 0.4 * (places + 1).sin() if floating else places % 2
    made = values[: torch.Size(shape).numel()].view(shape).clone()
    if change is _ALIKE:
        made[:] = made[:1].clone()
    elif change is not None:
        made[0] = change[0 if floating else 1](made[0])
    return made.to(source.device, source.dtype)


def rows_are_mixed(node: Node) -> bool:
    """Whether a row of a tensor depends on a row of a source other than its own."""
    with contextlib.suppress(Exception):  # what cannot be run again is not judged
        replay = Replay(node)
        before = replay.run(replay.rows)[0]
        if replay.rows > 1 and before.ndim and len(before) == replay.rows:
            return replay.mixes(lambda *given: replay.run(*given)[:1])
    return False


def reduction_of(replay: Replay) -> str | None:
    """How a loss combines records: "mean", "sum" or why neither; None if that is not judged."""
    if replay.rows < 2:
        return None
    try:
        if replay.mixes(replay.gradients):
            return "mixed"
    except Exception:  # such as a matrix that is singular if records are made up
        return "unknown"
    with contextlib.suppress(Exception):  # what cannot be run on fewer records is not judged
        tensors = [x for x in replay.given if isinstance(x, Tensor) and x.ndim]
        if not (replay.is_random or any(len(x) == replay.rows for x in tensors)):
            alike = replay.gradients(replay.rows, _ALIKE)
            if not all(_close(each, each[:1].expand_as(each), _SAME) for each in alike):
                return "other"
        if replay.rows < _FEW and any(map(replay.power, replay.given)):
            return None  # a number may be that of so few rows, or may mean anything else
        few, many = (replay.gradients(rows) for rows in (2, 4))
        if any(bool(each.nan_to_num().any()) for each in few):
            for name, factor in (("mean", 0.5), ("sum", 1.0), ("other", 0.25), ("other", 2.0)):
                if all(_close(b[:2], factor * a) for a, b in zip(few, many, strict=True)):
                    return name
            if not replay.counts and not replay.is_random and replay.rows >= _FEW:
                return "other"
    return None


def _close(one: Tensor, other: Tensor, near: float = _NEAR) -> bool:
    one, other = one.detach().double(), other.detach().double()
    largest = float(other.nan_to_num(0, 0, 0).abs().amax())
    return torch.allclose(one, other, rtol=0, atol=near * largest, equal_nan=True)


_NEITHER = {
    "mixed": "one in which the gradient of a record depends on other records",
    "other": "one in which the gradient of a record depends on their number or its place",
    "unknown": "one that fails on records that are made up to judge it",
}


def _neither(shown: str) -> ArgumentError:
    return ArgumentError(
        "loss",
        "to be a mean or a sum over the records",
        shown=shown,
        why="a sum of class weights, or a choice of the hardest records, depends on all of them",
        hint="Use reduction='none' and then .mean().",
    )


def check_inputs(tensors: Sequence[Tensor], judged: dict[Any, int]) -> None:
    """Raise an error if a row of the model's inputs comes from several records of the batch.

    `judged` has signatures that need not be judged again; more are added.
    """
    for tensor in tensors:
        node = node_of(tensor)
        if node is None or node.function is None or not _sources(node):
            continue
        signature = Replay(node).signature
        if signature in judged:
            continue
        if rows_are_mixed(node):
            name = getattr(node.function, "__name__", "a function")
            raise ArgumentError(
                "model",
                "to be called with inputs of which each row comes from one record",
                shown=f"rows that are mixed by {name.strip('_')}",
                why="one record would change the gradients of others",
                hint="Leave out mixup, statistics of the batch and the like, or mix public records "
                "into each item of the data set.",
            )
        judged[signature] = 0


def check_loss(node: Node, declared: str, judged: dict[Any, int]) -> None:
    """Raise an error if a loss is not the declared mean or sum of terms of single records."""
    replay = Replay(node)
    if replay.read:
        raise ArgumentError(
            "loss",
            "to be complete before a value of the batch is read",
            shown=f"one that was computed after {replay.read} had read one",
            why="what item(), numpy() or `if x.max() > 5` reads is not followed, and what is then "
            "computed may depend on all records",
            hint="Choose with torch.where, give torch.distributions validate_args=False, and read "
            "what you show after backward().",
        )
    signature, rows = replay.signature, replay.rows
    # What stays the same with another number of rows is not that number.
    replay.counts &= judged.setdefault((signature, "counted"), rows) == rows
    if signature in judged:
        return
    found = reduction_of(replay)
    if found in _NEITHER:
        raise _neither(_NEITHER[found])
    if found is not None and found != declared:
        raise ArgumentError(
            "loss_reduction",
            f"{found!r}, which the loss is",
            got=declared,
            why="the gradient of each record would depend on how many others were drawn",
            hint=f"Pass loss_reduction={found!r} to make_private, or use reduction={declared!r} in "
            "the loss.",
        )
    is_final = found is not None or rows >= _FEW  # too few may be why it could not be judged
    if is_final and not replay.counts:  # a public number may be that of rows by chance
        judged[signature] = rows


def _with_public_divisor(
    loss: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """The loss, of which a mean is divided by the number of labels, ignored or not.

    Labels out of range are ignored: the error that they would be stops the loop, and quotes them.
    """
    given = _LOSSES[loss].bind(*args, **kwargs)
    given.apply_defaults()
    named = given.arguments
    scores, target = named["input"], named["target"]
    if not target.is_floating_point():
        outside = (target < 0) | (target >= scores.shape[min(1, scores.ndim - 1)])
        named["target"] = torch.where(outside, named["ignore_index"], target.long())
    old = named["size_average"], named["reduce"]
    if (named["reduction"] != "mean" and old == (None, None)) or False in old:
        return loss(*given.args, **given.kwargs)
    if named["weight"] is not None:
        raise _neither("a mean with class weights")
    if target.is_floating_point():  # probabilities: none is ignored
        return loss(*args, **kwargs)
    named["size_average"] = named["reduce"] = None
    named["reduction"] = "sum"
    return loss(*given.args, **given.kwargs) / max(1, target.numel())  # type: ignore[no-any-return]


def _with_probabilities(
    loss: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """The loss, of which what is no probability has no gradient: its error would stop the loop."""
    named = dict(zip(("input",), args, strict=False)) | kwargs
    scores = named.pop("input")
    inside = (scores >= 0) & (scores <= 1)
    return loss(torch.where(inside, scores, 0.5), *args[1:], **named)


def _checked(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function returns; an error that quotes an index is replaced by another."""
    try:
        return function(*args, **kwargs)
    except (IndexError, RuntimeError) as error:
        _note_read(Tensor.item, args, kwargs)  # by a loop that goes on
        if "out of" not in str(error) and "Class values" not in str(error):
            raise
    raise ValueError(
        f"Expected indices in range for {function.__name__}, got others, such as labels of records "
        "that have none. functional.cross_entropy, torch.gather and weights[labels] leave them out."
    )


def _indexed(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Indexing, of which what is out of range has no gradient: its error would stop the loop."""
    named = dict(zip(("input", "dim", "index"), args, strict=False)) | kwargs
    if is_item := function is Tensor.__getitem__:
        items = args[1] if isinstance(args[1], tuple) else (args[1],)
    else:
        items = (named["index"],)
    sizes = args[0].shape if is_item else (named["input"].shape[named["dim"]],)
    pairs = [(x, n) for x, n in zip(items, sizes, strict=False) if _is_index(x)]
    if not pairs or not all(type(item) is int or _is_index(item) for item in items):
        return _checked(function, args, kwargs)
    wrong = ((x < (-n if is_item else 0)) | (x >= n) for x, n in pairs)
    outside: Tensor = functools.reduce(torch.logical_or, wrong)
    taken = tuple(torch.where(outside, 0, x) if _is_index(x) else x for x in items)
    result = args[0][taken] if is_item else function(named["input"], named["dim"], *taken)
    outside = outside.view(*outside.shape, *[1] * (result.ndim - outside.ndim))
    # Integers are labels, of which this one is ignored.
    return result.masked_fill(outside, torch.nan if result.is_floating_point() else -100)


def _is_index(item: Any) -> bool:
    return isinstance(item, Tensor) and item.dtype in (torch.int64, torch.int32)


def _one_hot(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Zeros for what is no class, if the number of classes is given."""
    classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    places = torch.arange(max(0, classes), device=args[0].device)
    return (
        (args[0][..., None] == places).long() if classes > 0 else _checked(function, args, kwargs)
    )


_INDEXED: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.gather, Tensor.gather, Tensor.__getitem__), _indexed),
    functional.one_hot: _one_hot,
}
_TOTAL = dict.fromkeys(_LOSSES, _with_public_divisor) | {
    functional.binary_cross_entropy: _with_probabilities
}
"""Losses that one record could make fail, or change the divisor of, and what takes their place."""
