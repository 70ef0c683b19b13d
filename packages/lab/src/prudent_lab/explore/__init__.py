"""A page to explore prices with sliders, as one HTML file with every answer it can show.

The sliders rest on a few stops, and each combination of stops that a figure depends on is in the
grid, computed beforehand by `benchmarks/explore_grid.py`: nothing is interpolated. Numbers are
rounded to four digits, bounds to the safe side.
"""

import functools
import json
from importlib import resources
from typing import Any

from prudent_lab import declared
from prudent_lab.certifying import percent


@functools.cache
def sliders() -> list[dict[str, Any]]:
    """The settings of the page: the name, the label, the start and the stops of each."""
    found: list[dict[str, Any]] = declared("prudent_lab.explore", "sliders.toml")["sliders"]
    return found


@functools.cache
def stored() -> dict[str, Any]:
    """The grid that comes with the package."""
    found: dict[str, Any] = json.loads(_file("grid.json"))
    return found


def page() -> str:
    """The whole page, which needs nothing else."""
    # Certified accuracy, measured once on real digits, is rounded down to what is shown.
    given = json.loads(_file("certified.json"))
    curves = [
        {"name": each["name"], "accuracy": [float(percent(v, 1)) / 100 for v in each["accuracy"]]}
        for each in given["curves"]
    ]
    measured = {"records": given["records"], "curves": curves, "note": given["note"]}
    data = {"sliders": sliders(), "measured": measured, "grid": stored()}
    # A closing tag inside the data would end the script.
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("</", "<\\/")
    script = _file("page/script.js").replace("/* data */ null", text)
    style = _file("page/style.css")
    whole = _file("page/index.html").replace("/* style */", style)
    return whole.replace("/* script */", script)


def _file(name: str) -> str:
    return (resources.files("prudent_lab.explore") / name).read_text(encoding="utf-8")
