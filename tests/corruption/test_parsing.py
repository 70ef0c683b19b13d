from functools import partial

import pytest

from prudent import corruption

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
    ["", "labels:0.1", "label", "label:", "label:much", "label:0.7", "label:nan", "label:0.1:2",
     "none:0.1", "Label:0.1"],
)  # fmt: skip
def test_errors_name_what_was_given_and_every_choice(text):
    with pytest.raises(ValueError, match="Expected corruption to be none or one of") as caught:
        corruption.parse(text)
    message = str(caught.value)
    assert repr(text) in message
    assert all(f"{name}:RATIO" in message for name in CHOICES)
    assert "[0, 0.5]" in message
