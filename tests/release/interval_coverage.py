"""How often a mean, sum or variance without bounds prints an interval that is wrong.

An interval is read back from the printed line, with the bounds that it says values were clipped to,
and compared with the statistic of the values clipped to these bounds. So is the printed share of
values outside. Where there is no value at all every interval is wrong.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from prudent.release import statistics
from prudent.release.lattice import FloatArray
from prudent.release.noise import ReproducibleNoise

_DRAW = np.random.default_rng(7)

TABLES: dict[str, Callable[[int], FloatArray]] = {
    "normal": lambda n: _DRAW.normal(100.0, 10.0, n),
    "lognormal, σ = 1": lambda n: _DRAW.lognormal(10.0, 1.0, n),
    "lognormal, σ = 2": lambda n: _DRAW.lognormal(0.0, 2.0, n),
    "Pareto, α = 1.1": lambda n: 1e3 * _DRAW.pareto(1.1, n),
    "99 % zeros": lambda n: np.where(_DRAW.random(n) < 0.99, 0.0, 1e6),
    "one value": lambda n: np.full(n, 5.0),
    "all null": lambda n: np.full(n, np.nan),
}

TRUTH = {"mean": np.mean, "sum": np.sum, "variance": np.var}

_LINE = re.compile(
    r"^(?P<value>\S+) \(.* 95% interval (?P<low>\S+) to (?P<high>\S+) for the (?P<name>\w+) of the "
    r"values clipped to \[(?P<least>\S+), (?P<most>\S+)\]\)$"
)
_SHARE = re.compile(r"private; (\S+)% to (\S+)% of the values lay outside")


def outcomes(name: str, values: FloatArray, epsilon: float, runs: int) -> Counter[str]:
    """How often the interval, and the share outside, was right, wrong or not given."""
    seen: Counter[str] = Counter()
    known = values[~np.isnan(values)]
    for seed in range(runs):
        ask: Any = getattr(statistics, name)
        line, note = ask(values, epsilon=epsilon, noise=ReproducibleNoise(seed)).lines()
        found = _LINE.match(line)
        if found is None:
            assert re.search(
                f"no interval for the {name} of the values (clipped to|from about) ", line
            )
            seen["none"] += 1
            continue
        given = {key: float(found[key]) for key in ("value", "low", "high", "least", "most")}
        assert given["low"] <= given["value"] <= given["high"]
        low, high = map(float, _SHARE.search(note).groups())  # type: ignore[union-attr]
        if not known.size:
            seen["wrong"] += 1
            continue
        clipped = np.clip(known, given["least"], given["most"])
        truth = TRUTH[name](clipped)
        slack = 1e-12 * np.abs(clipped).sum()  # of numpy's own sum
        seen["right" if given["low"] - slack <= truth <= given["high"] + slack else "wrong"] += 1
        outside = 100 * np.mean((known < given["least"]) | (known > given["most"]))
        seen["wrong share"] += not low <= outside <= high
    return seen
