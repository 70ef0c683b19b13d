"""Rules: how to call each torch function with cheap book-keeping on records.

A rule takes the tape and the one record among the arguments, followed by the arguments of its torch
function; one in `_RULES_OF_INPUT` takes the record as the first of these alone. It returns
NotImplemented if the arguments are not the usual ones, such as a weight of another shape.

torch's recurrent kernels cannot run under vmap. So every layer and direction of `LSTM`, `GRU`,
`RNN` and their cells is decomposed into the product of its input at all times, an ordinary linear
layer, and a linear layer of the state at every time. Book-keeping merges the uses of its weight, so
the gradient of a record is kept as two factors with one position per time step.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, TypeVar

import attrs
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from prudent._torch_private import (
    CVmapInterpreterPtr,
    add_batch_dim,
    is_record,
    maybe_get_level,
    pack_padded_sequence,
    peek_interpreter_stack,
    pop_dynamic_layer_stack,
    push_dynamic_layer_stack,
    unwrap_batched,
)
from prudent.training.gradients.factors.contributions import Dense, Use, as_it_is, ends_within
from prudent.training.gradients.factors.kernels import Geometry
from prudent.training.gradients.factors.layers import (
    Affine,
    Convolution,
    Embedding,
    Experts,
    GroupNorm,
    LayerNorm,
    Linear,
    NativeConvolution,
    Parameters,
    autocast_type,
    autocasted,
    call,
)
from prudent.training.gradients.factors.products import ALIGNED, aligned, cuts_products
from prudent.training.gradients.factors.tape import Tape, tensors

Result = TypeVar("Result", Tensor, tuple[Tensor, ...])
_MANY_OUTPUTS = 1 << 10


def without_fused_attention() -> AbstractContextManager[None]:
    """Use unfused attention: under vmap the fused kernels would run record by record."""
    return sdpa_kernel(SDPBackend.MATH)


def on_records(function: Callable[..., Result], *values: Tensor) -> Result:
    """Leave vmap: call `function(records, *plain)` on plain tensors, records on the first axis.

    The function returns a tensor or a tuple of tensors, with records on the first axis. It is
    called below vmap by hand: torch's way, a function with a rule for vmap, takes as long as the
    layers of a small model.
    """
    vmap = CVmapInterpreterPtr(_kept := peek_interpreter_stack())  # only points to it
    level, records = vmap.level(), vmap.batchSize()
    unwrapped = [unwrap_batched(value, level) for value in values]
    left = pop_dynamic_layer_stack()
    try:
        plain = [value.movedim(axis, 0) if axis else value for value, axis in unwrapped]
        result = function(records, *plain)
    finally:
        push_dynamic_layer_stack(left)
    if isinstance(result, tuple):
        return tuple(add_batch_dim(tensor, 0, level) for tensor in result)
    return add_batch_dim(result, 0, level)


def _linear(tape: Tape, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    return _product(tape, input, weight, bias, transposed=False)


def _matmul(tape: Tape, input: Tensor, other: Tensor) -> Any:
    return (
        _product(tape, input, other, None, transposed=True) if other.ndim == 2 else NotImplemented
    )


def _addmm(
    tape: Tape,
    record: Tensor,
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Any:
    if mat1 is not record or beta != 1 or alpha != 1 or input.ndim != 1:
        return NotImplemented
    return _product(tape, mat1, mat2, input, transposed=True)


def _product(
    tape: Tape, record: Tensor, weight: Tensor, bias: Tensor | None, *, transposed: bool
) -> Tensor:
    matrix, shifts, *uses = _parameters(tape, weight, bias)

    def multiply(records: int, values: Tensor) -> Tensor:
        differs = autocast_type(values) != values.dtype
        converted = tape.converted(record, values) if differs else None
        rows = matrix.T if transposed else matrix
        pads, width = _pads_outputs(values, rows.shape[0]), rows.shape[0]
        shape = _padded if pads else as_it_is
        parameters = Parameters(shape(rows), None if shifts is None else shape(shifts), *uses)
        layer = Linear(parameters, records, transposed, width)
        result = call(layer, tape.anchor, values, converted).view(*values.shape[:-1], -1)
        return result[..., :width] if pads else result

    return on_records(multiply, record)


def _pads_outputs(values: Tensor, width: int) -> bool:
    """Whether a layer has so many outputs, and so odd a number, that padding them saves time.

    Kernels for short numbers read several at a time; a vocabulary of an odd size makes them read
    one by one, in the forward pass, in the backward pass and in the sum.
    """
    odd = values.is_cuda and width > _MANY_OUTPUTS and width % ALIGNED != 0
    return odd and (autocast_type(values) == torch.bfloat16 or cuts_products(values))


def _padded(parameter: Tensor) -> Tensor:
    """A matrix or a bias with zeros for outputs that do not exist."""
    return aligned(autocasted(parameter), -parameter.ndim)


def _convolution(
    tape: Tape,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    if input.ndim != weight.ndim:
        return NotImplemented
    kernel, axes = weight.shape[2:], weight.ndim - 2
    stride, dilation = _per_axis(stride, axes), _per_axis(dilation, axes)
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        sides = [(total // 2, total - total // 2) for total in totals]
        input = functional.pad(input, [side for pair in reversed(sides) for side in pair])
    padding = _per_axis(0 if isinstance(padding, str) else padding, axes)
    geometry = Geometry(kernel, stride, padding, dilation, groups)
    parameters = _parameters(tape, weight, bias)

    def convolve(records: int, values: Tensor) -> Tensor:
        images = values.flatten(0, 1)
        kind = Convolution if _multiplies_patches(images) else NativeConvolution
        result = call(kind(parameters, geometry, records), tape.anchor, images)
        if kind is Convolution and result.ndim < 4:  # a matrix, or one for each group
            result = geometry.by_image(result, images.shape)
        return result.view(*values.shape[:2], *result.shape[1:])

    return on_records(convolve, input)


def _upscaling(
    tape: Tape,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Any:
    """A transposed convolution whose patches do not overlap: a linear layer at each position."""
    axes, shape = weight.ndim - 2, weight.shape
    apart = _per_axis(stride, axes) == list(shape[2:]) and set(_per_axis(dilation, axes)) == {1}
    whole = not any((*_per_axis(padding, axes), *_per_axis(output_padding, axes)))
    if input.ndim != weight.ndim or not (apart and whole and groups == 1):
        return NotImplemented
    outputs, kernel = shape[1], shape[2:]
    matrix = weight.detach().flatten(1)

    def weighted(of: Any) -> Any:
        """A contribution to the matrix as one to the weight."""
        return attrs.evolve(of, form=lambda m: of.form(m).unflatten(-1, (outputs, *kernel)))

    def shifted(of: Any) -> Dense:
        """A contribution to each number of a patch as one to the bias."""
        return Dense(of.per_example().unflatten(-1, (outputs, -1)).sum(-1))

    uses = _through(weighted, tape.use(weight)), _through(shifted, tape.use(bias))

    def upscale(records: int, values: Tensor) -> Tensor:
        size = values.shape[3:]
        flat = values.movedim(2, -1).reshape(-1, values.shape[2])
        shifts = None if bias is None else bias.detach().repeat_interleave(kernel.numel())
        converted = flat.detach().to(autocast_type(flat))
        parameters = Parameters(matrix.T, shifts, *uses)
        layer = Linear(parameters, records, True, matrix.shape[1])
        result = call(layer, tape.anchor, flat, converted)
        patches = result.view(*values.shape[:2], *size, outputs, *kernel)
        # Each position beside the place in its patch, and the channels last.
        order = [place for axis in range(axes) for place in (2 + axis, 3 + axes + axis)]
        image = patches.permute(0, 1, *order, 2 + axes)
        sizes = [a * b for a, b in zip(size, kernel, strict=True)]
        return image.reshape(*values.shape[:2], *sizes, outputs).movedim(-1, 2)

    return on_records(upscale, input)


def _through(change: Callable[[Any], Any], use: Use | None) -> Use | None:
    """A use that is given changed contributions."""
    return None if use is None else lambda contribution: use(change(contribution))


def _multiplies_patches(images: Tensor) -> bool:
    """Whether a product over patches is faster than torch's convolution."""
    return images.device.type == "cpu"


def _embedding(
    tape: Tape,
    record: Tensor,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if max_norm is not None or scale_grad_by_freq:
        raise ValueError(
            f"Expected an embedding that keeps records apart, got max_norm={max_norm} and "
            f"scale_grad_by_freq={scale_grad_by_freq} at {tape.name(weight)}. Leave both unset."
        )
    if weight is record:
        return NotImplemented
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]

    def look_up(records: int, indices: Tensor) -> Tensor:
        flat = indices.reshape(records, -1)
        use = tape.use(weight, looked_up=len(weight) > flat.shape[1] * tape.slots)
        assert use is not None, "a rule is for trained parameters"
        result = call(Embedding(weight.detach(), padding_idx, use), tape.anchor, flat)
        return result.view(*indices.shape, -1)

    if input is record:
        return on_records(look_up, input)
    # Every record uses the same rows, as with position ids. One copy per record lets the cheap rule
    # for embeddings apply.
    return on_records(
        lambda records, _: look_up(records, input.expand(records, *input.shape)), record
    )


def _layer_norm(
    tape: Tape,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    layer = LayerNorm(_parameters(tape, weight, bias), list(normalized_shape), eps)
    return on_records(lambda _, values: call(layer, tape.anchor, values), input)


def _rms_norm(
    tape: Tape,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    normal = functional.rms_norm(input, list(normalized_shape), None, eps)
    return _affine(tape, normal, weight, None, range(-len(normalized_shape), 0))


def _group_norm(
    tape: Tape,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    parameters = _parameters(tape, weight, bias)

    def normalise(records: int, values: Tensor) -> Tensor:
        layer = GroupNorm(parameters, num_groups, eps, records)
        return call(layer, tape.anchor, values.flatten(0, 1)).view_as(values)

    return on_records(normalise, input)


def _statistics_norm(norm: Callable[..., Tensor]) -> Callable[..., Any]:
    """The rule for a normalisation with given statistics or those of the record itself."""

    def rule(
        tape: Tape,
        input: Tensor,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        normal = norm(input, running_mean, running_var, None, None, *rest, **options)
        return _affine(tape, normal, weight, bias, [1])

    return rule


def _affine(
    tape: Tape, values: Tensor, weight: Tensor | None, bias: Tensor | None, axes: Sequence[int]
) -> Tensor:
    # Outside vmap the record is an additional first axis.
    own_axes = [axis % values.ndim + 1 for axis in axes]
    layer = Affine(_parameters(tape, weight, bias), own_axes)
    return on_records(lambda _, values: call(layer, tape.anchor, values), values)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *rest: Any,
    **options: Any,
) -> Tensor:
    """Call the fused kernels outside vmap, which would call them record by record."""
    every = query, key, value
    if any(maybe_get_level(t) < 0 or t.ndim != 4 for t in every):
        with without_fused_attention():
            return functional.scaled_dot_product_attention(*every, attn_mask, *rest, **options)

    def attend(records: int, *every: Tensor) -> Tensor:
        query, key, value, *masks = (tensor.flatten(0, 1) for tensor in every)
        mask = masks[0] if masks else shared
        if mask is not None and mask.ndim == 4 and len(mask) > 1 and not masks:
            mask = mask.repeat(records, 1, 1, 1)
        result = functional.scaled_dot_product_attention(query, key, value, mask, *rest, **options)
        return result.view(records, -1, *result.shape[1:])

    if attn_mask is None or maybe_get_level(attn_mask) < 0:
        shared = attn_mask
        return on_records(attend, *every)
    missing = [1] * (4 - attn_mask.ndim)
    own = attn_mask.reshape(*missing, *attn_mask.shape)
    return on_records(attend, *every, own.expand(len(query), *own.shape[1:]))


def _view(tensor: Tensor, *shape: Any, **options: Any) -> Tensor:
    """A view, or a copy if a convolution left its channels last in memory."""
    try:
        return tensor.view(*shape, **options)
    except RuntimeError:
        return tensor.reshape(*shape, **options)


def _pooled(pool: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Pool a contiguous copy: torch would pool channels that come last record by record."""
    return lambda tensor, *args, **options: pool(tensor.contiguous(), *args, **options)


def _grouped(
    tape: Tape | None,
    record: Tensor | None,
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """One matrix for each expert; see `contributions`."""
    shared = maybe_get_level(mat_b) < 0 and mat_b.ndim == 3
    if not shared or offs is None or bias is not None or maybe_get_level(mat_a) < 0:
        return NotImplemented
    stored, transposed, use = mat_b, False, None
    if tape is not None:
        stored, transposed = tape.stored(mat_b)
        use = tape.use(stored)
    kind = autocast_type(mat_a)
    matrices = stored.detach().to(kind)
    matrices = matrices.mT if transposed else matrices

    def multiply(records: int, values: Tensor, ends: Tensor) -> Tensor:
        anchor = None if tape is None else tape.anchor
        ends = ends_within(ends, values.shape[1]).expand(records, -1)
        return call(Experts(transposed, use), anchor, values.to(kind), matrices, ends)

    return on_records(multiply, mat_a, offs).to(out_dtype or mat_a.dtype)


def _grouped_alone(*args: Any, **options: Any) -> Tensor:
    result = _grouped(None, None, *args, **options)
    return functional.grouped_mm(*args, **options) if result is NotImplemented else result


GROUPED = {
    getattr(place, name)
    for place, name in ((functional, "grouped_mm"), (torch, "_grouped_mm"))
    if hasattr(place, name)
}
"""Products of several records' positions with matrices of experts."""

RECORD_RULES: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.adaptive_avg_pool1d: _pooled(functional.adaptive_avg_pool1d),
    functional.adaptive_avg_pool2d: _pooled(functional.adaptive_avg_pool2d),
    functional.scaled_dot_product_attention: _attention,
    **dict.fromkeys(GROUPED, _grouped_alone),
    Tensor.view: _view,
    Tensor.view_as: lambda tensor, other: _view(tensor, other.shape),
}

_RULES_OF_INPUT: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.linear: _linear,
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm), _matmul),
    **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), _convolution),
    **dict.fromkeys(
        (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d), _upscaling
    ),
    functional.layer_norm: _layer_norm,
    functional.rms_norm: _rms_norm,
    functional.group_norm: _group_norm,
    functional.batch_norm: _statistics_norm(functional.batch_norm),
    functional.instance_norm: _statistics_norm(functional.instance_norm),
}


def _of_input(rule: Callable[..., Any]) -> Callable[..., Any]:
    def checked(tape: Tape, record: Tensor, input: Tensor, *args: Any, **options: Any) -> Any:
        return rule(tape, input, *args, **options) if input is record else NotImplemented

    return checked


RULES: dict[Callable[..., Any], Callable[..., Any]] = {
    **{function: _of_input(rule) for function, rule in _RULES_OF_INPUT.items()},
    **dict.fromkeys(GROUPED, _grouped),
    torch.addmm: _addmm,
    functional.embedding: _embedding,
}


def _parameters(tape: Tape, weight: Tensor | None, bias: Tensor | None) -> Parameters:
    """Parameters without their gradients, and where to send what they contribute."""
    values, shifts = (None if each is None else tape.detached(each) for each in (weight, bias))
    return Parameters(values, shifts, tape.use(weight), tape.use(bias))


def _per_axis(setting: int | Sequence[int], axes: int) -> list[int]:
    values = [setting] if isinstance(setting, int) else list(setting)
    return values * axes if len(values) == 1 else values


Call = Callable[..., Any]
"""Calls a torch function on records, as `FunctionInterceptor` and `Capture` do."""
States = Sequence[Tensor]  # the output first
Step = Callable[[Tensor, Tensor, States], tuple[Tensor, ...]]
"""Maps the input and the output before, each times its weight, and the states to the next ones."""
Weights = tuple[Tensor, Tensor | None]


def _lstm(projected: Tensor, product: Tensor, states: States) -> tuple[Tensor, ...]:
    """i, f, o = σ(…), g = tanh(…); c ← f c + i g; h ← o tanh(c)."""
    i, f, g, o = (projected + product).chunk(4, -1)
    cell = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru(projected: Tensor, product: Tensor, states: States) -> tuple[Tensor, ...]:
    """r, z = σ(…), n = tanh(input + r · product); h ← n + z (h − n)."""
    inputs, products = projected.chunk(3, -1), product.chunk(3, -1)
    r, z = (inputs[gate].add(products[gate]).sigmoid() for gate in (0, 1))
    n = (inputs[2] + r * products[2]).tanh()
    return (n + z * (states[0] - n),)


def _tanh(projected: Tensor, product: Tensor, states: States) -> tuple[Tensor, ...]:
    return ((projected + product).tanh(),)


def _relu(projected: Tensor, product: Tensor, states: States) -> tuple[Tensor, ...]:
    return ((projected + product).relu(),)


def _scan(
    call: Call,
    step: Step,
    projected: Tensor,
    hidden: Weights,
    projection: Tensor | None,
    states: States,
) -> tuple[Tensor, ...]:
    """The outputs, (batch, time, size), and the last states; an LSTM may project its outputs."""
    outputs = []
    for each in projected.unbind(1):
        states = step(each, call(functional.linear, states[0], *hidden), states)
        if projection is not None:
            states = call(functional.linear, states[0], projection), *states[1:]
        outputs.append(states[0])
    return torch.stack(outputs, 1), *states


def _layers(step: Step, function: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition of torch's function for several layers of one kind."""

    def run(call: Call, input: Tensor, states: Tensor | States, *args: Any, **options: Any) -> Any:
        record = next(filter(is_record, tensors((input, states, args))), None)
        if record is None:
            return call(function, input, states, *args, **options)
        if len(args) > 1 and isinstance(args[1], tuple | list):
            refuse_packed()
        return layers(call, record, input, states, *args, **options)

    def layers(
        call: Call,
        record: Tensor,
        input: Tensor,
        states: Tensor | States,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool = False,
    ) -> Any:
        initial = [states] if isinstance(states, Tensor) else list(states)
        hidden = _on_record(call, input if batch_first else input.transpose(0, 1), record)
        weights = _weights(params, has_biases, bidirectional, num_layers)
        last: list[tuple[Tensor, ...]] = []
        for layer in range(num_layers):
            directions = []
            for backwards in (False, True)[: 1 + bidirectional]:
                own, of_state, projection = next(weights)
                begin = [_on_record(call, state[len(last)], record) for state in initial]
                projected = call(functional.linear, hidden, *own)
                projected = projected.flip(1) if backwards else projected
                outputs, *ends = _scan(call, step, projected, of_state, projection, begin)
                directions.append(outputs.flip(1) if backwards else outputs)
                last.append(tuple(ends))
            hidden = torch.cat(directions, -1) if bidirectional else directions[0]
            if dropout and train and layer + 1 < num_layers:
                hidden = call(functional.dropout, hidden, dropout, True)
        ends = [torch.stack(each) for each in zip(*last, strict=True)]
        return hidden if batch_first else hidden.transpose(0, 1), *ends

    return run


def _cell(step: Step, function: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition of torch's function for a single step."""

    def run(
        call: Call,
        input: Tensor,
        states: Tensor | States,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        initial = [states] if isinstance(states, Tensor) else list(states)
        weights = w_ih, w_hh, b_ih, b_hh
        record = next(filter(is_record, tensors((input, initial, weights))), None)
        if record is None:
            return call(function, input, states, *weights)
        projected = call(functional.linear, _on_record(call, input, record), w_ih, b_ih)
        begin = [_on_record(call, state, record) for state in initial]
        ends = step(projected, call(functional.linear, begin[0], w_hh, b_hh), begin)
        return ends[0] if isinstance(states, Tensor) else ends

    return run


def _on_record(call: Call, value: Tensor, record: Tensor) -> Tensor:
    """The value as one that belongs to the record, such as the initial state of every record."""
    if is_record(value):
        return value
    result: Tensor = call(torch.add, value, record.new_zeros((), dtype=value.dtype))
    return result


def _weights(
    params: Sequence[Tensor], has_biases: bool, bidirectional: bool, layers: int
) -> Iterator[tuple[Weights, Weights, Tensor | None]]:
    """What multiplies input, state and output of each layer and direction."""
    count = len(params) // (layers * (1 + bidirectional))
    for start in range(0, len(params), count):
        weight, hidden, *rest = params[start : start + count]
        biases = rest[:2] if has_biases else [None, None]
        yield (weight, biases[0]), (hidden, biases[1]), rest[-1] if count % 2 else None


def refuse_packed() -> NoReturn:
    """Raise an error for a packed sequence, whose layout depends on the lengths of all records."""
    raise ValueError(
        "Expected padded sequences, got a packed one: it mixes the time steps of all records, in "
        "an order that depends on their lengths. Leave out pack_padded_sequence, give the layer "
        "the padded tensor, and mask its padded outputs, or gather the output at position "
        "length - 1. For a bidirectional layer, use one layer per direction and reverse each "
        "sequence by indexing, so that its padding stays at the end."
    )


def _pack(call: Call, *args: Any, **kwargs: Any) -> Any:
    if any(map(is_record, tensors(args))):
        refuse_packed()
    return call(pack_padded_sequence, *args, **kwargs)


RECURRENT: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.lstm: _layers(_lstm, torch.lstm),
    torch.gru: _layers(_gru, torch.gru),
    torch.rnn_tanh: _layers(_tanh, torch.rnn_tanh),
    torch.rnn_relu: _layers(_relu, torch.rnn_relu),
    torch.lstm_cell: _cell(_lstm, torch.lstm_cell),
    torch.gru_cell: _cell(_gru, torch.gru_cell),
    torch.rnn_tanh_cell: _cell(_tanh, torch.rnn_tanh_cell),
    torch.rnn_relu_cell: _cell(_relu, torch.rnn_relu_cell),
    pack_padded_sequence: _pack,
}
"""Maps each of torch's recurrent functions to its decomposition, whose first argument is `call`."""
