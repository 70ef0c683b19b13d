"""Axes show the differences between methods, not the whole range of accuracy."""

from prudent_lab.paper.report.drawings import DrawnLine, LegendKey, _limits
from prudent_lab.paper.results import Estimate


def line(*points):
    return DrawnLine(
        LegendKey("x", "#000000", ""), tuple((e, Estimate(m, d, 3)) for e, m, d in points)
    )


def test_axes_span_what_is_reached_at_the_papers_epsilons():
    lines = [line((1.0, 20.0, 9.0), (3.0, 96.0, 0.5), (5.0, 97.0, 0.0)), line((3.0, 95.0, None))]
    assert _limits(lines, [(3.0, 94.0), (5.0, 96.0)]) == (94.0, 97.0)


def test_axes_are_never_narrower_than_a_point():
    assert _limits([line((3.0, 96.0, None))], [(3.0, 96.0)]) == (95.5, 96.5)


def test_where_nothing_reaches_them_axes_are_free():
    assert _limits([line((1.0, 50.0, None))], [(3.0, 96.0)]) is None
