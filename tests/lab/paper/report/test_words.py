"""Numbers in words: no sign rounded away, no substitute unnamed."""

import pytest

from prudent_lab.paper.report import display_names
from prudent_lab.paper.results import Estimate


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.005, "+1.00"), (-0.5, "−0.50"), (-0.004, "−0.004"), (0.00012, "+0.0001"), (0.0, "+0.00")],
)  # fmt: skip
def test_differences_keep_their_sign(value, text):
    assert display_names.difference(value) == text


def test_an_estimate_shows_its_spread_and_what_is_missing_says_so():
    assert display_names.estimate(Estimate(91.234, 0.127, 3)) == "91.23 ± 0.13"
    assert display_names.estimate(Estimate(91.234, None, 1)) == "91.23"


def test_a_substitute_is_named():
    assert display_names.dataset("emnist").startswith("emnist-az, a substitute for")
    assert "not balanced" in display_names.substitute_note("emnist")
    assert display_names.substitute_note("mnist") == ""
    assert display_names.dataset("mnist") == "MNIST"


def test_corruptions_in_words():
    assert display_names.corruption("label-targeted:0.2") == "targeted labels 20%"
    assert display_names.corruption("none") == "clean"
