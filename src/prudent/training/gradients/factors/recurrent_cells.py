"""The recurrences of LSTM, GRU and RNN layers: forward and backward over all time steps.

The backward of a recurrent layer is sequential in the gradient of its state only. Everything that
multiplies this gradient is known after the forward pass, so it is computed for all steps at once,
and a step of the backward pass is one matrix product and a few small operations.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import torch
from torch import Tensor
from typing_extensions import override

from prudent.training.gradients.factors.products import at_least_single

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
                _shifted(first, cells) * f * (1 - f),
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


def _shifted(first: Tensor, sequence: Tensor) -> Tensor:
    """What preceded every step of a sequence."""
    return torch.cat([first[:, None], sequence[:, :-1]], 1)
