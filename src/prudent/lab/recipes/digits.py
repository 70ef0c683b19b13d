"""Recipes for MNIST and Fashion-MNIST: a linear model on features that come from no data.

Settings were chosen on the last 10,000 training records, by `benchmarks/recipe_search.py`; the test
part was read once, for the numbers in the documentation.
"""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from prudent.accounting import GaussianTest
from prudent.lab.datasets import Dataset
from prudent.lab.experiment import Prepare, Recipe, Setup
from prudent.lab.recipes.features import (
    ReleasedWhitening,
    glyph_rows,
    joined_rows,
    loss_over_views,
    scattering_rows,
    shifted,
    shifts,
    stacked,
)
from prudent.lab.settings import Experiment, Method

Rows = Callable[[Tensor], Tensor]
"""Maps images to rows, each a function of its image alone."""


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
            train_features=stacked(copied) if copies > 1 else copied[0],
            train_labels=data.train_labels.to(device),
            test_features=rows(test),
            test_labels=data.test_labels.to(device),
        )

    return prepare


def on_rows(rows: Rows, *, copies: int = 1, whitening: float | None = None) -> Setup:
    """A linear model on rows of images.

    Args:
        rows: The features of an image.
        copies: Views of each training image, averaged before its gradient is clipped.
        whitening: Noise multiplier of the released second moment of the rows; None: they are used
            as they are, and nothing but the training is released.
    """
    release = None if whitening is None else ReleasedWhitening(noise_multiplier=whitening)
    return Setup(prepare=views(rows, copies), release=release, build=linear, loss=loss_over_views)


def full_batch(dataset: str, **settings: Any) -> Experiment:
    """An experiment whose steps use all of 60,000 records, and a test of the scale that suits it.

    At a given ε, few steps on all records have less noise than many on samples of them.
    """
    return Experiment.of(
        dataset=dataset,
        method=Method.DPSGD,
        batch=60_000,
        steps=300,
        momentum=0.9,
        average=0.9,
        test=GaussianTest(100.0),
        **settings,
    )


_TESTED = {"propose": 0.5, "trim": 0.3, "trim_up": 0.01, "trim_down": 0.005}
"""What TSGD+PTR changes: the proposal, and how much it trims."""


SCATTERING_LINEAR = Recipe(
    name="scattering-linear",
    summary="MNIST: a linear model on whitened scattering coefficients",
    anchor="98.7 % at ε = 3 (Tramèr and Boneh, 2021)",
    experiment=full_batch("mnist", clip=0.1206, lr=107.8),
    others={Method.PTR: _TESTED},
    setup=on_rows(scattering_rows, whitening=4.0),
)

SCATTERING_GLYPHS = Recipe(
    name="scattering-glyphs",
    summary="MNIST: scattering coefficients and codes of a network trained on synthetic glyphs, "
    "whitened; five views of each image",
    anchor="98.7 % at ε = 3 (Tramèr and Boneh, 2021)",
    experiment=full_batch("mnist", clip=0.04824, lr=200.2),
    others={Method.PTR: _TESTED | {"clip": 0.193, "propose": 0.25}},
    setup=on_rows(joined_rows, copies=5, whitening=4.0),
)

GLYPHS_LINEAR = Recipe(
    name="glyphs-linear",
    summary="MNIST: a linear model on codes of a network trained on synthetic glyphs; a minute on "
    "a laptop",
    anchor="98.1 % at ε = 3 (CNN; Tramèr and Boneh, 2021)",
    experiment=full_batch("mnist", clip=0.02059, lr=1348.0),
    others={Method.PTR: _TESTED},
    setup=on_rows(glyph_rows),
)

FASHION_SCATTERING = Recipe(
    name="fashion-scattering",
    summary="Fashion-MNIST: a linear model on whitened scattering coefficients",
    anchor="89.7 % at ε = 3 (Tramèr and Boneh, 2021)",
    experiment=full_batch("fashion-mnist", clip=0.0603, lr=308.0),
    others={Method.PTR: _TESTED},
    setup=on_rows(scattering_rows, whitening=4.0),
)

DIGITS = (SCATTERING_LINEAR, SCATTERING_GLYPHS, GLYPHS_LINEAR, FASHION_SCATTERING)
"""The recipes of this module."""
