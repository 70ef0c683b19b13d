"""The figures say what is known from elsewhere, and never draw a bound where it is none."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from prudent_lab.paper import panels, plots, theorems
from prudent_lab.paper.panels import Curve, Figure, Panel, Setting
from prudent_lab.paper.theorems import ConditionError

TRAINING = Setting(256 / 60_000, 1.1, 0.5)
WITHIN = Setting(0.01, 8.0, 0.5)


@pytest.fixture(scope="module")
def first() -> Figure:
    return panels.figure(1)


@pytest.fixture(scope="module")
def second() -> Figure:
    return panels.figure(2)


def curves(panel: Panel) -> dict[str, Curve]:
    return {curve.name: curve for curve in panel.curves}


def at(curve: Curve, x: float) -> float:
    return float(curve.y[np.argmin(np.abs(curve.x - x))])


@pytest.mark.thorough
@pytest.mark.parametrize(("panel", "direct"), [("δ₀ = 9·10⁻⁶", 2.061), ("δ₀ = 9.9·10⁻⁶", 2.182)])
def test_figure_1_shows_the_known_values(first: Figure, panel: str, direct: float) -> None:
    """Errata 1, item 12, at σ₁ = 4."""
    (found,) = (p for p in first.panels if p.title == panel)
    known = {
        panels.DIRECT: direct,
        panels.SHARPENED: 1.926,
        panels.RENYI: 1.972,
        panels.EXACT: 1.885,
    }
    values = {name: at(curve, 4.0) for name, curve in curves(found).items()}
    assert values == pytest.approx(known, abs=6e-4)


def test_nothing_in_figure_1_is_below_the_exact_curve(first: Figure) -> None:
    for panel in first.panels:
        lines = curves(panel)
        for curve in lines.values():
            assert np.all(curve.y >= lines[panels.EXACT].y - 1e-9)


def test_figure_2_draws_the_white_box_only_where_it_holds(second: Figure) -> None:
    drawn = [int(np.isfinite(curves(panel)[panels.WHITE_BOX].y).sum()) for panel in second.panels]
    assert drawn[0] > 0
    assert drawn[1] > 0
    assert drawn[2:] == [0, 0]


def test_upper_bounds_of_figure_2_are_above_the_exact_divergence(second: Figure) -> None:
    for panel in second.panels:
        lines = curves(panel)
        exact = lines[panels.EXACT_RENYI].y
        for name in (panels.BLACK_BOX, panels.WHITE_BOX, panels.PLUG_IN):
            here = np.isfinite(lines[name].y)
            assert np.all(lines[name].y[here] >= exact[here] * (1 - 1e-9))


def test_the_curve_called_a_lower_bound_exceeds_the_exact_one(second: Figure) -> None:
    """Errata 1, item 20: up to 1.40 times, at q = 0.01, σ₁ = 4, δ₀ = 10⁻⁴."""
    lines = curves(second.panels[2])
    ratio = lines[panels.PLUG_IN].y / lines[panels.EXACT_RENYI].y
    assert ratio.max() == pytest.approx(1.40, abs=0.01)
    assert "lower bound" in panels.PLUG_IN
    assert "not" in panels.PLUG_IN


@pytest.mark.thorough
@pytest.mark.parametrize("setting", [TRAINING, WITHIN])
def test_every_bound_on_composition_is_above_the_exact_one(setting: Setting) -> None:
    steps = np.array([1.0, 30.0, 1000.0])
    exact = panels.exact_epsilon(setting, steps)
    for bound in (
        panels.white_box_epsilon,
        panels.black_box_epsilon,
        panels.exact_renyi_epsilon,
        panels.direct_composed_epsilon,
    ):
        others = bound(setting, steps)
        known = np.isfinite(others)
        assert np.all(others[known] >= exact[known] * 0.999)


def test_the_white_box_is_missing_in_the_papers_training() -> None:
    steps = np.array([1.0, 1000.0])
    assert np.all(np.isnan(panels.white_box_epsilon(TRAINING, steps)))
    assert np.all(np.isfinite(panels.white_box_epsilon(WITHIN, steps)))
    with pytest.raises(ConditionError):
        theorems.white_box_rdp(2.0, TRAINING.sampling_rate, **TRAINING.mechanism)


def test_direct_composition_ends_where_the_tests_use_all_of_delta() -> None:
    assert math.isnan(panels.direct_composed_epsilon(WITHIN, np.array([200_000.0]))[0])


def test_the_table_has_every_point_and_no_gap(second: Figure, tmp_path: Path) -> None:
    path = tmp_path / "figure2.csv"
    panels.write_csv(second, path)
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    points = [
        (panel.title, curve.name, x, y)
        for panel in second.panels
        for curve in panel.curves
        for x, y in zip(curve.x, curve.y, strict=True)
        if np.isfinite(y)
    ]
    assert [(r["panel"], r["curve"], float(r["x"]), float(r["y"])) for r in rows] == points


def test_a_drawing_leaves_gaps_and_names_every_curve(second: Figure) -> None:
    canvas = plots.draw(second)
    body, foot = canvas.subfigs
    assert len(body.axes) == 2 * len(second.panels)
    names = [text.get_text() for text in foot.legends[0].get_texts()]
    assert names == [curve.name for curve in second.panels[0].curves]
    for axes, panel in zip(body.axes, second.panels, strict=False):
        drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
        white_box = curves(panel)[panels.WHITE_BOX].y
        np.testing.assert_array_equal(drawn[panels.WHITE_BOX], white_box)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_every_figure_can_be_saved_and_repeated(number: int, tmp_path: Path) -> None:
    figure = panels.figure(number)
    first, second = (plots.save(figure, tmp_path / name) for name in "ab")
    assert [path.name for path in first] == [
        f"figure{number}.{kind}" for kind in ("csv", "png", "svg")
    ]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
