"""Rounding: a record moves the computed sum by no more than the noise pays for."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from prudent import Plan, ProposeTestRelease, Step, Sum
from prudent.accounting.events import GaussianTest
from prudent.training.chunk import Chunk
from prudent.training.gradients import BookKeeping, Materialised
from prudent.training.gradients.factors import contributions
from prudent.training.gradients.factors.contributions import Outer
from prudent.training.gradients.factors.norms import lengths, squared_norms
from prudent.training.gradients.factors.products import cut_product, shortened
from prudent.training.keystream import Key
from prudent.training.noise import SUMS, DeviceNoise, HostNoise, noise_factor, noise_on

TOKENS = 40


class Sliding(nn.Module):
    """Positions whose gradients are kept as factors, and one whose gradient is formed."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.bias = nn.Linear(3, 400, bias=False), nn.Parameter(torch.zeros(2, 3))
        with torch.no_grad():
            self.wide.weight.fill_(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x + self.bias.mean(0)).sum((1, 2)) + (x[:, :2] * self.bias).sum((1, 2))


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.table((x[..., 0] * 0).long()).sum((1, 2))


class Vector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, 0]).sum(1)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs * targets


def exact_sum(
    monkeypatch, make, records, clip, engine, chunk, device="cpu"
) -> tuple[Tensor, float]:
    """The sum to which noise is added, and the deviation of the noise."""
    seen: list[tuple[Tensor, float]] = []

    def look(self, total: Tensor, deviation: Tensor, *_: object) -> None:
        seen.append((total.clone(), float(deviation)))

    noise_on(torch.empty(0, device=device).device, Key.from_seed(0))  # looks at kernels only once
    monkeypatch.setattr(HostNoise, "add_", look)
    monkeypatch.setattr(DeviceNoise, "add_", look)
    torch.manual_seed(0)
    model = make().to(device)
    plan = Plan(sampling_rate=1.0, steps=1, aggregation=Sum(clip=clip, noise_multiplier=2.0))
    step = Step(
        plan,
        model,
        loss,
        expected_batch=1.0,
        engine=engine(model, loss),
        key=Key.from_seed(0),
        cuda_graph=False,
    )
    inputs = torch.full((records, 4, 3), 0.7, device=device)  # equal numbers round in one direction
    step([Chunk(part, part[:, 0, 0]) for part in torch.split(inputs, chunk)])
    return seen[0]


@pytest.mark.parametrize("engine", [BookKeeping, Materialised])
@pytest.mark.parametrize("make", [Vector, Sliding, Table])
@pytest.mark.parametrize("chunk", [4096, 1000])
def test_a_record_moves_a_large_sum_by_one_clip(make, engine, chunk, monkeypatch):
    records = 4096 if make is Vector else 1500
    for clip in (0.1, 1 / 3):
        with_it, noise = exact_sum(monkeypatch, make, records, clip, engine, chunk)
        without, _ = exact_sum(monkeypatch, make, records - 1, clip, engine, chunk)
        distance = float((with_it - without).double().norm())
        assert 0.9 * clip < distance <= clip * (1 + 1e-6)
        assert noise / 2.0 >= clip * (1 + SUMS)


def test_the_check_sees_sums_in_single_precision(monkeypatch):
    """Added one after another: how a library orders its sums depends on the processor."""

    def in_turn(left, right):
        total = torch.zeros(*left.shape[:-1], right.shape[-1])
        for place in range(right.shape[-2]):
            total += left[..., place, None].float() * right[..., place, None, :].float()
        return total

    monkeypatch.setattr(Tensor, "double", Tensor.float)
    monkeypatch.setattr(contributions, "_finite_product", in_turn)
    moved = []
    for clip in (0.1, 1 / 3):
        with_it, _ = exact_sum(monkeypatch, Vector, 4096, clip, BookKeeping, 4096)
        without, _ = exact_sum(monkeypatch, Vector, 4095, clip, BookKeeping, 4096)
        moved.append(float((with_it - without).norm()) / clip)
    assert max(moved) > 1 + 1e-5


@pytest.mark.parametrize("positions", [1, 3])
def test_double_sums_of_short_factors_are_those_of_the_norms(positions):
    """Factors truncated to TF32, as on a GPU: products of the same numbers."""
    torch.manual_seed(0)
    rows, columns = torch.randn(1, 50, positions, 5), torch.randn(1, 50, positions, 7)
    weights = torch.rand(50)
    factors = Outer(rows, columns, lambda total: total[0], cut_product)
    cut = [shortened(each[0]).double() for each in (rows, columns)]
    each = torch.einsum("ntr,ntc->nrc", *cut)
    assert (squared_norms([factors]) >= each.square().sum((1, 2)) * (1 - 1e-6)).all()
    exact = (weights.double()[:, None, None] * each).sum(0)
    found = factors.weighted_sum(weights.double())
    assert found.dtype == torch.float64
    assert (found - exact).norm() < 1e-14 * each.norm(dim=(1, 2)).sum()


def test_terms_that_cancel_have_the_norms_that_the_proof_takes():
    """The sum of the lengths of all terms, in norms, is at most 1/√(8ε)."""
    for dtype, most in ((torch.float32, 1024.0), (torch.float64, 2.4e7)):
        rows = torch.tensor([1.0, -1.0], dtype=dtype).view(1, 1, 2, 1)
        columns = torch.ones(1, 1, 2, 1, dtype=dtype)
        norm = squared_norms([Outer(rows, columns, lambda total: total)]).sqrt()
        assert 0.5 * most < 2.0 / float(norm) <= most


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["whole", "tf32", "bf16"])
@pytest.mark.parametrize("make", [Vector, Sliding, Table])
def test_a_record_moves_a_sum_on_a_gpu_by_what_it_adds_alone(make, kind, monkeypatch):
    def engine(model, loss):
        return BookKeeping(model.cuda(), loss, autocast=torch.bfloat16 if kind == "bf16" else None)

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
    try:
        for clip in (0.1, 1 / 3):
            with_it, without, alone = (
                exact_sum(monkeypatch, make, records, clip, engine, 1500, "cuda")[0].double()
                for records in (1500, 1499, 1)
            )
            moved = with_it - without
            assert 0.9 * clip < float(moved.norm()) <= clip * (1 + SUMS)
            assert float((moved - alone).norm()) < 1e-9 * clip
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("size", [1, 3, 2047, 2048, 5000, 300_000])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.7, 1e-3])
def test_norms_are_short_by_no_more_than_the_factor(size, value):
    vector = torch.full((size,), value)
    square = size * Fraction(float(vector[0])) ** 2
    factor = noise_factor(size, 1, torch.float32) / (1 + SUMS)
    assert Fraction(float(lengths(vector[None])) * factor) ** 2 >= square
    assert factor < 1 + 1e-3


def test_the_noise_of_every_branch_is_larger_by_the_factor(monkeypatch):
    seen = []
    monkeypatch.setattr(HostNoise, "add_", lambda self, total, noise, state: seen.append(noise))
    rule = ProposeTestRelease(
        clip=1.0, noise_multiplier=1.0, propose=0.5, test=GaussianTest(scale=4.0), failure=1e-8
    )
    model = Vector()
    plan = Plan(sampling_rate=1.0, steps=1, aggregation=rule)
    step = Step(plan, model, loss, expected_batch=8.0, key=Key.from_seed(0))
    outcome = step([Chunk(torch.ones(8, 4, 3), torch.ones(8))])
    expected = float(outcome.noise) * noise_factor(8, 2, torch.float32)
    assert math.isclose(float(seen[0]), expected)
    assert expected > 1.001 * float(outcome.noise)


def test_the_factor_is_small():
    assert noise_factor(10**6, 10, torch.float32) < 1.0015
    assert noise_factor(10**8, 500, torch.float32) < 1.015
    assert noise_factor(10**8, 500, torch.float64) < 1.00101
