"""Recipes for MNIST and Fashion-MNIST: a linear model on features that come from no data.

Features are public maps of grey images of 28 × 28 pixels: one row per image, of length 1, in half
precision, a function of that image alone.

Augmentation multiplicity: several views of a record are on the second axis of its features. A
record is still one row, with one loss, the mean over its views, and so one gradient: clipping and
accounting are those of a record. Whitening is by the second moment of features, released with
Gaussian noise and priced.

Settings were chosen on the last 10,000 training records, by `benchmarks/recipe_search.py`; the test
part was read once, for the numbers in the documentation.
"""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import attrs
import dp_accounting as dp
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from prudent import _validate
from prudent.certify.features import shipped_network
from prudent.training.keystream import Key
from prudent.training.noise import StepState, noise_on
from prudent_lab.datasets import Dataset
from prudent_lab.experiment import Prepare, Setup
from prudent_lab.scattering import CELLS, CHANNELS, scattering

Rows = Callable[[Tensor], Tensor]
"""Maps images to rows, each a function of its image alone."""

GROUPS = 27
"""Groups of the 81 channels that are normalised together."""

_AT_ONCE = 64  # images whose spectra stay in the cache
_AT_ONCE_ON_GPU = 4096


def scattered(images: Tensor) -> Tensor:
    """Scattering coefficients (n, 81, 7, 7) of images (n, 1, 28, 28), on their device."""
    if images.device.type != "cpu":
        found = [scattering(part) for part in torch.split(images, _AT_ONCE_ON_GPU)]
        return torch.cat(found).view(-1, CHANNELS, CELLS, CELLS)
    coefficients = torch.empty(len(images), CHANNELS, CELLS**2)
    parts = torch.split(images, _AT_ONCE), torch.split(coefficients, _AT_ONCE)

    def fill(part: Tensor, place: Tensor) -> None:
        place.copy_(torch.from_numpy(scattering(part.numpy())))

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(fill, *parts))
    return coefficients.view(-1, CHANNELS, CELLS, CELLS)


def scattering_rows(images: Tensor) -> Tensor:
    """Scattering coefficients with mean 0 and variance 1 in each group of each image."""
    return _by_parts(images, lambda part: functional.group_norm(scattered(part), GROUPS).flatten(1))


def glyph_rows(images: Tensor) -> Tensor:
    """Codes of the network that was trained on synthetic glyphs, (n, 256)."""
    network, _ = shipped_network("glyphs")
    parts = (part.numpy() for part in torch.split(images.cpu(), _AT_ONCE))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        codes = np.concatenate([np.zeros((0, network.entries)), *pool.map(network, parts)])
    return _by_parts(torch.from_numpy(codes).to(images.device), lambda part: part)


def joined_rows(images: Tensor) -> Tensor:
    """Scattering coefficients and codes of the glyph network side by side."""
    both = [scattering_rows(images), glyph_rows(images)]
    return _by_parts(torch.cat(both, 1), lambda part: part)


def _by_parts(images: Tensor, rows: Rows) -> Tensor:
    """Rows of unit length, computed for a few thousand images at a time."""
    parts = torch.split(images, _AT_ONCE_ON_GPU)
    return torch.cat([of_unit_length(rows(part).float()).half() for part in parts])


_NEAR = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))


def shifts(copies: int) -> tuple[tuple[int, int], ...]:
    """The first `copies` of nine shifts by at most one pixel, as (rows, columns); none comes first.

    They are public and the same for every record.
    """
    return _NEAR[: _validate.count(1, len(_NEAR), copies=copies)]


def shifted(images: Tensor, shift: tuple[int, int]) -> Tensor:
    """Images (…, height, width) moved by whole pixels, with zeros from outside."""
    rows, columns = shift
    height, width = images.shape[-2:]
    reach = max(abs(rows), abs(columns))
    padded = functional.pad(images, (reach, reach, reach, reach))
    top, left = reach - rows, reach - columns
    return padded[..., top : top + height, left : left + width]


def loss_over_views(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy per record: of outputs (n, classes), or the mean over views (n, views, …)."""
    if outputs.ndim == 2:
        return functional.cross_entropy(outputs, targets, reduction="none")
    views = outputs.shape[1]
    each = functional.cross_entropy(
        outputs.flatten(0, 1), targets.repeat_interleave(views), reduction="none"
    )
    return each.view(-1, views).mean(1)


_CHUNK = 8192
_UNIT = 1 - 1e-6  # length of a row, which leaves room for the rounding of sums: see the guarantee


@attrs.frozen(kw_only=True)
class ReleasedWhitening:
    """A linear map of features from a private release of their second moment.

    With features x of length 1, M = Σ x xᵀ over the training records is released with noise, and
    features are mapped to (M + λ)^(−1/2) x, scaled to length 1. Directions in which features vary
    much then count less, and a linear model on them trains in fewer steps.

    Guarantee:
        One record changes M by x xᵀ, whose Frobenius norm is ‖x‖² ≤ 1. The diagonal of M and √2
        times its upper triangle are a vector of the same norm, to which Gaussian noise of standard
        deviation `noise_multiplier` is added: the event is that of a Gaussian mechanism. The rest
        is post-processing. A record with copies counts as the mean over them of x xᵀ, and one with
        a feature that is not finite counts as zero.

        M is summed in double precision, in chunks of 8,192 rows. With n rows, rounding moves it by
        at most n (8,192 + n/8,192) 2⁻⁵³ in Frobenius norm, since the lengths of the terms add up to
        at most n. Rows have length 1 − 10⁻⁶, so for up to a million rows ‖x‖² and the rounding of
        both sums together stay below 1.
    """

    noise_multiplier: float  # standard deviation of the noise
    floor: float = 0.3  # λ as a multiple of the largest eigenvalue of the noise, roughly

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, _validate.positive, "noise_multiplier", "floor")

    @property
    def event(self) -> dp.DpEvent:
        """What the release of the second moment costs."""
        return dp.GaussianDpEvent(self.noise_multiplier)

    def apply(self, data: Dataset, key: Key) -> Dataset:
        """The data set with features (n, d), or (n, copies, d), mapped and of length 1."""
        matrix = self.matrix(self.released(data.train_features, key))
        return data.mapped(lambda features: mapped(features, matrix))

    def released(self, features: Tensor, key: Key) -> Tensor:
        """The noisy second moment, (d, d); drawn at a position of the keystream of its own."""
        size, device = features.shape[-1], features.device
        moment = torch.zeros(size, size, dtype=torch.float64, device=device)
        views = math.prod(features.shape[1:-1])
        for part in torch.split(features.flatten(0, -2), _CHUNK):
            rows = of_unit_length(part.double())
            moment.addmm_(rows.T, rows, alpha=1 / views)
        row, column = torch.triu_indices(size, size, device=device)
        scale = torch.where(row == column, 1.0, math.sqrt(2)).double()
        entries = moment[row, column] * scale
        deviation = torch.tensor(self.noise_multiplier, device=device)
        # Training counts a step before it draws, so the start is a position that it never uses.
        noise_on(device, key).add_(entries, deviation, StepState.start(0.0, device))
        moment[row, column] = entries / scale
        moment[column, row] = entries / scale
        return moment

    def matrix(self, moment: Tensor) -> Tensor:
        """The symmetric matrix (M + λ)^(−1/2), in single precision."""
        values, axes = torch.linalg.eigh(moment.float())
        level = self.floor * self.noise_multiplier * math.sqrt(2 * len(moment))
        scales = torch.pow(values.clamp_min(0) + level, -0.5)
        matrix: Tensor = (axes * scales) @ axes.T
        return matrix


def of_unit_length(features: Tensor) -> Tensor:
    """Features scaled to length at most 1 along the last axis; zero if one is not finite."""
    finite = features.isfinite().all(-1, keepdim=True)
    clean = torch.where(finite, features, 0.0)
    lengths: Tensor = clean.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    return clean * (_UNIT / lengths)


def mapped(features: Tensor, matrix: Tensor) -> Tensor:
    """Features times a public matrix, of length 1, in the number type they had."""
    parts = torch.split(features, _CHUNK)
    return torch.cat([of_unit_length(p.float() @ matrix).to(features.dtype) for p in parts])


class LinearOnRows(nn.Module):
    """One dense layer with zero initial weights, for rows in half precision and their views."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, classes)
        nn.init.zeros_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """Scores (…, classes) of rows (…, width)."""
        scores: Tensor = self.dense(rows.to(self.dense.weight.dtype))
        return scores


def linear(data: Dataset, seed: int) -> nn.Module:
    """The linear model for prepared rows; it has nothing random."""
    return LinearOnRows(data.train_features.shape[-1], data.classes)


def views(rows: Rows, copies: int) -> Prepare:
    """A map of images to rows: shifted views of training images, test images as they are."""

    def prepare(data: Dataset, device: torch.device) -> Dataset:
        train, test = data.train_features.to(device), data.test_features.to(device)
        copied = [rows(shifted(train, shift)) for shift in shifts(copies)]
        return attrs.evolve(
            data,
            train_features=torch.stack(copied, dim=1) if copies > 1 else copied[0],
            train_labels=data.train_labels.to(device),
            test_features=rows(test),
            test_labels=data.test_labels.to(device),
        )

    return prepare


_ROWS = {"scattering": scattering_rows, "glyphs": glyph_rows, "joined": joined_rows}


def on_rows(rows: str, *, copies: int = 1, whitening: float | None = None) -> Setup:
    """A linear model on rows of images, which are named.

    Of each training image `copies` views are averaged before its gradient is clipped. `whitening`
    is the noise multiplier of the released second moment of rows; None: nothing is released.
    """
    release = None if whitening is None else ReleasedWhitening(noise_multiplier=whitening)
    return Setup(
        prepare=views(_ROWS[rows], copies), release=release, build=linear, loss=loss_over_views
    )
