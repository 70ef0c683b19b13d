"""The page as one HTML file: markup, style, script, and every answer it can show.

The sliders rest on a few stops, and each combination of stops that a figure depends on is in the
grid, computed beforehand by the functions of `answers`: nothing is interpolated. Numbers are
rounded to four digits, bounds to the safe side.
"""

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import resources
from typing import Any

import attrs
import numpy as np

from prudent.lab.explore import answers
from prudent.lab.explore.answers import SLIDERS, TESTS, Training
from prudent.release.suggestion import SHAPES

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
COUNTS = (20_000, 2_000)
_RUN = ("batch", "noise_multiplier", "propose", "test", "scale")
DEPENDS = {
    "spent": _RUN,
    "noise": ("batch", "propose", "test", "scale", "epsilon"),
    "passing": ("batch", "test", "scale", "trim"),
    "withstood": (*_RUN, "accuracy"),
}
NOTE = (
    "Every number was computed by the accountant that prices real releases, beforehand, and is "
    "exact to four digits, bounds rounded up. Sliders move between the values that were computed."
)
_DIGITS = 4


def page() -> str:
    """The whole page, which needs nothing else."""
    data = {
        "sliders": [attrs.asdict(slider) for slider in SLIDERS],
        "shapes": {name: list(quantiles(name).values()) for name in SHAPES},
        "counts": COUNTS,
        "measured": answers.measured(),
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


def cells() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every question about training, the key of its answer, and its settings."""
    stops: dict[str, tuple[Any, ...]] = {slider.name: slider.stops for slider in SLIDERS}
    stops["test"] = tuple(TESTS)
    single = {name: values[0] for name, values in stops.items() if len(values) == 1}
    for question, names in DEPENDS.items():
        for values in itertools.product(*(stops[name] for name in names)):
            key = "|".join(
                f"{value:.12g}" if name != "test" else value
                for name, value in zip(names, values, strict=True)
            )
            yield question, key, single | dict(zip(names, values, strict=True))


def cell(question: str, setting: dict[str, Any]) -> answers.Answer:
    """One answer, rounded."""
    answer = answers.QUESTIONS[question](Training(**setting))
    down = question == "withstood"
    return {name: _rounded(value, down=down) for name, value in answer.items()}


def shape_cell(name: str, count: int) -> answers.Answer:
    """What is expected of a private median of data of a shape."""
    answer = answers.tables(quantiles(name), count, 1e-6)
    return {key: _rounded(value) for key, value in answer.items()}


def build(workers: int, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """The whole grid.

    Args:
        workers: Processes to compute with.
        progress: Called with how many answers are done and how many there are.
    """
    wanted = list(cells())
    shapes = list(itertools.product(SHAPES, COUNTS))
    computed: dict[str, dict[str, Any]] = {question: {} for question in (*DEPENDS, "tables")}
    with ProcessPoolExecutor(workers) as pool:
        training = pool.map(_of_training, wanted, chunksize=4)
        tables = pool.map(_of_shape, shapes)
        for number, ((question, key, _), answer) in enumerate(zip(wanted, training, strict=True)):
            computed[question][key] = answer
            progress(number + 1, len(wanted) + len(shapes))
        for (name, count), answer in zip(shapes, tables, strict=True):
            computed["tables"][f"{name}|{count}"] = answer
    depends = {name: list(names) for name, names in DEPENDS.items()} | {
        "tables": ["shape", "count"]
    }
    return {"note": NOTE, "depends": depends, "answers": computed}


@functools.cache
def stored() -> dict[str, Any]:
    """The grid that comes with the package."""
    path = resources.files("prudent.lab.explore") / "grid.json"
    grid: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return grid


def _of_training(wanted: tuple[str, str, dict[str, Any]]) -> answers.Answer:
    return cell(wanted[0], wanted[2])


def _of_shape(wanted: tuple[str, int]) -> answers.Answer:
    return shape_cell(*wanted)


def _rounded(value: Any, *, down: bool = False) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part, down=down) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part, down=down) for part in value]
    if not isinstance(value, float) or value == 0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) + 1 - _DIGITS)
    whole = math.floor(value / unit) if down else math.ceil(value / unit)
    return float(f"{whole * unit:.{_DIGITS}g}")
