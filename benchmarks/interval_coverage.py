"""How often a printed 95 % interval holds the statistic that it is about, given that it is printed.

    python -m benchmarks.interval_coverage --runs 200 [--only 'median;mean'] [--cells]

Each statistic is released many times from fixed tables of several shapes and sizes, some of them
also by groups of 60 %, 30 % and 10 % of the records. An interval that is not shown counts for
nothing; of those shown, the share that holds the truth must be at least 93 %. The truth is the
exact statistic of the table: of all its values, or where the answer says that values were clipped,
of the values clipped to the bounds that it prints. Where there is no such statistic, as for an
empty table, every interval is wrong.
"""

import argparse
import itertools
import math
import re
import zlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from prudent.release import statistics
from prudent.release.noise import ReproducibleNoise

FloatArray = npt.NDArray[np.float64]
Truth = Callable[[FloatArray, FloatArray, Any], Any]

POPULATIONS: dict[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "normal": lambda draw, n: draw.normal(100.0, 15.0, n),
    "skewed": lambda draw, n: draw.lognormal(4.0, 1.0, n),
    "heavy": lambda draw, n: 1e3 * draw.pareto(1.1, n),
    "tied": lambda draw, n: draw.integers(1, 6, n).astype(float),
    "decimals": lambda draw, n: np.round(draw.gamma(2.0, 10.0, n), 2),
    "zeros": lambda draw, n: np.where(draw.random(n) < 0.8, 0.0, draw.lognormal(5.0, 1.0, n)),
    "two heaps": lambda draw, n: np.where(draw.random(n) < 0.5, 0.0, 100.0),
    "boolean": lambda draw, n: (draw.random(n) < 0.3).astype(float),
    "negative": lambda draw, n: -draw.lognormal(2.0, 0.7, n),
    "both signs": lambda draw, n: draw.standard_t(2.0, n),
}
SIZES = 10, 50, 200, 600, 3_000
EPSILONS = 0.3, 1.0

_BOUNDS = re.compile(r"clipped to \[([^,\]]+), ([^\]]+)\]")
_PROBABILITY = re.compile(r"This is the (\S+)-quantile|This is the (median)")


def ranked(values: FloatArray, p: Any) -> float:
    """The value of rank ceil(p n), counted exactly."""
    rank = math.ceil(Fraction(str(p)) * len(values))
    return float(np.sort(values)[max(1, rank) - 1])


def clipped(values: FloatArray, answer: Any, place: int = 0) -> FloatArray:
    """The values clipped to the bounds that an answer prints, the first or the second pair."""
    bounds = _BOUNDS.findall(answer.about or "")
    return np.clip(values, *map(float, bounds[place])) if place < len(bounds) else values


def _extreme(values: FloatArray, _: FloatArray, answer: Any) -> float:
    (found,) = [match for note in answer.notes if (match := _PROBABILITY.search(note))]
    return ranked(values, found[1] or "0.5")


def _joint(compute: Callable[[FloatArray, FloatArray], Any]) -> Truth:
    return lambda x, y, answer: compute(clipped(x, answer), clipped(y, answer, 1))


def _correlation(x: FloatArray, y: FloatArray) -> float:
    spread = float(x.std() * y.std())
    return float(np.cov(x, y, bias=True)[0, 1]) / spread if spread else math.nan


TRUTHS: dict[str, Truth] = {
    "count": lambda x, y, a: len(x),
    "count_distinct": lambda x, y, a: len(np.unique(x)),
    "mean": lambda x, y, a: clipped(x, a).mean(),
    "sum": lambda x, y, a: clipped(x, a).sum(),
    "variance": lambda x, y, a: clipped(x, a).var(),
    "deviation": lambda x, y, a: clipped(x, a).std(),
    "maximum": _extreme,
    "minimum": _extreme,
    "iqr": lambda x, y, a: ranked(x, "0.75") - ranked(x, "0.25"),
    "ratio": _joint(lambda x, y: x.sum() / y.sum() if y.sum() else math.nan),
    "weighted_mean": _joint(lambda x, w: np.average(x, weights=w) if w.sum() else math.nan),
    "covariance": _joint(lambda x, y: np.cov(x, y, bias=True)[0, 1]),
    "correlation": _joint(_correlation),
}

Asked = tuple[str, dict[str, Any]]
"""The name of a statistic, and its options."""

ASKED: dict[str, Asked] = {
    "count": ("count", {}),
    "count distinct": ("count_distinct", {}),
    "median": ("median", {}),
    "median, bounds": ("median", {"bounds": True}),
    "median, tested": ("median", {"propose": 5.0, "delta": 1e-6}),
    "p90": ("quantile", {"p": "0.9"}),
    "p99": ("quantile", {"p": "0.99"}),
    "p90, bounds": ("quantile", {"p": "0.9", "bounds": True}),
    "quartiles": ("quantiles", {"ps": ["0.25", "0.5", "0.75"]}),
    "five quantiles": ("quantiles", {"ps": ["0.05", "0.25", "0.5", "0.75", "0.95"]}),
    "nineteen quantiles": ("quantiles", {"ps": [f"{k / 20:g}" for k in range(1, 20)]}),
    "iqr": ("iqr", {}),
    "maximum": ("maximum", {}),
    "minimum": ("minimum", {}),
    "describe": ("describe", {}),
    "mean": ("mean", {}),
    "mean, bounds": ("mean", {"bounds": True}),
    "sum": ("sum", {}),
    "sum, bounds": ("sum", {"bounds": True}),
    "variance": ("variance", {}),
    "variance, bounds": ("variance", {"bounds": True}),
    "deviation": ("deviation", {}),
    "proportion": ("proportion", {}),
    "trimmed mean": ("trimmed_mean", {"trim": 40, "propose": 20.0, "delta": 1e-6}),
    "histogram": ("histogram", {}),
    "ratio": ("ratio", {}),
    "ratio, bounds": ("ratio", {"bounds": True, "other_bounds": (0.0, 4.0)}),
    "weighted mean": ("weighted_mean", {}),
    "covariance": ("covariance", {}),
    "covariance, bounds": ("covariance", {"bounds": True, "other_bounds": (0.0, 4.0)}),
    "correlation": ("correlation", {}),
    "correlation, bounds": ("correlation", {"bounds": True, "other_bounds": (0.0, 4.0)}),
}
GROUPED = "count", "median", "p90", "describe", "mean", "sum", "variance", "deviation"
ASKED |= {f"{each}, groups": (ASKED[each][0], {**ASKED[each][1], "by": True}) for each in GROUPED}
PAIRS = "ratio", "weighted_mean", "covariance", "correlation"
PUBLIC = {"boolean": (0.0, 1.0), "tied": (0.0, 10.0), "negative": (-100.0, 0.0)}


def second(values: FloatArray) -> FloatArray:
    """A column that goes with another: positive, and correlated with it."""
    draw = np.random.default_rng(len(values))
    ranks = np.argsort(np.argsort(values)) / max(1, len(values))
    return np.asarray(0.5 + ranks + draw.random(len(values)))


def parts(name: str, options: dict[str, Any], x: FloatArray, answer: Any) -> Iterator[Any]:
    """The intervals of an answer, None if not shown, each with its truth."""
    if name == "describe":
        for title, each in answer.parts().items():
            p = title.removesuffix("-quantile")
            truth = ranked(x, p) if p != title else TRUTHS[title](x, x, each)
            yield each.usual_interval, truth
    elif name == "histogram":
        half = math.ceil(answer.half_width())
        counted, _ = np.histogram(x, answer.numbers)
        for noisy, exact in zip(answer.counts, counted.tolist(), strict=True):
            yield (noisy - half, noisy + half), exact
    elif answer.__class__.__name__ == "Refused":
        yield None, None
    elif name == "quantiles":
        for p, ends in zip(options["ps"], answer.intervals, strict=True):
            yield ends, ranked(x, p)
    elif name in ("median", "quantile"):
        yield answer.usual_interval, ranked(x, options.get("p", "0.5"))
    elif name == "trimmed_mean":
        kept = np.sort(x)[options["trim"] : len(x) - options["trim"]]
        yield answer.usual_interval, kept.mean() if kept.size else 0.0
    elif name == "proportion":
        yield answer.usual_interval, x.mean()
    else:
        yield answer.usual_interval, TRUTHS[name](x, second(x), answer)


def right(ends: tuple[float, float], truth: Any, x: FloatArray) -> bool:
    """Whether the truth is in an interval, up to the rounding of numpy's own sums."""
    slack = 1e-9 * (abs(truth) if math.isfinite(truth) else 0.0) + 1e-13 * float(np.abs(x).sum())
    exact = float(ends[0]) <= truth <= float(ends[1])
    return exact or float(ends[0]) - slack <= truth <= float(ends[1]) + slack


def measure(
    asked: str, population: str, size: int, epsilon: float, runs: int, first: int = 0
) -> tuple[int, int, int]:
    """Release so often from one table; how many intervals there were, were shown and were right."""
    name, given = ASKED[asked]
    place = list(POPULATIONS).index(population)
    x = POPULATIONS[population](np.random.default_rng([size, place]), size)
    groups = np.array(list("aaaaaabbbc"))[np.arange(size) % 10]
    options = {key: each for key, each in given.items() if each is not True}
    if "bounds" in given:
        options["bounds"] = PUBLIC.get(population, (-500.0, 1_000.0))
        x = np.clip(x, *options["bounds"])
    data: Any = x.astype(bool) if name == "proportion" else x
    asking: tuple[Any, ...] = (data,)
    if name in PAIRS or "by" in given:
        import pandas as pd

        asking = pd.DataFrame({"x": x, "y": second(x), "g": groups}), "x", "y"
    if "by" in given:
        asking, options = asking[:2], {**options, "by": "g", "groups": list("abc")}
    total = shown = held = 0
    start = zlib.crc32(f"{asked} {population} {size} {epsilon}".encode()) + first
    for seed in range(start, start + runs):
        ask: Any = getattr(statistics, name)
        answer = ask(*asking, epsilon=epsilon, noise=ReproducibleNoise(seed), **options)
        answers = answer if "by" in given else {None: answer}
        for group, each in answers.items():
            values = x if group is None else x[groups == group]
            for ends, truth in parts(name, options, values, each):
                total += 1
                shown += bool(ends)
                held += bool(ends) and right(ends, truth, values)
    return total, shown, held


def most_wrong(shown: int, share: float = 0.07, chance: float = 1e-3) -> int:
    """The most misses among so many intervals that are not evidence of more than this share."""
    from scipy import stats

    return int(stats.binom.ppf(1 - chance, shown, share)) if shown else 0


def main() -> None:
    """Print, for each statistic, what was shown and what held: also where few were shown.

    The last column counts the cells of which the misses are evidence, at 0.1 %, of more than 7 %.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--only", default="")
    parser.add_argument("--cells", action="store_true", help="print each cell that fails")
    chosen = parser.parse_args()
    sizes = list(map(int, chosen.sizes.split(",")))
    names = [name for name in ASKED if not chosen.only or name in chosen.only.split(";")]
    print(
        "| statistic | intervals | shown | held, given shown | where seldom shown | cells below |"
    )
    print("|---|---|---|---|---|---|")
    for asked in names:
        sums, seldom, failed = np.zeros(3, int), np.zeros(3, int), 0
        populations = [
            each for each in POPULATIONS if asked != "proportion" or set("boolean") <= set(each)
        ]
        for population, size, epsilon in itertools.product(populations, sizes, EPSILONS):
            cell = measure(asked, population, size, epsilon, chosen.runs)
            sums += cell
            total, shown, held = cell
            if 2 * shown < total:
                seldom += cell
            if shown - held > most_wrong(shown):
                failed += 1
                if chosen.cells:
                    told = f"{population}, n = {size}, ε = {epsilon}: {held} of {shown}"
                    print(f"    below: {asked}, {told}", flush=True)
        total, shown, held = sums.tolist()
        given = f"{held / shown:.2%}" if shown else "–"
        few = f"{seldom[2]:,} of {seldom[1]:,}"
        print(
            f"| {asked} | {total:,} | {shown / total:.1%} | {given} | {few} | {failed} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
