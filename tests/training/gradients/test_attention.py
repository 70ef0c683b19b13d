"""Attention layers of torch: right in all their settings, and by factors."""

import pytest
import torch
from torch import Tensor, nn

from prudent.training.gradients import BookKeeping, Materialised
from prudent.training.gradients.factors.contributions import Outer
from prudent.training.gradients.factors.tape import NormTape
from tests.training.gradients.oracle import assert_agrees, squares


@pytest.fixture(params=[BookKeeping, Materialised])
def engine(request: pytest.FixtureRequest):
    return request.param


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(8)


class Attends(nn.Module):
    """Self-attention, or attention to another sequence."""

    def __init__(self, size: int = 8, options: dict | None = None, call: dict | None = None):
        super().__init__()
        self.layer = nn.MultiheadAttention(size, 2, batch_first=True, **(options or {}))
        self.call = call or {}

    def forward(self, x: Tensor, other: Tensor | None = None, mask: Tensor | None = None):
        other = x if other is None else other
        result, weights = self.layer(x, other, other, key_padding_mask=mask, **self.call)
        flat = result.flatten(1)
        return flat if weights is None else torch.cat([flat, weights.flatten(1)], 1)


def padding(length: int) -> Tensor:
    return torch.arange(length)[None] >= torch.tensor([length, 3, 2, length])[:, None]


CASES = {
    "itself": ({}, {}, ()),
    "without weights": ({}, {"need_weights": False}, ()),
    "weights of heads": ({}, {"average_attn_weights": False}, ()),
    "without bias": ({"bias": False}, {}, ()),
    "added keys": ({"add_bias_kv": True, "add_zero_attn": True}, {}, ()),
    "another": ({}, {}, (6, 8)),
    "another size": ({"kdim": 3, "vdim": 3}, {"need_weights": False}, (6, 3)),
    "causal": ({}, {"attn_mask": torch.ones(5, 5).triu(1).bool(), "is_causal": True}, ()),
}


@pytest.mark.parametrize("name", CASES)
def test_multi_head_attention(engine, name):
    options, call, shape = CASES[name]
    model = Attends(8, options, call).double()
    inputs = torch.randn(4, 5, 8).double()
    others = (torch.randn(4, *shape).double(),) if shape else ()
    assert_agrees(engine(model, squares), (inputs, *others), torch.randn(4).double(), 4)


@pytest.mark.parametrize("shape", [(5, 8), (6, 8)])
def test_padding(engine, shape):
    model = Attends().double()
    inputs = torch.randn(4, 5, 8).double(), torch.randn(4, *shape).double(), padding(shape[0])
    assert_agrees(engine(model, squares), inputs, torch.randn(4).double(), 4)


@pytest.mark.parametrize("training", [True, False])
def test_encoder_with_padding(engine, training):
    """Evaluation would take nested tensors, whose shape depends on the mask."""

    class Encodes(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 2)

        def forward(self, x, mask):
            return self.layers(x, src_key_padding_mask=mask)

    model = Encodes().double().train(training)
    inputs = torch.randn(4, 5, 8).double(), padding(5)
    assert_agrees(engine(model, squares), inputs, torch.randn(4).double(), 4, 1e-9)


def test_encoder_and_decoder(engine):
    class Translates(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

        def forward(self, x, y):
            mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1], dtype=y.dtype)
            return self.layers(x, y, tgt_mask=mask, tgt_is_causal=True)

    model = Translates().double()
    inputs = torch.randn(4, 5, 8).double(), torch.randn(4, 6, 8).double()
    assert_agrees(engine(model, squares), inputs, torch.randn(4).double(), 4, 1e-9)


@pytest.mark.parametrize("shape", [(), (6, 64)], ids=["itself", "another"])
def test_gradients_are_kept_as_factors(monkeypatch, shape):
    received = []
    receive = NormTape._receive

    def watched(self, name, contribution):
        received.append((name, type(contribution)))
        receive(self, name, contribution)

    monkeypatch.setattr(NormTape, "_receive", watched)
    model = Attends(64)
    inputs = torch.randn(4, 5, 64)
    given = (inputs, torch.randn(4, *shape)) if shape else inputs
    BookKeeping(model, squares)(model, given, torch.zeros(4))
    kinds = [kind for name, kind in received if name.endswith("weight")]
    assert kinds == [Outer] * (3 if shape else 2)
