"""Every kind of layer, in every engine, against separate backwards in double precision."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from prudent.training.gradients import BookKeeping, Engine, Materialised
from prudent.training.gradients.factors import layers
from prudent.training.gradients.factors.products import shortened
from tests.tiers import examples
from tests.training.gradients.oracle import alone, assert_agrees, squares

ENGINES = {
    "book-keeping": BookKeeping,
    "recomputed": lambda model, loss: BookKeeping(model, loss, recompute=True),
    "materialised": Materialised,
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest):
    return ENGINES[request.param]


@pytest.fixture(autouse=True)
def _double_precision():
    torch.manual_seed(3)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def check(engine, model: nn.Module, inputs, records: int) -> None:
    made: Engine = engine(model.double(), squares)
    assert_agrees(made, inputs, torch.randn(records), records)


class Apply(nn.Module):
    """A module from a function of its parameters and the input."""

    def __init__(self, function, **parameters: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value))

    def forward(self, *inputs):
        return self.function(self, *inputs)


@pytest.mark.parametrize("shape", [(6,), (1, 6), (3, 6), (40, 6), (2, 3, 6)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(engine, shape, bias):
    model = nn.Sequential(nn.Linear(6, 5, bias=bias), nn.Tanh(), nn.Linear(5, 2, bias=bias))
    check(engine, model, torch.randn(5, *shape), 5)


CONVOLUTIONS = [
    (nn.Conv1d(3, 4, 3), (3, 9)),
    (nn.Conv1d(4, 6, 4, stride=2, padding=3, dilation=2, groups=2, bias=False), (4, 11)),
    (nn.Conv2d(1, 2, 8, stride=2, padding=3), (1, 12, 12)),
    (nn.Conv2d(2, 5, (2, 3), stride=(2, 1), padding=(1, 0)), (2, 7, 6)),
    (nn.Conv2d(6, 6, 3, padding=1, groups=6), (6, 5, 4)),
    (nn.Conv2d(3, 4, 3, padding="same", dilation=2), (3, 6, 7)),
    (nn.Conv2d(2, 2, 3, padding="valid"), (2, 5, 5)),
    (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 5, 5)),
    (nn.Conv2d(8, 40, 1), (8, 1, 2)),
    (nn.Conv3d(2, 3, 2, stride=2, padding=1), (2, 4, 3, 5)),
    (nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 4, 4)),
    (nn.ConvTranspose2d(2, 3, (2, 3), stride=(2, 3)), (2, 4, 5)),
    (nn.ConvTranspose1d(2, 3, 2, stride=2, bias=False), (2, 5)),
]


@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS, ids=lambda value: repr(value)[:60])
def test_convolution(engine, layer, shape):
    # A layer before it, so that the gradient of the convolution's input matters as well.
    model = nn.Sequential(nn.GroupNorm(1, shape[0]), layer, nn.Tanh())
    check(engine, model, torch.randn(4, *shape), 4)


GROUPS = [
    (nn.Conv1d(4, 6, 4, padding=3, dilation=2, groups=2, bias=False), (4, 11)),
    (nn.Conv1d(6, 9, 5, padding=4, groups=3), (6, 11)),
    (nn.Conv1d(4, 4, 2, padding=3, groups=2), (4, 5)),  # more padding than its adjoint can undo
]


@pytest.mark.parametrize(
    ("layer", "shape"), [*CONVOLUTIONS, *GROUPS], ids=lambda each: repr(each)[:60]
)
def test_convolution_of_the_library(monkeypatch, layer, shape):
    """What runs on a GPU, here on the CPU."""
    monkeypatch.setattr(
        "prudent.training.gradients.factors.rules._multiplies_patches", lambda images: False
    )
    model = nn.Sequential(nn.GroupNorm(1, shape[0]), layer, nn.Tanh())
    check(BookKeeping, model, torch.randn(4, *shape), 4)


@pytest.mark.parametrize("cached", [1, 400])
@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS, ids=lambda value: repr(value)[:60])
def test_convolution_in_pieces(monkeypatch, layer, shape, cached):
    """A few images at a time, in memory that is used again; or each alone, if it is too large."""
    monkeypatch.setattr(layers, "_CACHED", cached)
    monkeypatch.setattr(layers, "_scratch", layers._Scratch())
    model = nn.Sequential(nn.GroupNorm(1, shape[0]), layer, nn.Tanh())
    check(BookKeeping, model, torch.randn(7, *shape), 7)
    held = layers._scratch._held
    assert all(len(memory) == cached for memory in held.values())


@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS, ids=lambda value: repr(value)[:60])
def test_convolution_with_the_adjoint_of_the_library(monkeypatch, layer, shape):
    """What runs on x86 in single precision."""
    monkeypatch.setattr(layers, "_has_fast_adjoint", lambda gradient: True)
    model = nn.Sequential(nn.GroupNorm(1, shape[0]), layer, nn.Tanh())
    check(BookKeeping, model, torch.randn(4, *shape), 4)


def test_one_channel_on_x86(monkeypatch):
    """The library returns channels first, which torch pools slowly; and an image, not a view."""
    monkeypatch.setattr(layers, "_has_fast_adjoint", lambda gradient: True)
    strides, pool = [], nn.functional.max_pool2d

    def pooled(x, *arguments, **settings):  # outside the model, whose own lists are put back
        strides.append(x.stride())
        return pool(x, *arguments, **settings)

    monkeypatch.setattr(nn.functional, "max_pool2d", pooled)
    first, second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 2)
    model = nn.Sequential(first, nn.ReLU(inplace=True), nn.MaxPool2d(2), second, nn.Tanh())
    check(BookKeeping, model, torch.randn(4, 1, 6, 6), 4)
    assert any(axes[-3] == 1 for axes in strides)  # others are of the oracle


@pytest.mark.parametrize("sizes", [(2, 4, 6), (24, 40, 2)], ids=["formed", "kept"])
def test_convolution_with_short_factors(monkeypatch, sizes):
    """TF32 as a GPU computes it: the norm stays that of what is summed."""
    channels, outputs, side = sizes
    rules, layers = (f"prudent.training.gradients.factors.{m}" for m in ("rules", "layers"))
    monkeypatch.setattr(f"{rules}._multiplies_patches", lambda images: False)
    monkeypatch.setattr(f"{layers}._cuts_factors", lambda *factors: True)
    monkeypatch.setattr(
        f"{layers}.short_product", lambda left, right: shortened(left) @ shortened(right)
    )
    model = nn.Sequential(nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.Flatten())
    model, inputs = model.float(), torch.randn(3, channels, side, side).float()
    targets = torch.zeros(3).float()
    precise = copy.deepcopy(model).double()
    truth = alone(precise, squares, inputs.double(), targets.double(), 3)["0.weight"]
    for record in range(3):
        gradients = BookKeeping(model, squares)(model, inputs, targets)
        weights = torch.zeros(3).float()
        weights[record] = 0.37
        total = gradients.weighted_sum(weights)["0.weight"] / weights[record]
        assert (1 - 1e-4) < total.norm() / gradients.norms[record] < 1 + 2e-6
        error = (total - truth[record]).norm() / truth[record].norm()
        assert 1e-5 < error < 2e-3


def test_even_same_padding():
    model = nn.Conv1d(2, 3, 4, padding="same")
    with pytest.warns(UserWarning, match="padding='same'"):
        check(BookKeeping, model, torch.randn(3, 2, 7), 3)


@examples(40)
@given(data=st.data())
def test_any_convolution(data):
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    kernel = (draw(1, 3), draw(1, 3))
    dilation, padding = (draw(1, 2), draw(1, 2)), (draw(0, 2), draw(0, 2))
    size = [d * (k - 1) + 1 + draw(0, 4) for k, d in zip(kernel, dilation, strict=True)]
    groups = draw(1, 3)
    channels, outputs = groups * draw(1, 2), groups * draw(1, 3)
    layer = nn.Conv2d(
        channels, outputs, kernel, (draw(1, 3), draw(1, 3)), padding, dilation, groups
    )
    records = draw(1, 3)
    scale = Apply(lambda self, x: x * self.scale, scale=torch.randn(channels, 1, 1))
    model = nn.Sequential(scale, layer)
    check(BookKeeping, model, torch.randn(records, channels, *size), records)


@examples(40)
@given(
    records=st.integers(1, 4),
    positions=st.integers(1, 9),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)),
)
def test_any_linear(records, positions, sizes):
    first, second, third = sizes
    model = nn.Sequential(nn.Linear(first, second), nn.Tanh(), nn.Linear(second, third))
    check(BookKeeping, model, torch.randn(records, positions, first), records)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LayerNorm(4), (3, 4)),
        (nn.LayerNorm((3, 4)), (3, 4)),
        (nn.LayerNorm(4, bias=False), (4,)),
        (nn.RMSNorm(4), (3, 4)),
        (nn.GroupNorm(2, 4), (4, 5, 3)),
        (nn.GroupNorm(4, 4), (4, 5)),
        (nn.InstanceNorm1d(3, affine=True), (3, 6)),
        (nn.InstanceNorm2d(3, affine=True), (3, 4, 4)),
        (nn.BatchNorm2d(3).eval(), (3, 4, 4)),
        (nn.PReLU(3), (3, 4)),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_other_layers(engine, layer, shape):
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    model = nn.Sequential(nn.Linear(shape[-1], shape[-1]), layer, nn.Tanh())
    check(engine, model, torch.randn(4, *shape), 4)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_layer_that_vmap_does_not_know(engine):
    check(engine, nn.Bilinear(4, 4, 2), (torch.randn(4, 4), torch.randn(4, 4)), 4)


@pytest.mark.parametrize("count", [3, 30])
@pytest.mark.parametrize("padding", [None, 2, -1])
@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
def test_embedding(engine, count, padding, shape):
    model = nn.Sequential(nn.Embedding(count, 4, padding_idx=padding), nn.Linear(4, 2))
    check(engine, model, torch.randint(0, count, (5, *shape)), 5)


def test_matrix_products(engine):
    def function(self, x):
        x = torch.matmul(x @ self.a, self.b) + (self.c @ x.mT).mT
        return torch.addmm(self.d, x.view(-1, 4), self.a).view_as(x)

    parameters = {"a": torch.randn(4, 4), "b": torch.randn(4, 4), "c": torch.randn(4, 4)}
    model = Apply(function, **parameters, d=torch.randn(4))
    check(engine, model, torch.randn(5, 3, 4), 5)


def test_attention_of_torch(engine):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    check(engine, layer, torch.randn(3, 5, 8), 3)


def test_tied_linear_layers(engine):
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    check(engine, nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), first), torch.randn(5, 4), 5)


def test_layer_called_on_records_of_two_lengths(engine):
    def function(self, x):
        return torch.cat([self.layer(x), self.layer(x[:, :1]).tanh()], 1)

    model = Apply(function)
    model.layer = nn.Linear(4, 3)
    check(engine, model, torch.randn(5, 30, 4), 5)


def test_convolution_called_twice(engine):
    layer = nn.Conv2d(3, 3, 3, padding=1, groups=1)
    check(engine, nn.Sequential(layer, nn.Tanh(), layer), torch.randn(4, 3, 4, 4), 4)


class LanguageModel(nn.Module):
    """Everything a transformer does to its parameters besides calling layers.

    Tied embedding and head, positions looked up once for all records, raw tables sliced, a token
    expanded over the batch, a scalar, a derived weight, and axes in an order of its own.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, 8, padding_idx=0)
        self.places = nn.Embedding(9, 8)
        self.table = nn.Parameter(torch.randn(12, 8))
        self.start = nn.Parameter(torch.randn(1, 1, 8))
        self.temperature = nn.Parameter(torch.randn(()))
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.head = nn.Linear(8, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        batch, length = x.shape
        h = self.tokens(x) + self.places(torch.arange(length)) + self.table[:length]
        h = torch.cat([self.start.expand(batch, -1, -1), h], 1)
        q, k, v = self.qkv(self.norm(h)).view(batch, length + 1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + mixed.transpose(1, 2).flatten(2) * self.temperature
        h = self.normed(h).transpose(0, 1).reshape(-1, 8)
        return self.head(h).view(length + 1, batch, -1).transpose(0, 1)


@pytest.mark.parametrize("vocabulary", [5, 50])
@pytest.mark.parametrize("records", [3, 7, 8, 9])
def test_language_model(engine, vocabulary, records):
    # As many records as positions, one fewer, one more: no axis is taken for another.
    model = LanguageModel(vocabulary)
    check(engine, model, torch.randint(0, vocabulary, (records, 8)), records)


@pytest.mark.parametrize("dim", [0, 2, None])
def test_a_convolution_with_weight_norm(engine, dim):
    """As the positions of wav2vec 2.0 are convolved; None: one length for the whole weight."""
    layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3, groups=2), dim=dim)
    check(engine, nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)), torch.randn(5, 4, 6), 5)


@pytest.mark.parametrize("library", [False, True])
def test_patches_as_batch(engine, library, monkeypatch):
    """A convolution over pieces of a record, folded into the axis of the batch."""

    def function(self, x):
        return self.layer(x.reshape(-1, 2, 4, 4)).view(len(x), -1)

    if library:
        path = "prudent.training.gradients.factors.rules._multiplies_patches"
        monkeypatch.setattr(path, lambda images: False)
    model = Apply(function)
    model.layer = nn.Conv2d(2, 30, 3)
    check(engine, model, torch.randn(3, 3, 2, 4, 4), 3)


def test_in_place(engine):
    def function(self, x):
        y = self.layer(x).mul_(2)
        y += self.shift
        return functional.relu_(y)

    model = Apply(function, shift=torch.randn(3))
    model.layer = nn.Linear(4, 3)
    check(engine, model, torch.randn(5, 4), 5)


def test_frozen(engine):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    model[1].requires_grad_(False)
    model[0].bias.requires_grad_(False)
    model[2].weight.requires_grad_(False)
    check(engine, model, torch.randn(5, 4), 5)


def test_frozen_part_without_gradient(engine):
    def function(self, x):
        with torch.no_grad():
            x = self.frozen(x)
        return self.trained(x)

    model = Apply(function)
    model.frozen, model.trained = nn.Linear(4, 4), nn.Linear(4, 2)
    check(engine, model, torch.randn(5, 4), 5)


@pytest.mark.parametrize("form", [tuple, dict])
def test_trees(engine, form):
    def function(self, left, right):
        return self.left(left["a"]) * self.right(right)

    model = Apply(function)
    model.left, model.right = nn.Linear(4, 2), nn.Linear(3, 2)
    model.forward = lambda left, right: function(model, left, right)
    inputs = {"left": {"a": torch.randn(5, 4)}, "right": torch.randn(5, 3)}
    check(engine, model, inputs if form is dict else tuple(inputs.values()), 5)
