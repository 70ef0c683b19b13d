"""Parsing of corruptions as written on the command line, such as `label:0.1`."""

from collections.abc import Callable
from functools import partial

from prudent._validate import ArgumentError
from prudent.corruption.attacks import (
    ALittleIsEnough,
    ColludingDirection,
    InnerProductManipulation,
    Mimic,
)
from prudent.corruption.data import (
    DataCorruption,
    FeatureNoise,
    RandomLabelFlip,
    TargetedLabelFlip,
)
from prudent.corruption.gradients import GradientCorruption, GradientNoise, GradientSignFlip
from prudent.corruption.poison import Backdoor, ClassMeanPoison, GradientMatchingPoison

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
    """The corruption named by `name:ratio`, at its default strength; None for `none`.

    Raises:
        ValueError: if the name or the ratio is not allowed; names the choices.
    """
    if text == "none":
        return None
    name, _, ratio = text.partition(":")
    choices = ", ".join(f"{choice}:RATIO" for choice in _NAMES)
    allowed = f"to be none or one of {choices}, with RATIO in [0, 0.5]"
    if name not in _NAMES:
        raise ArgumentError("corruption", allowed, got=text)
    try:
        return _NAMES[name](float(ratio))
    except ValueError as error:
        raise ArgumentError("corruption", allowed, got=text) from error
