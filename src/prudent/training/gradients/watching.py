"""Interception of the torch functions that a model calls on one record at a time.

Functions that reject some values become total, because one odd record must not stop a run: a class
index out of range, a token outside the table. The kernels behind them raise an error that quotes
the value, or on a GPU end the process. Here the value is replaced by an allowed one and the result
becomes NaN for this record alone, as each is a separate call under vmap: its gradient counts as 0.
Other functions are opened or decomposed so that book-keeping sees what they call, and Hugging Face
models are told that the values of a record cannot be branched on.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from prudent._torch_private import (
    fused_weight_norm,
    is_record,
    nested_tensor_from_mask_left_aligned,
)
from prudent.training.gradients.factors.contributions import histogram, one_by_one
from prudent.training.gradients.factors.rules import GROUPED, RECURRENT
from prudent.training.gradients.host_state import EscapedTensorGuard
from prudent.training.gradients.record_streams import (
    RANDOM,
    Draws,
    followed_branches,
    is_capturing,
    shared_choice,
)


def _projected(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None = None
) -> list[Tensor]:
    """Queries, keys and values; slices of the joint weight would be derived tensors.

    So each input is multiplied by the whole weight, and what is not needed of it is cut off.
    """
    products: dict[int, Tensor] = {}
    parts = []
    for place, values in enumerate((query, key, value)):
        if id(values) not in products:
            products[id(values)] = functional.linear(values, weight, bias)
        parts.append(products[id(values)].chunk(3, -1)[place].contiguous())
    return parts


def _opened(function: Callable[..., Any], **changed: Any) -> Callable[..., Any]:
    """The function with other global names, and without the hook by which a mode intercepts it."""
    plain = cast(FunctionType, function)
    names = {**plain.__globals__, "has_torch_function": lambda _: False, **changed}
    copy = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__)
    copy.__kwdefaults__ = plain.__kwdefaults__
    return copy


OPENED: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.multi_head_attention_forward: _opened(
        functional.multi_head_attention_forward, _in_projection_packed=_projected
    )
}
"""Maps a function that a mode sees as one to a version that shows the mode what it calls."""

Call = Callable[..., Any]


def _classes(call: Call, input: Tensor, target: Tensor, *rest: Any, **options: Any) -> Any:
    if target.is_floating_point() or not is_record(target):
        return call(input, target, *rest, **options)
    ignored = rest[2] if len(rest) > 2 else options.get("ignore_index", -100)
    outside = _outside(target, 0, input.shape[min(1, input.ndim - 1)]) & (target != ignored)
    return _spoiled(call(input, _replaced(target, outside, 0), *rest, **options), outside)


def _probabilities(call: Call, input: Tensor, *rest: Any, **options: Any) -> Any:
    if not is_record(input):
        return call(input, *rest, **options)
    outside = ~((input >= 0) & (input <= 1))
    return _spoiled(call(_replaced(input, outside, 0.5), *rest, **options), outside)


def _rows(call: Call, input: Tensor, weight: Tensor, *rest: Any, **options: Any) -> Any:
    # The gradient of one record is never a sparse tensor: vmap has none.
    rest, options = rest[:4], {**options, "sparse": False}
    if not is_record(input):
        return call(input, weight, *rest, **options)
    allowed = input.clamp(0, weight.shape[0] - 1)
    return _spoiled(call(allowed, weight, *rest, **options), allowed != input)


def _along(call: Call, input: Tensor, dim: int, index: Tensor, *rest: Any, **options: Any) -> Any:
    if not is_record(index):
        return call(input, dim, index, *rest, **options)
    once = _once(index)
    allowed = once.clamp(0, (input.shape[dim] if input.ndim else 1) - 1)
    result = call(input, dim, allowed.expand(index.shape), *rest, **options)
    spoiled = _spoiled(result, allowed != once)
    return input.copy_(spoiled) if result is input else spoiled  # written to in place, or new


def _taken(call: Call, input: Tensor, indices: Tensor, dim: int | None = None) -> Any:
    if dim is None:
        return _along(lambda i, _, index: call(i, index), input.flatten(), 0, indices.flatten())
    return _along(lambda i, axis, index: call(i, index, axis), input, dim, indices)


def _flat(call: Call, input: Tensor, index: Tensor) -> Any:
    return _item(call, input.flatten(), index)


def _once(values: Tensor) -> Tensor:
    """The values without those that are only repeated because a tensor was expanded."""
    for axis, step in enumerate(values.stride()):
        if step == 0 and values.shape[axis] > 1:
            values = values.narrow(axis, 0, 1)
    return values


def _item(call: Call, input: Tensor, index: Any) -> Any:
    """Indexing, where negative indices count from the end."""
    items = list(index) if isinstance(index, tuple) else [index]
    taken = [_axes(item) for item in items]
    wrong, axis = [], 0
    for place, item in enumerate(items):
        if item is Ellipsis:
            axis = input.ndim - sum(taken[place + 1 :])
            continue
        if isinstance(item, Tensor) and is_record(item) and item.dtype != torch.bool:
            outside = _outside(item, -input.shape[axis], input.shape[axis])
            items[place] = _replaced(item, outside, 0)
            wrong.append(outside.any())
        axis += taken[place]
    if not wrong:
        return call(input, index)
    result = call(input, tuple(items) if isinstance(index, tuple) else items[0])
    return _spoiled(result, torch.stack(wrong))


def _axes(item: Any) -> int:
    """The number of tensor axes that one part of an index consumes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.ndim if isinstance(item, Tensor) and item.dtype == torch.bool else 1


def _outside(values: Tensor, least: int, end: int) -> Tensor:
    return (values < least) | (values >= end)


def _replaced(values: Tensor, outside: Tensor, allowed: float) -> Tensor:
    return torch.where(outside, torch.full_like(values, allowed), values)


def _spoiled(result: Tensor, outside: Tensor) -> Tensor:
    """The result, NaN if any value was outside; integers, which have no gradient, are unchanged."""
    if not result.is_floating_point():
        return result
    any_ = outside.any()
    return result * torch.ones_like(any_, dtype=result.dtype).masked_fill(any_, torch.nan)


_BY_INDEX: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), _along),
    **dict.fromkeys(("index_add", "index_copy", "index_fill", "index_select"), _along),
    "take": _flat,
    "take_along_dim": _taken,
}

DOMAINS: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.cross_entropy: _classes,
    functional.nll_loss: _classes,
    functional.binary_cross_entropy: _probabilities,
    functional.embedding: _rows,
    # Whether padding is at the end; of a record False, which only makes torch keep the mask.
    nested_tensor_from_mask_left_aligned: lambda call, values, mask: (
        not is_record(mask) and call(values, mask)
    ),
    Tensor.__getitem__: _item,
    **{
        getattr(place, name): _BY_INDEX[name.rstrip("_")]  # also those in place
        for place in (torch, Tensor)
        for name in dir(place)
        if name.rstrip("_") in _BY_INDEX
    },
}
"""Maps each function to its total version, whose first argument calls the original function."""


def embedding_bag(call: Call, input: Tensor, weight: Tensor, *rest: Any, **options: Any) -> Tensor:
    """Bags of equal size, the rows of a matrix of tokens, reduced as torch does."""
    if not is_record(input):
        result: Tensor = call(functional.embedding_bag, input, weight, *rest, **options)
        return result
    given = _BAG.bind(input, weight, *rest, **options)
    given.apply_defaults()
    _, _, offsets, *settings, mode, _, per_sample_weights, _, padding_idx = given.args
    if input.ndim != 2 or offsets is not None:
        raise ValueError(
            "Expected the bags of torch.nn.EmbeddingBag as a matrix of tokens, one row per bag, "
            "got offsets, which differ from record to record. Pad the bags to equal size and set "
            "padding_idx."
        )
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    rows: Tensor = _rows(partial(call, functional.embedding), input, weight, padding_idx, *settings)
    if per_sample_weights is not None:
        weighted: Tensor = call(torch.mul, rows, per_sample_weights[..., None])
        rows = weighted
    if padding_idx is None:
        return rows.amax(1) if mode == "max" else rows.mean(1) if mode == "mean" else rows.sum(1)
    counted = (input != padding_idx).long()
    inside = counted.bool()[..., None]
    if mode == "max":
        largest = rows.masked_fill(~inside, -torch.inf).amax(1)
        return torch.where(inside.any(1), largest, 0)
    total = torch.where(inside, rows, 0).sum(1)
    return total / counted.sum(1, keepdim=True).clamp_min(1) if mode == "mean" else total


_BAG = inspect.signature(functional.embedding_bag)


def placed_number(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that puts a number of the host on a device, as a kernel that a graph can repeat.

    A graph cannot copy from the host. What a model computes there follows from shapes and its
    state, which a graph is made for.
    """

    def place(call: Callable[..., Any], value: Any, *args: Any, **options: Any) -> Any:
        given = (*args, *options.values())
        if isinstance(value, Tensor) and is_record(value) and function is torch.tensor:
            return value.clone().to(**options)
        wanted: Any = next((each for each in given if isinstance(each, torch.device | str)), None)
        if wanted is None and function is Tensor.cuda:
            wanted = "cuda"
        is_number = type(value) in (bool, int, float) or (
            isinstance(value, Tensor) and value.is_cpu and not value.ndim
        )
        if not is_number or wanted is None or not is_capturing():
            return call(function, value, *args, **options)
        number = torch.as_tensor(value)
        dtype = next((each for each in given if isinstance(each, torch.dtype)), number.dtype)
        return torch.full((), number.item(), dtype=dtype, device=wanted)

    return place


def masked_put(call: Callable[..., Any], input: Tensor, index: Any, value: Any) -> None:
    """`input[index] = value`; where a record's mask is the index, vmap does not know how many."""
    if not (isinstance(index, Tensor) and index.dtype == torch.bool and is_record(index)):
        call(Tensor.__setitem__, input, index, value)
        return
    mask = index.reshape(*index.shape, *[1] * (input.ndim - index.ndim))
    input.copy_(call(torch.where, mask, value, input))


def weight_norm(call: Callable[..., Any], v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """As a product: the fused one is carried back record by record."""
    axes = [axis for axis in range(v.ndim) if axis != dim]  # all of them where it is -1
    lengths: Tensor = call(torch.linalg.vector_norm, v, dim=axes, keepdim=True)
    weight: Tensor = call(torch.mul, v, call(torch.div, g, lengths))
    return weight


DECOMPOSED: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.embedding_bag: embedding_bag,
    Tensor.__setitem__: masked_put,
    torch.histc: histogram,
    Tensor.histc: histogram,
    torch.rand: shared_choice,
    fused_weight_norm: weight_norm,
    **{each: placed_number(each) for each in (torch.tensor, Tensor.to, Tensor.cuda)},
    **RECURRENT,
}
"""Maps a function to one that takes `call`, which calls other functions in its place."""


@contextmanager
def records_are_traced(choices: dict[Any, Any], device: torch.device) -> Iterator[None]:
    """Let Hugging Face models treat the tensors of a record as tensors without values."""

    def or_a_record(is_fake: Callable[[Any], bool]) -> Callable[[Any], bool]:
        return lambda tensor: is_fake(tensor) or (isinstance(tensor, Tensor) and is_record(tensor))

    def grouped_experts(choose: Callable[..., Any]) -> Callable[..., Any]:
        # The one of several equivalent ways that has no loop over what a record selects.
        return lambda own, name, default: own.get("grouped_mm") or choose(own, name, default)

    decided = _decided_once(choices)
    utils = sys.modules.get("transformers.utils.import_utils")
    masking = sys.modules.get("transformers.masking_utils")
    experts = getattr(sys.modules.get("transformers.integrations.moe"), "ExpertsInterface", None)
    spans = "_compute_mask_indices"
    changes = [
        (utils, "is_fake_tensor", or_a_record),
        (utils, "is_cuda_stream_capturing", lambda _: lambda: False),
        (masking, "find_packed_sequence_indices", decided),
        (masking, "_ignore_causal_mask_sdpa", decided),
        (masking, "_ignore_bidirectional_mask_sdpa", decided),
        (experts, "get_interface", grouped_experts),
        *((each, spans, _span_masks(device)) for each in _modules_with(spans, len(sys.modules))),
    ]  # of what is loaded, and exists in this version
    found = [(*at, getattr(*at), change) for *at, change in changes if hasattr(*at)]
    try:
        for place, name, own, change in found:
            setattr(place, name, change(own))
        yield
    finally:
        for place, name, own, _ in found:
            setattr(place, name, own)


def _decided_once(choices: dict[Any, Any]) -> Callable[[Any], Any]:
    """Lets a program repeat what was decided by values of a tensor that no record is in."""

    def change(decide: Callable[..., Any]) -> Callable[..., Any]:
        def choose(*args: Any, **options: Any) -> Any:
            given = [*args, *options.values()]
            values = [each for each in given if isinstance(each, Tensor)]
            if not values or any(map(is_record, values)):
                return decide(*args, **options)
            shapes = (each.shape if isinstance(each, Tensor) else repr(each) for each in given)
            key = decide.__name__, *shapes
            if not is_capturing() or key not in choices:
                choices[key] = decide(*args, **options)
            return choices[key]

        return choose

    return change


@functools.cache
def _modules_with(name: str, loaded: int) -> list[Any]:
    """The modules of transformers' models that have a function, given how many are loaded."""
    modules = [m for n, m in list(sys.modules.items()) if n.startswith("transformers.models.")]
    return [module for module in modules if name in vars(module)]


def _span_masks(device: torch.device) -> Callable[[Any], Any]:
    """Draws masked spans of a record (SpecAugment) on its device, which models do with numpy."""

    def spans(
        shape: tuple[int, int],
        mask_prob: float,
        mask_length: int,
        attention_mask: Tensor | None = None,
        min_masks: int = 0,
    ) -> Tensor:
        rows, length = shape
        starts = length - mask_length + 1
        most = min(max(int(mask_prob * length / mask_length) + 1, min_masks), length // mask_length)
        lengths = torch.full((rows, 1), length, device=device)
        if attention_mask is not None:
            lengths = attention_mask.sum(-1, keepdim=True)
        count = mask_prob * lengths / mask_length + torch.rand(rows, 1, device=device)
        count = count.floor().clamp(min_masks, most).minimum(lengths - mask_length + 1)
        order = torch.rand(rows, starts, device=device)
        allowed = torch.arange(starts, device=device) <= lengths - mask_length
        chosen = torch.where(allowed, order, -1.0).topk(min(most, starts)).indices[..., None]
        after = torch.arange(length, device=device) - chosen
        used = torch.arange(chosen.shape[1], device=device)[:, None] < count[..., None]
        return ((after >= 0) & (after < mask_length) & used).any(1)

    return lambda _: spans


_FACTS = {
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point),
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "device", "dtype", "is_cuda")),
}
"""Functions that return no tensor and depend on no value; a third of all calls."""
_TABLES = DOMAINS.keys() | DECOMPOSED.keys() | RANDOM


class FunctionInterceptor(TorchFunctionMode):
    """Makes functions total and tracks every tensor that a model computes from a record."""

    def __init__(self, guard: EscapedTensorGuard, draws: Draws) -> None:
        super().__init__()
        self._draws = draws
        self._guard = guard
        self._rests = False  # while an inner one is active for a checkpointed part
        self._contexts = ExitStack()

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        device = self._draws.row.device
        self._contexts.enter_context(records_are_traced(self._guard.host.choices, device))
        if "torch._dynamo" in sys.modules:
            # Compiled parts of the model run as they are: their kernels know nothing of records.
            self._contexts.enter_context(torch.compiler.set_stance("force_eager"))
        return self

    def __exit__(self, *error: Any) -> None:
        self._contexts.close()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTS or self._rests:
            return func(*args, **kwargs)
        if func is Tensor.requires_grad_ and is_record(args[0]):
            # Some libraries require gradients on the input of a checkpointed part; that is not
            # needed here, and vmap does not allow it.
            return args[0]
        if (branches := followed_branches()) is not None:
            result = branches.compare(func, args, kwargs)
            if result is not NotImplemented:
                return result
        if func not in _TABLES:
            result = self._apply(func, *args, **kwargs)
        elif func in DOMAINS:
            result = DOMAINS[func](partial(self._call, func), *args, **kwargs)
        elif func in DECOMPOSED:
            result = DECOMPOSED[func](self._call, *args, **kwargs)
        else:
            result = self._call(func, *args, **kwargs)
        self._guard.note(result)
        return result

    def _call(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if func in RANDOM:
            return self._draws.run(partial(self._apply, func), *args, **kwargs)
        return self._apply(func, *args, **kwargs)

    def _apply(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return (one_by_one if func in GROUPED else func)(*args, **kwargs)
