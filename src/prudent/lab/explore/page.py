"""The page as one HTML file: markup, style, script and what they need to know."""

import json
from importlib import resources
from typing import Any

import attrs
import numpy as np

from prudent.lab.explore import answers
from prudent.lab.explore.settings import SLIDERS
from prudent.release.suggestion import SHAPES

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
COUNTS = (20_000, 2_000)


def page(grid: dict[str, Any] | None = None) -> str:
    """The whole page; with a grid of answers it needs no server."""
    data = {
        "sliders": [attrs.asdict(slider) for slider in SLIDERS],
        "shapes": {name: list(quantiles(name).values()) for name in SHAPES},
        "counts": COUNTS,
        "measured": answers.measured(),
        "grid": grid,
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
    found = np.quantile(drawn, PROBABILITIES)
    return {p: float(f"{value:.3g}") for p, value in zip(PROBABILITIES, found, strict=True)}


def _file(name: str) -> str:
    return (resources.files("prudent.lab.explore") / "page" / name).read_text(encoding="utf-8")
