"""Chunks of several forms, one after the other: the step is the same, bit for bit."""

import pytest
import torch
from torch import nn

from prudent.accounting import GaussianTest
from prudent.training import Chunk, Key, Plan, ProposeTestRelease, Step
from prudent.training.chunk import SequentialChunks
from tests.training.gradients.oracle import cross_entropy

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
PLAN = Plan(
    sampling_rate=0.1,
    steps=40,
    aggregation=ProposeTestRelease(
        clip=1.0, propose=0.5, noise_multiplier=1.0, test=GaussianTest(1.0), failure=1e-2
    ),
)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.3)

    def forward(self, ids):
        return self.head(self.drop(torch.tanh(self.inner(self.table(ids))))).mean(1)


def text(number, device):
    """A batch: twelve texts of several lengths; there are more or fewer of each."""
    draw, chunks = torch.Generator().manual_seed(number), []
    counts = torch.randint(0, 3, (3,), generator=draw).tolist()
    for length, count in zip((4, 9, 6), counts, strict=True):
        for _ in range(count + (length == 4)):
            words = torch.randint(0, 20, (4, length), generator=draw).to(device)
            ids = 50 * torch.arange(4, device=device) + len(chunks)
            valid = torch.arange(4, device=device) < 3
            chunks.append(Chunk(words, words[:, 0] % 3, valid, ids))
    return chunks


def uncaptured(step):
    """What a step does with chunks of different forms, without graphs."""
    in_turn = SequentialChunks(step._gradients)
    in_turn.captured = in_turn._halves
    return in_turn


def trained(device, *, in_turn, steps, **options):
    torch.manual_seed(0)
    model = Words().double().to(device).train()
    step = Step(PLAN, model, cross_entropy, expected_batch=12, key=Key.from_seed(1), **options)
    if in_turn:
        step._in_turn = uncaptured(step)
    elif in_turn is False:
        step._run_on = step._release
    found = []
    for number in range(steps):
        outcome = step(text(number, device))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        found += [p.detach().clone() for p in model.parameters()]
        found += [outcome.loss, outcome.drawn, outcome.noisy_margin, outcome.passed]
    return found, step


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_the_step_at_once(device):
    (expected, _), (found, _) = (
        trained(device, in_turn=turn, steps=6, cuda_graph=False) for turn in (False, True)
    )
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("device", DEVICES)
def test_layers_may_be_frozen_and_unfrozen(device):
    model = Words().to(device)
    step = Step(PLAN, model, cross_entropy, expected_batch=12, key=Key.from_seed(1))
    step._in_turn = uncaptured(step)
    for number, frozen in enumerate((model.table, model.head, model.inner)):
        model.requires_grad_(True)
        frozen.requires_grad_(False)
        step(text(number, device))
        moved = {name for name, value in model.named_parameters() if value.grad is not None}
        assert moved == {name for name, value in model.named_parameters() if value.requires_grad}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_each_form_is_captured_once():
    """Also the second chunk of a form, which is worked on at the same time as the first."""
    expected, _ = trained("cuda", in_turn=False, steps=30, cuda_graph=False)
    found, step = trained("cuda", in_turn=None, steps=30)
    graphs = step._in_turn.captured._graphs
    assert 5 <= len(graphs) <= 3 + 2 + 2
    for mine, same in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, same, rtol=1e-8, atol=1e-8)
