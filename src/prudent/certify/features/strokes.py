"""Digits as anybody would write them: a few strokes each, written down here. No data is read.

A form of a digit is one or more strokes through a few points. A copy has its points moved, its
corners rounded (or not), is slanted and stretched, and is drawn by the pen of `glyphs`. Nobody says
which copy is which digit: they serve as landmarks, near to what people write.
"""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from prudent.certify.features.glyphs import CURVES, POINTS, Hand, drawn, slanted

Points = list[tuple[float, float]]

JITTER = 0.33
"""Largest deviation of the points of a stroke; digits are 2 high."""

_LONG = 8
_ROUNDED = 0.7
_PEN = np.array([1, 2, 3, 2, 1]) / 9


def _arc(x: float, y: float, width: float, height: float, start: int, end: int) -> Points:
    """A part of an ellipse, in degrees against the clock from the right; a point every 24 or so."""
    count = max(5, round(abs(end - start) / 24))
    angles = np.radians(np.linspace(start, end, count))
    return [(x + width * math.cos(each), y - height * math.sin(each)) for each in angles]


FORMS: tuple[tuple[Points, ...], ...] = (
    (_arc(0, 0, 0.6, 1, 90, 450),),
    (_arc(0, 0, 0.8, 1, 90, 450),),
    (_arc(0, 0, 0.45, 1, 60, 420),),
    ([(0, -1), (0, 1)],),
    ([(-0.35, -0.6), (0, -1), (0, 1)],),
    ([(-0.4, -0.55), (0, -1), (0, 1)], [(-0.45, 1), (0.45, 1)]),
    ([(0.15, -1), (-0.15, 1)],),
    ([*_arc(0, -0.45, 0.6, 0.55, 160, -40), (-0.6, 1), (0.7, 1)],),
    (
        [
            *_arc(0, -0.5, 0.55, 0.5, 170, -50),
            (-0.3, 0.75),
            (-0.6, 0.9),
            (-0.5, 1),
            (-0.1, 0.85),
            (0.3, 0.95),
            (0.75, 0.9),
        ],
    ),
    (
        [
            *_arc(-0.05, -0.5, 0.55, 0.5, 150, -60),
            (-0.4, 0.6),
            (-0.65, 0.8),
            (-0.55, 1),
            (-0.25, 0.85),
            (-0.3, 0.6),
            (-0.5, 0.7),
            (-0.2, 0.9),
            (0.4, 1),
            (0.75, 0.85),
        ],
    ),
    (_arc(-0.05, -0.5, 0.55, 0.5, 150, -80) + _arc(-0.05, 0.45, 0.65, 0.55, 85, -150),),
    ([(-0.55, -1), (0.5, -1), (-0.05, -0.2), *_arc(-0.05, 0.4, 0.6, 0.6, 80, -150)],),
    ([*_arc(0, -0.5, 0.5, 0.5, 140, -70), (-0.15, 0), *_arc(0, 0.5, 0.6, 0.5, 80, -140)],),
    ([(-0.4, -1), (-0.6, 0.15), (0.6, 0.1)], [(0.35, -0.9), (0.25, 1)]),
    ([(0.3, 1), (0.3, -1), (-0.7, 0.35), (0.7, 0.35)],),
    ([(-0.45, -1), (-0.5, -0.1), (0.3, -0.05)], [(0.4, -1), (0.3, 1)]),
    ([(-0.5, -0.95), (-0.55, -0.05), (0.45, -0.1), (0.45, -1), (0.4, 1)],),
    ([(0.6, -1), (-0.45, -1), (-0.5, -0.15), *_arc(-0.05, 0.35, 0.6, 0.62, 100, -150)],),
    (
        [(-0.4, -0.95), (-0.45, -0.2), *_arc(-0.05, 0.35, 0.55, 0.6, 95, -150)],
        [(-0.4, -0.95), (0.6, -1)],
    ),
    (
        [
            (0.5, -1),
            (-0.35, -0.9),
            (-0.3, -0.3),
            (0.1, -0.1),
            (0.45, 0.3),
            (0.2, 0.85),
            (-0.5, 0.95),
        ],
    ),
    ([(0.35, -1), (-0.2, -0.55), (-0.5, 0.1), *_arc(0, 0.45, 0.5, 0.5, 180, 520)],),
    (_arc(0.45, -0.05, 0.95, 0.95, 100, 190) + _arc(0, 0.5, 0.5, 0.48, 190, 520),),
    ([(0, -1), (-0.35, -0.2), *_arc(0, 0.5, 0.42, 0.48, 190, 530)],),
    ([(-0.6, -0.95), (0.6, -1), (-0.1, 1)],),
    ([(-0.6, -0.7), (-0.55, -0.95), (0.6, -0.95), (0.1, 0), (-0.05, 1)],),
    ([(-0.6, -0.95), (0.6, -0.95), (-0.1, 1)], [(-0.3, 0.05), (0.45, 0)]),
    (
        [
            (0.4, -0.75),
            (0, -1),
            (-0.42, -0.7),
            (-0.25, -0.3),
            (0.2, 0.1),
            (0.5, 0.55),
            (0.1, 1),
            (-0.4, 0.85),
            (-0.4, 0.4),
            (0, 0),
            (0.4, -0.45),
            (0.4, -0.8),
        ],
    ),
    (_arc(0, -0.5, 0.42, 0.48, 270, -90), _arc(0, 0.5, 0.55, 0.5, 90, 450)),
    (
        [
            (0.5, -0.9),
            (-0.1, -1),
            (-0.4, -0.6),
            (0.1, -0.05),
            (0.35, 0.5),
            (-0.05, 1),
            (-0.35, 0.6),
            (0.1, 0.05),
            (0.5, -0.5),
            (0.45, -0.9),
        ],
    ),
    ([*_arc(0, -0.45, 0.48, 0.5, 10, 370), (0.4, 0.4), (0.25, 1)],),
    ([*_arc(-0.05, -0.45, 0.5, 0.5, 0, 360), (0.45, 0.4), (0, 0.95), (-0.5, 0.85)],),
    (
        [
            (0.45, -0.8),
            (0, -1),
            (-0.45, -0.6),
            (-0.2, -0.1),
            (0.35, -0.35),
            (0.45, -0.85),
            (0.35, 0),
            (0.3, 1),
        ],
    ),
)
"""Ways to write the digits 0 to 9, in points (x to the right, y down)."""


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
