"""The page as one HTML file: markup, style, script, and every answer it can show.

The sliders rest on a few stops, and each combination of stops that a figure depends on is in the
grid, computed beforehand by `benchmarks/explore_grid.py`: nothing is interpolated. Numbers are
rounded to four digits, bounds to the safe side.
"""

import functools
import json
from importlib import resources
from typing import Any

import attrs
import numpy as np

from prudent.release.suggestion import SHAPES

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
COUNTS = (20_000, 2_000)


@attrs.frozen
class Slider:
    """One setting of the page.

    Attributes:
        name: What it sets.
        label: What stands beside it.
        start: Where it stands at first.
        stops: The values it can take: for each of them every answer is computed beforehand.
        explanation: One sentence about it.
    """

    name: str
    label: str
    start: float
    stops: tuple[float, ...]
    explanation: str = ""


SLIDERS = (
    Slider("records", "Records", 60_000, (60_000,), "How many records the data set holds."),
    Slider(
        "batch",
        "Expected batch",
        256,
        (64, 256, 1024),
        "Each record enters a step with probability batch / records.",
    ),
    Slider(
        "noise_multiplier",
        "Noise σ",
        1.1,
        (0.7, 1.1, 1.5, 2.2, 8),
        "Standard deviation of the noise, relative to the clip.",
    ),
    Slider(
        "propose",
        "Proposal τ / clip",
        0.5,
        (0.25, 0.5),
        "What one record may change if the test passes; the noise shrinks with it.",
    ),
    Slider(
        "scale",
        "Scale of the test",
        4,
        (4, 8),
        "Noise on the margin, in records: more makes the test cheaper and blunter.",
    ),
    Slider("failure", "δ₀", 1e-8, (1e-8,), "How often a margin of 0 may pass the test."),
    Slider("steps", "Steps", 10_000, (10_000,)),
    Slider("delta", "δ", 1e-5, (1e-5,), "The target δ of the whole run."),
    Slider("epsilon", "Target ε", 3, (1, 3, 8), "The budget of the run."),
    Slider(
        "trim",
        "Trimmed share",
        0.25,
        (0.1, 0.25, 0.4),
        "Share of an expected batch whose longest gradients are left out.",
    ),
    Slider(
        "accuracy",
        "Accuracy",
        0.95,
        (0.95,),
        "Expected accuracy of the trained model on clean data.",
    ),
)


def page() -> str:
    """The whole page, which needs nothing else."""
    data = {
        "sliders": [attrs.asdict(slider) for slider in SLIDERS],
        "shapes": {name: list(quantiles(name).values()) for name in SHAPES},
        "counts": COUNTS,
        "measured": measured(),
        "grid": stored(),
    }
    # A closing tag inside the data would end the script.
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("</", "<\\/")
    script = _file("script.js").replace("/* data */ null", text)
    return (
        _file("index.html")
        .replace("/* style */", _file("style.css"))
        .replace("/* script */", script)
    )


def quantiles(name: str) -> dict[float, float]:
    """What the page knows of a shape: a few of its quantiles, of many draws from it."""
    drawn = np.asarray(SHAPES[name].rvs(100_000, np.random.default_rng(0)), np.float64)
    values = np.quantile(drawn, PROBABILITIES)
    return {p: float(f"{value:.3g}") for p, value in zip(PROBABILITIES, values, strict=True)}


def _file(name: str) -> str:
    return (resources.files("prudent.lab.explore") / "page" / name).read_text(encoding="utf-8")


@functools.cache
def measured() -> dict[str, Any]:
    """Certified accuracy of the classifiers that come with the package, as `prudent certify` says.

    Measured once on real digits; each curve says with which ε.
    """
    return _stored("certified.json")


@functools.cache
def stored() -> dict[str, Any]:
    """The grid that comes with the package."""
    return _stored("grid.json")


def _stored(name: str) -> dict[str, Any]:
    text = (resources.files("prudent.lab.explore") / name).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
