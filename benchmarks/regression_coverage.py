"""How often the printed 95 % interval of a coefficient holds it, given that it is printed.

    python -m benchmarks.regression_coverage --runs 500 [--jobs 16] [--epsilons 0.3,1,3] [--only t2]

Every run draws a new table of 5,000 records. On linear populations the truth is the line; from a
real table records are drawn with replacement, and the truth is the least squares of all of them.
On logistic ones it is the true coefficients, the maximum of the likelihood of a million records
where the model does not hold, and infinite where a plane separates the labels.
Real tables other than the one that prudent ships need PRUDENT_TABLES (`regression_tables`).
"""

import argparse
import functools
import itertools
import os
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from prudent.estimators import LinearRegression, LogisticRegression, TooFewRecordsError
from prudent.release.noise import ReproducibleNoise

FloatArray = npt.NDArray[np.float64]
Drawn = tuple[FloatArray, FloatArray, FloatArray]
RECORDS = 5_000
LINE = np.array([3.0, 1.0, -0.5, 0.3])


def _normal(draw: np.random.Generator, n: int) -> FloatArray:
    return draw.normal(size=(n, 3))


def _correlated(draw: np.random.Generator, n: int) -> FloatArray:
    found = draw.normal(size=(n, 3))
    found[:, 0] = 0.9 * found[:, 1] + 0.19**0.5 * found[:, 0]
    return found * 10 + 50


def _zero_inflated(draw: np.random.Generator, n: int) -> FloatArray:
    return np.where(draw.random((n, 3)) < 0.8, 0.0, draw.lognormal(1.0, 1.0, (n, 3)))


def _plain(draw: np.random.Generator, features: FloatArray) -> FloatArray:
    return draw.normal(size=len(features))


LINEAR: dict[str, tuple[Callable[..., FloatArray], Callable[..., FloatArray]]] = {
    "normal": (_normal, _plain),
    "correlated features": (_correlated, _plain),
    "t3 residuals": (_normal, lambda draw, x: draw.standard_t(3, len(x))),
    "exponential residuals": (_normal, lambda draw, x: draw.exponential(size=len(x)) - 1),
    "log-normal residuals": (
        _normal,
        lambda draw, x: np.exp(draw.normal(size=len(x))) - np.exp(0.5),
    ),
    "exp(1.5 N) features": (lambda draw, n: np.exp(1.5 * draw.normal(size=(n, 3))), _plain),
    "t2 features": (lambda draw, n: draw.standard_t(2, (n, 3)), _plain),
    "heteroscedastic": (
        _normal,
        lambda draw, x: draw.normal(size=len(x)) * (0.3 + np.abs(x[:, 0])),
    ),
    "zero-inflated features": (_zero_inflated, _plain),
}
REAL = ("salaries", "nlswork", "hotels")
SCORES = np.array([-0.5, 1.0, -0.5, 0.3])


def _t3(draw: np.random.Generator, n: int) -> FloatArray:
    return draw.standard_t(3, (n, 3))


def _line(features: FloatArray) -> FloatArray:
    found: FloatArray = SCORES[0] + features @ SCORES[1:]
    return found


# Features, scores and true coefficients; None where they are those of the best logistic model.
LOGISTIC: dict[str, tuple[Callable[..., FloatArray], Callable[..., FloatArray], Any]] = {
    "logistic, normal": (_normal, _line, SCORES),
    "logistic, correlated": (_correlated, lambda x: _line((x - 50) / 10), None),
    "logistic, exponential": (lambda draw, n: draw.exponential(size=(n, 3)), _line, SCORES),
    "logistic, log-normal": (lambda draw, n: np.exp(draw.normal(size=(n, 3))), _line, SCORES),
    "logistic, t2": (lambda draw, n: draw.standard_t(2, (n, 3)), _line, SCORES),
    "logistic, zero-inflated": (_zero_inflated, _line, SCORES),
    "logistic, 5 % of one label": (_normal, lambda x: _line(x) - 3, SCORES - [3, 0, 0, 0]),
    "logistic, strong": (_normal, lambda x: 4 * _line(x), 4 * SCORES),
    "separable": (_normal, lambda x: np.where(_line(x) > 0, np.inf, -np.inf), np.full(4, np.inf)),
    "curved scores": (_normal, lambda x: x[:, 0] + 0.7 * x[:, 1] ** 2 - 1, None),
    "scores that end": (_t3, lambda x: np.clip(x[:, 0], -2, 2) - 0.5 * x[:, 1], None),
    "far labels at random": (_t3, lambda x: np.where(np.abs(x[:, 0]) > 3, 0.0, x[:, 0]), None),
}


def _shares(scores: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-scores)))


@functools.cache
def _logistic_truth(name: str) -> FloatArray:
    """The true coefficients, or those of the maximum of the likelihood."""
    of_features, of_scores, truth = LOGISTIC[name]
    if isinstance(truth, np.ndarray):
        return truth
    features = of_features(np.random.default_rng(0), 10**6)
    rows = np.concatenate([np.ones((len(features), 1)), features], axis=1)
    shares, found = _shares(of_scores(features)), np.zeros(4)
    for _ in range(30):
        now = _shares(rows @ found)
        curvature = (rows * (now * (1 - now))[:, None]).T @ rows
        found = found + np.linalg.solve(curvature, rows.T @ (shares - now))
    return found


@functools.cache
def _table(name: str) -> Drawn:
    """Features and target of a real table, and its least squares."""
    if name == "salaries":
        import pandas as pd

        from prudent.samples import __file__ as samples

        frame = pd.read_parquet(os.path.join(os.path.dirname(samples), "salaries.parquet"))
        features = frame[["age", "schooling", "salary_1974", "salary_1975"]].to_numpy(float)
        target = frame["salary"].to_numpy(float)
    else:
        from benchmarks.regression_tables import TABLES

        features, target = TABLES[name].arrays()
    rows = np.concatenate([np.ones((len(target), 1)), features], axis=1)
    return features, target, np.linalg.lstsq(rows, target, rcond=None)[0]


def drawn(population: str, seed: int, records: int = RECORDS) -> Drawn:
    """Features and target of a new table, and the true coefficients, the intercept first."""
    draw = np.random.default_rng([seed, zlib.crc32(population.encode())])
    if population in LINEAR:
        of_features, of_residuals = LINEAR[population]
        features = of_features(draw, records)
        return features, LINE[0] + features @ LINE[1:] + of_residuals(draw, features), LINE
    if population in LOGISTIC:
        features = LOGISTIC[population][0](draw, records)
        shares = _shares(LOGISTIC[population][1](features))
        labels = (draw.random(records) < shares).astype(float)
        return features, labels, _logistic_truth(population)
    features, target, truth = _table(population)
    places = draw.integers(0, len(target), records)
    return features[places], target[places], truth


def cell(population: str, epsilon: float, seeds: range) -> list[FloatArray]:
    """For each seed, coefficient by coefficient: whether it held (NaN: none), half and error."""
    warnings.simplefilter("ignore")
    found = []
    for seed in seeds:
        features, target, truth = drawn(population, seed)
        given: Any = {"epsilon": epsilon, "noise": ReproducibleNoise(seed)}
        labelled = population in LOGISTIC
        model = (
            LogisticRegression(classes=[0, 1], **given) if labelled else LinearRegression(**given)
        )
        try:
            model.fit(features, target)
        except TooFewRecordsError:
            found.append(np.full((3, len(truth)), np.nan))
            continue
        ends = [
            np.reshape(model.intercept_interval_, (1, 2)),
            np.reshape(model.intervals_, (-1, 2)),
        ]
        low, high = np.concatenate(ends).T
        held = np.where(np.isnan(low), np.nan, (low <= truth) & (truth <= high))
        half = (high - low) / 2
        found.append(np.stack([held, half, np.abs((low + high) / 2 - truth) / half]))
    return found


def line(population: str, epsilon: float, found: Any) -> str:
    """A row of the table."""
    held, half, error = np.array(found).transpose(1, 0, 2)
    shown = ~np.isnan(held)
    each = [np.nanmean(h[s]) for h, s in zip(held.T, shown.T, strict=True) if s.sum() >= 20]
    least = f"{min(each):.1%}" if each else "–"
    whole = f"{np.nanmean(held):.1%}" if shown.any() else "–"
    widths = ", ".join(f"{w:.3g}" if w == w else "–" for w in np.nanmedian(half, axis=0)[:4])
    farthest = f"{np.nanmax(error):.1f}" if shown.any() else "–"
    return (
        f"| {population} | {epsilon:g} | {least} | {whole} | {shown.mean():.0%} "
        f"| {1 - shown.any(axis=1).mean():.1%} | {widths} | {farthest} |"
    )


def main() -> None:
    """Print a row for each population and ε."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--epsilons", default="0.3,1,3")
    parser.add_argument("--only", default="", help="Parts of names, separated by semicolons.")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    real = REAL if os.environ.get("PRUDENT_TABLES") else REAL[:1]
    asked = [part for part in given.only.split(";") if part]
    names = [
        n for n in (*LINEAR, *real, *LOGISTIC) if not asked or any(part in n for part in asked)
    ]
    epsilons = [float(text) for text in given.epsilons.split(",")]
    print(
        "| population | ε | least of a coefficient | all | shown | none | half-widths | farthest |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(given.jobs) as pool:
        parts = max(1, given.runs // 25)
        for name, epsilon in itertools.product(names, epsilons):
            ranges = [range(at, given.runs, parts) for at in range(parts)]
            jobs = [pool.submit(cell, name, epsilon, seeds) for seeds in ranges]
            found = [each for job in jobs for each in job.result()]
            print(line(name, epsilon, found), flush=True)


if __name__ == "__main__":
    main()
