"""Inner products and weighted sums of factors, against the gradients they stand for."""

import itertools

import pytest
import torch
from torch import Tensor

from prudent.training.gradients.factors.contributions import (
    Contribution,
    Dense,
    Outer,
    TableRows,
    outer,
    table_rows,
)
from prudent.training.gradients.factors.norms import inner, squared_norms
from prudent.training.gradients.factors.products import shortened

RECORDS, COUNT, SIZE = 4, 5, 3


def shaped(matrix: Tensor) -> Tensor:
    return matrix.squeeze(-3)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def contributions() -> list[Contribution]:
    torch.manual_seed(0)
    indices = [torch.randint(0, COUNT, (RECORDS, length)) for length in (6, 1)]
    return [
        Dense(random(RECORDS, COUNT, SIZE)),
        Outer(random(1, RECORDS, 6, COUNT), random(1, RECORDS, 6, SIZE), shaped),
        Outer(random(1, RECORDS, 1, COUNT), random(1, RECORDS, 1, SIZE), shaped),
        TableRows(indices[0], random(RECORDS, 6, SIZE), COUNT),
        TableRows(indices[1], random(RECORDS, 1, SIZE), COUNT),
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_squared_norms_have_all_cross_terms(count):
    for chosen in itertools.combinations(contributions(), count):
        total = torch.stack([each.per_example() for each in chosen]).sum(0)
        torch.testing.assert_close(squared_norms(chosen), total.square().sum((1, 2)))


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_weighted_sum(kind, bad):
    contribution = contributions()[kind]
    weights = torch.tensor([0.5, 0.0, -2.0, 1.0], dtype=torch.float64)
    expected = torch.einsum("m,mij->ij", weights, contribution.per_example())
    if bad is not None:
        match contribution:
            case Outer(rows, columns):
                rows[0, 1], columns[0, 1] = bad, bad
            case Dense(values) | TableRows(values=values):
                values[1] = bad
    torch.testing.assert_close(contribution.weighted_sum(weights), expected)


def test_groups():
    rows, columns = random(2, RECORDS, 6, 3), random(2, RECORDS, 6, 4)
    kept = Outer(rows, columns, lambda matrix: matrix.flatten(-3, -2))
    gradients = kept.per_example()
    assert gradients.shape == (RECORDS, 6, 4)
    torch.testing.assert_close(inner(kept, kept), gradients.square().sum((1, 2)))
    torch.testing.assert_close(kept.weighted_sum(torch.ones(RECORDS)), gradients.sum(0))


def test_the_smaller_is_kept():
    def kind(positions: int, rows: int, columns: int) -> type:
        return type(outer(random(1, 2, positions, rows), random(1, 2, positions, columns), shaped))

    assert kind(1, 2, 2) is Outer
    assert kind(100, 8, 8) is Dense
    assert kind(8, 100, 100) is Outer
    assert type(table_rows(torch.zeros(2, 9).long(), random(2, 9, 3), 9)) is Dense
    assert type(table_rows(torch.zeros(2, 9).long(), random(2, 9, 3), 10)) is TableRows


@pytest.mark.parametrize("value", [1.0, -3.14159274, 1e30, 1e-30, float("inf"), float("nan")])
def test_short_numbers_multiply_exactly(value):
    values = torch.tensor([value, 1.2345678])
    short = shortened(values)
    torch.testing.assert_close(short, values, rtol=2**-10, atol=0, equal_nan=True)
    assert float(short[1]) != 1.2345678
    exact = short.double() * short.double().flip(0)
    assert torch.equal((short * short.flip(0)).double(), exact) or not torch.isfinite(exact).all()
