"""Contrastive pretraining of a small convolutional network on images from random processes.

Two random views of an image (crop, reflection, colours, blur) should have similar codes, and views
of different images dissimilar ones (SimCLR; Chen et al., 2020). No photograph is involved, so the
network is public, and its features of a record depend on that record alone.
"""

import functools
import itertools
import math

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional

from prudent import _progress, _validate
from prudent_lab.recipes.random_images import MIXTURE, Mixture, draw

SIDE = 32
"""Height and width of the images that the network sees."""

_AT_ONCE = 4096  # images that are drawn together


class Encoder(nn.Module):
    """Convolutions in stages, each at half the resolution of the one before.

    Batches are normalised in pretraining alone: in evaluation mode, statistics of the random images
    are used, so that a record's features do not depend on other records.
    """

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        self.widths = widths
        self.stem = nn.Sequential(*_convolution(3, widths[0]))
        self.stages = nn.ModuleList(itertools.starmap(_NetworkStage, itertools.pairwise(widths)))

    def forward(self, images: Tensor) -> list[Tensor]:
        """The outputs of the stem and of all stages, of images (n, 3, 32, 32) in [0, 1]."""
        outputs = [self.stem((images - 0.5) * 4)]
        for stage in self.stages:
            outputs.append(stage(outputs[-1]))
        return outputs


class _NetworkStage(nn.Module):
    """A convolution that halves the resolution, and one around which its input is added."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        convolution, *rest = _convolution(inputs, outputs)
        self.first = nn.Sequential(convolution, nn.MaxPool2d(2), *rest)
        self.second = nn.Sequential(*_convolution(outputs, outputs))

    def forward(self, values: Tensor) -> Tensor:
        halved: Tensor = self.first(values)
        inner: Tensor = self.second(halved)
        return halved + inner


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.GELU(),
    )


class Projector(nn.Module):
    """The layers between features and the codes that are compared; discarded afterwards."""

    def __init__(self, width: int, code: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 1024, bias=False),
            nn.BatchNorm1d(1024),
            nn.ReLU(),
            nn.Linear(1024, code, bias=False),
        )

    def forward(self, values: Tensor) -> Tensor:
        """Codes of length 1 of the last stage's output."""
        pooled = values.mean((2, 3)) + values.amax((2, 3))
        return functional.normalize(self.layers(pooled).float(), dim=1)


@attrs.frozen(kw_only=True)
class Pretraining:
    """Everything that determines a pretrained network, except rounding on different machines."""

    widths: tuple[int, ...] = (64, 128, 256, 512)  # channels of the encoder's stem and stages
    images: int = 400_000  # number of images in the pool from which batches are drawn
    # Height and width of images of the pool, from which views of 32 × 32 are cropped.
    side: int = 48
    mixture: Mixture = MIXTURE  # fractions of the random processes
    batch: int = 2048  # images per step, each seen in two views
    steps: int = 4000  # number of steps
    temperature: float = 0.2  # of the softmax over similarities
    # Largest learning rate; it rises over the first twentieth and falls as a cosine.
    lr: float = 2e-3
    weight_decay: float = 0.05  # of the convolutions and dense layers
    seed: int = 0  # of images, views, weights and order

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, functools.partial(_validate.count, 1), "images", "batch", "steps")
        _validate.fields(self, _validate.positive, "temperature", "lr")
        _validate.count(SIDE, side=self.side)
        _validate.count(seed=self.seed)


def views(images: Tensor, generator: torch.Generator) -> Tensor:
    """A random view (n, 3, 32, 32) of each image: crop, reflection, colours, grey and blur."""
    count, device = len(images), images.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        drawn = torch.rand((count, *(shape or (1, 1, 1))), generator=generator, device=device)
        return drawn * (high - low) + low

    area, ratio = uniform(0.15, 1, 1), uniform(-0.28, 0.28, 1)
    height = (area.sqrt() * ratio.exp()).clamp_max(1)
    width = (area.sqrt() / ratio.exp()).clamp_max(1)
    top, left = uniform(-1, 1, 1) * (1 - height), uniform(-1, 1, 1) * (1 - width)
    reflect = torch.where(uniform(0, 1, 1) < 0.5, -1.0, 1.0)
    zero = torch.zeros_like(top)
    maps = torch.stack(
        [torch.cat([width * reflect, zero, left], 1), torch.cat([zero, height, top], 1)], 1
    )
    grid = functional.affine_grid(maps, [count, 3, SIDE, SIDE], align_corners=False)
    view = functional.grid_sample(
        images, grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )
    view = view * uniform(0.6, 1.4)  # brightness
    mean = view.mean((1, 2, 3), keepdim=True)
    view = mean + (view - mean) * uniform(0.6, 1.4)  # contrast
    grey = view.mean(1, keepdim=True)
    drained = uniform(0, 1) < 0.15
    saturation = torch.where(drained, 0.0, uniform(0.4, 1.6))
    view = grey + (view - grey) * saturation
    # A small random rotation of the colours about the grey axis, in place of a shift of hue.
    angle = uniform(-0.6, 0.6).squeeze(3)
    view = torch.einsum("bkc,bcij->bkij", _rotations(angle), view)
    blurred = functional.avg_pool2d(functional.pad(view, (1, 1, 1, 1), "replicate"), 3, 1)
    amount = torch.where(uniform(0, 1) < 0.3, uniform(0, 1), 0.0)
    return torch.lerp(view, blurred, amount).clamp(0, 1)


def _rotations(angle: Tensor) -> Tensor:
    """Rotations (n, 3, 3) about the axis (1, 1, 1) by angles (n, 1, 1)."""
    device = angle.device
    eye, ones = torch.eye(3, device=device), torch.full((3, 3), 1 / 3, device=device)
    turn = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]], device=device) / math.sqrt(3)
    return ones + angle.cos() * (eye - ones) + angle.sin() * turn


def contrast(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """The mean loss of telling each code's other view from all other codes."""
    codes = torch.cat([first, second])
    count = len(first)
    scores = codes @ codes.T / temperature
    scores.fill_diagonal_(-math.inf)
    partner = torch.arange(2 * count, device=codes.device).roll(count)
    return functional.cross_entropy(scores, partner)


def pool_of_images(setting: Pretraining, device: torch.device | str) -> Tensor:
    """The pool of images as bytes (images, 3, side, side)."""
    generator = torch.Generator(device).manual_seed(setting.seed)
    parts = []
    for start in range(0, setting.images, _AT_ONCE):
        count = min(_AT_ONCE, setting.images - start)
        drawn = draw(count, setting.side, generator, setting.mixture)
        parts.append((drawn * 255).round().byte())
    return torch.cat(parts)


def pretrain(setting: Pretraining, device: torch.device | str = "cpu") -> Encoder:
    """Pretrain a network; on a GPU in bfloat16."""
    device = torch.device(device)
    pool = pool_of_images(setting, device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(setting.seed)
        encoder = Encoder(setting.widths).to(device)
        projector = Projector(setting.widths[-1]).to(device)
    generator = torch.Generator(device).manual_seed(setting.seed + 1)
    parameters = [*encoder.parameters(), *projector.parameters()]
    # Matrices and filters decay, but no gains and biases.
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": setting.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=setting.lr, betas=(0.9, 0.98))
    warm, total = max(1, setting.steps // 20), setting.steps
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / total)),
    )
    encoder.train()
    projector.train()
    for _ in _progress.track(range(setting.steps), "pretraining on random images"):
        rows = torch.randint(len(pool), (setting.batch,), generator=generator, device=device)
        images = pool[rows].float().div_(255)
        pair = torch.cat([views(images, generator), views(images, generator)])
        pair = pair.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            codes = projector(encoder(pair)[-1])
        first, second = codes.chunk(2)
        loss = contrast(first, second, setting.temperature)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
    encoder.eval().requires_grad_(False)
    return encoder
