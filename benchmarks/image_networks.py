"""MobileNetV3 and U-Net for training with privacy: normalised in groups, else as published."""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional


def _normed(channels: int) -> nn.Module:
    return nn.GroupNorm(max(n for n in (8, 4, 2, 1) if channels % n == 0), channels)


class Squeeze(nn.Module):
    """Scales channels by a function of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        middle = max(8, channels // 4)
        self.narrow, self.widen = nn.Conv2d(channels, middle, 1), nn.Conv2d(middle, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.widen(torch.relu(self.narrow(functional.adaptive_avg_pool2d(x, 1))))
        return x * functional.hardsigmoid(scale)


class Inverted(nn.Module):
    """A depthwise convolution between two 1×1, around a shortcut if sizes allow."""

    def __init__(
        self, inputs: int, wide: int, outputs: int, kernel: int, stride: int, squeezed: bool,
        activation: type[nn.Module],
    ) -> None:  # fmt: skip
        super().__init__()
        self.adds = inputs == outputs and stride == 1
        layers: list[nn.Module] = []
        if wide != inputs:
            layers += [nn.Conv2d(inputs, wide, 1, bias=False), _normed(wide), activation()]
        around = (kernel - 1) // 2
        depthwise = nn.Conv2d(wide, wide, kernel, stride, around, groups=wide, bias=False)
        layers += [depthwise, _normed(wide), activation()]
        if squeezed:
            layers.append(Squeeze(wide))
        layers += [nn.Conv2d(wide, outputs, 1, bias=False), _normed(outputs)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


_LARGE = (  # kernel, wide, outputs, squeezed, hard swish, stride: table 1 of arXiv 1905.02244
    *((3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1)),
    *((5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1)),
    *((3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1)),
    *((3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1)),
    *((5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1)),
)


class MobileNet(nn.Module):
    """MobileNetV3-Large."""

    def __init__(self, tiny: bool) -> None:
        super().__init__()
        rows = [row for row in _LARGE if row[1] <= 72] if tiny else _LARGE
        blocks, inputs = [], 16
        for kernel, wide, outputs, squeezed, hard, stride in rows:
            activation = nn.Hardswish if hard else nn.ReLU
            blocks.append(Inverted(inputs, wide, outputs, kernel, stride, squeezed, activation))
            inputs = outputs
        last = 6 * inputs
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 16, 3, 2, 1, bias=False), _normed(16), nn.Hardswish(), *blocks),
            *(nn.Conv2d(inputs, last, 1, bias=False), _normed(last), nn.Hardswish()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 1280), nn.Hardswish()),
            nn.Linear(1280, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def _twice(inputs: int, outputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before in (inputs, outputs):
        layers += [nn.Conv2d(before, outputs, 3, 1, 1), _normed(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Four scales, each joined to the one of equal size on the way up; classes come last."""

    def __init__(self, width: int, classes: int = 4, scales: int = 4) -> None:
        super().__init__()
        widths = [width * 2**scale for scale in range(scales)]
        pairs = list(itertools.pairwise(widths))
        self.first = _twice(3, width)
        self.down = nn.ModuleList(_twice(above, below) for above, below in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(low, high, 2, 2) for high, low in pairs)
        self.join = nn.ModuleList(_twice(2 * high, high) for high, _ in pairs)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.first(x)]
        for down in self.down:
            kept.append(down(functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x).movedim(1, -1)
