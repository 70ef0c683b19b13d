"""Networks of the size that people fine-tune, each written as one would without privacy.

Every one has `checkpointed`: whether its blocks are run again on the way back
(`torch.utils.checkpoint`) instead of remembered.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.models import Block


class Stack(nn.ModuleList):
    """Blocks in a row, checkpointed or not."""

    checkpointed = False

    def forward(self, x: Tensor) -> Tensor:
        for block in self:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


class Bottleneck(nn.Module):
    """A 3×3 convolution between two 1×1, around a shortcut, normalised in groups."""

    def __init__(self, inputs: int, middle: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * middle
        groups = min(32, middle // 2)
        self.narrow = nn.Conv2d(inputs, middle, 1, bias=False)
        self.narrow_norm = nn.GroupNorm(groups, middle)
        self.spread = nn.Conv2d(middle, middle, 3, stride, 1, bias=False)
        self.spread_norm = nn.GroupNorm(groups, middle)
        self.widen = nn.Conv2d(middle, outputs, 1, bias=False)
        self.widen_norm = nn.GroupNorm(groups, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.narrow_norm(self.narrow(x)))
        y = torch.relu(self.spread_norm(self.spread(y)))
        return torch.relu(self.widen_norm(self.widen(y)) + self.shortcut(x))


def resnet18(widths: tuple[int, ...] = (64, 128, 256, 512)) -> nn.Module:
    """ResNet18 with GroupNorm for 32×32 images: 11 million parameters."""
    blocks, inputs = [], widths[0]
    for stage, outputs in enumerate(widths):
        blocks += [Block(inputs, outputs, 2 if stage else 1), Block(outputs, outputs, 1)]
        inputs = outputs
    stem = [nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.GroupNorm(32, widths[0]), nn.ReLU()]
    return nn.Sequential(*stem, Stack(blocks), *_head(inputs, 10))


def resnet50(width: int = 64, counts: tuple[int, ...] = (3, 4, 6, 3)) -> nn.Module:
    """ResNet50 with GroupNorm for 224×224 images: 25 million parameters."""
    blocks, inputs = [], width
    for stage, count in enumerate(counts):
        for n in range(count):
            middle = width * 2**stage
            blocks.append(Bottleneck(inputs, middle, 2 if n == 0 and stage else 1))
            inputs = 4 * middle
    stem = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.GroupNorm(min(32, width // 2), width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    return nn.Sequential(*stem, Stack(blocks), *_head(inputs, 1000))


def _head(size: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(size, classes)]


class TransformerBlock(nn.Module):
    """Attention by the fused kernel, then a feed-forward part; both normalised before."""

    def __init__(self, size: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.attention_norm, self.forward_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.query_key_value, self.output = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.wide, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        joined = self.query_key_value(self.attention_norm(x))
        split = joined.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*split.unbind(), is_causal=self.causal)
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, length, size))
        return x + self.narrow(functional.gelu(self.wide(self.forward_norm(x))))


class VisionTransformer(nn.Module):
    """Patches as tokens; its class token and positions are parameters of its own."""

    def __init__(
        self, size: int = 384, layers: int = 12, heads: int = 6, image: int = 224, patch: int = 16
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, size, patch, patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, size) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, size) * 0.02)
        self.blocks = Stack(TransformerBlock(size, heads, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 1000)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], 1)
        return self.head(self.norm(self.blocks(tokens + self.positions))[:, 0])


class Decoder(nn.Module):
    """A GPT: what follows each token; its head is its table of tokens."""

    def __init__(
        self,
        size: int = 768,
        layers: int = 12,
        heads: int = 12,
        vocabulary: int = 50257,
        length: int = 256,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, size), nn.Embedding(length, size)
        self.blocks = Stack(TransformerBlock(size, heads, causal=True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)
        if tied:
            self.head.weight = self.tokens.weight
        self.register_buffer("order", torch.arange(length)[None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(self.order[:, : x.shape[1]].repeat(len(x), 1))
        return self.head(self.norm(self.blocks(self.tokens(x) + places)))


class Adapted(nn.Module):
    """LoRA: a frozen linear layer plus a trained product of two thin ones."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(self.up.weight, std=0.02)  # not zero, so that every adapter has a gradient

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def adapted(model: Decoder, rank: int = 8) -> Decoder:
    """The decoder frozen but for adapters at its attention."""
    model.requires_grad_(False)
    for block in model.blocks:
        block.query_key_value = Adapted(block.query_key_value, rank)
        block.output = Adapted(block.output, rank)
    return model


def set_checkpointed(model: nn.Module, checkpointed: bool) -> nn.Module:
    """The model, its blocks run again on the way back or not."""
    for module in model.modules():
        if isinstance(module, Stack):
            module.checkpointed = checkpointed
    return model
