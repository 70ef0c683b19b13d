from functools import partial

import pytest

from prudent_lab import corruption

CHOICES = {
    "label": corruption.RandomLabelFlip,
    "label-targeted": corruption.TargetedLabelFlip,
    "feature": corruption.FeatureNoise,
    "gradient": corruption.GradientNoise,
    "sign-flip": corruption.GradientSignFlip,
    "colluding": corruption.ColludingDirection,
    "inner-product": corruption.InnerProductManipulation,
    "reversed": partial(corruption.InnerProductManipulation, scale=None),
    "loud": partial(corruption.InnerProductManipulation, scale=1e4),
    "little": corruption.ALittleIsEnough,
    "mimic": corruption.Mimic,
}


@pytest.mark.parametrize(("name", "kind"), CHOICES.items())
def test_each_name_has_its_kind(name, kind):
    assert corruption.parse(f"{name}:0.2") == kind(0.2)


def test_none_is_no_corruption():
    assert corruption.parse("none") is None


@pytest.mark.parametrize(
    "text",
    ["", "labels:0.1", "label", "label:", "label:much", "label:0.7", "label:nan", "label:0.1:",
     "none:0.1", "Label:0.1"],
)  # fmt: skip
def test_errors_name_what_was_given_and_every_choice(text):
    with pytest.raises(ValueError, match="Expected corruption to be none or one of") as caught:
        corruption.parse(text)
    message = str(caught.value)
    assert repr(text) in message
    assert all(f"{name}:RATIO" in message for name in CHOICES)
    assert "[0, 0.5]" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gradient:0.1:variance=25", corruption.GradientNoise(0.1, variance=25)),
        ("feature:0.1:variance=1e-3", corruption.FeatureNoise(0.1, variance=1e-3)),
        ("inner-product:0.2:scale=none", corruption.InnerProductManipulation(0.2, scale=None)),
        (
            "colluding:0.2:norm=1,direction_seed=3",
            corruption.ColludingDirection(0.2, norm=1.0, direction_seed=3),
        ),
        ("little:0.3:deviations=1.5", corruption.ALittleIsEnough(0.3, deviations=1.5)),
        ("backdoor:0.1:target=3,size=2", corruption.Backdoor(0.1, target=3, size=2)),
    ],
)
def test_strengths(text, expected):
    assert corruption.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label:0.1:2", "with no settings after the ratio"),
        ("mimic:0.1:scale=2", "with no settings"),
        ("gradient:0.1:size=2", "with settings among variance"),
        ("gradient:0.1:seed=2", "with settings among variance"),
        ("gradient:0.1:variance=much", "with a number for variance"),
        ("gradient:0.1:variance=-1", "Expected variance finite and > 0"),
        ("feature:0.1:variance=0", "Expected variance finite and > 0"),
        ("colluding:0.1:norm=0", "Expected norm finite and > 0"),
        ("inner-product:0.1:scale=0", "Expected scale finite and > 0"),
        ("little:0.1:deviations=inf", "Expected deviations finite and > 0"),
    ],
)
def test_strengths_that_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        corruption.parse(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("none", ("none", None, "")),
        ("label:0.1", ("label", 0.1, "")),
        ("gradient:0.1:variance=25", ("gradient", 0.1, "variance=25")),
        ("aimed:0.3", ("aimed", 0.3, "")),
    ],
)
def test_the_parts_of_a_corruption(text, parts):
    assert corruption.written(text) == parts


@pytest.mark.parametrize("text", ["faults.py:Swap:0.2", "label:2", "what:0.1", "aimed:x"])
def test_what_is_no_corruption_is_refused(text):
    with pytest.raises(ValueError, match="Expected corrupt"):
        corruption.written(text)
