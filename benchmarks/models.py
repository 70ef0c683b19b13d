"""The models of the speed tables, and a fixed synthetic batch for each."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


def tutorial_cnn(channels: int, flat: int) -> nn.Module:
    """Two convolutions and two linear layers: 26,010 parameters for 1×28×28."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(flat, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


class Block(nn.Module):
    """Two 3×3 convolutions around a shortcut, normalised in groups."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(32, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(32, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(32, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet18 with GroupNorm for 32×32 images: 11 million parameters."""
    sizes = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [Block(i if n == 0 else o, o, s if n == 0 else 1) for i, o, s in sizes for n in (0, 1)]
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class EncoderLayer(nn.Module):
    """Attention and a feed-forward part, built of Linear."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.forward_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query, self.key = nn.Linear(size, size), nn.Linear(size, size)
        self.value, self.output = nn.Linear(size, size), nn.Linear(size, size)
        self.wide, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        h = self.attention_norm(x)
        q, k, v = (
            layer(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        x = x + self.output((scores @ v).transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.forward_norm(x))))


class Encoder(nn.Module):
    """A transformer encoder that classifies sequences of 64 tokens."""

    def __init__(self, size: int = 128, layers: int = 2, vocabulary: int = 1000) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, size), nn.Embedding(64, size)
        self.layers = nn.Sequential(*[EncoderLayer(size, 4) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 10)
        self.register_buffer("positions", torch.arange(64)[None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(self.positions.expand(x.shape[0], -1))
        return self.head(self.norm(self.layers(self.tokens(x) + places)).mean(1))


@dataclass(frozen=True)
class Case:
    """A model, its default batch size, and how to draw an input."""

    model: Callable[[], nn.Module]
    batch: int
    draw: Callable[[int], Tensor]


CASES = {
    "A": Case(lambda: tutorial_cnn(1, 512), 256, lambda m: torch.randn(m, 1, 28, 28)),
    "B": Case(lambda: tutorial_cnn(3, 800), 256, lambda m: torch.randn(m, 3, 32, 32)),
    "D": Case(resnet18, 32, lambda m: torch.randn(m, 3, 32, 32)),
    "E": Case(Encoder, 64, lambda m: torch.randint(0, 1000, (m, 64))),
}
