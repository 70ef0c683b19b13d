"""A page to explore prices with sliders, as one HTML file with every answer it can show.

The sliders rest on a few stops, and each combination of stops that a figure depends on is in the
grid, computed beforehand by `benchmarks/explore_grid.py`: nothing is interpolated. Numbers are
rounded to four digits, bounds to the safe side.
"""

import functools
import json
import tomllib
from collections.abc import Callable, Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any

import numpy as np

from prudent.certify.report import percent

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
COUNTS = (20_000, 2_000)

SHAPES: Mapping[str, Callable[[np.random.Generator, int], Any]] = MappingProxyType(
    {
        "normal": lambda generator, size: generator.normal(50, 10, size),
        "lognormal": lambda generator, size: generator.lognormal(3, 1, size),
        "ties": lambda generator, size: generator.poisson(3, size).astype(float),
        "unbounded": lambda generator, size: generator.standard_cauchy(size),
    }
)
"""Shapes of data by name: what draws so many values."""


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
    drawn = np.asarray(SHAPES[name](np.random.default_rng(0), 100_000), np.float64)
    values = np.quantile(drawn, PROBABILITIES)
    return {p: float(f"{value:.3g}") for p, value in zip(PROBABILITIES, values, strict=True)}


@functools.cache
def measured() -> dict[str, Any]:
    """Certified accuracy of the classifiers that come with the package, as `prudent certify` says.

    Measured once on real digits; each curve says with which ε. Rounded down to what is shown.
    """
    found: dict[str, Any] = json.loads(_stored("certified.json"))
    curves = [
        {"name": each["name"], "accuracy": [float(percent(v, 1)) / 100 for v in each["accuracy"]]}
        for each in found["curves"]
    ]
    return {"records": found["records"], "curves": curves, "note": found["note"]}


@functools.cache
def stored() -> dict[str, Any]:
    """The grid that comes with the package."""
    found: dict[str, Any] = json.loads(_stored("grid.json"))
    return found


def _stored(name: str) -> str:
    return (resources.files("prudent_lab.explore") / name).read_text(encoding="utf-8")
