"""Recurrent layers, against torch's own kernels on one record at a time."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from prudent.training.aggregation import clip_weights
from prudent.training.gradients import BookKeeping, Materialised
from prudent.training.gradients.factors import tape
from prudent.training.gradients.factors.contributions import Outer, merged
from tests.training.gradients.oracle import assert_agrees, squares

KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
SHAPES = {
    "one layer": {},
    "no bias": {"bias": False},
    "batch first": {"batch_first": True},
    "deep": {"num_layers": 2, "batch_first": True},
    "both ways": {"num_layers": 2, "bidirectional": True},
}


@pytest.fixture(params=[BookKeeping, Materialised])
def engine(request: pytest.FixtureRequest):
    return request.param


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(9)


class Reads(nn.Module):
    """Uses every output and every last state of a recurrent layer."""

    def __init__(self, layer: nn.RNNBase, size: int = 3) -> None:
        super().__init__()
        self.before, self.layer = nn.Linear(size, size), layer

    def forward(self, x: Tensor, *states: Tensor) -> Tensor:
        x = self.before(x)
        x = x if self.layer.batch_first else x.transpose(0, 1)
        given = () if not states else (states if len(states) > 1 else states[0],)
        outputs, last = self.layer(x, *given)
        outputs = outputs if self.layer.batch_first else outputs.transpose(0, 1)
        every = last if isinstance(last, tuple) else (last,)
        return torch.cat([outputs.flatten(1), *(e.transpose(0, 1).flatten(1) for e in every)], 1)


def check(engine, model: nn.Module, inputs, records: int = 4) -> None:
    assert_agrees(engine(model.double(), squares), inputs, torch.randn(records).double(), records)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_layers(engine, kind, shape):
    model = Reads(KINDS[kind](3, 5, **SHAPES[shape]))
    check(engine, model, torch.randn(4, 6, 3).double())


@pytest.mark.parametrize("bidirectional", [False, True])
def test_projected_outputs(engine, bidirectional):
    layer = nn.LSTM(3, 7, 2, proj_size=4, bidirectional=bidirectional, batch_first=True)
    check(engine, Reads(layer), torch.randn(4, 6, 3).double())


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_initial_states_of_records(engine, kind):
    states = [torch.randn(4, 1, 2, 5).double() for _ in range(2 if kind == "lstm" else 1)]

    class Given(Reads):
        def forward(self, x, *states):
            return super().forward(x, *(s[:, 0].transpose(0, 1).contiguous() for s in states))

    check(engine, Given(KINDS[kind](3, 5, 2)), (torch.randn(4, 6, 3).double(), *states))


@pytest.mark.parametrize("trained", [True, False])
def test_input_that_is_shared(engine, trained):
    """A decoder whose input is a parameter or a constant, and whose first state is the record."""

    class Unrolls(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(3, 5, batch_first=True)
            self.start = nn.Parameter(torch.randn(1, 6, 3), requires_grad=trained)

        def forward(self, state):
            return self.layer(self.start, state[None])[0]

    check(engine, Unrolls(), torch.randn(4, 5).double())


def test_layer_that_no_record_enters(engine):
    class Prompted(nn.Module):
        def __init__(self):
            super().__init__()
            self.prompt, self.layer = nn.Parameter(torch.randn(6, 1, 3)), nn.LSTM(3, 5)

        def forward(self, x):
            return x * self.layer(self.prompt)[1][0][0]

    check(engine, Prompted(), torch.randn(4, 5).double())


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(engine, kind):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = kind(3, 5)

        def forward(self, x):
            state, seen = None, []
            for step in x.unbind(1):
                state = self.cell(step, state)
                seen.append(state[0] if isinstance(state, tuple) else state)
            return torch.stack(seen, 1)

    check(engine, Loop(), torch.randn(4, 6, 3).double())


def test_weights_of_a_record(engine):
    """A network that computes the weights of a recurrent layer for each record."""

    class Hyper(nn.Module):
        def __init__(self):
            super().__init__()
            self.hyper, self.layer = nn.Linear(3, 16), nn.RNN(3, 4, bias=False)

        def forward(self, x):
            weight = self.hyper(x.mean(1)).view(4, 4)
            params = [self.layer.weight_ih_l0, weight]
            state = x.new_zeros(1, 1, 4)
            return torch.rnn_tanh(x, state, params, False, 1, 0.0, self.training, False, True)[0]

    check(engine, Hyper(), torch.randn(4, 6, 3).double())


@pytest.mark.parametrize("frozen", ["weight_hh_l0", ""])
def test_frozen(engine, frozen):
    model = Reads(nn.LSTM(3, 5))
    for name, parameter in model.layer.named_parameters():
        parameter.requires_grad_(not (name == frozen or not frozen))
    check(engine, model, torch.randn(4, 6, 3).double())


def test_derived_weights(engine):
    model = Reads(nn.utils.parametrizations.weight_norm(nn.GRU(3, 5), "weight_hh_l0"))
    check(engine, model, torch.randn(4, 6, 3).double())


@pytest.mark.parametrize("records", [5, 6])
def test_several_sequences_per_record(engine, records):
    """Sentences of a document on the axis of the batch, as many as time steps or records."""

    class Documents(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(3, 5, batch_first=True, bidirectional=True)

        def forward(self, x):
            return self.layer(x.flatten(0, 1))[0].reshape(len(x), -1)

    check(engine, Documents(), torch.randn(records, 6, 6, 3).double(), records)


@pytest.mark.parametrize("recompute", [False, True])
def test_checkpointed(recompute):
    class Saving(Reads):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    engine = partial(BookKeeping, recompute=recompute)
    check(engine, Saving(nn.LSTM(3, 5, 2)), torch.randn(4, 6, 3).double())


def test_dropout_between_layers():
    """Both engines draw the same, every record its own, and a second run the same again."""
    model = Reads(nn.LSTM(3, 20, 3, dropout=0.5, batch_first=True)).double()
    inputs, targets = torch.randn(1, 6, 3).double().expand(4, 6, 3), torch.zeros(4).double()
    norms = []
    for make in (BookKeeping, Materialised):
        torch.manual_seed(1)
        norms.append(make(model, squares)(model, inputs, targets).norms)
    torch.testing.assert_close(*norms)
    assert len(norms[0].unique()) == 4
    for record in range(4):
        gradients = BookKeeping(model, squares, recompute=True)(model, inputs, targets)
        total = gradients.weighted_sum(functional.one_hot(torch.tensor(record), 4).double())
        size = torch.cat([value.flatten() for value in total.values()]).norm()
        torch.testing.assert_close(size, gradients.norms[record])


def test_norms_come_from_factors(monkeypatch):
    """The uses of the hidden weight are one contribution, of as many positions as time steps."""
    found = []
    monkeypatch.setattr(tape, "merged", lambda given: found.append(merged(given)) or found[-1])
    model = Reads(nn.LSTM(64, 64, bias=False), 64)
    BookKeeping(model, squares)(model, torch.randn(4, 6, 64), torch.zeros(4))
    ((factors,),) = found
    assert isinstance(factors, Outer)
    assert factors.rows.shape[1:3] == factors.columns.shape[1:3] == (4, 6)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_no_record_adds_more_than_the_clip_in_bfloat16(engine, kind):
    model = Reads(KINDS[kind](3, 24, 2, batch_first=True))
    inputs, targets = torch.randn(4, 9, 3), torch.zeros(4)
    made = engine(model, squares, autocast=torch.bfloat16)
    norms = made(model, inputs, targets).norms
    exact = engine(model, squares)(model, inputs, targets).norms
    assert norms.dtype == torch.float32
    assert 1e-5 < ((norms - exact) / exact).abs().max() < 0.1
    clip = float(norms.min()) / 2
    weights, _ = clip_weights(norms, torch.ones(4, dtype=torch.bool), clip)
    for record in range(4):
        total = made(model, inputs, targets).weighted_sum(weights * torch.eye(4)[record])
        size = torch.cat([value.flatten() for value in total.values()]).double().norm()
        assert (1 - 1e-5) * clip < size < (1 + 1e-5) * clip


class Packs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(3, 5, batch_first=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


def test_packed_sequences_are_refused(engine):
    model = Packs()
    inputs = torch.randn(4, 6, 3), torch.tensor([6, 4, 2, 5])
    with pytest.raises(ValueError, match=r"padded.*position length - 1"):
        engine(model, squares)(model, inputs, torch.zeros(4))


def test_packed_inputs_are_refused(engine):
    model = nn.LSTM(3, 5)
    packed = pack_padded_sequence(torch.randn(6, 4, 3), torch.tensor([6, 5, 4, 2]))
    with pytest.raises(ValueError, match="Leave out pack_padded_sequence"):
        engine(model, squares)(model, packed, torch.zeros(4))


def test_packing_of_no_record():
    """A constant may be packed."""

    class Constant(Packs):
        def forward(self, x):
            return x + super().forward(torch.ones(1, 6, 3).double(), torch.tensor([5]))[:, -1]

    check(BookKeeping, Constant(), torch.randn(4, 5).double())
