"""Large models at the size of toys."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def sequence_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """One record is one sequence."""
    each = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return each.view(len(targets), -1).mean(1)


class Stack(nn.ModuleList):
    checkpointed = False

    def forward(self, x: Tensor) -> Tensor:
        for block in self:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


class TransformerBlock(nn.Module):
    def __init__(self, size: int, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.causal = causal
        self.first_norm, self.second_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.joined, self.output = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.wide, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        split = self.joined(self.first_norm(x)).view(batch, length, 3, 2, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*split.unbind(), is_causal=self.causal)
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, length, size))
        return x + self.dropout(self.narrow(functional.gelu(self.wide(self.second_norm(x)))))


class Decoder(nn.Module):
    """A GPT whose head is its table of tokens."""

    def __init__(
        self,
        size: int = 8,
        layers: int = 2,
        vocabulary: int = 23,
        length: int = 6,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, size), nn.Embedding(length, size)
        self.blocks = Stack(TransformerBlock(size, True, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(self.tokens(x) + places)))


class VisionTransformer(nn.Module):
    """Its class token and positions are parameters used directly."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, size, 4, 4)
        self.class_token = nn.Parameter(torch.randn(1, 1, size))
        self.positions = nn.Parameter(torch.randn(1, 5, size))
        self.blocks = Stack(TransformerBlock(size, False) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), tokens], 1)
        return self.head(self.norm(self.blocks(tokens + self.positions))[:, 0])


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, middle: int, stride: int) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(inputs, middle, 1, bias=False)
        self.spread = nn.Conv2d(middle, middle, 3, stride, 1, bias=False)
        self.widen = nn.Conv2d(middle, 4 * middle, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(2, n) for n in (middle, middle, 4 * middle))
        self.shortcut = nn.Conv2d(inputs, 4 * middle, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norms[0](self.narrow(x)))
        y = torch.relu(self.norms[1](self.spread(y)))
        return torch.relu(self.norms[2](self.widen(y)) + self.shortcut(x))


def resnet() -> nn.Module:
    stem = [nn.Conv2d(3, 4, 3, 1, 1), nn.GroupNorm(2, 4), nn.ReLU()]
    blocks = Stack([Bottleneck(4, 2, 1), Bottleneck(8, 4, 2)])
    return nn.Sequential(*stem, blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


class LoraLinear(nn.Module):
    """Laid out as the library `peft` does: adapters by name beside the frozen base layer."""

    def __init__(self, base: nn.Linear, rank: int = 2, scaling: float = 2.0) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_dropout = nn.ModuleDict({"default": nn.Identity()})
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})
        self.scaling = {"default": scaling}

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        for name, down in self.lora_A.items():
            dropped = self.lora_dropout[name](x).to(down.weight.dtype)
            result = result + self.lora_B[name](down(dropped)) * self.scaling[name]
        return result


def adapted(model: Decoder) -> Decoder:
    model.requires_grad_(False)
    for block in model.blocks:
        block.joined, block.output = LoraLinear(block.joined), LoraLinear(block.output)
    return model
