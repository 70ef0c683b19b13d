"""Synthetic characters: random curves, drawn by random hands. No data of any kind is read.

A class of glyphs is a few random Bézier curves, some joined, some closed; a copy of it has its
control points moved, is turned, slanted and stretched a little, and is drawn with a pen of its own
width into a box of 20 pixels around the centre of mass, as digits and letters are in MNIST and
EMNIST.

Digits as anybody would write them: a few strokes each, put down in `digits.txt`. No data is read.

A form of a digit is one or more strokes through a few points. A copy has its points moved, its
corners rounded (or not), is slanted and stretched, and is drawn by the same pen. Nobody says
which copy is which digit: they serve as landmarks, near to what people write.
"""

import math
from importlib import resources
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prudent.certify.features import TOP, write_network
from tools.feature_files import letters

CURVES = 4
POINTS = 14
_SIDE = 28
_DRAWN_AT_ONCE = 512  # images whose distances from strokes are in memory
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
    parts = zip(torch.split(starts, _DRAWN_AT_ONCE), torch.split(ends, _DRAWN_AT_ONCE), strict=True)
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


Points = list[tuple[float, float]]

JITTER = 0.33
"""Largest deviation of the points of a stroke; digits are 2 high."""

_LONG = 8
_BEND = 24  # degrees between the points of an arc
_ROUNDED = 0.7
_PEN = np.array([1, 2, 3, 2, 1]) / 9


def _points(stroke: str) -> Points:
    """The points of a stroke as written down: x,y, or @x,y,width,height,start,end for an arc.

    An arc is a part of an ellipse, in degrees against the clock from the right.
    """
    found: Points = []
    for written in stroke.split():
        x, y, *arc = (float(number) for number in written.removeprefix("@").split(","))
        if not arc:
            found.append((x, y))
            continue
        width, height, start, end = arc
        angles = np.radians(np.linspace(start, end, max(5, round(abs(end - start) / _BEND))))
        found += [(x + width * math.cos(each), y - height * math.sin(each)) for each in angles]
    return found


_WRITTEN = resources.files("tools.feature_files").joinpath("digits.txt").read_text("utf-8")
FORMS = tuple(
    tuple(_points(stroke) for stroke in form.split("/")) for form in _WRITTEN.splitlines()
)
"""Ways to write the digits 0 to 9, from `digits.txt`: strokes of points, x to the right, y down."""


def digits(count: int, seed: int) -> Tensor:
    """Images (count, 28, 28) in [0, 1] of digits in random forms."""
    draw, hand = np.random.RandomState(seed), Hand.seeded(seed)
    lines = torch.zeros(count, CURVES, POINTS, 2)
    used = torch.zeros(count, CURVES, dtype=torch.bool)
    for row in range(count):
        strokes = FORMS[draw.randint(len(FORMS))]
        pieces = [piece for stroke in strokes for piece in _pieces(stroke, len(strokes), draw)]
        lines[row, : len(pieces)] = torch.from_numpy(np.stack(pieces)).float()
        used[row, : len(pieces)] = True
    lines[..., 0] *= torch.exp(0.15 * hand.normal(count, 1, 1))
    return drawn(slanted(lines, hand), used, hand)


def _pieces(
    stroke: Points, strokes: int, draw: np.random.RandomState
) -> list[npt.NDArray[np.float64]]:
    """A copy of a stroke, in pieces of `POINTS` points, of which the strokes have `CURVES`."""
    points = np.array(stroke, dtype=np.float64)
    size = JITTER * draw.rand() * (0.6 if len(points) > _LONG else 1.0)
    points += size * draw.randn(*points.shape)
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
    step = POINTS - 1
    places = np.linspace(0, along[-1], (CURVES - 1 if strokes == 1 else CURVES // 2) * step + 1)
    line = np.stack([np.interp(places, along, axis) for axis in points.T], axis=1)
    if draw.rand() < _ROUNDED:
        padded = np.pad(line, ((2, 2), (0, 0)), mode="edge")
        line = np.stack([np.convolve(axis, _PEN, "valid") for axis in padded.T], axis=1)
    return [line[start : start + POINTS] for start in range(0, len(line) - 1, step)]


_KEPT_AT_ONCE = 4000  # images in floating point, before they become bytes
_TRAINING = letters.NetworkRecipe(steps=4000, channels=(32, 64, 128, 128), half=True)


@attrs.frozen
class GlyphRecipe:
    """How the network of the map `glyphs` is made.

    It learns to name thousands of random characters, some with closed curves, from a few copies of
    each. Its last activations are centred and whitened by their covariance within further
    characters, which it has not seen.
    """

    classes: int = 10_000  # characters that it learns to name
    others: int = 3000  # characters that the covariance is taken of
    copies: int = 20  # images of each character
    variation: float = 0.2  # how much copies differ; see `glyphs`
    loops: float = 0.25  # probability that a curve is closed
    seed: int = 5  # of the characters; that of the others is the next one
    # The network and how it is trained; `sample` is not used.
    training: letters.NetworkRecipe = _TRAINING

    def drawn(self, classes: int, seed: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Images of new characters, as bytes, and their classes."""
        hand, at_once = Hand.seeded(seed, device), max(1, _KEPT_AT_ONCE // self.copies)
        parts = []
        for start in range(0, classes, at_once):
            count = min(at_once, classes - start)
            images = glyphs(count, self.copies, hand, variation=self.variation, loops=self.loops)
            parts.append((TOP * images).round().to(torch.uint8))
        return torch.cat(parts), torch.arange(classes, device=device).repeat_interleave(self.copies)


def make(
    path: Path, recipe: GlyphRecipe | None = None, *, device: str = "cpu", steps: int | None = None
) -> dict[str, Any]:
    """Train the network by its recipe, write its weight file, and return how it was made.

    It takes two minutes on a GPU, hours on a CPU; fewer steps than the recipe's are for a
    trial.
    """
    recipe = recipe or GlyphRecipe()
    if steps is not None:
        recipe = attrs.evolve(recipe, training=attrs.evolve(recipe.training, steps=steps))
    training = recipe.training
    known = recipe.drawn(recipe.classes, recipe.seed, device)
    model, loss = letters.fitted(training, *known, letters.seeded(training, device))
    unseen = recipe.drawn(recipe.others, recipe.seed + 1, device)
    provenance = attrs.asdict(recipe) | {"loss": loss, "torch": torch.__version__}
    write_network(path, letters.whole(model, *unseen, training.shrink), provenance)
    return provenance
