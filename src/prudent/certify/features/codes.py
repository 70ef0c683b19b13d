"""Codes of images from scattering coefficients and statistics of public images.

The coefficients of an image are scaled to length 1 in each of four groups (the average, two scales,
and second order). Then one linear map makes the covariance within public classes the identity
(Fisher's discriminant): directions in which copies of one character differ count little. The
classes are synthetic glyphs, so that no data is needed at all.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from prudent._files import replacing
from prudent._formats import check_format, read_npz, reading
from prudent.certify.features.voting import Ballot, Voting
from prudent.experiments.scattering import SIDE, scattering

FORMAT = 2
"""Format number of the files."""

_GROUPS = ((0, 1), (1, 9), (9, 17), (17, 81))
_STEP = 1000  # length of a group of coefficients, as whole numbers
_WEIGHT = 127

Floats = npt.NDArray[np.float32]
Real = npt.NDArray[np.float64]


def coefficients(images: npt.NDArray[np.generic]) -> Floats:
    """Scattering coefficients as whole numbers: (n, 81 · 49), each group at most 1000 long."""
    found = scattering(images)
    parts = []
    for start, stop in _GROUPS:
        group = found[:, start:stop].reshape(len(found), -1).astype(np.float64)
        norms = np.sqrt(np.square(group).sum(axis=1, keepdims=True))
        parts.append(np.trunc(group * (_STEP * (1 - 2.0**-30) / np.maximum(norms, 1e-6))))
    return np.concatenate(parts, axis=1).astype(np.float32)


@attrs.frozen(eq=False)
class LinearCode:
    """A linear map of coefficients, with 8-bit weights.

    Guarantee:
        Coefficients and weights are whole numbers and the sums of their products stay below 2²⁴,
        which is checked, so float32 adds them exactly: a code depends on its own image alone.

    Attributes:
        weights: int8, (coefficients, entries).
        gains: Factor of each entry.
        offsets: Added to each entry after the gain.
    """

    weights: npt.NDArray[np.int8]
    gains: Floats
    offsets: Floats

    def __attrs_post_init__(self) -> None:
        lengths = np.sqrt(np.square(self.weights.astype(np.float64)).sum(axis=0))
        if _STEP * np.sqrt(len(_GROUPS)) * lengths.max() >= 1 << 24:
            raise ValueError("Expected weights whose sums float32 holds exactly.")

    def __call__(self, records: npt.NDArray[np.generic]) -> Real:
        """Codes of images: bytes, or numbers in [0, 1]; NaN for an image that is not finite."""
        images = records.reshape(len(records), SIDE, SIDE)
        finite = np.isfinite(images).all(axis=(1, 2))
        unit = np.float32(255 if images.dtype == np.uint8 else 1)
        clean = np.clip(np.where(finite[:, None, None], images, 0) / unit, 0, 1)
        codes = (coefficients(clean) @ self.weights.astype(np.float32)).astype(np.float64)
        codes = codes * self.gains + self.offsets
        codes /= np.maximum(np.sqrt(np.square(codes).sum(axis=1)), 1e-9)[:, None]
        codes[~finite] = np.nan
        return codes

    @classmethod
    def of(cls, matrix: Real, offsets: Real) -> "LinearCode":
        """The map of coefficients by a matrix and offsets, its weights rounded to 8 bits."""
        steps = np.abs(matrix).max(axis=0) / _WEIGHT
        weights = np.rint(matrix / steps).astype(np.int8)
        return cls(weights, steps.astype(np.float32), offsets.astype(np.float32))


def basis_of(rows: Floats, entries: int) -> tuple[Real, Real]:
    """Mean and principal directions of fewer rows than columns, from their inner products."""
    mean = rows.mean(axis=0, dtype=np.float64)
    centred = rows - mean
    values, vectors = np.linalg.eigh(centred @ centred.T)
    chosen = vectors[:, ::-1][:, :entries] / np.sqrt(values[::-1][:entries])
    return mean, centred.T @ chosen


def whitening(rows: Real, copies: int, shrink: float) -> Real:
    """The matrix that makes the covariance within classes, of `copies` rows each, the identity.

    Args:
        rows: Class by class.
        copies: Rows of a class.
        shrink: Weight of the mean variance in the covariance.
    """
    groups = rows.reshape(-1, copies, rows.shape[1])
    inner = (groups - groups.mean(axis=1, keepdims=True)).reshape(rows.shape)
    covariance = inner.T @ inner / (len(rows) - len(groups))
    size = len(covariance)
    covariance = (1 - shrink) * covariance + shrink * np.trace(covariance) / size * np.eye(size)
    scales, axes = np.linalg.eigh(covariance)
    matrix: Real = axes / np.sqrt(scales) @ axes.T
    return matrix


@attrs.frozen
class Recipe:
    """How the map is made from synthetic glyphs.

    Attributes:
        seed: Of the glyphs.
        variation: How much copies of a glyph differ.
        classes: Glyphs drawn at a time, each `copies` times.
        copies: Copies of a glyph.
        for_basis: How often glyphs are drawn for the principal directions.
        for_statistics: How often for the covariance.
        entries: Entries of a code.
        shrink: See `whitening`.
        ballot: What records vote for.
    """

    seed: int = 11
    variation: float = 0.3
    classes: int = 25
    copies: int = 10
    for_basis: int = 12
    for_statistics: int = 60
    entries: int = 256
    shrink: float = 0.05
    ballot: Ballot = attrs.field(factory=lambda: Ballot(directions=256, low=0.8, high=1.2))


def make(path: str | os.PathLike[str], recipe: Recipe | None = None) -> dict[str, Any]:
    """Draw glyphs, take their statistics and write the map. Some minutes; reads no data.

    Returns:
        How it was made.
    """
    from prudent.certify.features.glyphs import Hand, glyphs

    recipe = recipe or Recipe()
    hand = Hand.seeded(recipe.seed)

    def drawn(times: int) -> Iterator[Floats]:
        for _ in range(times):
            images = glyphs(recipe.classes, recipe.copies, hand, variation=recipe.variation)
            yield coefficients(images.numpy())

    mean, basis = basis_of(np.concatenate(list(drawn(recipe.for_basis))), recipe.entries)
    rows = np.concatenate([(part - mean) @ basis for part in drawn(recipe.for_statistics)])
    voting = assembled(mean, basis, rows, recipe)
    story = attrs.asdict(recipe)
    write(path, voting, story)
    return story


def assembled(mean: Real, basis: Real, rows: Real, recipe: Recipe) -> Voting:
    """The map from principal directions and the projections of glyphs on them."""
    inner = whitening(rows, recipe.copies, recipe.shrink)
    code = LinearCode.of(basis @ inner, -(mean @ basis + rows.mean(axis=0)) @ inner)
    return Voting("glyphs", "", code, recipe.entries, recipe.ballot)


def write(path: str | os.PathLike[str], voting: Voting, story: dict[str, Any]) -> None:
    """Write a map; `story` says how it was made."""
    code = voting.code
    assert isinstance(code, LinearCode)
    header = {"format": FORMAT, "ballot": attrs.asdict(voting.ballot), "story": story}
    with replacing(Path(path), "wb") as file:
        np.savez_compressed(
            file,
            header=np.array(json.dumps(header)),
            weights=code.weights,
            gains=code.gains,
            offsets=code.offsets,
        )


def read(path: str | os.PathLike[str], name: str) -> Voting:
    """A map that `write` wrote."""
    expected = "a file of a feature map"
    with reading(path, expected):
        archive = read_npz(path, expected)
        header = json.loads(str(archive["header"]))
        check_format(header, FORMAT, f"{path}")
        code = LinearCode(archive["weights"], archive["gains"], archive["offsets"])
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        return Voting(name, digest, code, code.weights.shape[1], Ballot(**header["ballot"]))


def shipped(name: str) -> Voting:
    """A map that comes with the package."""
    with resources.as_file(resources.files("prudent.certify.features") / f"{name}.npz") as path:
        return read(path, name)
