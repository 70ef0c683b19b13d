"""Recipes for MNIST and Fashion-MNIST: a linear model on features that come from no data.

Settings were chosen on the last 10,000 training records, by `benchmarks/recipe_search.py`; the test
part was read once, for the numbers in the documentation.
"""

from collections.abc import Callable

import attrs
import torch
from torch import Tensor, nn

from prudent.experiments.datasets import Dataset
from prudent.experiments.experiment import Experiment
from prudent.experiments.recipes.augmentation import loss_over_views, shifted, shifts, stacked
from prudent.experiments.recipes.features import scattering_rows
from prudent.experiments.recipes.recipe import Recipe
from prudent.experiments.recipes.whitening import ReleasedWhitening
from prudent.experiments.setup import Prepare, Setup

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
    """A map of images to rows: `copies` shifted views of training images, test images as they are.

    Args:
        rows: The features of an image.
        copies: How many shifts of at most one pixel; 1 means only the image itself.
    """

    def prepare(data: Dataset, device: torch.device) -> Dataset:
        train, test = data.train_features.to(device), data.test_features.to(device)
        found = [rows(shifted(train, shift)) for shift in shifts(copies)]
        return attrs.evolve(
            data,
            train_features=stacked(found) if copies > 1 else found[0],
            train_labels=data.train_labels.to(device),
            test_features=rows(test),
            test_labels=data.test_labels.to(device),
        )

    return prepare


SCATTERING_LINEAR = Recipe(
    name="scattering-linear",
    summary="MNIST: a linear model on whitened scattering coefficients",
    anchor="98.7 % at ε = 3 (Tramèr and Boneh, 2021)",
    experiment=Experiment(
        dataset="mnist", method="dpsgd", batch=60_000, steps=500, clip=0.15, lr=470.0, average=0.9
    ),
    setup=Setup(
        prepare=views(scattering_rows, 1),
        release=ReleasedWhitening(noise_multiplier=4.0),
        build=linear,
        loss=loss_over_views,
    ),
)
