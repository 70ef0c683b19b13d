"""What a training loop does with the records of a batch, checked without running it again.

A loop is private only if each row of the model's inputs comes from one record, and the loss is a
mean or a sum, as declared, of terms that each depend on one record. Mixup or class weights in a
mean break it: then one record moves the gradients of all others. So the tensors of a batch, and the
outputs of the model, note which functions they go through. These are run again on made-up records,
of which one is changed: nothing about the others may change. With fewer records, the gradient of
each must change as a mean or a sum prescribes. The verdict depends on the code and the number of
records, never on their values. What cannot be run again is not judged. Once a loop has read a value
of a batch (`item()`, `numpy()`), no number from elsewhere in the loss may change from step to step
or, at first, have many digits.

A mean with ignored labels, which every `cross_entropy` is by default (`ignore_index=-100`), is
divided by the number of all labels: then no term depends on another record.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from numbers import Number
from typing import Any, TypeVar

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from prudent._torch_private import DisableTorchFunctionSubclass, pytree
from prudent._validate import ArgumentError

_LOSSES = {
    functional.cross_entropy: inspect.signature(functional.cross_entropy),
    functional.nll_loss: inspect.signature(functional.nll_loss),
}
_Answer = TypeVar("_Answer")
_SAME, _NEAR = 1e-6, 1e-3  # differences of runs of one shape, and of two
_FEW = 8  # so small a number may mean anything, such as a power or an axis
_Change = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
"""What is changed of floating-point numbers, and of integers."""


def _alternating(row: Tensor) -> Tensor:
    return (0.01 + 0.98 * (torch.arange(row.numel()) % 2)).view(row.shape)


def _other(row: Tensor) -> Tensor:
    return 1 - row


# Of the first record. The second and third give it, one or the other, the largest and the smallest
# term, by which a loss may select the records that count; then beyond any threshold. The last
# three are classes that no other record has, and a record whose outputs are not numbers.
_CHANGES: tuple[_Change, ...] = (
    (lambda row: 0.97 - 0.05 * row, _other),
    (_alternating, _other),
    (lambda row: 1.0 - _alternating(row), _other),
    (lambda row: 40 * _alternating(row) - 20, _other),
    (lambda row: 20 - 40 * _alternating(row), _other),
    (lambda row: 0.97 - 0.05 * row, lambda row: row + 2),
    (lambda row: 0.97 - 0.05 * row, lambda row: row - 2),
    (lambda row: torch.full_like(row, torch.nan), _other),
)
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device)


@attrs.define
class Batch:
    """What a loop has done with a batch as a whole, whichever tensor of it."""

    is_counted: bool = False  # whether the number of its rows was read
    is_read: bool = False  # whether a value, or a number that depends on values, left torch


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


class Traced(Tensor):
    """A tensor like any other, with a note of how it was made from the records of a batch."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call `func` on ordinary tensors, and note what it did."""
        kwargs = kwargs or {}
        _note_read(func, args)
        if func in (Tensor.__format__, Tensor.__repr__):
            return func(plain(args[0]), *args[1:], **kwargs)
        if func is Tensor.backward:
            node = node_of(args[0])
            given = args[1] if len(args) > 1 else kwargs.get("gradient")
            if node is not None:
                if given is not None:
                    node = Node(torch.mul, *_linked((args[0], given), {}))
                check = next((n.args for n in _sources(node) if n.is_output), None)
                if check is not None:
                    check(node)
        if func is Tensor.register_hook:
            args = args[0], _looking(args[1])
        with DisableTorchFunctionSubclass():
            if func in _TOTAL and isinstance(args[0] if args else kwargs.get("input"), Computed):
                result = _TOTAL[func](func, args, kwargs)
            else:
                result = func(*args, **kwargs)
            return _noted(result, _kind(func, args, kwargs), func, args, kwargs)


def _looking(hook: Callable[[Tensor], Any]) -> Callable[[Tensor], None]:
    """A hook that may look at a gradient: a change of it is not in the loss that is judged."""

    @functools.wraps(hook)
    def look(gradient: Tensor) -> None:
        given = gradient.clone()
        returned = hook(given)
        if given._version or not (returned is None or returned is given):
            raise ArgumentError(
                "loss",
                "to have the gradients that backward() computes",
                shown="a hook that changes them",
                why="whether the gradient of a record depends on others cannot be checked",
                hint="Let the hook return None, and leave clipping to the step.",
            )

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


def _note_read(func: Callable[..., Any], args: Any) -> None:
    """Note in the batch of a tensor that its size or its values are read on the host."""
    is_size, is_read = func in _SIZES, func.__name__ in _READS
    if not (is_size or is_read or func is Tensor.detach):
        return
    for tensor in args[:2]:
        if (node := node_of(tensor)) is None:
            continue
        with DisableTorchFunctionSubclass():
            count, is_scalar = tensor.numel(), not tensor.ndim
        for source in _sources(node) if is_size or is_read or is_scalar else ():
            source.batch.is_counted |= is_size
            # A scalar is detached to be shown, and has no node from then on; and which records are
            # selected decides a size that is no multiple of the rows.
            is_part = bool(count % max(1, source.shape[0]))
            source.batch.is_read |= is_read or (is_part if is_size else is_scalar)


class Computed(Traced):
    """A tensor that was computed from the outputs of several records."""


class RecordOutputs(Computed):
    """Outputs with the records on the first axis. One row of them is no longer `Computed`."""


def node_of(tensor: Any) -> Node | None:
    """How a tensor was made, if that is known."""
    return getattr(tensor, "_node", None) if isinstance(tensor, Traced) else None


def plain(tensor: Tensor) -> Tensor:
    """The tensor without any note."""
    with DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor) if isinstance(tensor, Traced) else tensor


def traced_batch(batch: Any) -> Any:
    """A batch of a loader, of which every tensor is noted as a source."""
    noted = Batch()
    return pytree.tree_map_only(Tensor, lambda t: as_outputs(t, None, noted, Traced), batch)


def batch_of(tensors: Sequence[Tensor]) -> Batch | None:
    """The batch that tensors were made from; None if that is not known."""
    nodes = filter(None, map(node_of, tensors))
    return next((source.batch for node in nodes for source in _sources(node)), None)


def as_outputs(
    tensor: Tensor,
    check: Callable[[Node], None] | None = None,
    batch: Batch | None = None,
    kind: type[Tensor] = RecordOutputs,
) -> Tensor:
    """A tensor with the records on its first axis as a source; one without axes stays.

    `check` is called with the node of the loss when backward is called; `batch` is that of the
    model's inputs.
    """
    if not tensor.ndim:
        return tensor
    with DisableTorchFunctionSubclass():
        shape = tuple(tensor.shape)
        is_output = issubclass(kind, RecordOutputs)
        node = Node(None, check, {}, None, shape, tensor.dtype, tensor.device, is_output)
        if batch is not None:
            node.batch = batch
        return _with_node(tensor, kind, node)


def _kind(func: Callable[..., Any], args: Any, kwargs: Any) -> type[Tensor]:
    """The class of what a function returns."""
    first = args[0] if args else None
    if not any(isinstance(leaf, Computed) for leaf in pytree.tree_leaves((args, kwargs))):
        return Traced
    if not isinstance(first, RecordOutputs):
        return Computed
    if func in _ROWS_KEPT or (func is Tensor.__getitem__ and _keeps_rows(first, args[1])):
        return RecordOutputs
    if func in _ROWS_DIVIDED and (*args[1:], *kwargs.values()) in ((), (0,)):
        return Traced
    return Traced if func is Tensor.__getitem__ and type(args[1]) is int else Computed


_ROWS_KEPT = {
    functional.log_softmax,
    torch.log_softmax,
    Tensor.log_softmax,
    Tensor.contiguous,
    Tensor.double,
    Tensor.float,
    Tensor.to,
}
_ROWS_DIVIDED = {Tensor.unbind, torch.unbind}  # also by iterating


def _keeps_rows(outputs: Tensor, index: Any) -> bool:
    """Whether an index keeps the whole first axis."""
    if not isinstance(index, tuple) or not index:
        return False
    first, *rest = index
    if not all(type(part) in (int, slice) for part in rest):
        return False
    return (
        len(rest) < outputs.ndim if first is ... else type(first) is slice and first == slice(None)
    )


def _noted(result: Any, kind: type[Tensor], func: Any, args: Any, kwargs: Any) -> Any:
    """The result of a function, whose tensors have nodes."""
    first = args[0] if args else None
    if isinstance(first, Traced) and _writes(func) and node_of(first) is not None:
        first._node = Node(func, *_linked(args, kwargs))  # type: ignore[attr-defined]
        return result
    if isinstance(result, Tensor):
        if func is Tensor.detach and not result.ndim:
            return result.as_subclass(Tensor)  # kept to be shown, not to compute with
        return _with_node(result, kind, Node(func, *_linked(args, kwargs)))
    if isinstance(result, tuple | list) and any(isinstance(part, Tensor) for part in result):
        linked = _linked(args, kwargs)
        parts = [
            _with_node(part, kind, Node(func, *linked, place)) if isinstance(part, Tensor) else part
            for place, part in enumerate(result)
        ]
        made_of: Any = type(result)
        return made_of(parts) if made_of in (tuple, list) else made_of(tuple(parts))
    return result


def _with_node(tensor: Tensor, kind: type[Tensor], node: Node) -> Tensor:
    found = tensor.as_subclass(kind)
    found._node = node  # type: ignore[attr-defined]
    return found


def _writes(func: Any) -> bool:
    """Whether a function changes its first argument."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name == "__setitem__" or (name.startswith("__i") and name in _IN_PLACE)


_IN_PLACE = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "pow", "and", "or", "xor")}


def _linked(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments with nodes in place of tensors that have one."""

    def one(leaf: Any) -> Any:
        node = node_of(leaf)
        return leaf if node is None else node

    linked: tuple[Any, Any] = pytree.tree_map(one, (args, kwargs))
    return linked


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
        self.rows = self._sources[0].shape[0] if self._sources else 0
        self.counts = any(source.batch.is_counted for source in self._sources)
        self.is_read = any(source.batch.is_read for source in self._sources)
        self.is_random = False  # whether a run drew random numbers

    @property
    def signature(self) -> tuple[Any, ...]:
        """What the verdict depends on: the functions, and their plain arguments."""

        def values(node: Node) -> tuple[Any, ...]:
            leaves = pytree.tree_leaves((node.args, node.kwargs))
            if self.counts:
                leaves = [float(x) if isinstance(x, Tensor) and not x.ndim else x for x in leaves]
            return tuple(leaf for leaf in leaves if type(leaf) in _PLAIN)

        return tuple((n.function, values(n)) for n in self._nodes if n.function is not None)

    @property
    def constants(self) -> tuple[tuple[Any, ...], list[Any]]:
        """The functions, and the numbers and tensors that they were given from elsewhere."""
        made = [node for node in self._nodes if node.function is not None]
        leaves = [leaf for n in made for leaf in pytree.tree_leaves((n.args, n.kwargs))]
        found = [leaf for leaf in leaves if isinstance(leaf, Number | Tensor | np.ndarray)]
        kinds = tuple(node.function for node in made), len(found)
        return kinds, [x.detach().clone() if isinstance(x, Tensor) else x for x in found]

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
                    known[id(each)] = made = _made_up(each, rows, change)
                    if each.is_output and made.is_floating_point():
                        outputs.append(made.requires_grad_())
                    continue
                args, kwargs = pytree.tree_map(
                    lambda leaf: self._given(leaf, known, rows), (each.args, each.kwargs)
                )
                if _writes(each.function):
                    known[id(each)] = args[0].clone()
                    each.function(known[id(each)], *args[1:], **kwargs)
                    continue
                if each.function in _TOTAL:
                    result: Any = _TOTAL[each.function](each.function, tuple(args), kwargs)
                else:
                    result = each.function(*args, **kwargs)
                known[id(each)] = result if each.place is None else result[each.place]
            self.is_random |= not torch.equal(torch.get_rng_state(), drawn)
        return known[id(self._last)], outputs

    def _given(self, leaf: Any, known: dict[int, Any], rows: int) -> Any:
        if isinstance(leaf, Node):
            return known[id(leaf)]
        if rows == self.rows:
            return leaf
        if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == self.rows:
            return leaf[:rows]
        power = self._counts_rows(leaf)
        if power:  # a number of rows, or of what is in them, or one divided by it
            return leaf // self.rows * rows if power > 0 else leaf * self.rows / rows
        return leaf

    def _counts_rows(self, leaf: Any) -> int:
        """1 for a multiple of the number of rows, −1 for one divided by one, else 0."""
        is_number = type(leaf) in (int, float) or (isinstance(leaf, Tensor) and not leaf.ndim)
        if not (self.counts and is_number and float(leaf)):
            return 0
        if float(leaf) % self.rows == 0:
            return 1
        inverse = 1 / float(leaf) / self.rows
        return -1 if inverse >= 1 and abs(inverse - round(inverse)) < _SAME else 0

    @property
    def is_ambiguous(self) -> bool:
        """Whether a number may be that of so few rows, or may mean anything else."""
        leaves = (leaf for each in self._nodes for leaf in pytree.tree_leaves(each.args))
        return self.rows < _FEW and any(map(self._counts_rows, leaves))

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
    if change is not None:
        made[0] = change[0 if floating else 1](made[0])
    return made.to(source.device, source.dtype)


def _each_change(run: Callable[[_Change], _Answer]) -> Iterator[_Answer]:
    """What a function returns for each change that it accepts."""
    for change in _CHANGES:
        try:
            answer = run(change)
        except Exception:  # such as a class that is out of range
            continue
        yield answer


def rows_are_mixed(node: Node) -> bool:
    """Whether a row of a tensor depends on a row of a source other than its own."""
    try:
        replay = Replay(node)
        if replay.rows < 2:
            return False
        before = replay.run(replay.rows)[0]
        if not before.ndim or len(before) != replay.rows:
            return False
        changed = _each_change(lambda change: replay.run(replay.rows, change)[0])
        return any(not _close(before[1:], after[1:], _SAME) for after in changed)
    except Exception:  # what cannot be run again is not judged
        return False


def reduction_of(replay: Replay) -> str | None:
    """How a loss combines records: "mean", "sum", "mixed" or "other"; None if that is unknown."""
    try:
        if replay.rows < 2:
            return None
        before = replay.gradients(replay.rows)
        for after in _each_change(lambda change: replay.gradients(replay.rows, change)):
            if not all(_close(a[1:], b[1:], _SAME) for a, b in zip(before, after, strict=True)):
                return "mixed"
        if replay.is_ambiguous:
            return None
        few, many = (replay.gradients(rows) for rows in (2, 4))
        for name, factor in (("mean", 0.5), ("sum", 1.0)):
            pairs = list(zip(few, many, strict=True))
            if any(bool(a.nan_to_num().any()) for a in few) and all(
                _close(b[:2], factor * a) for a, b in pairs
            ):
                return name
        is_simple = not replay.counts and not replay.is_random and replay.rows >= _FEW
        if is_simple and any(bool(a.nan_to_num().any()) for a in few):
            return "other"
    except Exception:  # what cannot be run again is not judged
        pass
    return None


def _close(one: Tensor, other: Tensor, near: float = _NEAR) -> bool:
    one, other = one.detach().double(), other.detach().double()
    largest = float(other.nan_to_num(0, 0, 0).abs().amax())
    return torch.allclose(one, other, rtol=0, atol=near * largest, equal_nan=True)


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
    _check_constants(replay, judged)
    signature, rows = replay.signature, replay.rows
    # What stays the same with another number of rows is not that number.
    replay.counts &= judged.setdefault((signature, "counted"), rows) == rows
    if signature in judged:
        return
    found = reduction_of(replay)
    if found == "mixed":
        raise ArgumentError(
            "loss",
            "to be a mean or a sum over the records",
            shown="one in which the gradient of a record depends on other records",
            why="a divisor such as the sum of class weights depends on the labels of all records, "
            "and so does a choice of the records that count, such as the hardest ones",
            hint="Use reduction='none' and then .mean().",
        )
    if found == "other":
        raise ArgumentError(
            "loss",
            "to be a mean or a sum over the records",
            shown="one in which the gradient of a record depends on their number or its place",
            why="one record would change the gradients of others",
            hint="Use reduction='none' and then .mean().",
        )
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


def _check_constants(replay: Replay, judged: dict[Any, Any]) -> None:
    """Raise an error for a number in a loss that a loop may have computed from values it read."""
    functions, constants = replay.constants
    rows, before = judged.get(functions, (0, []))
    judged[functions] = replay.rows, constants
    if not replay.is_read:
        return
    if rows:
        pairs = zip(constants, before, strict=True)
        is_public = all(_is_same(one, other, replay.rows / rows) for one, other in pairs)
    else:
        is_public = all(_is_simple(torch.as_tensor(each), replay.rows) for each in constants)
    if not is_public:
        raise ArgumentError(
            "loss",
            "to be computed from the model's outputs by torch functions alone",
            shown="one with numbers or tensors from elsewhere, after values of the batch were read",
            why="what item(), float() or numpy() returns is not followed, and a number computed "
            "from it may depend on all records",
            hint="Compute the loss with tensors, and read what you show after backward().",
        )


def _is_simple(constant: Tensor, rows: int) -> bool:
    """Whether a tensor of rows are integers, or another has few digits as a number in code has."""
    if not constant.is_floating_point():
        return not constant.is_complex()
    values = constant.double().flatten()
    values = values[values.isfinite() & (values != 0)]
    digits = 10.0 ** (3 - values.abs().log10().floor())
    short = (values * digits).round() / digits
    inverse = 1 / values / max(1, rows)  # of a number of rows
    counts = (inverse > 0.5) & ((inverse - inverse.round()).abs() < _SAME)
    return bool((((short - values).abs() <= _SAME * values.abs()) | counts).all())


def _is_same(one: Any, other: Any, ratio: float) -> bool:
    """Whether constants of two steps are the same, or in the ratio of the rows or its inverse."""
    one, other = torch.as_tensor(one), torch.as_tensor(other)
    if one.ndim != other.ndim or one.shape[1:] != other.shape[1:]:
        return False
    if not one.ndim:
        factors = 1.0, ratio, 1 / ratio
        return any(math.isclose(one, other * factor, rel_tol=_SAME) for factor in factors)
    few = min(len(one), len(other))
    # Integers are labels of rows, or places.
    return not one.is_floating_point() or torch.equal(one[:few], other[:few])


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
        raise ArgumentError(
            "loss",
            "to be a mean or a sum over the records",
            shown="a mean with class weights",
            why="it is divided by a number that depends on the labels of all records",
            hint="Use reduction='none' and then .mean().",
        )
    if target.is_floating_point():  # probabilities: none is ignored
        return loss(*args, **kwargs)
    named["size_average"] = named["reduce"] = None
    named["reduction"] = "sum"
    labels: int = max(1, target.numel())
    return loss(*given.args, **given.kwargs) / labels


def _with_probabilities(
    loss: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """The loss, of which what is no probability has no gradient: its error would stop the loop."""
    named = dict(zip(("input",), args, strict=False)) | kwargs
    scores = named.pop("input")
    inside = (scores >= 0) & (scores <= 1)
    return loss(torch.where(inside, scores, 0.5), *args[1:], **named)


_TOTAL = dict.fromkeys(_LOSSES, _with_public_divisor) | {
    functional.binary_cross_entropy: _with_probabilities
}
"""Losses that one record could make fail, or change the divisor of, and what takes their place."""
