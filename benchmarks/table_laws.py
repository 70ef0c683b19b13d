"""The median error of quantiles in a tail beside other tools, from the laws of the mechanisms.

    PRUDENT_TABLES=... python -m benchmarks.table_laws [--most 60000] [--scales 8] [--confidence 0]

`benchmarks.table_accuracy` asks each tool a few times, and a median of eleven errors varies by a
third. Here nothing is drawn where a law is known: ours is the law of the value, from its weights,
and without bounds its mixture over a few private intervals. diffprivlib's is the exponential
mechanism between neighbouring records with rate ε/2; OpenDP's is permute-and-flip among 10,001
candidates, drawn 601 times by its formula. Neither of them gives an interval; with --confidence 0
ours does not either.
"""

import argparse
from collections.abc import Callable, Iterator

import attrs
import numpy as np

from benchmarks.public_tables import SOURCES, FloatArray, Source
from benchmarks.table_accuracy import EPSILONS, Bounds, wide_bounds
from prudent.release.columns.column import Column
from prudent.release.columns.opening import open_column
from prudent.release.exponential.measure import Measure
from prudent.release.exponential.quantile import ExponentialQuantile, NearTarget
from prudent.release.noise import ReproducibleNoise
from prudent.release.request import Request
from prudent.release.statistics.quantile_statistics import Quantile, _measure

_SHARES = 0.25, 0.5, 0.75  # of each law, in a mixture of laws
_DRAWS = 601


def law_errors(
    mechanism: ExponentialQuantile, column: Column, truth: float, shares: tuple[float, ...]
) -> list[float]:
    """The errors that the value does not exceed with these probabilities, by bisection."""
    measure = mechanism.measure
    window = NearTarget.read(column, measure, mechanism.p, mechanism.reach)
    starts, weights = mechanism.value_weights(window)
    most = max(weights)
    heights = np.array([weight / most for weight in weights])
    edges = np.array([*starts, measure.high + 1], np.int64)

    def mass(low: int, high: int) -> float:
        below = measure.below(np.clip(edges, low, high + 1)).astype(np.float64)
        return float(np.diff(below) @ heights)

    def chance(radius: float) -> float:
        ends = measure.indices(np.array([truth - radius, truth + radius])).tolist()
        return mass(*ends) / mass(measure.low, measure.high)

    return [_least(chance, share, max(abs(truth), 1e-9)) for share in shares]


def _least(chance: Callable[[float], float], share: float, size: float) -> float:
    """The least radius with this chance, to a thousandth of itself."""
    if chance(0.0) >= share:
        return 0.0
    high = 1e-9 * size
    while chance(high) < share:
        high *= 4
    low = high / 4
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if chance(middle) >= share else (middle, high)
    return high


def our_errors(
    source: Source, values: FloatArray, p: float, epsilon: float, scales: int, confidence: float
) -> Bounds:
    """The median error with typed bounds, and with none."""
    column = open_column(values.astype(np.int64) if source.whole else values)
    truth = float(np.sort(values)[int(np.ceil(p * len(values))) - 1])
    typed, none = (
        Quantile(ExponentialQuantile(p, 1.0).p)
        .price(Request.of({"epsilon": epsilon, "bounds": bounds, "confidence": confidence}), column)
        .mechanism
        for bounds in (source.typed, None)
    )
    (error,) = law_errors(typed.chosen, column, truth, (0.5,))
    mixed: list[float] = []
    for seed in range(scales):
        ends = none.scaled.release(column, ReproducibleNoise(seed))
        measure: Measure = _measure(ends, column.scale)
        near = attrs.evolve(none.chosen, measure=measure)
        mixed += law_errors(near, column, truth, _SHARES)
    return error, float(np.median(mixed))


def peer_errors(
    source: Source, ordered: FloatArray, p: float, epsilon: float, bounds: Bounds
) -> Bounds:
    """The median errors of diffprivlib and of OpenDP, by their formulas."""
    generator, n = np.random.default_rng(5), len(ordered)
    truth = ordered[int(np.ceil(p * n)) - 1]
    edges = np.concatenate([bounds[:1], np.clip(ordered, *bounds), bounds[1:]])
    off = np.minimum(np.abs(np.arange(n + 1) - p * n), 1_400 / epsilon)
    weights = np.exp(-epsilon / 2 * off) * np.diff(edges)
    chosen = generator.choice(n + 1, size=2_001, p=weights / weights.sum())
    between = generator.uniform(edges[chosen], edges[chosen + 1])
    candidates = np.linspace(*bounds, 10_001)
    if source.whole:
        between = np.round(between)
        if bounds[1] - bounds[0] < 25_000:
            candidates = np.arange(np.floor(bounds[0]), np.ceil(bounds[1]) + 1)
    below, upto = (np.searchsorted(ordered, candidates, side) for side in ("left", "right"))
    scores = epsilon / (2 * max(p, 1 - p)) * np.abs((1 - p) * below - p * (n - upto))
    near = scores < scores.min() + 40
    noisy = (generator.exponential(size=near.sum()) - scores[near] for _ in range(_DRAWS))
    flipped = candidates[near][[int(np.argmax(each)) for each in noisy]]
    return float(np.median(np.abs(between - truth))), float(np.median(np.abs(flipped - truth)))


def rows(
    source: Source, scales: int, confidence: float
) -> Iterator[tuple[float, float, float, float]]:
    """p, ε, and the ratios to the better peer: with typed bounds, and of none to wide ones."""
    values = source.read()
    ordered = np.sort(values)
    for p in (0.9, 0.99):
        for epsilon in EPSILONS:
            ours = our_errors(source, values, p, epsilon, scales, confidence)
            kinds = source.typed, wide_bounds(values)
            peers = [min(peer_errors(source, ordered, p, epsilon, each)) for each in kinds]
            ratios = [
                our / peer if peer else (np.inf if our > 0 else 1.0)
                for our, peer in zip(ours, peers, strict=True)
            ]
            yield p, epsilon, ratios[0], ratios[1]


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=10**9, help="Columns of at most this length.")
    parser.add_argument("--scales", type=int, default=8, help="Private intervals without bounds.")
    parser.add_argument("--confidence", type=float, default=0.95, help="Of our intervals.")
    given = parser.parse_args(arguments)
    found = []
    for source in SOURCES:
        if source.name.startswith("shape") or len(source.read()) > given.most:
            continue
        for p, epsilon, typed, none in rows(source, given.scales, given.confidence):
            found.append((p, typed, none))
            shown = f"typed {typed:.2f}, none {none:.2f}"
            print(f"{source.name:28} p={p} ε={epsilon}: {shown}", flush=True)
    for p in (0.9, 0.99):
        of_p = np.array([each[1:] for each in found if each[0] == p])
        typed, none = of_p.T
        print(
            f"p={p}: of {len(typed)}, level or better with typed bounds {(typed <= 1.1).sum()}, "
            f"at most twice without {(none <= 2).sum()}"
        )


if __name__ == "__main__":
    main()
