"""On a GPU: kernels for images with their channels last compute what torch does with them first."""

import pytest
import torch
from torch import nn

from prudent.training.gradients import BookKeeping
from prudent.training.gradients.factors import kernels, layers
from prudent.training.gradients.factors.contributions import Dense
from prudent.training.gradients.factors.kernels import Geometry
from tests.training.gradients.oracle import cross_entropy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LAST = torch.channels_last


def images(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(shape, generator=generator).to("cuda", dtype).contiguous(memory_format=LAST)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        *(((3, 8, 5, 7), 4), ((2, 64, 33, 32), 32), ((2, 12, 3, 3), 3), ((2, 192, 4, 4), 3)),
        *(((2, 40, 5, 5), 8), ((2, 960, 7, 7), 8), ((2, 184, 6, 5), 8), ((2, 9, 4, 4), 3)),
    ],
)
def test_group_norm(shape, groups, affine, dtype):
    values, gradient = images(*shape, dtype=dtype) * 3 + 50, images(*shape)
    parameters = [images(1, shape[1], 1, 2)[0, :, 0, n].contiguous() for n in (0, 1)]
    weight, bias = parameters if affine else (None, None)
    assert kernels.normalises(values, groups)
    result, means, scales = kernels.group_norm(values, weight, bias, groups, 1e-5)
    passed, *found = kernels.group_norm_backward(gradient, values, weight, means, scales)

    exact = values.double().contiguous().requires_grad_()
    own = [torch.ones(shape[:2]).cuda().double(), torch.zeros(shape[:2]).cuda().double()]
    if affine:
        own = [p.double().expand(shape[:2]).clone() for p in parameters]
    own = [p.requires_grad_() for p in own]
    normal = nn.functional.group_norm(exact, groups, None, None, 1e-5)
    expected = normal * own[0][..., None, None] + own[1][..., None, None]
    slopes = torch.autograd.grad(expected, [exact, *own], gradient.double())
    torch.testing.assert_close(result.double(), expected.detach(), rtol=1e-4, atol=1e-4)
    loose = dtype == torch.bfloat16
    torch.testing.assert_close(
        passed.double(), slopes[0], rtol=1e-2 if loose else 1e-4, atol=1e-2 if loose else 1e-4
    )
    for one, other in zip(found, slopes[1:], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", [(3, 1), (5, 1023), (2, 300_001)])
def test_squares_are_added_in_double_precision(shape):
    values = torch.randn(shape, device="cuda") * 1e-25
    found = kernels.row_squares(values).sum(1)
    torch.testing.assert_close(found, values.double().square().sum(1), rtol=1e-14, atol=0.0)
    values[1, 0] = torch.nan
    assert kernels.row_squares(values).sum(1).isnan().tolist() == [n == 1 for n in range(shape[0])]


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d])
@pytest.mark.parametrize(
    "settings",
    [
        *({"kernel_size": 1}, {"kernel_size": 3, "padding": 1}, {"kernel_size": 3, "stride": 2}),
        *({"kernel_size": 1, "stride": 2}, {"kernel_size": 3, "groups": 2}),
        {"kernel_size": 3, "groups": 8},
    ],
)
@pytest.mark.parametrize("size", [4, 24, 160])
def test_convolutions_of_short_numbers(kind, settings, size):
    """The norm is that of the gradients, whose sum is formed from the same factors."""
    torch.manual_seed(0)
    axes = 1 if kind is nn.Conv1d else 2
    model = nn.Sequential(
        kind(8, 16, **settings), kind(16, 8, 1), nn.Flatten(), nn.LazyLinear(4)
    ).cuda()
    images = torch.randn(5, 8, *[size + 3] * axes, device="cuda")
    targets = torch.arange(5, device="cuda") % 4
    model(images)
    model[-1].requires_grad_(False)
    engine = BookKeeping(model, cross_entropy, autocast=torch.bfloat16)
    found = engine(model, images, targets)
    weights = torch.rand(5, device="cuda")
    total = found.weighted_sum(weights)
    formed = engine.formed(dict(model.named_parameters()), images, targets).per_example
    flat = torch.cat([each.flatten(1).double() for each in formed.values()], 1)
    torch.testing.assert_close(found.norms.double(), flat.norm(dim=1), rtol=1e-3, atol=1e-6)
    for name, each in formed.items():
        expected = torch.einsum("r,r...->...", weights.double(), each.double())
        torch.testing.assert_close(total[name].double(), expected, rtol=1e-3, atol=1e-5)
    whole = BookKeeping(model, cross_entropy)
    exact = whole.formed(dict(model.named_parameters()), images, targets).per_example
    for name, each in formed.items():
        assert (each - exact[name]).norm() <= 0.05 * exact[name].norm()


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "size"),
    [
        ((3, 3), (1, 1), (1, 1), (1, 1), (8, 8)),
        ((3, 2), (2, 3), (1, 0), (1, 2), (9, 11)),
        ((2, 3), (3, 1), (2, 1), (2, 1), (7, 8)),
        ((1, 1), (2, 2), (0, 0), (1, 1), (8, 8)),
    ],
)
def test_patches(kernel, stride, padding, dilation, size):
    geometry = Geometry(kernel, stride, padding, dilation, 1)
    values = images(3, 24, *size)
    expected = geometry.patches(values)
    assert torch.equal(kernels.image_patches(values, geometry, cut=False), expected)
    cut = kernels.image_patches(values, geometry, cut=True)
    assert torch.equal(cut, layers.shortened(expected))
    strips, begins = kernels.row_strips(values, geometry)
    rows = expected.view(3, -1, kernel[0], kernel[1] * 24)
    for index, begin in enumerate(begins):
        assert torch.equal(strips[:, begin : begin + rows.shape[1]], rows[:, :, index])


def test_a_weighted_sum_leaves_out_what_is_not_finite():
    values, weights = images(1, 37, 1, 1003)[0, :, 0].contiguous(), torch.rand(37).cuda()
    values[3, 5], values[4], weights[3], weights[4] = float("inf"), float("nan"), 0, 0
    expected = weights.double() @ torch.nan_to_num(values, 0, 0, 0).double()
    found = Dense(values).weighted_sum(weights).double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(8, 64),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 1),
        nn.Flatten(),
        nn.Linear(128 * 4, 5),
    ).cuda()


@pytest.mark.parametrize("strips", [True, False])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_model_is_the_same_with_channels_last(monkeypatch, autocast, strips):
    model, inputs = network(), images(6, 3, 16, 16).contiguous()
    targets, weights = torch.arange(6).cuda() % 5, torch.linspace(0, 1, 6).cuda()
    monkeypatch.setattr(layers, "_LARGE", 0 if strips else 1 << 40)
    normalised = []

    def watched(*args):
        normalised.append(args[0].shape)
        return kernels.group_norm(*args)

    monkeypatch.setattr(layers, "group_norm", watched)

    def answered(many):
        monkeypatch.setattr(layers, "_MANY", many)
        gradients = BookKeeping(model, cross_entropy, autocast=autocast)(model, inputs, targets)
        norms = gradients.norms
        return norms, gradients.weighted_sum(weights)

    first, expected = answered(1 << 40)
    assert not normalised
    norms, total = answered(0)
    assert len(normalised) == 3
    # The layers multiply truncated numbers in both, but not in the same order.
    close = 5e-2 if autocast else 1e-2
    torch.testing.assert_close(norms, first, rtol=close, atol=0)
    for name, value in expected.items():
        assert (total[name] - value).norm() < 4 * close * value.norm(), name


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_no_record_adds_more_than_its_norm(monkeypatch, autocast):
    monkeypatch.setattr(layers, "_MANY", 0)
    model, inputs, targets = network(), images(6, 3, 16, 16), torch.arange(6).cuda() % 5
    for record in range(6):
        gradients = BookKeeping(model, cross_entropy, autocast=autocast)(model, inputs, targets)
        norms, alone = gradients.norms, torch.zeros(6).cuda()
        alone[record] = 0.37
        total = gradients.weighted_sum(alone)
        size = torch.cat([value.flatten() for value in total.values()]).double().norm()
        assert size <= 0.37 * norms[record] * (1 + 1e-6)
        assert size >= 0.37 * norms[record] * (1 - 1e-3)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "size", "channels"),
    [
        ((7, 7), (1, 1), (3, 3), (1, 1), (14, 14), 48),
        ((3, 2), (2, 3), (1, 0), (1, 2), (9, 11), 5),
        ((2, 3), (3, 1), (2, 1), (2, 1), (40, 33), 33),
    ],
)
def test_depthwise_gradients(kernel, stride, padding, dilation, size, channels, dtype, last):
    geometry = Geometry(kernel, stride, padding, dilation, channels)
    values = images(3, channels, *size, dtype=dtype)
    gradient = images(3, channels, *geometry.output_size(size), dtype=dtype) + 0.5
    if not last:
        values, gradient = values.contiguous(), gradient.contiguous()
    assert kernels.is_depthwise(values, gradient, geometry)
    found = kernels.depthwise_gradients(values, gradient, geometry)
    weight = torch.zeros(channels, 1, *kernel, device="cuda", dtype=torch.float64)
    for image, own in enumerate(found):
        weight.requires_grad_()
        settings = stride, padding, dilation, channels
        result = nn.functional.conv2d(values[image : image + 1].double(), weight, None, *settings)
        (expected,) = torch.autograd.grad(result, weight, gradient[image : image + 1].double())
        torch.testing.assert_close(own.double(), expected.flatten(1), rtol=1e-4, atol=1e-3)
