"""Corruptions of the labels or features of a training set, applied before training.

| situation | what happens |
| --- | --- |
| ratio 0, or ⌊ratio·records⌋ = 0 | labels and features come back as they were |
| ratio 0.5 | exactly ⌊records/2⌋ records change |
| no records | comes back empty |
| one class, random flip | an error: there is no other class to flip to |
| one class, targeted flip | the label stays, C − 1 − 0 = 0 |
| a label that is no class | stays: training counts such a record as a zero gradient |
| middle class of an odd number of classes, targeted flip | the label stays, C − 1 − c = c |
| integer features (uint8 pixels) | become float32, not rescaled; the noise is in their units |
"""

from typing import Protocol, runtime_checkable

import attrs
import torch
from torch import Tensor

from prudent import _validate
from prudent.lab.corruption.records import VALUES, corrupted_records, seeded_generator, valid_ratio

_MOST_CLASSES = 10**6  # each has a mean, or a row of a layer


@runtime_checkable
class DataCorruption(Protocol):
    """Corrupts a fraction of a training set."""

    @property
    def ratio(self) -> float:
        """The fraction of bad records."""

    def apply(
        self, features: Tensor, labels: Tensor, *, classes: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """The features and labels with the records `corrupted_records(n, ratio, seed)` corrupted.

        Args:
            features: one row per record, on any device.
            labels: integer class indices from 0 to classes − 1.
            classes: the number of classes.
            seed: determines the bad records and what replaces them. It is drawn on the host, so
                that one seed gives the same corruption on every device.
        """


def check_labels(features: Tensor, labels: Tensor, classes: int) -> None:
    """Raise an error unless there is one integer label per row of features."""
    _validate.count(1, _MOST_CLASSES, classes=classes)
    _validate.instance(Tensor, "a tensor", features=features)
    _validate.instance(Tensor, "a tensor", labels=labels)
    if features.shape[:1] != labels.shape or labels.is_floating_point():
        raise ValueError(
            "Expected one integer label per row of features, got features of shape "
            f"{tuple(features.shape)} and labels of shape {tuple(labels.shape)}, {labels.dtype}."
        )


def _changed(labels: Tensor, bad: Tensor, other: Tensor, classes: int) -> Tensor:
    """The labels with those of bad records replaced; a label that is no class is unchanged.

    An error would let one record decide whether training happens at all.
    """
    old = labels[bad]
    return labels.index_copy(0, bad, torch.where((old >= 0) & (old < classes), other, old))


@attrs.frozen
class RandomLabelFlip:
    """Gives each bad record another class, drawn uniformly from all other classes.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
    """

    ratio: float

    def __attrs_post_init__(self) -> None:
        valid_ratio(self.ratio)

    def apply(
        self, features: Tensor, labels: Tensor, *, classes: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """See `DataCorruption.apply`."""
        check_labels(features, labels, classes)
        bad = corrupted_records(len(labels), self.ratio, seed)
        if not len(bad):
            return features, labels
        if classes < 2:
            raise _validate.ArgumentError(
                "classes",
                ">= 2 to flip a label to another class",
                got=1,
                hint="Use ratio 0, or corrupt the features instead.",
            )
        # A shift by 1 to C - 1 modulo C reaches every other class exactly once.
        step = torch.randint(1, classes, bad.shape, generator=seeded_generator(seed, VALUES))
        bad, step = bad.to(labels.device), step.to(labels)
        return features, _changed(labels, bad, (labels[bad] + step) % classes, classes)


@attrs.frozen
class TargetedLabelFlip:
    """Changes the class c of each bad record to C − 1 − c.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
    """

    ratio: float

    def __attrs_post_init__(self) -> None:
        valid_ratio(self.ratio)

    def apply(
        self, features: Tensor, labels: Tensor, *, classes: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """See `DataCorruption.apply`."""
        check_labels(features, labels, classes)
        bad = corrupted_records(len(labels), self.ratio, seed).to(labels.device)
        return features, _changed(labels, bad, classes - 1 - labels[bad], classes)


@attrs.frozen
class FeatureNoise:
    """Adds Gaussian noise to every feature of each bad record, in the units of the features.

    The default variance of 100, a standard deviation of 10, makes an image scaled to [0, 1]
    unrecognisable.

    Attributes:
        ratio: the share of bad records, in [0, 0.5].
        variance: variance of the noise on one feature.
    """

    ratio: float
    variance: float = 100.0

    def __attrs_post_init__(self) -> None:
        valid_ratio(self.ratio)
        _validate.positive(variance=self.variance)

    def apply(
        self, features: Tensor, labels: Tensor, *, classes: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        """See `DataCorruption.apply`."""
        check_labels(features, labels, classes)
        if not features.is_floating_point():
            features = features.float()
        bad = corrupted_records(len(features), self.ratio, seed)
        if not len(bad):
            return features, labels
        noise = torch.randn(
            len(bad), *features.shape[1:], generator=seeded_generator(seed, VALUES)
        ).mul_(self.variance**0.5)
        return features.index_add(0, bad.to(features.device), noise.to(features)), labels
