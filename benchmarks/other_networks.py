"""Networks for sound, for rows of clicks and for graphs, as one would write them."""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional


class AudioBlock(nn.Module):
    """Two convolutions over time around a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv1d(outputs, outputs, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(8, outputs) for _ in range(2))
        self.shortcut = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.shortcut(x))


class AudioNetwork(nn.Module):
    """Residual convolutions on the waveform itself, pooled four to one after each."""

    def __init__(self, width: int, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, width, 80, 4, 38)
        self.norm = nn.GroupNorm(8, width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.blocks = nn.ModuleList(AudioBlock(*pair) for pair in itertools.pairwise(widths))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
            x = functional.max_pool1d(x, 4) if x.shape[-1] >= 4 else x
        return self.head(x.mean(-1))


class ClickNetwork(nn.Module):
    """DLRM: tables of categories, their inner products, and a network on top."""

    def __init__(self, tables: int, rows: int, size: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, size, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(13, 8 * size), nn.ReLU(), nn.Linear(8 * size, size), nn.ReLU()
        )
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            *(nn.Linear(pairs + size, 8 * size), nn.ReLU()),
            *(nn.Linear(8 * size, 4 * size), nn.ReLU(), nn.Linear(4 * size, 2)),
        )
        self.register_buffer("places", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        rows = [table(bags) for table, bags in zip(self.tables, ids.unbind(1), strict=True)]
        vectors = torch.stack([dense, *rows], 1)
        products = vectors @ vectors.mT
        return self.top(torch.cat([dense, products[:, self.places[0], self.places[1]]], 1))


class GraphNetwork(nn.Module):
    """Graph isomorphism network: each node adds up its neighbours, layer by layer."""

    def __init__(self, size: int, layers: int = 4, inputs: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, size)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(size, 2 * size), nn.ReLU(), nn.Linear(2 * size, size))
            for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(layers))
        self.own = nn.Parameter(torch.zeros(layers))
        self.head = nn.Linear(size, classes)

    def forward(self, values: Tensor, ends: Tensor, present: Tensor) -> Tensor:
        x = self.first(values)
        begin, end = (ends[:, side, :, None].expand(-1, -1, x.shape[-1]) for side in (0, 1))
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            sent = torch.gather(x, 1, begin) * present[..., None]
            heard = torch.zeros_like(x).scatter_add(1, end, sent)
            x = x + layer(norm((1 + self.own[number]) * x + heard))
        return self.head(x.mean(1))
