"""Layers that cannot give each record a gradient are named, with what to use instead."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from prudent.training.gradients import BookKeeping, Materialised
from prudent.training.gradients.unsupported import UnsupportedLayerError, unsupported
from tests.training.gradients.oracle import assert_agrees, squares


@pytest.fixture(params=[BookKeeping, Materialised])
def engine(request: pytest.FixtureRequest):
    return request.param


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(5)


class Square(torch.autograd.Function):
    """Without what torch.func needs of it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class VmappedSquare(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Then(nn.Linear):
    """A linear layer and a function."""

    def __init__(self, function):
        super().__init__(3, 3)
        self.function = function

    def forward(self, x):
        return self.function(super().forward(x))


def written_in_place(x):
    zeros = torch.zeros(x.shape, dtype=x.dtype)
    zeros += x
    return zeros


def chosen_in_a_loop(x):
    """Experts as many models have them."""
    result = torch.zeros_like(x)
    for expert in range(2):
        (own,) = torch.where((x[:, 0] > 0) == expert)
        result = result.index_add(0, own, x[own] * expert)
    return result


REFUSED = {
    "rrelu": (nn.RReLU(), r"RReLU at '1'.*LeakyReLU"),
    "batch norm": (nn.BatchNorm1d(3), r"BatchNorm1d in training mode at '1'.*GroupNorm"),
    "sync batch norm": (nn.SyncBatchNorm(3), r"SyncBatchNorm.*at '1'.*GroupNorm"),
    "lazy": (nn.LazyLinear(2), r"LazyLinear without a shape at '1'. Run the model once"),
    "autograd function": (Then(Square.apply), r"Then at '1'.*generate_vmap_rule"),
    "boolean index": (Then(lambda x: x[x > 0].sum()[None]), r"Then at '1'.*torch.where and masks"),
    "branch": (Then(lambda x: x if x.sum() > 0 else -x), r"Then at '1'.*torch.where instead of if"),
    "number": (Then(lambda x: x * x.sum().item()), r"Then at '1'.*no .item"),
    "list": (Then(lambda x: x * x[0].tolist()[0]), r"Then at '1'.*no .tolist"),
    "experts": (Then(chosen_in_a_loop), r"Then at '1'.*grouped_mm"),
    "in place": (Then(written_in_place), r"Then at '1'.*new_zeros"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_named_with_what_to_use_instead(engine, name):
    layer, text = REFUSED[name]
    model = nn.Sequential(nn.Linear(3, 3), copy.deepcopy(layer))
    with pytest.raises((ValueError, RuntimeError), match=text) as caught:
        engine(model, squares)(model, torch.randn(4, 3), torch.zeros(4))
    assert caught.value.__context__ is None


def test_the_error_carries_the_layer(engine):
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.RReLU()))
    with pytest.raises(UnsupportedLayerError) as caught:
        engine(model, squares).formed(model, torch.randn(4, 3), torch.zeros(4))
    assert caught.value.layer.path == "1.0"
    assert caught.value.layer.what == "RReLU"


def test_no_word_of_the_records(engine):
    """The error is that of made-up records, whatever the batch."""
    model = Then(lambda x: x if x.sum() > 0 else -x)
    texts = set()
    for records in (torch.randn(4, 3), torch.full((4, 3), 918273.0)):
        with pytest.raises(UnsupportedLayerError) as caught:
            engine(model, squares)(model, records, torch.zeros(4))
        texts.add(str(caught.value))
    assert len(texts) == 1
    assert "918273" not in texts.pop()


def test_an_error_of_another_kind_is_left_as_it_is(engine):
    model = nn.Sequential(nn.Linear(3, 3), Then(lambda x: x.view(2, 7)))
    with pytest.raises(RuntimeError) as caught:
        engine(model, squares)(model, torch.randn(4, 3), torch.zeros(4))
    assert type(caught.value) is RuntimeError


def test_a_layer_of_another_width_is_named(engine):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"fits Linear\(in_features=4.* at '1', got .*\(1, 3\)"):
        engine(model, squares)(model, torch.randn(4, 3), torch.zeros(4))


def test_scripted():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit", DeprecationWarning)  # of newer versions
        model[1] = torch.jit.script(model[1])
    with pytest.raises(RuntimeError, match=r"'1.weight'.*Materialised"):
        BookKeeping(model, squares)(model, torch.randn(4, 3), torch.zeros(4))


def test_every_layer_is_found():
    model = nn.Sequential(
        nn.BatchNorm1d(3),
        nn.Linear(3, 3),
        nn.BatchNorm1d(3).eval(),
        nn.InstanceNorm1d(3),
        nn.InstanceNorm1d(3, track_running_stats=True),
        nn.Embedding(3, 3, max_norm=1.0),
        nn.EmbeddingBag(3, 3, scale_grad_by_freq=True),
    )
    assert [layer.path for layer in unsupported(model)] == ["0", "4", "5", "6"]


SUPPORTED = {
    "autograd function": Then(VmappedSquare.apply),
    "weight norm": nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
    "orthogonal": nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)),
    "spectral norm": nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2)).eval(),
    "where": Then(lambda x: torch.where(x > 0, x, -x)),
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_supported(engine, name):
    model = nn.Sequential(nn.Linear(3, 3), copy.deepcopy(SUPPORTED[name])).double()
    assert_agrees(engine(model, squares), torch.randn(4, 3).double(), torch.randn(4).double(), 4)


@pytest.mark.thorough
def test_compiled_parts_run_as_they_are(engine):
    compiled = []
    inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    model = nn.Sequential(nn.Linear(3, 3), inner).double()
    expected = engine(model, squares)(model, inputs := torch.randn(4, 3).double(), torch.ones(4))
    model[1] = torch.compile(inner, backend=lambda graph, _: compiled.append(graph) or graph)
    found = engine(model, squares)(model, inputs, torch.ones(4))
    torch.testing.assert_close(found.norms, expected.norms)
    sums = [each.weighted_sum(torch.ones(4)) for each in (found, expected)]
    torch.testing.assert_close(list(sums[0].values()), list(sums[1].values()))
    assert not compiled
    with torch.no_grad():
        model(inputs)
    assert compiled


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2, -1])
def test_bags_of_tokens(engine, mode, padding):
    model = nn.Sequential(nn.EmbeddingBag(9, 4, mode=mode, padding_idx=padding), nn.Linear(4, 2))
    tokens = torch.randint(0, 9, (4, 5))
    tokens[1] = model[0].padding_idx or 0  # nothing but padding
    assert_agrees(engine(model.double(), squares), tokens, torch.randn(4).double(), 4)


def test_weighted_bags(engine):
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag, self.scale = nn.EmbeddingBag(9, 4, mode="sum"), nn.Linear(1, 1)

        def forward(self, tokens):
            weights = self.scale(tokens[..., None].double()).squeeze(-1)
            return self.bag(tokens, per_sample_weights=weights)

    tokens = torch.randint(0, 9, (4, 5))
    assert_agrees(engine(Weighted().double(), squares), tokens, torch.randn(4).double(), 4)


def test_bags_by_offsets_are_refused(engine):
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(9, 4)

        def forward(self, tokens):
            return self.bag(tokens.flatten(), torch.tensor([0, 2]))

    model = Flat()
    with pytest.raises(ValueError, match="Pad the bags to equal size"):
        engine(model, squares)(model, torch.randint(0, 9, (4, 5)), torch.zeros(4))


def test_sparse_embeddings_have_dense_gradients(engine):
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2)).double()
    same = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)).double()
    same.load_state_dict(model.state_dict())
    tokens, targets = torch.randint(0, 9, (4, 5)), torch.randn(4).double()
    found, expected = (engine(m, squares)(m, tokens, targets) for m in (model, same))
    torch.testing.assert_close(found.norms, expected.norms)
    sums = [each.weighted_sum(torch.ones(4)) for each in (found, expected)]
    torch.testing.assert_close(*sums)


def test_loss_of_adaptive_softmax(engine):
    class Adaptive(nn.Module):
        def __init__(self, forward):
            super().__init__()
            self.layer = nn.AdaptiveLogSoftmaxWithLoss(4, 9, [3])
            self.run = forward

        def forward(self, *inputs):
            return self.run(self.layer, *inputs)

    inputs, targets = torch.randn(4, 4).double(), torch.tensor([0, 2, 5, 8])

    def loss(outputs, targets):
        return functional.nll_loss(outputs, targets, reduction="none")

    model = Adaptive(lambda layer, x: layer.log_prob(x)).double()
    assert_agrees(engine(model, loss), inputs, targets, 4)
    model = Adaptive(lambda layer, x, y: layer(x, y)[0]).double()
    with pytest.raises(UnsupportedLayerError, match=r"at 'layer'.*log_prob"):
        engine(model, lambda o, t: -o)(model, (inputs, targets), targets)
