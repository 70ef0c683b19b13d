"""Synthetic characters: random curves, drawn by random hands. No data of any kind is read.

A class of glyphs is a few random Bézier curves, some joined, some closed; a copy of it has its
control points moved, is turned, slanted and stretched a little, and is drawn with a pen of its own
width into a box of 20 pixels around the centre of mass, as digits and letters are in MNIST and
EMNIST.
"""

import attrs
import torch
from torch import Tensor

CURVES = 4
POINTS = 14
_SIDE = 28
_AT_ONCE = 512
_FAR = 1e3


@attrs.frozen(eq=False)
class Hand:
    """Random numbers from one seeded generator, on its device."""

    generator: torch.Generator

    @classmethod
    def seeded(cls, seed: int, device: torch.device | str = "cpu") -> "Hand":
        """A source of random numbers that a seed and a kind of device determine."""
        return cls(torch.Generator(device).manual_seed(seed))

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1)."""
        return torch.rand(shape, generator=self.generator, device=self.generator.device)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, generator=self.generator, device=self.generator.device)

    def below(self, high: int, *shape: int) -> Tensor:
        """Whole numbers from 0 to high − 1."""
        return torch.randint(high, shape, generator=self.generator, device=self.generator.device)

    def order(self, size: int) -> Tensor:
        """A random permutation."""
        return torch.randperm(size, generator=self.generator, device=self.generator.device)


def glyphs(
    classes: int, copies: int, hand: Hand, *, variation: float = 0.2, loops: float = 0.0
) -> Tensor:
    """Images (classes · copies, 28, 28) in [0, 1] of new random characters, class by class.

    Args:
        classes: How many characters to invent.
        copies: How many images of each.
        hand: Random numbers.
        variation: Largest deviation of control points between copies; characters are 2 wide.
        loops: Probability that a curve of a character is closed, until its copies vary.
    """
    control, joined = _characters(classes, hand, loops)
    spread = variation * hand.uniform(classes, 1, 1, 1, 1)  # some characters vary more than others
    control = control[:, None] + spread * hand.normal(classes, copies, CURVES, 4, 2)
    for i in range(1, CURVES):
        end, start = control[:, :, i - 1, 3], control[:, :, i, 0]
        control[:, :, i, 0] = torch.where(joined[:, None, i, None], end, start)
    t = torch.linspace(0, 1, POINTS, device=control.device)
    basis = torch.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3])
    lines = torch.einsum("abscd,cp->abspd", control, basis).flatten(0, 1)
    used = torch.arange(CURVES, device=t.device) < 1 + hand.below(CURVES, classes, 1)
    return drawn(slanted(lines, hand), used.repeat_interleave(copies, 0), hand)


def _characters(classes: int, hand: Hand, loops: float) -> tuple[Tensor, Tensor]:
    """Control points of the curves of each class, and which curves begin where one ended."""
    control = 2 * hand.uniform(classes, CURVES, 4, 2) - 1
    steps = torch.linspace(0, 1, 4, device=control.device)[:, None]
    line = control[:, :, :1] + (control[:, :, 3:] - control[:, :, :1]) * steps
    control = torch.where(hand.uniform(classes, CURVES, 1, 1) < 0.3, line, control)
    joined = hand.uniform(classes, CURVES) < 0.6
    for i in range(1, CURVES):
        move = torch.where(joined[:, i, None], control[:, i - 1, 3] - control[:, i, 0], 0.0)
        control[:, i, 0] += move
        control[:, i, 1] += move / 2
    if loops:
        closed = hand.uniform(classes, CURVES, 1) < loops
        control[:, :, 3] = torch.where(closed, control[:, :, 0], control[:, :, 3])
    return control, joined


def slanted(lines: Tensor, hand: Hand) -> Tensor:
    """Lines of each image turned, slanted and stretched a little."""
    count = len(lines)
    angle, shear = 0.15 * hand.normal(count), 0.25 * hand.normal(count)
    cos, sin = torch.cos(angle), torch.sin(angle)
    turn = torch.stack([cos, -sin, sin, cos], -1).view(count, 2, 2)
    stretch = torch.exp(0.2 * hand.normal(count))
    skew = torch.stack([stretch, shear, torch.zeros_like(shear), torch.ones_like(shear)], -1).view(
        count, 2, 2
    )
    return torch.einsum("nspd,nde->nspe", lines, skew @ turn)


def drawn(lines: Tensor, used: Tensor, hand: Hand) -> Tensor:
    """Pen strokes along the used lines (n, curves, points, 2), fitted into the image."""
    points = lines.flatten(1, 2)
    inked = used.repeat_interleave(POINTS, 1)[..., None]
    high = torch.where(inked, points, -_FAR).amax(1)
    low = torch.where(inked, points, _FAR).amin(1)
    points = points * (18 / (high - low).amax(1).clamp_min(0.2))[:, None, None]
    centre = (points * inked).sum(1, keepdim=True) / inked.sum(1, keepdim=True)
    points = points - centre + _SIDE / 2 + 0.5 * hand.normal(len(points), 1, 2)
    points = torch.where(inked, points, _FAR).view_as(lines)
    starts, ends = points[:, :, :-1].flatten(1, 2), points[:, :, 1:].flatten(1, 2)
    parts = zip(torch.split(starts, _AT_ONCE), torch.split(ends, _AT_ONCE), strict=True)
    distance = torch.cat([_distance(start, end) for start, end in parts])
    width = 0.7 + 0.9 * hand.uniform(len(points), 1)
    return torch.sigmoid((width - distance) / 0.35).view(-1, _SIDE, _SIDE)


def _distance(starts: Tensor, ends: Tensor) -> Tensor:
    """Distance of each pixel from the nearest of the segments (n, segments, 2)."""
    axis = torch.arange(float(_SIDE), device=starts.device)
    pixels = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1).flatten(0, 1)
    along = (ends - starts)[:, :, None]
    away = pixels - starts[:, :, None]
    share = (away * along).sum(-1) / along.square().sum(-1).clamp_min(1e-6)
    return (away - share.clamp(0, 1)[..., None] * along).square().sum(-1).amin(1).sqrt()
