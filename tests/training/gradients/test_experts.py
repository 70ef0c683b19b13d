"""Layers of experts: each position of a record is multiplied by the matrix of one of them."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from prudent.training.gradients import BookKeeping, Materialised
from prudent.training.gradients.factors import layers
from prudent.training.gradients.factors.contributions import Routed, grouped_product
from tests.training.gradients.oracle import alone, cross_entropy

pytestmark = pytest.mark.skipif(
    not hasattr(functional, "grouped_mm"), reason="torch has no grouped_mm"
)
RECORDS, POSITIONS, SIZE, EXPERTS, CLASSES = 6, 5, 8, 3, 4


class Mixture(nn.Module):
    """Routes each position to two experts, as models of transformers do."""

    def __init__(self, changed=lambda ends: ends):
        super().__init__()
        self.changed = changed
        self.router = nn.Linear(SIZE, EXPERTS)
        self.up = nn.Parameter(torch.randn(EXPERTS, 16, SIZE) / 3)
        self.down = nn.Parameter(torch.randn(EXPERTS, 16, SIZE) / 3)
        self.shift = nn.Parameter(torch.randn(EXPERTS, 16))
        self.head = nn.Linear(SIZE, CLASSES)

    def forward(self, records):
        values = records.flatten(0, 1)
        shares, chosen = self.router(values).softmax(-1).topk(2)
        expert, order = chosen.flatten().sort(stable=True)
        counts = torch.histc(expert.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
        ends = self.changed(counts.cumsum(0).int())
        hidden = functional.grouped_mm(values[order // 2], self.up.transpose(-2, -1), offs=ends)
        hidden.add_(self.shift[expert])  # in place, as GPT-OSS does
        hidden = functional.grouped_mm(hidden.tanh(), self.down, offs=ends)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        both = (hidden * shares.flatten()[order, None])[back].view(len(values), 2, SIZE)
        return self.head(both.sum(1).view(*records.shape).mean(1))


def data(dtype=torch.float32, changed=lambda ends: ends):
    torch.manual_seed(0)
    model = Mixture(changed).to(dtype)
    inputs = torch.randn(RECORDS, POSITIONS, SIZE, dtype=dtype)
    return model, inputs, torch.randint(0, CLASSES, (RECORDS,))


def check(gradients, truth, weights, near=1e-5):
    norms = torch.cat([g.flatten(1) for g in truth.values()], 1).norm(dim=1)
    torch.testing.assert_close(gradients.norms, norms, rtol=near, atol=0)
    total = gradients.weighted_sum(weights)
    for name, each in truth.items():
        expected = torch.einsum("m,m...->...", weights.to(each.dtype), each)
        assert (total[name] - expected).norm() <= near * norms.sum(), name


@pytest.mark.parametrize("engine", [BookKeeping, Materialised])
def test_gradients_are_those_of_records_alone(engine):
    model, inputs, targets = data()
    truth = alone(model, cross_entropy, inputs, targets, RECORDS)
    weights = torch.rand(RECORDS).double()
    check(engine(model, cross_entropy)(model, inputs, targets), truth, weights)


def test_frozen_experts_pass_gradients_on():
    model, inputs, targets = data()
    model.up.requires_grad_(False)
    truth = alone(model, cross_entropy, inputs, targets, RECORDS)
    gradients = BookKeeping(model, cross_entropy)(model, inputs, targets)
    check(gradients, truth, torch.ones(RECORDS).double())


def test_people():
    model, inputs, targets = data()
    truth = alone(model, cross_entropy, inputs, targets, RECORDS)
    truth = {name: each.view(2, 3, *each.shape[1:]).sum(1) for name, each in truth.items()}
    engine = BookKeeping(model, cross_entropy, slots=3)
    gradients = engine(model, inputs, (targets, torch.ones(RECORDS).double()))
    check(gradients, truth, torch.tensor([0.5, 2.0]).double())


def test_a_record_that_is_not_finite_leaves_the_others_alone():
    model, inputs, targets = data()
    engine = BookKeeping(model, cross_entropy)
    expected = engine(model, inputs[1:], targets[1:])
    inputs[0] = torch.nan
    gradients = engine(model, inputs, targets)
    torch.testing.assert_close(gradients.norms[1:], expected.norms)
    assert not gradients.norms[0].isfinite()
    total = gradients.weighted_sum(torch.tensor([0.0] + [1.0] * (RECORDS - 1)).double())
    for name, value in expected.weighted_sum(torch.ones(RECORDS - 1).double()).items():
        torch.testing.assert_close(total[name], value)


def factors(dtype, device="cpu", positions=70, height=72, width=40):
    """Two records, an expert without positions, and positions without an expert."""
    torch.manual_seed(0)
    ends = torch.tensor([[3, 3, 60], [40, 41, 70]])
    sides = (torch.randn(2, positions, size).to(dtype) for size in (height, width))
    return *(side.to(device) for side in sides), ends.to(device)


def test_products_sums_and_norms():
    rows, columns, ends = factors(torch.float64)
    each = torch.zeros(2, 3, 72, 40).double()
    product = torch.zeros(2, 70, 40).double()
    matrices = torch.randn(3, 72, 40).double()
    for record in range(2):
        for expert, own in enumerate(
            [[(0, 3), (3, 3), (3, 60)], [(0, 40), (40, 41), (41, 70)]][record]
        ):
            place = slice(*own)
            each[record, expert] = rows[record, place].mT @ columns[record, place]
            product[record, place] = rows[record, place] @ matrices[expert]
    weights = torch.tensor([0.5, 2.0]).double()
    routed = Routed(rows, columns, ends)
    torch.testing.assert_close(routed.per_example(), each)
    torch.testing.assert_close(grouped_product(rows, matrices, ends), product)
    torch.testing.assert_close(
        Routed(rows, columns, ends).squared_norms(), each.square().sum((1, 2, 3))
    )
    total = torch.einsum("m,m...->...", weights, each)
    torch.testing.assert_close(routed.weighted_sum(weights), total)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels(dtype):
    rows, columns, ends = factors(dtype)
    there = factors(dtype, "cuda")
    weights = torch.tensor([0.5, 2.0]).double()
    own, on_device = Routed(rows.double(), columns.double(), ends), Routed(*there)
    squares = on_device.squared_norms().cpu().double()
    torch.testing.assert_close(squares, own.squared_norms(), rtol=1e-5, atol=0)
    total = on_device.weighted_sum(weights.cuda()).cpu()
    torch.testing.assert_close(total, own.weighted_sum(weights), rtol=0, atol=1e-4)
    matrices = torch.randn(3, 72, 40).to(dtype)
    product = grouped_product(rows.double(), matrices.double(), ends)
    near = 1e-3 if dtype == torch.float32 else 0.1
    found = grouped_product(there[0], matrices.cuda(), there[2]).cpu().double()
    torch.testing.assert_close(found, product, rtol=near, atol=near)


def test_positions_that_cancel_leave_the_others_their_contributions():
    """What is exactly zero of one record has the norm zero, and must be zero of the sum as well."""
    rows, columns, ends = factors(torch.float32)
    rows[1], columns[1] = 0, 0
    rows[1, 5:7, 0] = torch.tensor([1e30, -1e30])
    columns[1, 5:7] = 1
    routed = Routed(rows, columns, ends)
    assert not routed.squared_norms()[1]
    alone = Routed(rows[:1], columns[:1], ends[:1])
    total = routed.weighted_sum(torch.ones(2).double())
    assert torch.equal(total, alone.weighted_sum(torch.ones(1).double()))


def test_a_product_is_the_same_whatever_stands_beside_it():
    """Bit for bit: a library multiplies more positions of an expert in another way."""
    torch.manual_seed(0)
    values, matrices = torch.randn(40, 70, 300), torch.randn(3, 300, 40)
    ends = torch.randint(0, 71, (40, 3)).sort(1).values
    product = grouped_product(values, matrices, ends)
    for record in range(40):
        one = slice(record, record + 1)
        assert torch.equal(grouped_product(values[one], matrices, ends[one]), product[one])


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        (lambda ends: ends * 1000, lambda ends: (ends * 1000).clamp_max(2 * POSITIONS)),
        (lambda ends: ends - 4, lambda ends: (ends - 4).clamp_min(0)),
        (
            lambda ends: torch.stack([ends[2], ends[0] - 1, ends[1]]),
            lambda ends: 0 * ends + ends[2],
        ),
    ],
    ids=["beyond", "below zero", "decreasing"],
)
@pytest.mark.parametrize("slots", [None, 3])
@pytest.mark.parametrize("engine", [BookKeeping, Materialised])
def test_offsets_stay_within_the_record(engine, slots, wrong, meant):
    """A kernel reads where the model says that an expert ends."""
    weights = torch.rand(RECORDS // (slots or 1)).double()
    found = []
    for changed in (wrong, meant):
        model, inputs, targets = data(changed=changed)
        targets = targets if slots is None else (targets, torch.ones(RECORDS).double())
        gradients = engine(model, cross_entropy, slots=slots)(model, inputs, targets)
        found.append((gradients.norms, gradients.weighted_sum(weights)))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_kernels_are_given_offsets_within_the_record(monkeypatch):
    seen = []
    monkeypatch.setattr(
        layers,
        "grouped_product",
        lambda values, matrices, ends: (seen.append(ends), grouped_product(values, matrices, ends))[
            1
        ],
    )
    model, inputs, targets = data(changed=lambda ends: ends[[1, 2, 0]] * 7 - 20)
    BookKeeping(model, cross_entropy)(model, inputs, targets)
    for ends in seen:
        assert (ends >= 0).all()
        assert (ends <= 2 * POSITIONS).all()
        assert (ends.diff() >= 0).all()
    assert len(seen) == 3
