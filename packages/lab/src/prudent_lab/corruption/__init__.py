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

No corruption modifies its arguments; changed tensors are returned as new ones. `parse` makes those
of the package by name.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import attrs

from prudent import _validate
from prudent._validate import ArgumentError
from prudent_lab.corruption.gradients import (
    ALittleIsEnough,
    ColludingDirection,
    GradientCorruption,
    GradientNoise,
    GradientSignFlip,
    InnerProductManipulation,
    Mimic,
)
from prudent_lab.corruption.records import (
    Backdoor,
    ClassMeanPoison,
    DataCorruption,
    FeatureNoise,
    GradientMatchingPoison,
    RandomLabelFlip,
    TargetedLabelFlip,
    corrupted_mask,
    corrupted_records,
    valid_ratio,
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

AIMED = "aimed"
"""The attack on certified classifiers alone, by records chosen for their counts."""

_NAMES: dict[str, Callable[[float], DataCorruption | GradientCorruption]] = {
    "label": RandomLabelFlip,
    "label-targeted": TargetedLabelFlip,
    "feature": FeatureNoise,
    "class-mean": ClassMeanPoison,
    "gradient-match": GradientMatchingPoison,
    "backdoor": Backdoor,
    "gradient": GradientNoise,
    "sign-flip": GradientSignFlip,
    "colluding": ColludingDirection,
    "inner-product": InnerProductManipulation,
    "reversed": partial(InnerProductManipulation, scale=None),
    "loud": partial(InnerProductManipulation, scale=1e4),
    "little": ALittleIsEnough,
    "mimic": Mimic,
}


def parse(text: str) -> DataCorruption | GradientCorruption | None:
    """The corruption named by `name:ratio` or `name:ratio:setting=value,…`; None for `none`.

    Settings are the strengths of the corruption, such as `gradient:0.1:variance=25` or
    `colluding:0.2:norm=1,direction_seed=3`; those not given have their defaults.
    """
    _validate.instance(str, "a text", corruption=text)
    if text == "none":
        return None
    name, ratio, *settings = text.split(":", 2) if ":" in text else (text, "")
    try:
        found: Any = _NAMES[name](float(ratio))
        if settings == [""]:
            raise ValueError
    except (KeyError, ValueError) as error:
        choices = ", ".join(f"{choice}:RATIO" for choice in _NAMES)
        allowed = f"to be none or one of {choices}, with RATIO in [0, 0.5]"
        raise ArgumentError("corruption", allowed, got=text) from error
    named: DataCorruption | GradientCorruption = attrs.evolve(
        found, **(_settings(settings[0], found, text) if settings else {})
    )
    return named


def _settings(settings: str, plain: Any, text: str) -> dict[str, float | int | None]:
    names = [f.name for f in attrs.fields(type(plain)) if f.name not in ("ratio", "seed")]
    found: dict[str, float | int | None] = {}
    for part in settings.split(","):
        name, _, value = part.partition("=")
        if name not in names:
            known = f"settings among {', '.join(names)}" if names else "no settings"
            raise ArgumentError(
                "corruption", f"with {known} after the ratio, as NAME=VALUE", got=text
            )
        try:
            whole = value.removeprefix("-").isdecimal()
            found[name] = None if value == "none" else int(value) if whole else float(value)
        except ValueError as error:
            raise ArgumentError("corruption", f"with a number for {name}", got=text) from error
    return found


class Written(NamedTuple):
    """A corruption as it is written."""

    kind: str  # its name
    ratio: float | None  # the fraction of bad records; None for no corruption
    settings: str  # its settings as text; empty for the defaults


def written(text: str) -> Written:
    """The parts of `none`, `name:ratio` or `name:ratio:settings`, which are checked."""
    kind, _, rest = text.partition(":")
    ratio, _, settings = rest.partition(":")
    if kind != AIMED:
        parse(text)
    try:
        share = valid_ratio(float(ratio)) if rest else None
    except ValueError:
        raise ArgumentError("corrupt", "with a ratio in [0, 0.5]", got=text) from None
    return Written(kind, share, settings)
