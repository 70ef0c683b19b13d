"""A page to explore prices with sliders, as one HTML file with every answer it can show.

The sliders rest on a few stops, and each combination of stops that a figure depends on is in the
grid, computed beforehand by `benchmarks/explore_grid.py`: nothing is interpolated. Numbers are
rounded to four digits, bounds to the safe side.
"""

import functools
import json
import tomllib
from importlib import resources
from typing import Any

import numpy as np

from prudent.release.suggestion import SHAPES

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
COUNTS = (20_000, 2_000)


@functools.cache
def sliders() -> list[dict[str, Any]]:
    """The settings of the page: the name, the label, the start and the stops of each."""
    found: list[dict[str, Any]] = tomllib.loads(_stored("sliders.toml"))["sliders"]
    return found


def page() -> str:
    """The whole page, which needs nothing else."""
    data = {
        "sliders": sliders(),
        "shapes": {name: list(quantiles(name).values()) for name in SHAPES},
        "counts": COUNTS,
        "measured": measured(),
        "grid": stored(),
    }
    # A closing tag inside the data would end the script.
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("</", "<\\/")
    script = _stored("page/script.js").replace("/* data */ null", text)
    return (
        _stored("page/index.html")
        .replace("/* style */", _stored("page/style.css"))
        .replace("/* script */", script)
    )


def quantiles(name: str) -> dict[float, float]:
    """What the page knows of a shape: a few of its quantiles, of many draws from it."""
    drawn = np.asarray(SHAPES[name].rvs(100_000, np.random.default_rng(0)), np.float64)
    values = np.quantile(drawn, PROBABILITIES)
    return {p: float(f"{value:.3g}") for p, value in zip(PROBABILITIES, values, strict=True)}


@functools.cache
def measured() -> dict[str, Any]:
    """Certified accuracy of the classifiers that come with the package, as `prudent certify` says.

    Measured once on real digits; each curve says with which ε.
    """
    found: dict[str, Any] = json.loads(_stored("certified.json"))
    return found


@functools.cache
def stored() -> dict[str, Any]:
    """The grid that comes with the package."""
    found: dict[str, Any] = json.loads(_stored("grid.json"))
    return found


def _stored(name: str) -> str:
    return (resources.files("prudent_lab.explore") / name).read_text(encoding="utf-8")
