"""What the engines promise besides the numbers: edge cases, refusals, and leaving no trace."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import _get_current_function_mode

from prudent.training.gradients import BookKeeping, Materialised
from prudent.training.gradients.factors.tape import NormTape
from tests.training.gradients.oracle import assert_agrees, cross_entropy


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 6), nn.Tanh(), nn.Linear(6, 4)
    ).double()


def batch(records: int) -> tuple[Tensor, Tensor]:
    return torch.randn(records, 1, 6, 6).double(), torch.randint(0, 4, (records,))


def test_no_records(engine, model):
    gradients = engine(model.float(), cross_entropy)(model, *batch(0))
    assert gradients.norms.shape == gradients.losses.shape == (0,)
    total = gradients.weighted_sum(torch.zeros(0))
    assert {name: value.shape for name, value in total.items()} == {
        name: value.shape for name, value in model.named_parameters()
    }
    # In the type of every other sum: the noise is rounded and scaled in that type.
    assert all(not value.any() and value.dtype == torch.float64 for value in total.values())


def test_without_grad_mode(engine, model):
    inputs, targets = batch(5)
    made = engine(model, cross_entropy)
    expected = made(model, inputs, targets)
    with torch.no_grad():
        gradients = made(model, inputs, targets)
        total = gradients.weighted_sum(torch.ones(5))
    assert torch.equal(gradients.norms, expected.norms)
    assert all(map(torch.equal, total.values(), expected.weighted_sum(torch.ones(5)).values()))


def test_padding_adds_exactly_nothing(engine, model):
    inputs, targets = batch(6)
    weights = torch.tensor([0.5, 1.0, 0.25, 0.0, 0.0, 0.0])
    made = engine(model, cross_entropy)
    padded = made(model, inputs, targets).weighted_sum(weights)
    short = made(model, inputs[:3], targets[:3]).weighted_sum(weights[:3])
    for name, value in short.items():
        torch.testing.assert_close(padded[name], value, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_record_that_is_not_finite(engine, model, bad):
    inputs, targets = batch(4)
    made = engine(model, cross_entropy)
    clean = made(model, inputs, targets)
    inputs = inputs.clone()  # the clean ones may be run again
    inputs[2, 0, 3, 3] = bad
    gradients = made(model, inputs, targets)
    assert not torch.isfinite(gradients.norms[2])
    others = torch.tensor([0, 1, 3])
    torch.testing.assert_close(gradients.norms[others], clean.norms[others])
    weights = torch.tensor([1.0, 1.0, 0.0, 1.0])
    total, expected = gradients.weighted_sum(weights), clean.weighted_sum(weights)
    for name, value in expected.items():
        torch.testing.assert_close(total[name], value)


def test_embedding_that_is_not_finite(engine):
    model = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(6, 4)).double()
    with torch.no_grad():
        model[0].weight[8] = torch.inf
    inputs = torch.tensor([[0, 1], [2, 8], [3, 3]])
    gradients = engine(model, cross_entropy)(model, inputs, torch.tensor([0, 1, 2]))
    assert torch.isfinite(gradients.norms).tolist() == [True, False, True]
    total = gradients.weighted_sum(torch.tensor([1.0, 0.0, 1.0]))
    assert all(torch.isfinite(value).all() for value in total.values())


def test_parameters_given_by_name(engine, model):
    inputs, targets = batch(3)
    made = engine(model, cross_entropy)
    values = {name: torch.randn_like(value) for name, value in model.named_parameters()}
    gradients = made(values, inputs, targets)
    model.load_state_dict(values)
    torch.testing.assert_close(gradients.norms, made(model, inputs, targets).norms)
    with pytest.raises(ValueError, match=r"none for \['3.bias'\]"):
        made({name: v for name, v in values.items() if name != "3.bias"}, inputs, targets)


@pytest.mark.parametrize("fails", [False, True])
def test_leaves_no_trace(engine, model, fails):
    before = {name: (id(p), p.clone(), dict(p.__dict__)) for name, p in model.named_parameters()}

    def loss(outputs, targets):
        return outputs.sum() if fails else cross_entropy(outputs, targets)

    made = engine(model, loss)
    if fails:
        with pytest.raises(ValueError, match="one value per record"):
            made(model, *batch(3))
    else:
        made(model, *batch(3)).weighted_sum(torch.ones(3))
    for name, parameter in model.named_parameters():
        identity, value, attributes = before[name]
        assert id(parameter) == identity
        assert torch.equal(parameter, value)
        assert parameter.grad is None
        assert parameter.__dict__ == attributes
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks
    assert _get_current_function_mode() is None
    assert torch.backends.mkldnn.enabled


def test_module_under_two_names_keeps_its_parameters(engine):
    layer = nn.Linear(4, 4).double()
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 4).double())
    model[3].weight = layer.weight
    engine(model, cross_entropy)(model, torch.randn(2, 4).double(), torch.tensor([0, 1]))
    assert isinstance(layer.weight, nn.Parameter)
    assert model[3].weight is layer.weight


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_loss_of_the_batch_is_refused(engine, model, reduction):
    made = engine(model, nn.CrossEntropyLoss(reduction=reduction))
    with pytest.raises(ValueError, match="reduction='none'"):
        made(model, *batch(3))


def test_loss_of_every_position_is_refused(engine):
    model = nn.Linear(3, 5)
    made = engine(model, lambda o, t: cross_entropy(o.transpose(1, 2), t))
    with pytest.raises(ValueError, match=r"got \(1, 6\)"):
        made(model, torch.randn(2, 6, 3), torch.zeros(2, 6, dtype=torch.long))


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm2d(1), nn.InstanceNorm2d(1, track_running_stats=True)]
)
def test_batch_statistics_are_refused(engine, layer):
    model = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Sequential(layer), nn.Flatten())
    with pytest.raises(ValueError, match=r"at '1.0'.*GroupNorm.*eval"):
        engine(model, cross_entropy)(model, torch.randn(3, 1, 6, 6), torch.zeros(3).long())


def test_functional_batch_statistics_are_refused():
    class Mixing(nn.Linear):
        def forward(self, x):
            return functional.batch_norm(super().forward(x), None, None, training=True)

    model = Mixing(4, 4)
    with pytest.raises(ValueError, match="mixes records"):
        BookKeeping(model, cross_entropy)(model, torch.randn(3, 4), torch.zeros(3).long())


def test_a_record_never_sees_another(engine):
    """A model that centres its batch sees a batch of one, so neighbours change nothing."""

    class Centring(nn.Linear):
        def forward(self, x):
            return super().forward(x - 0.5 * x.mean(0))

    model = Centring(4, 4).double()
    inputs, targets = torch.randn(3, 4).double(), torch.tensor([0, 1, 2])
    made = engine(model, cross_entropy)
    together = made(model, inputs, targets).norms
    neighbours = made(model, torch.cat([inputs[:1], 100 * inputs[1:]]), targets).norms
    assert together[0] == neighbours[0]


def test_what_cannot_be_followed_is_refused():
    class Hidden(nn.Linear):
        """Uses its parameters under a transform of its own."""

        def forward(self, x):
            return torch.func.vmap(super().forward)(x)

    model = Hidden(4, 4)
    with pytest.raises(RuntimeError, match="transforms of its own"):
        BookKeeping(model, cross_entropy)(model, torch.randn(3, 4), torch.zeros(3).long())
    Materialised(model, cross_entropy)(model, torch.randn(3, 4), torch.zeros(3).long())


def test_function_of_the_model_itself(engine):
    class Scale(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, weight):
            return x * weight

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            return gradient * weight, (gradient * x).sum(0)

    class Scaled(nn.Linear):
        def forward(self, x):
            return Scale.apply(super().forward(x), self.bias)

    model = Scaled(4, 4).double()
    assert_agrees(engine(model, cross_entropy), torch.randn(3, 4).double(), torch.arange(3), 3)


def test_way_around_the_book_is_refused():
    class Hiding(nn.Linear):
        def forward(self, x):
            with torch._C.DisableTorchFunction():
                return super().forward(x)

    model = Hiding(4, 4)
    with pytest.raises(RuntimeError, match=r"\['weight', 'bias'\] reach the loss"):
        BookKeeping(model, cross_entropy)(model, torch.randn(3, 4), torch.zeros(3).long())


def test_function_without_a_rule_names_its_parameters():
    class Selecting(nn.Linear):
        def forward(self, x):
            return torch.masked_select(self.weight, x > 0).sum()[None]

    model = Selecting(3, 1)
    made = BookKeeping(model, lambda outputs, targets: outputs)
    with pytest.raises(RuntimeError, match=r"parameter 'weight'.*torch.nn.Linear"):
        made(model, torch.randn(2, 3), torch.zeros(2))


def test_embedding_that_mixes_records_is_refused():
    for options in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}):
        model = nn.Sequential(nn.Embedding(5, 4, **options), nn.Flatten())
        made = BookKeeping(model, cross_entropy)
        with pytest.raises(ValueError, match=r"at '0'. Leave both unset"):
            made(model, torch.zeros(2, 1).long(), torch.zeros(2).long())


def test_nothing_to_train_is_refused(engine, model):
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="trained parameters"):
        engine(model, cross_entropy)(model, *batch(2))


def test_sizes_that_disagree_are_refused(engine, model):
    inputs, targets = batch(3)
    with pytest.raises(ValueError, match="records on its first axis"):
        engine(model, cross_entropy)(model, inputs, targets[:2])
    gradients = engine(model, cross_entropy)(model, inputs, targets)
    with pytest.raises(ValueError, match=r"weights of shape \(3,\).*got \(2,\)"):
        gradients.weighted_sum(torch.ones(2))


def test_dropout_is_the_same_in_norms_and_sum():
    """One record of weight one: the sum must have exactly the norm that was announced."""
    model = nn.Sequential(nn.Linear(40, 40), nn.Dropout(0.5), nn.Linear(40, 4)).double()
    inputs, targets = torch.randn(6, 40).double(), torch.randint(0, 4, (6,))
    for recompute in (False, True):
        made = BookKeeping(model, cross_entropy, recompute=recompute)
        for i in range(6):
            gradients = made(model, inputs, targets)
            torch.rand(3)
            following = torch.get_rng_state()
            total = gradients.weighted_sum(functional.one_hot(torch.tensor(i), 6).double())
            norm = torch.stack([value.square().sum() for value in total.values()]).sum().sqrt()
            torch.testing.assert_close(norm, gradients.norms[i])
            assert torch.equal(torch.get_rng_state(), following)


@pytest.mark.parametrize("make", [BookKeeping, Materialised])
@pytest.mark.parametrize("shift", [0.0, 1.0], ids=["draws", "augments"])
def test_a_data_set_that_draws_is_read_the_same_again(make, shift):
    """Else the norms would be of other inputs than the sum, or of other dropout masks."""
    model = nn.Sequential(nn.Linear(40, 40), nn.Dropout(0.5), nn.Linear(40, 4)).double()
    inputs, targets = torch.randn(6, 40).double(), torch.randint(0, 4, (6,))
    gradients = make(model, cross_entropy, recompute=True).read(
        model, lambda: (inputs + shift * torch.randn(6, 40), targets)
    )
    for i in range(6):
        total = gradients.weighted_sum(functional.one_hot(torch.tensor(i), 6).double())
        norm = torch.stack([value.square().sum() for value in total.values()]).sum().sqrt()
        torch.testing.assert_close(norm, gradients.norms[i])


@pytest.mark.parametrize("make", [BookKeeping, Materialised])
def test_a_data_set_that_draws_on_its_own_cannot_be_read_twice(make):
    model = nn.Sequential(nn.Linear(40, 4)).double()
    own, targets = torch.Generator().manual_seed(0), torch.randint(0, 4, (6,))

    def read():
        return torch.randn(6, 40, generator=own).double(), targets

    gradients = make(model, cross_entropy, recompute=True).read(model, read)
    with pytest.raises(ValueError, match="the same losses twice"):
        gradients.weighted_sum(torch.ones(6).double())
    make(model, cross_entropy).read(model, read).weighted_sum(torch.ones(6).double())


@pytest.mark.parametrize("make", [BookKeeping, Materialised])
@pytest.mark.parametrize("where", ["inputs", "order", "targets"])
def test_other_records_of_the_same_losses_are_noticed(make, where):
    """A feature without weight changes no loss, and a gradient without bound."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False)).double()
    nn.init.zeros_(model[0].weight)
    inputs, targets = torch.randn(6, 3).double(), torch.arange(6) % 2
    readings = iter(
        {
            "inputs": [(inputs, targets), (1e3 * inputs, targets)],
            "order": [(inputs, targets), (inputs.flip(1), targets)],
            "targets": [(inputs, targets), (inputs, 1 - targets)],
        }[where]
    )
    gradients = make(model, cross_entropy, recompute=True).read(model, lambda: next(readings))
    with pytest.raises(ValueError, match="Expected a batch that is run twice"):
        gradients.weighted_sum(torch.ones(6).double())


@pytest.mark.parametrize("make", [BookKeeping, Materialised])
def test_records_that_are_not_finite_are_read_twice(make):
    model = nn.Linear(3, 2).double()
    odd = torch.tensor([[torch.nan, 1, 2], [torch.inf, 1, -torch.inf], [1, 2, 3]]).double()
    gradients = make(model, cross_entropy, recompute=True)(model, odd, torch.tensor([0, 1, 1]))
    weights = gradients.norms.isfinite().double()
    assert weights.tolist() == [0, 0, 1]
    assert all(value.isfinite().all() for value in gradients.weighted_sum(weights).values())


def test_dropout_differs_between_records(engine):
    model = nn.Sequential(nn.Linear(40, 40), nn.Dropout(0.5), nn.Linear(40, 4)).double()
    inputs, targets = torch.randn(1, 40).double().expand(5, 40), torch.zeros(5).long()
    assert len(engine(model, cross_entropy)(model, inputs, targets).norms.unique()) == 5


def test_formed_gradients_are_those_of_the_norms_and_the_sum(engine, model):
    inputs, targets = batch(5)
    made = engine(model, cross_entropy)
    gradients, formed = made(model, inputs, targets), made.formed(model, inputs, targets)
    torch.testing.assert_close(formed.norms, gradients.norms)
    weights = torch.tensor([1, 0, -2, 0.5, 3]).double()
    for name, value in gradients.weighted_sum(weights).items():
        total = torch.einsum("m,m...->...", weights, formed.per_example[name])
        torch.testing.assert_close(total, value)


def test_formed_gradients_of_no_records(engine, model):
    inputs, targets = batch(1)
    formed = engine(model, cross_entropy).formed(model, inputs[:0], targets[:0])
    assert formed.norms.shape == (0,)
    assert all(not value.any() for value in formed.weighted_sum(formed.norms).values())


def test_corruption_comes_before_the_norms(engine, model):
    factors = torch.tensor([1, -3.0, 1, 1]).double()

    def corrupt(gradients):
        return {name: torch.einsum("m,m...->m...", factors, g) for name, g in gradients.items()}

    made = engine(model, cross_entropy)
    clean = made.formed(model, *batch(4))
    gradients = clean.corrupted(corrupt)
    torch.testing.assert_close(gradients.norms, clean.norms * factors.abs())
    total = gradients.weighted_sum(torch.tensor([0, 1.0, 0, 0]))
    expected = clean.weighted_sum(torch.tensor([0, -3.0, 0, 0]))
    for name, value in expected.items():
        torch.testing.assert_close(total[name], value)


def test_corruption_must_keep_shapes(engine, model):
    formed = engine(model, cross_entropy).formed(model, *batch(3))
    with pytest.raises(ValueError, match="keep names and shapes"):
        formed.corrupted(lambda g: {n: v[:1] for n, v in g.items()})


def tapes():
    gc.collect()
    return {id(each): weakref.ref(each) for each in gc.get_objects() if type(each) is NormTape}


def test_stored_tensors_are_freed(model):
    before = tapes()  # a run of another test that was refused midway may have left its own
    gradients = BookKeeping(model, cross_entropy)(model, *batch(3))
    (tape,) = (each for number, each in tapes().items() if number not in before)
    gradients.weighted_sum(torch.ones(3))
    gc.collect()
    assert tape() is None
    with pytest.raises(RuntimeError, match="already called"):
        gradients.weighted_sum(torch.ones(3))


def test_recomputing_stores_nothing(model, monkeypatch):
    tapes = []

    class Watched(NormTape):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            tapes.append(self)

    monkeypatch.setattr("prudent.training.gradients.engine.NormTape", Watched)
    for recompute in (True, False):
        BookKeeping(model, cross_entropy, recompute=recompute)(model, *batch(3))
        assert any(tapes.pop()._contributions.values()) is not recompute


def test_half_precision_norms_bound_the_sum():
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))
    inputs, targets = torch.randn(5, 3, 10), torch.randint(0, 4, (5,))
    with torch.autocast("cpu", torch.bfloat16):
        gradients = BookKeeping(model, cross_entropy)(model, inputs, targets)
    exact = BookKeeping(model, cross_entropy)(model, inputs, targets)
    torch.testing.assert_close(gradients.norms, exact.norms, rtol=0.05, atol=0)
    total = gradients.weighted_sum(torch.eye(5)[2])
    norm = torch.stack([value.square().sum() for value in total.values()]).sum().sqrt()
    torch.testing.assert_close(norm.float(), gradients.norms[2], rtol=1e-5, atol=0)
