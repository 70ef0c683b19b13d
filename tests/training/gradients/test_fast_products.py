"""What makes steps fast on a GPU, computed here on the CPU: nothing is lost by it."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from prudent.training.gradients import BookKeeping
from prudent.training.gradients.factors.contributions import Dense, Outer, TableRows, weighted_sums
from prudent.training.gradients.factors.norms import SquaredNorms, inner, squared_norms
from prudent.training.gradients.factors.products import cut_product, shortened
from tests.training.gradients.oracle import alone, assert_agrees, squares

RULES, LAYERS = (f"prudent.training.gradients.factors.{module}" for module in ("rules", "layers"))


def matrix(gradient: Tensor) -> Tensor:
    return gradient.squeeze(-3)


def test_linear_layers_with_factors_cut_to_tf32(monkeypatch):
    """The norm is that of what is summed, and both are near the gradient."""
    monkeypatch.setattr(f"{LAYERS}.cuts_products", lambda values: True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 50, bias=False), nn.Tanh(), nn.Linear(50, 40), nn.Flatten())
    inputs, targets = torch.randn(3, 6, 30), torch.zeros(3)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.square().sum(1) + targets

    precise = copy.deepcopy(model).double()
    truth = alone(precise, loss, inputs.double(), targets.double(), 3)
    engine = BookKeeping(model, loss)
    norms = engine(model, inputs, targets).norms
    for record in range(3):
        total = engine(model, inputs, targets).weighted_sum(torch.eye(3)[record])
        size = torch.cat([value.flatten() for value in total.values()]).double().norm()
        assert size <= norms[record] * (1 + 1e-6)
        assert norms[record] <= 1.01 * size
        for name, value in total.items():
            exact = truth[name][record]
            assert (value - exact).norm() < 3e-3 * exact.norm()
            assert not torch.allclose(value.double(), exact, rtol=1e-6)  # it was cut


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_outputs_that_are_padded(monkeypatch, transposed, bias):
    """As for a vocabulary of an odd size: 13 outputs computed as 16."""
    seen = []

    def padded(parameter: Tensor) -> Tensor:
        seen.append(parameter.shape)
        return functional.pad(parameter, [0, 0] * (parameter.ndim - 1) + [0, 3])

    monkeypatch.setattr(f"{RULES}._pads_outputs", lambda values, width: width == 13)
    monkeypatch.setattr(f"{RULES}._padded", padded)

    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 13))
            self.bias = nn.Parameter(torch.randn(13))

        def forward(self, values: Tensor) -> Tensor:
            if not bias:
                return values @ self.weight + 0 * self.bias
            flat = values.reshape(-1, 5)
            return torch.addmm(self.bias, flat, self.weight).view(*values.shape[:-1], 13)

    last = Transposed() if transposed else nn.Linear(5, 13, bias=bias)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), last).double()
    inputs, targets = torch.randn(4, 7, 4).double(), torch.zeros(4).double()
    assert_agrees(BookKeeping(model, squares), inputs, targets, 4)
    assert seen


def test_norms_and_sums_of_many_small_gradients_together():
    torch.manual_seed(0)
    gradients = [Dense(torch.randn(5, *shape)) for shape in ((3,), (2, 4), (), (7,))]
    together = SquaredNorms()
    for gradient in gradients:
        together.add([gradient])
    expected = torch.stack([squared_norms([gradient]) for gradient in gradients]).sum(0)
    torch.testing.assert_close(together.total(torch.zeros(5)), expected)
    weights = torch.rand(5)
    for gradient, total in zip(gradients, weighted_sums(gradients, weights), strict=True):
        torch.testing.assert_close(total, gradient.weighted_sum(weights))
        assert total.shape == gradient.values.shape[1:]


def test_a_use_with_short_products_does_not_cut_the_factors_of_another():
    """As a weight that a linear layer under TF32 shares with a layer that keeps whole factors."""
    torch.manual_seed(0)
    factors = [torch.randn(1, 4, 6, size) for size in (8, 9)]
    whole = Outer(*factors, matrix)
    short = Outer(
        *map(shortened, factors), matrix, lambda left, right: shortened(left) @ shortened(right)
    )
    expected = (short.per_example().double() * whole.per_example().double()).sum((1, 2))
    cut_as_read = Outer(*factors, matrix, cut_product)
    for other in (short, cut_as_read):
        for pair in ((other, whole), (whole, other)):
            assert ((inner(*pair) - expected).abs() < 1e-5 * expected.abs()).all()


def test_factors_are_cut_where_a_table_shares_the_weight():
    """As a vocabulary that is both embedding and head."""
    torch.manual_seed(0)
    head = Outer(torch.randn(1, 3, 5, 11), torch.randn(1, 3, 5, 7), matrix, cut_product)
    table = TableRows(torch.randint(0, 11, (3, 5)), torch.randn(3, 5, 7), 11)
    products = head.per_example().double() * table.per_example().double()
    torch.testing.assert_close(
        inner(table, head).double(), products.sum((1, 2)), rtol=1e-5, atol=1e-5
    )
    one = Outer(head.rows[:, :, :1], head.columns[:, :, :1], matrix, cut_product)
    exact = one.per_example().double().flatten(1).norm(dim=1)
    torch.testing.assert_close(squared_norms([one]).sqrt().double(), exact, rtol=1e-5, atol=0)
