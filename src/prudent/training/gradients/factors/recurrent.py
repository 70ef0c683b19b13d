"""Recurrent layers on records: `torch.nn.LSTM`, `GRU`, `RNN` and their cells.

torch's recurrent kernels cannot run under vmap. Here every layer and direction is decomposed into
the product of its input at all times, an ordinary linear layer, and a linear layer of the state at
every time. Book-keeping merges the uses of its weight, so the gradient of a record is kept as two
factors with one position per time step.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional

from prudent._torch_private import is_record, pack_padded_sequence
from prudent.training.gradients.factors.tape import tensors

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

    def run(
        call: Call,
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
        record = next(filter(is_record, tensors((input, initial, params))), None)
        if record is None:
            return call(
                function,
                *(input, states, params, has_biases, num_layers),
                *(dropout, train, bidirectional, batch_first),
            )
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

    def refusing_packed(call: Call, *args: Any, **kwargs: Any) -> Any:
        if len(args) > 3 and isinstance(args[3], (tuple, list)):
            if any(map(is_record, tensors(args))):
                refuse_packed()
            return call(function, *args, **kwargs)
        return run(call, *args, **kwargs)

    return refusing_packed


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
