"""Means without bounds of many kinds of columns, beside other tools that are told typed bounds.

    python -m benchmarks.mean_columns [--runs 101] [--out errors.csv]

A choice inside the mean is judged on these columns as well as on the shapes of
`benchmarks.public_tables`: zeros, spikes, clusters, heavy tails, whole numbers, times. Ours is the
library itself; diffprivlib's and OpenDP's means are drawn by their formulas (20,001 times), the
better of them counts. Run it on two trees to compare them.
"""

import argparse
import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import prudent
from benchmarks.public_tables import FloatArray, Source
from prudent.release.noise import ReproducibleNoise

_DRAWS = 20_001
_LEVEL = 1.1  # a ratio up to this is level
Draw = Callable[[np.random.Generator, int], FloatArray]

_KINDS: tuple[tuple[str, Draw, tuple[float, float], tuple[int, ...], bool], ...] = (
    ("gamma", lambda g, n: g.gamma(2, 100, n), (0, 1e3), (100, 2_000, 30_000), False),
    ("uniform", lambda g, n: g.uniform(20, 60, n), (0, 100), (100, 2_000, 30_000), False),
    (
        "log-normal(8, .7)",
        lambda g, n: g.lognormal(8, 0.7, n),
        (0, 1e5),
        (100, 2_000, 30_000),
        False,
    ),
    ("log-normal(0, 2)", lambda g, n: g.lognormal(0, 2, n), (0, 1e3), (1_000, 10_000), False),
    (
        "50 + 5 t(3)",
        lambda g, n: 50 + 5 * g.standard_t(3, n),
        (0, 200),
        (100, 2_000, 30_000),
        False,
    ),
    ("20 t(3)", lambda g, n: 20 * g.standard_t(3, n), (-1e3, 1e3), (300, 1_000, 20_000), False),
    ("Pareto(1.5)", lambda g, n: 1e3 * g.pareto(1.5, n), (0, 1e5), (100, 2_000, 30_000), False),
    ("Cauchy", lambda g, n: 10 * g.standard_cauchy(n), (-1e3, 1e3), (1_000, 20_000), False),
    ("exponential", lambda g, n: g.exponential(10, n), (0, 100), (100, 2_000, 30_000), False),
    ("Laplace", lambda g, n: g.laplace(0, 1e3, n), (-1e4, 1e4), (600, 20_000), False),
    ("beta(.5, .5)", lambda g, n: g.beta(0.5, 0.5, n), (0, 1), (300, 5_000), False),
    ("Poisson(3)", lambda g, n: g.poisson(3, n), (0, 20), (400, 5_000), True),
    (
        "salaries, 1/8 zero",
        lambda g, n: _either(g, 0.125, np.zeros(n), g.lognormal(10.5, 0.5, n)),
        (0, 5e5),
        (500, 1_000, 20_000),
        True,
    ),
    (
        "spending, 4/5 zero",
        lambda g, n: _either(g, 0.8, np.zeros(n), g.lognormal(5, 1, n)),
        (0, 1e4),
        (800, 2_000, 20_000),
        False,
    ),
    (
        "half zero, half 50,000",
        lambda g, n: _either(g, 0.5, np.zeros(n), g.normal(5e4, 5e3, n)),
        (0, 2e5),
        (1_000, 10_000),
        False,
    ),
    (
        "hours, mostly 40",
        lambda g, n: _either(g, 0.6, np.full(n, 40.0), g.normal(38, 12, n)),
        (0, 100),
        (300, 1_000),
        True,
    ),
    (
        "two clusters",
        lambda g, n: _either(g, 0.5, g.normal(10, 1, n), g.normal(1e3, 50, n)),
        (0, 2e3),
        (600, 1_000, 10_000),
        False,
    ),
    (
        "clusters of two signs",
        lambda g, n: _either(g, 0.4, g.normal(-50, 5, n), g.normal(80, 10, n)),
        (-200, 200),
        (300, 1_000),
        False,
    ),
    ("negative", lambda g, n: g.normal(-300, 50, n), (-1e3, 0), (600, 1_000, 20_000), False),
    ("far from zero", lambda g, n: g.normal(1e6, 10, n), (0, 2e6), (300, 1_000, 20_000), False),
    ("constant", lambda g, n: np.full(n, 42.0), (0, 100), (300, 1_000, 20_000), False),
    ("tiny", lambda g, n: g.normal(0, 1e-6, n), (-1e-5, 1e-5), (500, 3_000), False),
    ("years", lambda g, n: g.integers(1990, 2025, n), (1900, 2100), (300, 1_000, 20_000), True),
    ("ages", lambda g, n: g.integers(18, 91, n), (0, 120), (200, 1_000, 20_000), True),
    (
        "seconds since 1970",
        lambda g, n: g.uniform(1.7e9, 1.703e9, n),
        (1.6e9, 1.8e9),
        (1_000, 20_000),
        True,
    ),
    ("booleans", lambda g, n: g.random(n) < 0.1, (0, 1), (300, 1_000, 20_000), True),
    (
        "money with outliers",
        lambda g, n: g.lognormal(7, 0.5, n) * _either(g, 0.005, np.full(n, 300.0), np.ones(n)),
        (0, 1e6),
        (1_000, 20_000),
        False,
    ),
    (
        "delays",
        lambda g, n: -10 + g.exponential(30, n) * (g.random(n) < 0.4),
        (-60, 600),
        (1_000, 20_000),
        True,
    ),
    ("heights", lambda g, n: g.normal(170, 10, n), (100, 250), (300, 1_000), False),
    ("prices", lambda g, n: np.floor(g.lognormal(3, 1, n)) + 0.99, (0, 1e3), (500, 5_000), False),
)


def _either(g: np.random.Generator, share: float, one: FloatArray, other: FloatArray) -> FloatArray:
    """The one in this share of the records, else the other."""
    return np.where(g.random(len(one)) < share, one, other)


def sources() -> Iterator[Source]:
    """The columns."""
    for name, draw, typed, sizes, whole in _KINDS:
        for records in sizes:
            values = np.asarray(draw(np.random.default_rng(records), records), np.float64)
            values = np.round(values) if whole else values
            yield Source(f"{name}, {records:,}", lambda values=values: values, typed, whole)


def peer_error(values: FloatArray, bounds: tuple[float, float], epsilon: float) -> float:
    """The median error of the better peer's mean between typed bounds."""
    low, high = bounds
    total, records = np.clip(values, low, high).sum(), len(values)
    one, other = np.random.default_rng(2).laplace(size=(2, _DRAWS))
    diffprivlib = (total + one * (high - low) / epsilon) / records  # the number is public
    counted = np.maximum(1, records + 2 * other / epsilon)
    opendp = (total + 2 * one * max(abs(low), abs(high)) / epsilon) / counted
    return min(float(np.median(np.abs(each - values.mean()))) for each in (diffprivlib, opendp))


def main(arguments: list[str] | None = None) -> None:
    """Print a row for each column and ε, and how many are level or better."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=101)
    parser.add_argument("--out", type=Path, help="a CSV file of the rows")
    given = parser.parse_args(arguments)
    rows = []
    for source in sources():
        values = source.read()
        column = values.astype(np.int64) if source.whole else values
        for epsilon in (0.3, 1.0):
            noise = ReproducibleNoise(11)
            means = [
                float(prudent.mean(column, epsilon=epsilon, noise=noise)) for _ in range(given.runs)
            ]
            ours = np.abs(np.array(means) - values.mean())
            peer = peer_error(values, source.typed, epsilon)
            rows.append(
                (source.name, epsilon, np.median(ours) / peer, np.quantile(ours, 0.9) / peer)
            )
            print(
                f"{source.name:32} {epsilon:<4} {rows[-1][2]:8.2f} {rows[-1][3]:8.2f}", flush=True
            )
    level = sum(row[2] <= _LEVEL for row in rows)
    print(f"level or better in {level} of {len(rows)} rows")
    if given.out is not None:
        with given.out.open("w", newline="") as file:
            csv.writer(file).writerows([("column", "epsilon", "median", "nine tenths"), *rows])


if __name__ == "__main__":
    main()
