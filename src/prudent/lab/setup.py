"""What an experiment trains: how records are prepared, the model, the loss and the schedule."""

from collections.abc import Callable
from typing import Protocol

import attrs
import dp_accounting as dp
import torch
from torch import nn

from prudent.lab.datasets import Dataset
from prudent.lab.models import multilayer_perceptron, tutorial_cnn
from prudent.training import Execution
from prudent.training.gradients.engine import Loss
from prudent.training.keystream import Key
from prudent.training.run.updates import Scheduler

Prepare = Callable[[Dataset, torch.device], Dataset]
"""Maps every record of both parts by a public function of that record alone."""

Build = Callable[[Dataset, int], nn.Module]
"""Makes the model for a prepared data set, from a seed."""


class Release(Protocol):
    """Something released about the prepared records before training, for use in training."""

    @property
    def event(self) -> dp.DpEvent:
        """What the release costs, for neighbours that differ in one record."""

    def apply(self, data: Dataset, key: Key) -> Dataset:
        """The data set mapped, record by record, by a function of what is released.

        Args:
            data: The prepared records.
            key: The key of the noise; training draws from other positions of its keystream.
        """


def build_model(data: Dataset, seed: int) -> nn.Module:
    """The tutorial network for images, or a small perceptron for tables."""
    shape = tuple(data.train_features.shape[1:])
    if len(shape) == 3 and min(shape[1:]) >= 20:
        return tutorial_cnn((shape[0], shape[1], shape[2]), data.classes, seed)
    return multilayer_perceptron(shape, data.classes, seed=seed)


def unchanged(data: Dataset, device: torch.device) -> Dataset:
    """The data set as it is."""
    return data


@attrs.frozen(kw_only=True)
class Setup:
    """What is trained, and on what.

    Guarantee:
        Training on prepared records is as private as training on the records themselves, at the
        same ε: `prepare` maps each record by a public function of that record alone, so data sets
        that differ in one record still do so when prepared. What `release` costs is part of the
        plan, and so of every ε.

    Attributes:
        prepare: The public map of records; it may place them on the device.
        release: What is released before training; None: nothing.
        build: Makes the model.
        loss: Loss per record, of outputs and targets.
        scheduler: Makes the learning rate schedule for a number of steps; None: a constant rate.
        execution: Settings that cannot change the guarantee; device and seed are replaced.
    """

    prepare: Prepare = unchanged
    release: Release | None = None
    build: Build = build_model
    loss: Loss = attrs.field(factory=lambda: nn.CrossEntropyLoss(reduction="none"))
    scheduler: Callable[[int], Scheduler] | None = None
    execution: Execution = attrs.field(factory=Execution)
