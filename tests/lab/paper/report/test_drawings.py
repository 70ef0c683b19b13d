"""Axes show the differences between methods, not the whole range of accuracy."""

import numpy as np

from prudent_lab.paper.panels import Curve
from prudent_lab.paper.report.drawings import limits


def line(*points):
    return Curve("x", *map(np.array, zip(*points, strict=True)))


def test_axes_span_what_is_reached_at_the_papers_epsilons():
    lines = [line((1.0, 20.0, 9.0), (3.0, 96.0, 0.5), (5.0, 97.0, 0.0)), line((3.0, 95.0))]
    assert limits([*lines, line((3.0, 94.0), (5.0, 96.0))]) == (94.0, 97.0)


def test_axes_are_never_narrower_than_a_point():
    assert limits([line((3.0, 96.0, 0.0)), line((3.0, 96.0))]) == (95.5, 96.5)


def test_where_nothing_reaches_them_axes_are_free():
    assert limits([line((1.0, 50.0, 0.0)), line((3.0, 96.0))]) is None
