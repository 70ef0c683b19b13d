"""The models people fine-tune, checkpointed or not, and what they hold in memory."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import checkpoint as library
from torch.utils.checkpoint import checkpoint

from prudent.training.gradients import BookKeeping, Materialised
from prudent.training.gradients.factors.tape import NormTape
from tests.training.gradients.oracle import assert_agrees, cross_entropy, squares
from tests.training.gradients.toys import (
    Decoder,
    Stack,
    VisionTransformer,
    adapted,
    resnet,
    sequence_loss,
)
from tests.training.memory import peak_bytes

MODELS = {
    "resnet": resnet,
    "vit": VisionTransformer,
    "gpt": Decoder,
    "gpt, few tokens": lambda: Decoder(vocabulary=5),
    "lora": lambda: adapted(Decoder()),
}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(7)


def set_checkpointed(model: nn.Module, on: bool = True) -> nn.Module:
    for module in model.modules():
        if isinstance(module, Stack):
            module.checkpointed = on
    return model


def batch(model: nn.Module, records: int = 4):
    if isinstance(model, Decoder):
        tokens = torch.randint(0, model.tokens.num_embeddings, (records, 6))
        return sequence_loss, tokens, tokens.roll(-1, 1)
    return cross_entropy, torch.randn(records, 3, 8, 8).double(), torch.randint(0, 5, (records,))


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_models(engine, name, checkpointed):
    model = set_checkpointed(MODELS[name]().double(), checkpointed)
    loss, inputs, targets = batch(model)
    assert_agrees(engine(model, loss), inputs, targets, 4, 1e-9)


def test_adapters_of_peft(engine):
    peft = pytest.importorskip("peft")
    model = Decoder().double()
    model.config = {"model_type": "custom"}
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["joined", "output"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    tokens = torch.randint(0, 23, (4, 6))
    assert_agrees(engine(model, sequence_loss), tokens, tokens.roll(-1, 1), 4, 1e-9)


class Parts(nn.Module):
    """Checkpoints in every form: trees, keywords, tied, derived and shared tensors, one in one."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.scale = nn.Parameter(torch.randn(4))
        self.mask = nn.Buffer(torch.rand(4))
        self.last = nn.Linear(4, 3)

    def inner(self, x, *, pair):
        left, right = pair["left"], pair["right"]
        x = torch.tanh(self.shared(x)) * self.scale * self.mask
        return {"sum": self.normed(x) + left, "other": (right * self.scale.exp(), x)}

    def outer(self, x, scale):
        return checkpoint(self.deepest, x, use_reentrant=False) * scale

    def deepest(self, x):
        return torch.relu(self.shared(x))

    def forward(self, x):
        h = self.shared(x)
        found = checkpoint(self.inner, h, pair={"left": x, "right": h}, use_reentrant=False)
        h = found["sum"] + found["other"][0] * found["other"][1]
        return self.last(checkpoint(self.outer, h, self.scale, use_reentrant=False))


def test_checkpoints_of_every_form(engine):
    model = Parts().double()
    assert_agrees(engine(model, squares), torch.randn(5, 4).double(), torch.randn(5).double(), 5)


def test_checkpointed_parts_repeat_their_dropout():
    model = Decoder(dropout=0.5).double()
    loss, inputs, targets = batch(model)
    made = BookKeeping(model, loss)
    found = []
    for on in (False, True):
        set_checkpointed(model, on)
        torch.manual_seed(3)
        gradients = made(model, inputs, targets)
        sums = gradients.weighted_sum(torch.ones(4)).values()
        found.append((gradients.norms, *sums, torch.rand(1)))
    for plain, again in zip(*found, strict=True):
        torch.testing.assert_close(plain, again)


def test_tensor_from_outside_a_checkpoint_is_refused():
    class Closed(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return checkpoint(lambda h: h * y, x, use_reentrant=False)

    model = Closed(4, 4).double()
    with pytest.raises(RuntimeError, match=r"as an argument"):
        BookKeeping(model, squares)(model, torch.randn(3, 4).double(), torch.zeros(3).double())


def test_input_that_is_told_to_require_a_gradient():
    """As libraries do that checkpoint a model whose first layers are frozen."""

    class Asking(Decoder):
        def forward(self, x):
            hidden = self.tokens(x).requires_grad_(True)
            return self.head(self.norm(self.blocks(hidden)))

    model = set_checkpointed(adapted(Asking()).double())
    loss, inputs, targets = batch(model)
    assert_agrees(BookKeeping(model, loss), inputs, targets, 4, 1e-9)


def test_mask_from_outside_a_checkpoint(engine):
    """A tensor without a gradient may come from anywhere, as in the library."""

    class Masked(nn.Linear):
        def forward(self, x):
            mask = (x > 0).double()
            part = super().forward
            return checkpoint(lambda h: part(h * mask), x, use_reentrant=False)

    model = Masked(4, 4).double()
    inputs = torch.randn(3, 4).double()
    assert_agrees(engine(model, squares), inputs, torch.zeros(3).double(), 3)


def test_way_around_the_book_in_a_checkpoint_is_refused():
    class Hiding(nn.Linear):
        def part(self, x):
            with torch._C.DisableTorchFunction():
                return super().forward(x)

        def forward(self, x):
            return checkpoint(self.part, x, use_reentrant=False)

    model = Hiding(4, 4).double()
    with pytest.raises(RuntimeError, match=r"\['weight', 'bias'\] reach the loss"):
        BookKeeping(model, squares)(model, torch.randn(3, 4).double(), torch.zeros(3).double())


def test_the_library_is_left_as_it_was(engine):
    model = set_checkpointed(Decoder().double())
    loss, inputs, targets = batch(model)
    model(inputs)
    before = dict(library.checkpoint.__wrapped__.__dict__)
    engine(model, loss)(model, inputs, targets).weighted_sum(torch.ones(4))
    assert library.checkpoint.__wrapped__.__dict__ == before
    loss(model(inputs), targets).sum().backward()
    assert model.tokens.weight.grad is not None


def ordinary(model, loss, inputs, targets):
    loss(model(inputs), targets).mean().backward()


def private(engine, model, inputs, targets):
    def run():
        gradients = engine(model, inputs, targets)
        gradients.weighted_sum((1 / gradients.norms).clamp(max=1))

    return run


@pytest.mark.parametrize(("checkpointed", "recompute"), [(False, False), (True, True)])
def test_memory_of_ordinary_training(checkpointed, recompute):
    """Within 1.4 times, checkpointed (and run twice) or not: the sum is in double precision."""
    model = set_checkpointed(Decoder(32, 3, 50, 48), checkpointed)
    inputs = torch.randint(0, 50, (8, 48))
    engine = BookKeeping(model, sequence_loss, recompute=recompute)
    targets = inputs.roll(-1, 1)
    plain = peak_bytes(lambda: ordinary(model, sequence_loss, inputs, targets))
    ours = peak_bytes(private(engine, model, inputs, targets))
    assert ours < 1.4 * plain


def test_checkpoints_save_memory():
    model = Decoder(32, 4, 20, 48)
    inputs = torch.randint(0, 20, (8, 48))
    engine = BookKeeping(model, sequence_loss, recompute=True)
    run = private(engine, model, inputs, inputs.roll(-1, 1))
    plain = peak_bytes(run)
    set_checkpointed(model)
    assert peak_bytes(run) < 0.6 * plain


def test_frozen_layers_cost_no_more_than_in_ordinary_training():
    model = adapted(Decoder(32, 3, 20, 48))
    inputs = torch.randint(0, 20, (8, 48))
    targets = inputs.roll(-1, 1)
    plain = peak_bytes(lambda: ordinary(model, sequence_loss, inputs, targets))
    ours = peak_bytes(private(BookKeeping(model, sequence_loss), model, inputs, targets))
    assert ours < 1.05 * plain


def norms_and_sum(engine, model, chunks, weights_from_norms):
    """One logical batch in several physical ones: all norms first, then the weighted sums."""
    parts = [engine(model, inputs, targets) for inputs, targets in chunks]
    norms = torch.cat([part.norms for part in parts])
    weights = torch.split(weights_from_norms(norms), [len(part.norms) for part in parts])
    total = {}
    for part, own in zip(parts, weights, strict=True):
        for name, value in part.weighted_sum(own).items():
            total[name] = total[name].add_(value) if name in total else value
    return norms, total


@pytest.mark.thorough
@pytest.mark.parametrize("make", [BookKeeping, Materialised])
def test_memory_does_not_grow_with_the_chunks(make):
    """Norms of all chunks first, nothing else kept; then each chunk again."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5)
    )

    def peak(chunks: int, recompute: bool) -> int:
        engine = make(model, cross_entropy, recompute=recompute)
        read = [(torch.randn(16, 3, 8, 8), torch.randint(0, 5, (16,)))] * chunks
        return peak_bytes(lambda: norms_and_sum(engine, model, read, lambda n: 1 / n))

    few, many = peak(2, True), peak(12, True)
    state = torch.get_rng_state().nbytes  # of the generator, to draw the same dropout again
    assert many < few + 10 * (state + 600)
    assert peak(12, False) > 2 * many


@pytest.mark.unhurried
def test_chunks_with_dropout_equal_one_run(engine):
    """Every chunk's sum has the norms that were announced: one record of weight one each."""
    model = nn.Sequential(nn.Linear(40, 40), nn.Dropout(0.5), nn.Linear(40, 4)).double()
    chunks = [(torch.randn(1, 40).double(), torch.randint(0, 4, (1,))) for _ in range(6)]
    for chosen in range(6):
        weights = functional.one_hot(torch.tensor(chosen), 6).double()
        made = engine(model, cross_entropy)
        norms, total = norms_and_sum(made, model, chunks, lambda _, weights=weights: weights)
        size = torch.stack([value.square().sum() for value in total.values()]).sum().sqrt()
        torch.testing.assert_close(size, norms[chosen])


def test_what_is_not_kept_is_gone_at_once(monkeypatch):
    """A token of the model's own, which is expanded, must not make all layers wait for it."""
    waiting = []
    receive = NormTape._receive

    def watched(self, name, contribution):
        receive(self, name, contribution)
        waiting.append(sum(map(len, self._contributions.values())))

    monkeypatch.setattr(NormTape, "_receive", watched)
    model = VisionTransformer().double()
    loss, inputs, targets = batch(model)
    BookKeeping(model, loss, recompute=True)(model, inputs, targets)
    assert len(waiting) > 10
    assert max(waiting) <= 2
