"""Percentages that are printed."""

import numpy as np
import pytest

from prudent_lab.certifying import percent


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (0.97849, 2, "97.84"),
        (0.9784, 2, "97.84"),  # 100 · 0.9784 is 97.84 - 1.4e-14
        (0.999999, 2, "99.99"),
        (0.97899, 1, "97.8"),
        (1.0, 2, "100.00"),
        (np.float64(0.29), 0, "29"),
        (0.0, 1, "0.0"),
    ],
)
def test_a_percentage_is_rounded_down(share: float, digits: int, text: str) -> None:
    assert percent(share, digits) == text
