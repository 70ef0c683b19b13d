"""Recurrent layers on records: `torch.nn.LSTM`, `GRU`, `RNN` and their cells.

torch's recurrent kernels cannot run under vmap. Here every layer and direction is decomposed into
the product of its input at all times, an ordinary linear layer, and a recurrence over time. In
book-keeping the recurrence is one autograd function, whose hidden weight is used at all times at
once: the gradient of a record is Σₜ productₜ ⊗ outputₜ₋₁, kept as two factors with one position per
time step.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import attrs
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from typing_extensions import override

from prudent._torch_private import is_record, pack_padded_sequence
from prudent.training.gradients.factors.contributions import Dense, Use, outer
from prudent.training.gradients.factors.layers import total
from prudent.training.gradients.factors.products import at_least_single
from prudent.training.gradients.factors.rules import on_records
from prudent.training.gradients.factors.tape import Tape, tensors

Tensors = Sequence[Tensor]
Multiply = Callable[[Tensor], Tensor]
Ran = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""All outputs and further last states; and what the backward pass needs beside the outputs."""


@attrs.frozen
class Matrices:
    """What multiplies the state of one layer in one direction."""

    hidden: Tensor  # the weight of the state, shape (gates · size, output size)
    bias: Tensor | None  # its bias, if any
    # The weight that maps the state of an LSTM to a shorter output, if any.
    projection: Tensor | None

    def to(self, dtype: torch.dtype) -> "Matrices":
        """The same numbers in another type."""
        return self.mapped(lambda matrix: matrix.to(dtype))

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "Matrices":
        """The function applied to each of them."""
        bias = None if self.bias is None else function(self.bias)
        projection = None if self.projection is None else function(self.projection)
        return Matrices(function(self.hidden), bias, projection)


@attrs.frozen
class Backward:
    """Gradients of one layer in one direction; sequences have shape (sequences, time, size)."""

    projected: Tensor  # of the projected input
    products: Tensor  # of the products of state and hidden weight, at every step
    states: tuple[Tensor, ...]  # of the initial states
    # Of the outputs, including what later steps pass back; only with a projection.
    outputs: Tensor | None = None
    # Not a gradient: the outputs before the projection; only with a projection.
    unprojected: Tensor | None = None


class RecurrentCell(Protocol):
    """One kind of recurrent layer."""

    def step(self, projected: Tensor, multiply: Multiply, states: Tensors) -> tuple[Tensor, ...]:
        """The states after one step, in operations that can be differentiated any way."""

    def forward(self, projected: Tensor, matrices: Matrices, states: Tensors) -> Ran:
        """Run all steps.

        Args:
            projected: The input times its weight, shape (sequences, time, gates · size).
            matrices: What multiplies the state.
            states: The initial states, the output first.
        """

    def backward(
        self, saved: Tensors, matrices: Matrices, before: Tensor, gradients: Tensors
    ) -> Backward:
        """Backpropagate through all steps.

        Args:
            saved: The outputs and what `forward` saved.
            matrices: What multiplies the state.
            before: The output before every step.
            gradients: Of what `forward` returned first.
        """


class Lstm(RecurrentCell):
    """i, f, o = σ(…), g = tanh(…); c ← f c + i g; h ← o tanh(c), possibly projected."""

    @override
    def step(self, projected: Tensor, multiply: Multiply, states: Tensors) -> tuple[Tensor, ...]:
        output, cell = states
        i, f, g, o = (projected + multiply(output)).chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell

    @override
    def forward(self, projected: Tensor, matrices: Matrices, states: Tensors) -> Ran:
        output, cell = states[0].to(projected.dtype), at_least_single(states[1])
        size, first = cell.shape[1], cell
        weight = matrices.hidden.mT
        if matrices.bias is not None:
            projected = projected + matrices.bias
        outputs, cells, activations = [], [], []
        for pre in projected.unbind(1):
            gates = torch.addmm(pre, output, weight)
            gates[:, : 2 * size].sigmoid_()
            gates[:, 2 * size : 3 * size].tanh_()
            gates[:, 3 * size :].sigmoid_()
            i, f, g, o = gates.chunk(4, 1)
            cell = f * cell + i * g
            output = (o * cell.tanh()).to(projected.dtype)
            if matrices.projection is not None:
                output = output @ matrices.projection.mT
            outputs.append(output)
            cells.append(cell)
            activations.append(gates)
        saved = first, torch.stack(cells, 1), torch.stack(activations, 1)
        return (torch.stack(outputs, 1), cell), saved

    @override
    def backward(
        self, saved: Tensors, matrices: Matrices, before: Tensor, gradients: Tensors
    ) -> Backward:
        _, first, cells, activations = saved
        passed, d_cell = gradients
        i, f, g, o = activations.chunk(4, 2)
        squashed = cells.tanh()
        slope = o * (1 - squashed * squashed)
        factors = torch.stack(
            [
                g * i * (1 - i),
                torch.cat([first[:, None], cells[:, :-1]], 1) * f * (1 - f),
                i * (1 - g * g),
                squashed * o * (1 - o),
            ],
            2,
        )
        d_products, d_outputs = [], []
        d_output = passed[:, -1]
        for step in reversed(range(passed.shape[1])):
            d_outputs.append(d_output)
            if matrices.projection is not None:
                d_output = d_output @ matrices.projection
            d_cell = d_cell + d_output * slope[:, step]
            inner = torch.stack([d_cell, d_cell, d_cell, d_output.to(d_cell.dtype)], 1)
            d_product = (factors[:, step] * inner).flatten(1).to(passed.dtype)
            d_products.append(d_product)
            d_cell = d_cell * f[:, step]
            d_output = _back(passed, step, d_product, matrices.hidden)
        d_gates = torch.stack(d_products[::-1], 1)
        result = Backward(d_gates, d_gates, (d_output, d_cell))
        if matrices.projection is None:
            return result
        unprojected = (o * squashed).to(passed.dtype)
        return attrs.evolve(
            result, outputs=torch.stack(d_outputs[::-1], 1), unprojected=unprojected
        )


class Gru(RecurrentCell):
    """r, z = σ(…), n = tanh(input + r · product); h ← n + z (h − n)."""

    @override
    def step(self, projected: Tensor, multiply: Multiply, states: Tensors) -> tuple[Tensor, ...]:
        (output,) = states
        inputs, products = projected.chunk(3, -1), multiply(output).chunk(3, -1)
        r, z = (inputs[gate].add(products[gate]).sigmoid() for gate in (0, 1))
        n = (inputs[2] + r * products[2]).tanh()
        return (n + z * (output - n),)

    @override
    def forward(self, projected: Tensor, matrices: Matrices, states: Tensors) -> Ran:
        output = states[0].to(projected.dtype)
        size = output.shape[1]
        weight = matrices.hidden.mT
        outputs, gates, candidates, inner = [], [], [], []
        for pre in projected.unbind(1):
            product = (
                output @ weight
                if matrices.bias is None
                else torch.addmm(matrices.bias, output, weight)
            )
            both = (pre[:, : 2 * size] + product[:, : 2 * size]).sigmoid_()
            r, z = both.chunk(2, 1)
            n = (pre[:, 2 * size :] + r * product[:, 2 * size :]).tanh_()
            output = n + z * (output - n)
            outputs.append(output)
            gates.append(both)
            candidates.append(n)
            inner.append(product[:, 2 * size :])
        saved = torch.stack(gates, 1), torch.stack(candidates, 1), torch.stack(inner, 1)
        return (torch.stack(outputs, 1),), saved

    @override
    def backward(
        self, saved: Tensors, matrices: Matrices, before: Tensor, gradients: Tensors
    ) -> Backward:
        _, gates, n, inner = map(at_least_single, saved)
        (passed,) = gradients
        r, z = gates.chunk(2, 2)
        candidate = (1 - z) * (1 - n * n)
        reset, update = candidate * inner * r * (1 - r), (before - n) * z * (1 - z)
        factors = torch.stack([reset, update, candidate * r], 2)
        d_products, d_candidates = [], []
        d_output = passed[:, -1]
        for step in reversed(range(passed.shape[1])):
            d_product = (factors[:, step] * d_output[:, None]).flatten(1).to(passed.dtype)
            d_products.append(d_product)
            d_candidates.append(d_output)
            d_output = d_output * z[:, step]
            d_output = d_output.to(passed.dtype) + _back(passed, step, d_product, matrices.hidden)
        products = torch.stack(d_products[::-1], 1)
        size = n.shape[2]
        last = (torch.stack(d_candidates[::-1], 1) * candidate).to(passed.dtype)
        projected = torch.cat([products[..., : 2 * size], last], 2)
        return Backward(projected, products, (d_output,))


@attrs.frozen
class Elman(RecurrentCell):
    """h ← tanh(…) or relu(…)."""

    rectified: bool  # whether relu is applied instead of tanh

    @override
    def step(self, projected: Tensor, multiply: Multiply, states: Tensors) -> tuple[Tensor, ...]:
        pre = projected + multiply(states[0])
        return (pre.relu() if self.rectified else pre.tanh(),)

    @override
    def forward(self, projected: Tensor, matrices: Matrices, states: Tensors) -> Ran:
        output = states[0].to(projected.dtype)
        weight = matrices.hidden.mT
        if matrices.bias is not None:
            projected = projected + matrices.bias
        outputs = []
        for pre in projected.unbind(1):
            product = torch.addmm(pre, output, weight)
            output = product.relu_() if self.rectified else product.tanh_()
            outputs.append(output)
        return (torch.stack(outputs, 1),), ()

    @override
    def backward(
        self, saved: Tensors, matrices: Matrices, before: Tensor, gradients: Tensors
    ) -> Backward:
        (outputs,), (passed,) = saved, gradients
        slopes = (outputs > 0).to(outputs.dtype) if self.rectified else 1 - outputs * outputs
        d_products = []
        d_output = passed[:, -1]
        for step in reversed(range(passed.shape[1])):
            d_products.append(d_output * slopes[:, step])
            d_output = _back(passed, step, d_products[-1], matrices.hidden)
        products = torch.stack(d_products[::-1], 1)
        return Backward(products, products, (d_output,))


def _back(passed: Tensor, step: int, d_product: Tensor, hidden: Tensor) -> Tensor:
    """The gradient of the output before `step`: from the outside, and through the product."""
    if step == 0:
        return d_product @ hidden
    return torch.addmm(passed[:, step - 1], d_product, hidden)


Call = Callable[..., Any]
"""Calls a torch function on records, as `FunctionInterceptor` and `Capture` do."""

Scan = Callable[[Call, RecurrentCell, Tensor, Matrices, Sequence[Tensor]], tuple[Tensor, ...]]
"""Runs a recurrence on a record; returns the outputs, (batch, time, size), and the last states."""


def step_by_step(
    call: Call, cell: RecurrentCell, projected: Tensor, matrices: Matrices, states: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Run a recurrence in ordinary operations, one time step after another."""
    outputs = []
    for step in projected.unbind(1):
        states = cell.step(
            step, lambda h: call(functional.linear, h, matrices.hidden, matrices.bias), states
        )
        if matrices.projection is not None:
            states = call(functional.linear, states[0], matrices.projection), *states[1:]
        outputs.append(states[0])
    return torch.stack(outputs, 1), *states


def scan_on(tape: Tape) -> Scan:
    """The recurrence as one autograd function that sends its contributions to a tape."""

    def scan(
        call: Call,
        cell: RecurrentCell,
        projected: Tensor,
        matrices: Matrices,
        states: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        every = matrices.hidden, matrices.bias, matrices.projection
        if any(matrix is not None and is_record(matrix) for matrix in every):
            return step_by_step(call, cell, projected, matrices, states)
        uses = [tape.use(matrix) if torch.is_grad_enabled() else None for matrix in every]
        anchor = tape.anchor if any(uses) else None
        values = matrices.mapped(Tensor.detach)

        def run(records: int, projected: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
            flat = (value.flatten(0, 1) for value in (projected, *states))
            results: tuple[Tensor, ...] = _Recurrence.apply(  # type: ignore[no-untyped-call]
                anchor, cell, values, records, uses, *flat
            )
            return tuple(result.view(records, -1, *result.shape[1:]) for result in results)

        outputs, *others = on_records(run, projected, *states)
        return outputs, outputs[:, -1], *others

    return scan


class _Recurrence(Function):
    """The recurrence of one layer in one direction, on (records · batch, time, size)."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor | None,
        cell: RecurrentCell,
        matrices: Matrices,
        records: int,
        uses: Sequence[Use | None],
        projected: Tensor,
        *states: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run all steps; products use the type of the projected input."""
        ctx.cell, ctx.matrices, ctx.records, ctx.uses = cell, matrices, records, uses
        ctx.types = [state.dtype for state in states]
        results, saved = cell.forward(projected, matrices.to(projected.dtype), states)
        first = states[0].to(projected.dtype)
        ctx.save_for_backward(first, results[0], *saved)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Pass the gradients to the input and the states, and factors to the parameters."""
        first, outputs, *saved = ctx.saved_tensors
        before = torch.cat([first[:, None], outputs[:, :-1]], 1)
        matrices = ctx.matrices.to(outputs.dtype)
        passed = ctx.cell.backward((outputs, *saved), matrices, before, gradients)

        def by_record(values: Tensor) -> Tensor:
            return values.reshape(ctx.records, -1, values.shape[-1])

        hidden_use, bias_use, projection_use = ctx.uses
        products = by_record(passed.products)
        if hidden_use:
            hidden_use(outer(products[None], by_record(before)[None], _matrix))
        if bias_use:
            bias_use(Dense(total(products, [1])))
        if projection_use:
            factors = by_record(passed.outputs), by_record(passed.unprojected)
            projection_use(outer(factors[0][None], factors[1][None], _matrix))
        states = [state.to(dtype) for state, dtype in zip(passed.states, ctx.types, strict=True)]
        return *[None] * 5, passed.projected, *states


def _matrix(gradient: Tensor) -> Tensor:
    return gradient.squeeze(-3)


def _layers(cell: RecurrentCell, function: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition of torch's function for several layers of one kind."""

    def run(
        call: Call,
        scan: Scan,
        input: Tensor,
        states: Tensor | Sequence[Tensor],
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
                weight, bias, matrices = next(weights)
                begin = [_on_record(call, state[len(last)], record) for state in initial]
                projected = call(functional.linear, hidden, weight, bias)
                outputs, *ends = scan(
                    call, cell, projected.flip(1) if backwards else projected, matrices, begin
                )
                directions.append(outputs.flip(1) if backwards else outputs)
                last.append(tuple(ends))
            hidden = torch.cat(directions, -1) if bidirectional else directions[0]
            if dropout and train and layer + 1 < num_layers:
                hidden = call(functional.dropout, hidden, dropout, True)
        ends = [torch.stack(each) for each in zip(*last, strict=True)]
        return hidden if batch_first else hidden.transpose(0, 1), *ends

    def refusing_packed(call: Call, scan: Scan, *args: Any, **kwargs: Any) -> Any:
        if len(args) > 3 and isinstance(args[3], (tuple, list)):
            if any(map(is_record, tensors(args))):
                refuse_packed()
            return call(function, *args, **kwargs)
        return run(call, scan, *args, **kwargs)

    return refusing_packed


def _cell(cell: RecurrentCell, function: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition of torch's function for a single step."""

    def run(
        call: Call,
        scan: Scan,
        input: Tensor,
        states: Tensor | Sequence[Tensor],
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
        _, *ends = step_by_step(call, cell, projected[:, None], Matrices(w_hh, b_hh, None), begin)
        return ends[0] if isinstance(states, Tensor) else tuple(ends)

    return run


def _on_record(call: Call, value: Tensor, record: Tensor) -> Tensor:
    """The value as one that belongs to the record, such as the initial state of every record."""
    if is_record(value):
        return value
    result: Tensor = call(torch.add, value, record.new_zeros((), dtype=value.dtype))
    return result


def _weights(
    params: Sequence[Tensor], has_biases: bool, bidirectional: bool, layers: int
) -> Iterator[tuple[Tensor, Tensor | None, Matrices]]:
    """Weight and bias of the input, and what multiplies the state, per layer and direction."""
    count = len(params) // (layers * (1 + bidirectional))
    for start in range(0, len(params), count):
        weight, hidden, *rest = params[start : start + count]
        biases = rest[:2] if has_biases else [None, None]
        projection = rest[-1] if count % 2 else None
        yield weight, biases[0], Matrices(hidden, biases[1], projection)


def refuse_packed() -> NoReturn:
    """Raise an error for a packed sequence, whose layout depends on the lengths of all records."""
    raise ValueError(
        "Expected padded sequences, got a packed one: it mixes the time steps of all records, in "
        "an order that depends on their lengths. Leave out pack_padded_sequence, give the layer "
        "the padded tensor, and mask its padded outputs, or gather the output at position "
        "length - 1. For a bidirectional layer, use one layer per direction and reverse each "
        "sequence by indexing, so that its padding stays at the end."
    )


def _pack(call: Call, scan: Scan, *args: Any, **kwargs: Any) -> Any:
    if any(map(is_record, tensors(args))):
        refuse_packed()
    return call(pack_padded_sequence, *args, **kwargs)


RECURRENT: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.lstm: _layers(Lstm(), torch.lstm),
    torch.gru: _layers(Gru(), torch.gru),
    torch.rnn_tanh: _layers(Elman(rectified=False), torch.rnn_tanh),
    torch.rnn_relu: _layers(Elman(rectified=True), torch.rnn_relu),
    torch.lstm_cell: _cell(Lstm(), torch.lstm_cell),
    torch.gru_cell: _cell(Gru(), torch.gru_cell),
    torch.rnn_tanh_cell: _cell(Elman(rectified=False), torch.rnn_tanh_cell),
    torch.rnn_relu_cell: _cell(Elman(rectified=True), torch.rnn_relu_cell),
    pack_padded_sequence: _pack,
}
"""Maps each of torch's recurrent functions to its decomposition, which takes `call` and `scan`."""
