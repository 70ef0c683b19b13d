"""On a GPU: the same numbers as on the CPU, and a whole step as one CUDA graph."""

import copy

import pytest
import torch
import torch._inductor
from torch import nn

from prudent.training.gradients import BookKeeping, Materialised
from prudent.training.gradients.factors import kernels, products
from prudent.training.gradients.factors.contributions import Outer, as_it_is
from prudent.training.gradients.factors.norms import squared_norms
from prudent.training.gradients.factors.products import shortened
from prudent.training.noise import SUMS
from tests.training.gradients.oracle import cross_entropy
from tests.training.gradients.test_large_models import MODELS, batch, set_checkpointed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1, groups=2),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.Conv2d(6, 40, 3, bias=False),
        nn.Flatten(2),
        nn.LayerNorm(4),
        nn.Linear(4, 5),
        nn.Flatten(),
        nn.Linear(200, 4),
    ).double()


@pytest.mark.parametrize("recompute", [False, True])
def test_same_as_on_the_cpu(recompute):
    here, inputs, targets = model(), torch.randn(6, 2, 8, 8).double(), torch.randint(0, 4, (6,))
    there = copy.deepcopy(here).cuda()
    weights = torch.rand(6).double()
    expected = Materialised(here, cross_entropy)(here, inputs, targets)
    gradients = BookKeeping(there, cross_entropy, recompute=recompute)(
        there, inputs.cuda(), targets.cuda()
    )
    torch.testing.assert_close(gradients.norms.cpu(), expected.norms)
    total = gradients.weighted_sum(weights.cuda())
    for name, value in expected.weighted_sum(weights).items():
        torch.testing.assert_close(total[name].cpu(), value)


def test_step_as_a_graph():
    network, targets = model().cuda(), torch.randint(0, 4, (6,)).cuda()
    inputs = torch.randn(6, 2, 8, 8).double().cuda()
    engine = BookKeeping(network, cross_entropy)

    def step():
        gradients = engine(network, inputs, targets)
        return gradients.norms, gradients.weighted_sum(1 / gradients.norms)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        norms, total = step()
    inputs.copy_(torch.randn_like(inputs))
    graph.replay()
    expected_norms, expected = step()
    torch.testing.assert_close(norms, expected_norms)
    for name, value in expected.items():
        torch.testing.assert_close(total[name], value)


@pytest.mark.parametrize("name", ["resnet", "gpt", "lora"])
@pytest.mark.parametrize("recompute", [False, True])
def test_no_record_adds_more_than_the_clip_in_bfloat16(name, recompute):
    torch.manual_seed(2)
    network = MODELS[name]()
    loss, inputs, targets = batch(network)
    inputs = inputs.float() if inputs.is_floating_point() else inputs
    network, inputs, targets = network.cuda(), inputs.cuda(), targets.cuda()
    if recompute:
        set_checkpointed(network)
    engine = BookKeeping(network, loss, recompute=recompute, autocast=torch.bfloat16)
    norms = engine(network, inputs, targets).norms
    for record in range(4):
        weights = torch.zeros(4, device="cuda")
        weights[record] = 0.37 / norms[record]
        total = engine(network, inputs, targets).weighted_sum(weights)
        size = torch.cat([value.flatten() for value in total.values()]).double().norm()
        assert abs(size / 0.37 - 1) < 1e-4


def test_checkpoints_in_a_graph_are_refused():
    network = set_checkpointed(MODELS["gpt"]()).cuda()
    loss, inputs, targets = batch(network)
    engine = BookKeeping(network, loss)
    inputs, targets = inputs.cuda(), targets.cuda()
    engine(network, inputs, targets)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="cuda_graph=False"), torch.cuda.graph(graph):
        engine(network, inputs, targets)


class Recurrent(nn.Module):
    """An attention layer between two recurrent ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.LSTM(5, 8, 2, batch_first=True, bidirectional=True, proj_size=4)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.second, self.last = nn.GRU(8, 7, batch_first=True), nn.RNN(7, 4, batch_first=True)

    def forward(self, x):
        x = self.first(x)[0]
        x = self.attention(x, x, x, need_weights=False)[0]
        return self.last(self.second(x)[0])[0][:, -1]


def test_recurrent_layers_as_on_the_cpu():
    here, inputs = Recurrent().double(), torch.randn(6, 9, 5).double()
    there, targets = copy.deepcopy(here).cuda(), torch.randint(0, 4, (6,))
    weights = torch.rand(6).double()
    expected = Materialised(here, cross_entropy)(here, inputs, targets)
    gradients = BookKeeping(there, cross_entropy)(there, inputs.cuda(), targets.cuda())
    torch.testing.assert_close(gradients.norms.cpu(), expected.norms)
    total = gradients.weighted_sum(weights.cuda())
    for name, value in expected.weighted_sum(weights).items():
        torch.testing.assert_close(total[name].cpu(), value)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_recurrent_layers_in_a_graph(autocast):
    network, targets = Recurrent().cuda(), torch.randint(0, 4, (6,)).cuda()
    inputs = torch.randn(6, 9, 5).cuda()
    engine = BookKeeping(network, cross_entropy, autocast=autocast)
    weights = 0.37 * torch.eye(6).cuda()[2]

    def step():
        gradients = engine(network, inputs, targets)
        return gradients.norms, gradients.weighted_sum(weights)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        norms, total = step()
    inputs.copy_(torch.randn_like(inputs))
    graph.replay()
    torch.testing.assert_close(norms, step()[0])
    size = torch.cat([value.flatten() for value in total.values()]).double().norm()
    assert abs(size / (0.37 * norms[2]) - 1) < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "shape", [(2, 5, 37, 101, 64), (1, 3, 197, 768, 40), (1, 3, 64, 9_000, 24)]
)
def test_kernels_compute_what_torch_does(dtype, shape):
    *batch, height, width = shape
    rows, columns = (torch.randn(*batch, size).to(dtype).cuda() for size in (height, width))
    product = products.precise_product if dtype == torch.bfloat16 else products.cut_product
    factors = Outer(rows, columns, as_it_is, product)
    assert factors.is_taken
    pair = [
        each.double() if dtype == torch.bfloat16 else shortened(each).double()
        for each in (rows, columns)
    ]
    exact = torch.einsum("grti,grtj->rgij", *pair)
    norms = exact.flatten(1).norm(dim=1)
    found = squared_norms([factors]).sqrt()
    assert (found >= norms * (1 - 1e-7)).all()
    assert (found <= norms * 1.01).all()
    weights = torch.rand(batch[1]).cuda()
    weights[2] = 0
    rows[:, 2, 3, 4], columns[:, 2, 1, 1], columns[:, 2, 2, 2] = float("nan"), float("inf"), 3.4e38
    exact[2] = 0
    total = torch.einsum("rgij,r->gij", exact, weights.double())
    factors = Outer(rows, columns, as_it_is, product)
    found = factors.weighted_sum(weights)
    assert found.dtype == torch.float64
    assert (found - total).norm() < 1e-5 * total.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("positions", [2, 64, 1000, 3000])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_record_adds_more_than_its_clip(dtype, positions, sign):
    """Equal numbers, which round in one direction, and terms that nearly cancel."""
    torch.manual_seed(0)
    numbers = (1 + torch.rand(1, 20, 1, 48)).expand(1, 20, positions, 48).clone()
    columns = (1 + torch.rand(1, 20, 1, 80)).expand(1, 20, positions, 80).clone()
    columns[:, :, ::2] *= sign
    columns[:, :, :1] *= 1.01
    rows, columns = numbers.to(dtype).cuda(), columns.to(dtype).cuda()
    product = products.precise_product if dtype == torch.bfloat16 else products.cut_product
    factors = Outer(rows, columns, as_it_is, product)
    assert factors.is_taken
    norms = squared_norms([factors]).sqrt().double()
    alone = [factors.weighted_sum(weights / norms) for weights in torch.eye(20).double().cuda()]
    assert max(float(total.norm()) for total in alone) <= 1 + SUMS / 2
    together = factors.weighted_sum(1 / norms)
    assert (together - sum(alone)).norm() < 1e-12  # what a record adds depends on no other


def test_kernel_of_normalisations():
    gradient, values = torch.randn(4, 50, 100).cuda(), torch.randn(4, 50, 100).cuda()
    mean, scale = values.mean(-1, keepdim=True), 1 / values.std(-1, keepdim=True)
    slopes, shifts = kernels.norm_gradients(gradient, values, mean, scale, (4, 100))
    torch.testing.assert_close(slopes, (gradient * (values - mean) * scale).sum(1))
    torch.testing.assert_close(shifts, gradient.sum(1))
