"""Loops of the shape of Opacus's examples: `make_private` in place of its engine, little else."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import prudent

RECORDS, BATCH, EPOCHS = 24, 8, 2
LETTERS, LENGTH = 12, 6


def loaded(*columns: Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*columns), batch_size=BATCH, shuffle=True)


def start(model: nn.Module, loader: DataLoader[Any], **options: Any) -> tuple[Any, Any, Any]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return prudent.make_private(
        model, optimizer, loader, epsilon=8.0, delta=1e-3, epochs=EPOCHS, **options
    )


class Names(nn.Module):
    """Letters of a name, one recurrent layer, the language of the name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, 4)
        self.recurrent = nn.LSTM(4, 5, batch_first=True)
        self.out = nn.Linear(5, 3)

    def forward(self, letters: Tensor) -> Tensor:
        found: Tensor = self.out(self.recurrent(self.embedding(letters))[0][:, -1])
        return found


def pictures() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 10),
    )


def texts(classes: int) -> tuple[Tensor, Tensor]:
    """Sequences padded to one public length, and their classes."""
    return torch.randint(0, LETTERS, (RECORDS, LENGTH)), torch.arange(RECORDS) % classes


CLASSIFIERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "pictures, in parts": (
        pictures,
        lambda: (torch.randn(RECORDS, 3, 8, 8), torch.arange(RECORDS) % 10),
        {"max_physical_batch": 4},
    ),
    "names": (Names, lambda: texts(3), {}),
}


@pytest.mark.unhurried
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_keeps_its_loop(name: str) -> None:
    build, records, options = CLASSIFIERS[name]
    model, optimizer, loader = start(build(), loaded(*records()), **options)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    criterion = nn.CrossEntropyLoss()
    model.train()
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            criterion(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert optimizer.steps == EPOCHS * len(loader)
    assert optimizer.plan.epsilon(1e-3) <= 8.0
    assert all(not torch.equal(before[key], value) for key, value in model.state_dict().items())


class Both(nn.Module):
    """The verdicts of a discriminator on a real and a made-up picture: one row per record."""

    def __init__(self, discriminator: nn.Module) -> None:
        super().__init__()
        self.discriminator = discriminator

    def forward(self, real: Tensor, fake: Tensor) -> Tensor:
        return torch.cat([self.discriminator(real), self.discriminator(fake)], dim=1)


def test_a_generator_learns_from_a_private_discriminator() -> None:
    """A batch is released once, so its real and made-up pictures go through one pass."""
    discriminator = nn.Sequential(nn.Conv2d(1, 3, 4, 2, 1), nn.GroupNorm(1, 3), nn.LeakyReLU(0.2))
    discriminator.extend([nn.Conv2d(3, 1, 4), nn.Flatten()])
    generator = nn.Sequential(nn.ConvTranspose2d(5, 1, 8), nn.Tanh())
    both, optimizer, loader = start(Both(discriminator), loaded(torch.randn(RECORDS, 1, 8, 8)))
    second = torch.optim.Adam(generator.parameters(), lr=0.01)
    initial = generator[0].weight.clone()
    for (real,) in loader:
        optimizer.zero_grad()
        fake = generator(torch.randn(len(real), 5, 1, 1))
        verdicts = both(real, fake.detach())
        wanted = torch.tensor([1.0, 0.0]).expand_as(verdicts)
        functional.binary_cross_entropy_with_logits(verdicts, wanted).backward()
        optimizer.step()
        # The generator sees the discriminator alone, and made-up pictures of a public number.
        second.zero_grad()
        verdict = discriminator(generator(torch.randn(BATCH, 5, 1, 1)))
        functional.binary_cross_entropy_with_logits(verdict, torch.ones_like(verdict)).backward()
        second.step()
    assert optimizer.steps == len(loader)
    assert not torch.equal(initial, generator[0].weight)
