"""Recipes for MNIST and Fashion-MNIST: a linear model on scattering coefficients."""

import attrs
import torch
from torch import nn

from prudent.experiments.datasets import Dataset
from prudent.experiments.experiment import Experiment
from prudent.experiments.models import logistic_regression
from prudent.experiments.recipes.features import group_normalised, scattered
from prudent.experiments.recipes.recipe import Recipe
from prudent.experiments.setup import Setup

_GROUPS = 27


def prepare(data: Dataset, device: torch.device) -> Dataset:
    """Normalised scattering coefficients of every image."""
    parts = [
        group_normalised(scattered(images, device), _GROUPS)
        for images in (data.train_features, data.test_features)
    ]
    return attrs.evolve(data, train_features=parts[0], test_features=parts[1])


def build(data: Dataset, seed: int) -> nn.Module:
    """One dense layer with zero initial weights."""
    return logistic_regression(tuple(data.train_features.shape[1:]), data.classes)


SCATTERING_LINEAR = Recipe(
    name="scattering-linear",
    summary="MNIST: a linear model on normalised scattering coefficients",
    anchor="98.7 % at ε = 3 (Tramèr and Boneh, 2021)",
    experiment=Experiment(
        dataset="mnist",
        method="dpsgd",
        epsilon=3.0,
        delta=1e-5,
        batch=8192,
        steps=200,
        clip=0.1,
        lr=8.0,
        momentum=0.9,
        average=0.95,
    ),
    setup=Setup(prepare=prepare, build=build),
)
