"""The noise of a public step cannot be used to predict that of the next one.

An embedding row that no record uses has no gradient: every step releases pure noise there. That is
enough to predict all further noise of torch's generator on a CPU, which is linear; the same attack
is no better than guessing against the keystream.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import nn

from prudent.training import Execution, Plan, Reporting, Sum, fit
from prudent.training import step as step_module
from prudent.training.adapters.federated import RoundRelease
from prudent.training.noise import noise_factor
from tests.oracles import linear_attack as attack
from tests.training.gradients.oracle import cross_entropy

ROWS, WIDTH, CLASSES, USED, FOLLOWING = 2_600, 16, 15, 4, 480


class TorchNoise:
    """What training drew its noise with before: torch's own generator, seeded by the system."""

    capturable = False

    def __init__(self):
        self.generator = torch.Generator()
        self.generator.seed()

    def test_words(self, state):
        return torch.zeros(2, dtype=torch.int64)

    def add_(self, total, deviation, state):
        noise = torch.randn(total.shape, dtype=total.dtype, generator=self.generator)
        total.add_(noise.mul_(deviation))


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(ROWS, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, tokens):
        return self.head(self.rows(tokens).mean(1))


def public_noise():
    """Noise on the rows nobody uses in steps 1 and 2, from the models that `fit` shows."""
    tokens = torch.arange(100)[:, None] % USED
    model = Bag().double()
    shown = []  # the rehearsal of the evaluation shows the model before the first step
    expected, rate = 10, 1.0
    fit(
        Plan(sampling_rate=0.1, steps=2, aggregation=Sum(clip=1.0, noise_multiplier=1.0)),
        model,
        cross_entropy,
        (tokens, torch.arange(100) % 3),
        execution=Execution(),
        reporting=Reporting(
            evaluate=lambda model: shown.append(model.rows.weight.detach().clone()) or {},
            evaluate_every=1,
        ),
        lr=rate,
    )
    factor = noise_factor(sum(p.numel() for p in model.parameters()), 2, torch.float64)
    steps = [(a - b) * expected / rate / factor for a, b in pairwise(shown)]
    return [step[USED:].flatten().numpy() for step in steps]


def predictions(noise, uniforms, normals):
    """Pairs of the noise that was predicted from that of the first step, and the true one.

    First what follows within the step, then the first numbers of the second step: between them are
    the noise of the head, and that on the rows that are used.
    """
    first, second = noise
    seen, later = first[:-FOLLOWING], first[-FOLLOWING:]
    between = WIDTH * CLASSES + USED * WIDTH
    following = attack.continued_uniforms(uniforms(seen), 2 * FOLLOWING + between)
    yield normals(following[:FOLLOWING]), later
    yield normals(following[-FOLLOWING:]), second[:FOLLOWING]


def test_torch_generator_gives_its_noise_away(monkeypatch):
    """The attack works: it is the keystream that defeats it, not a mistake in the attack."""
    monkeypatch.setattr(step_module, "noise_on", lambda device, key, *purpose: TorchNoise())
    for guess, true in predictions(public_noise(), attack.torch_uniforms, attack.torch_normals):
        # Twenty bits of a uniform do not fix the radius of a very rare pair, which is large.
        assert np.mean(np.abs(guess - true) < 0.01) > 0.97


def test_the_keystream_does_not():
    noise = public_noise()
    for uniforms, normals in (
        (attack.keystream_uniforms, attack.keystream_normals),
        (attack.torch_uniforms, attack.torch_normals),
    ):
        for guess, true in predictions(noise, uniforms, normals):
            assert abs(np.mean(guess * true)) < 5 / np.sqrt(FOLLOWING)


def test_federated_rounds_do_not_either():
    """Rounds in which nobody takes part release pure noise."""
    dimension, expected = 40_960, 4.0
    plan = Plan(sampling_rate=0.1, steps=2, aggregation=Sum(clip=1.0, noise_multiplier=1.0))
    release = RoundRelease(plan, dimension, expected_clients=expected)
    first, second = (release([])[0].numpy() * expected for _ in range(2))
    following = attack.continued_uniforms(attack.keystream_uniforms(first), FOLLOWING)
    guess = attack.keystream_normals(following)
    assert abs(np.mean(guess * second[:FOLLOWING])) < 5 / np.sqrt(FOLLOWING)
    assert abs(np.mean(first * second)) < 5 / np.sqrt(dimension)
