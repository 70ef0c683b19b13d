"""Seeded, vectorised faults and attacks on labels, features and per-example gradients.

A corruption is a small frozen value. Its `ratio` is the fraction of bad records; the seed
determines which records are bad (`corrupted_records`), once for the whole training, so that the
same record is bad whenever it is sampled. There are two kinds, which act at different points:

- a `DataCorruption` rewrites the labels or features of a training set before training, at random
  or as an attacker chooses:
  `features, labels = corruption.apply(features, labels, classes=10, seed=0)`;
- a `GradientCorruption` rewrites the gradients of the bad records of a batch during training:
  `prudent.fit(..., corrupt=corruption)`, or by hand
  `gradients = corruption(gradients, mask, valid=valid, generator=generator)`.

No corruption modifies its arguments; changed tensors are returned as new ones.
"""

from prudent.lab.corruption.gradients import (
    ALittleIsEnough,
    ColludingDirection,
    GradientCorruption,
    GradientNoise,
    GradientSignFlip,
    InnerProductManipulation,
    Mimic,
)
from prudent.lab.corruption.parsing import parse
from prudent.lab.corruption.records import (
    Backdoor,
    ClassMeanPoison,
    DataCorruption,
    FeatureNoise,
    GradientMatchingPoison,
    RandomLabelFlip,
    TargetedLabelFlip,
    corrupted_mask,
    corrupted_records,
)

__all__ = [
    "ALittleIsEnough",
    "Backdoor",
    "ClassMeanPoison",
    "ColludingDirection",
    "DataCorruption",
    "FeatureNoise",
    "GradientCorruption",
    "GradientMatchingPoison",
    "GradientNoise",
    "GradientSignFlip",
    "InnerProductManipulation",
    "Mimic",
    "RandomLabelFlip",
    "TargetedLabelFlip",
    "corrupted_mask",
    "corrupted_records",
    "parse",
]
