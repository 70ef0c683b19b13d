"""The landmarks that come with the package: codes of public letters, of glyphs and of digits.

Glyphs are random curves, and digits are strokes written down by hand: no data.

Landmarks are rounded to a few steps, which makes their file small: a rounded landmark is as public
and as good a landmark as the one it was made from.

The statistics and landmarks of the map `resnet18`, from images that random processes drew.
"""

import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch

from prudent._files import replacing
from prudent.certify.counts import Codes, Crowding, whole
from prudent.certify.features import TOP, images
from prudent_lab.features.resnet import FINE, Real, ResNet18Embedding, Whitened, roots
from prudent_lab.recipes.random_images import draw
from tools.feature_files.glyphs import Hand, digits, glyphs
from tools.feature_files.letters import turned

_MOST = 15
_FINE = 4.0  # steps in a standard deviation
_AT_ONCE = 500
_GLYPHS = 1000


@attrs.frozen
class LandmarkRecipe:
    """How landmarks are made."""

    count: int  # how many letters or glyphs
    digits: int  # how many digits by strokes
    ramp: tuple[float, float]  # see `Landmarks`
    # The parts of the crowding that count for records, landmarks and queries.
    crowding: tuple[float, float, float]
    upright: float = 0.0  # fraction of letters that are not turned
    variation: float = 0.2  # how much copies of a glyph differ
    loops: float = 0.25  # probability that a curve of a glyph is closed
    seed: int = 3  # of what is drawn
    saw: str = ""  # what the choice of the numbers above saw


_HELD = (
    "digits 50,000 to 60,000 of the training part of MNIST alone, in five folds: counts of four of "
    "them, certified accuracy on the fifth; these digits are left out wherever ε is stated"
)

RECIPES = {
    "letters": LandmarkRecipe(7000, 5000, (-0.142, -0.025), (0.0, 0.2, 0.45), saw=_HELD),
    "glyphs": LandmarkRecipe(
        12_000, 12_000, (-0.082, -0.0125), (0.6, 0.5, 0.0), seed=77, saw=_HELD
    ),
}
"""Chosen by `python -m benchmarks.certify_choice`."""


def make(path: Path, name: str, recipe: LandmarkRecipe | None = None) -> dict[str, Any]:
    """Draw and code public images, write the landmarks of a map, and return how they were made."""
    recipe = recipe or RECIPES[name]
    others = _letters(recipe) if name == "letters" else _glyphs(recipe)
    strokes = (TOP * digits(recipe.digits, recipe.seed)).round().to(torch.uint8).numpy()
    drawn = np.concatenate([others, strokes])
    rows = np.concatenate(
        [
            images(name).codes(part)[0]
            for part in np.split(drawn, range(_AT_ONCE, len(drawn), _AT_ONCE))
        ]
    )
    provenance = attrs.asdict(recipe)
    write(path, rows, recipe.ramp, provenance, recipe.crowding)
    return provenance


def write(
    path: Path,
    codes: Codes,
    ramp: tuple[float, float],
    provenance: dict[str, Any],
    crowding: tuple[float, float, float] | None = None,
    **arrays: npt.NDArray[Any],
) -> None:
    """Write landmarks, rounded to a few steps, and what else belongs to their map."""
    deviations = np.sqrt(np.square(codes.astype(np.float64)).mean(axis=1, keepdims=True))
    steps = np.clip(np.rint(_FINE * codes / np.maximum(deviations, 1.0)), -_MOST, _MOST)
    if crowding:
        crowds = Crowding.of(whole(steps), *crowding).products
        arrays |= {"crowding": crowds.astype(np.int32), "crowding_shares": np.array(crowding)}
    with replacing(path, "wb") as file:
        np.savez_compressed(
            file,
            rows=steps.astype(np.int8),
            ramp=np.array(ramp),
            provenance=np.array(json.dumps(provenance)),
            **arrays,  # type: ignore[arg-type]
        )


def _letters(recipe: LandmarkRecipe) -> npt.NDArray[np.uint8]:
    """Public letters, a part of them turned or mirrored, in an order that mixes all."""
    from prudent_lab.datasets import load

    draw = np.random.RandomState(recipe.seed)  # frozen across versions of numpy
    public = load("emnist-az").train_features[:, 0]
    chosen = public[torch.from_numpy(draw.permutation(len(public))[: recipe.count])]
    plain = (TOP * chosen).round().to(torch.uint8)
    eight, _ = turned(plain, torch.zeros(len(plain), dtype=torch.long))
    ways = eight.view(8, len(plain), 28, 28).numpy()
    turns = np.where(draw.rand(len(plain)) < recipe.upright, 0, draw.randint(0, 8, len(plain)))
    return np.ascontiguousarray(ways[turns, np.arange(len(plain))])


def _glyphs(recipe: LandmarkRecipe) -> npt.NDArray[np.uint8]:
    """Two copies each of synthetic glyphs, in an order that mixes all."""
    hand, parts = Hand.seeded(recipe.seed), []
    for start in range(0, recipe.count, 2 * _GLYPHS):
        count = min(_GLYPHS, -(-(recipe.count - start) // 2))
        made = glyphs(count, 2, hand, variation=recipe.variation, loops=recipe.loops)
        parts.append((TOP * made).round().to(torch.uint8).numpy())
    order = np.random.RandomState(recipe.seed).permutation(recipe.count)
    return np.concatenate(parts)[: recipe.count][order]


_IMAGES, _LANDMARKS, _SEED = 12_000, 8000, 5
_DIRECTIONS, _SHRINK = 128, 0.1
_RAMP = (0.09, 0.15)
_SAW = (
    "photographs 46,000 to 50,000 of the training part of CIFAR10, with counts of the others; "
    "results of an earlier classifier on the test part were known"
)


def whitened(features: Real) -> Whitened:
    """The map by statistics of features of public images."""
    rows = roots(features)
    centre = np.rint(rows.mean(axis=0))
    values, vectors = np.linalg.eigh(np.cov((rows - centre).T))
    scales = np.sqrt(values + _SHRINK * values.mean())
    matrix = (vectors / scales)[:, ::-1][:, :_DIRECTIONS]
    return Whitened(centre, np.rint(matrix / np.abs(matrix).max() * (FINE - 1)), "")


def make_photographs(path: Path, embedding: ResNet18Embedding | None = None) -> dict[str, Any]:
    """Draw random images, write statistics and landmarks of the map, and return how it was made."""
    network, generator = embedding or ResNet18Embedding(), torch.Generator().manual_seed(_SEED)
    features = network(draw(_IMAGES, 32, generator).numpy())
    found = whitened(features)
    provenance = {
        "images": _IMAGES,
        "landmarks": _LANDMARKS,
        "seed": _SEED,
        "ramp": _RAMP,
        "saw": _SAW,
    }
    centre, matrix = found.centre.astype(np.int32), found.matrix.astype(np.int16)
    codes, _ = found.codes(features[:_LANDMARKS])
    write(path, codes, _RAMP, provenance, centre=centre, matrix=matrix)
    return provenance
