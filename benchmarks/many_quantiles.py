"""The rank error of many quantiles at once, beside OpenDP's tree and two other mechanisms.

    python -m benchmarks.many_quantiles [--records 1000,20000] [--runs 10]

Every number is the mean, over quantiles and runs, of the distance in records between the rank of
an answer and the rank asked for, at ε = 1 and with the same bounds; "without bounds" is told none.
Ours comes with an interval for each quantile, the others with none.

* OpenDP: its 16-ary tree of 1,024 bins, made consistent.
* Joint: one exponential choice of all quantiles by the sum of the errors of the counts between them
  (Gillenwater et al., 2021). A record moves that sum by at most 2, so its rate is ε/4. It takes
  time in proportion to n² for each quantile, so it is run on small tables alone.
* Slices: ranks moved by the noise of a binary counter, for half of ε, and for the other half an
  exponential choice among the records around each (Imola et al., 2025, arXiv 2505.13662). Written
  after the idea of the paper: the sizes of slices and the division of ε are ours.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
from opendp import prelude as opendp

import prudent
from benchmarks.public_tables import FloatArray

EPSILON = 1.0
NUMBERS = (5, 9, 19, 99)
_JOINT_MOST = 1_000, 19  # records and quantiles
_BINS, _BRANCHES = 1_024, 16
_LEAST_GAP = 1e-12

Bounds = tuple[float, float]
Answers = Callable[[], FloatArray]

COLUMNS: dict[str, tuple[Callable[[np.random.Generator, int], FloatArray], Bounds]] = {
    "log-normal(3, 1)": (lambda g, n: g.lognormal(3, 1, n), (0.0, 500.0)),
    "normal(500, 100)": (lambda g, n: g.normal(500, 100, n), (0.0, 1_000.0)),
    "ages": (lambda g, n: np.round(g.gamma(9, 4, n) + 17), (0.0, 120.0)),
}


def ours(values: FloatArray, ps: list[Fraction], bounds: Bounds | None) -> Answers:
    """Ours."""
    return lambda: np.array(
        prudent.quantiles(values, ps=ps, epsilon=EPSILON, bounds=bounds).value, np.float64
    )


def opendp_tree(values: FloatArray, ps: list[Fraction], bounds: Bounds) -> Answers:
    """OpenDP's tree of noisy counts."""
    opendp.enable_features("contrib")
    edges = np.linspace(*bounds, _BINS + 1)
    domain = opendp.vector_domain(opendp.atom_domain(T=float, nan=False))
    counts = (
        (domain, opendp.symmetric_distance())
        >> opendp.t.then_find_bin(edges[1:-1].tolist())
        >> opendp.t.then_count_by_categories(list(range(_BINS)), null_category=False)
        >> opendp.t.then_b_ary_tree(_BINS, _BRANCHES)
    )
    noisy = opendp.binary_search_chain(
        lambda scale: counts >> opendp.m.then_laplace(scale), d_in=1, d_out=EPSILON
    )
    consistent = opendp.t.make_consistent_b_ary_tree(_BRANCHES)
    found = opendp.t.make_quantiles_from_counts(edges.tolist(), alphas=list(map(float, ps)))
    return lambda: np.array(found(consistent(noisy(values))), np.float64)


def joint(values: FloatArray, ps: list[Fraction], bounds: Bounds) -> Answers:
    """One exponential choice of the gaps that hold the quantiles, drawn from the last one on."""
    edges = np.concatenate([bounds[:1], np.clip(np.sort(values), *bounds), bounds[1:]])
    gaps = np.log(np.maximum(np.diff(edges), _LEAST_GAP))
    place = np.arange(len(gaps))
    wanted = np.diff([0.0, *map(float, ps), 1.0]) * len(values)
    between = place[None, :] - place[:, None]  # the records between two gaps

    def step(number: int) -> FloatArray:
        off = -EPSILON / 4 * np.abs(between - wanted[number])
        return np.where(between < 0, -np.inf, off)

    first = gaps - EPSILON / 4 * np.abs(place - wanted[0])
    forward = [first]
    for number in range(1, len(ps)):
        top = forward[-1].max()
        reached = np.exp(forward[-1] - top) @ np.exp(step(number))
        forward.append(np.log(np.maximum(reached, 1e-300)) + top + gaps)
    generator = np.random.default_rng()

    def drawn(logs: FloatArray) -> int:
        return int(np.argmax(logs + generator.gumbel(size=len(logs))))

    def answer() -> FloatArray:
        last = forward[-1] - EPSILON / 4 * np.abs(len(values) - place - wanted[-1])
        found = [drawn(last)]
        for number in range(len(ps) - 1, 0, -1):
            found.append(drawn(forward[number - 1] + step(number)[:, found[-1]]))
        chosen = np.array(found)
        within = generator.random(len(chosen)) * (edges[chosen + 1] - edges[chosen])
        return np.sort(edges[chosen] + within)

    return answer


def slices(values: FloatArray, ps: list[Fraction], bounds: Bounds) -> Answers:
    """Ranks with the noise of a counter, and a choice among the records around each."""
    ordered, half = np.clip(np.sort(values), *bounds), EPSILON / 2
    generator, records = np.random.default_rng(), len(values)
    number = np.arange(1, len(ps) + 1)
    levels = len(ps).bit_length()
    gap = float(np.diff([0.0, *map(float, ps), 1.0]).min()) * records
    reach = min(gap / 2, 24 / half)

    def answer() -> FloatArray:
        ranks = np.array(list(map(float, ps))) * records
        for level in range(levels):  # the node of a level that ends at a number, if it is in it
            nodes = generator.laplace(scale=levels / half, size=(len(ps) >> level) + 1)
            ranks += np.where((number >> level) & 1, nodes[(number >> level) - 1], 0.0)
        found = []
        for rank in ranks:
            low, high = np.clip([rank - reach, rank + reach], 0, records).astype(int).tolist()
            ends = ordered[low - 1] if low else bounds[0]
            end = ordered[high] if high < records else bounds[1]
            edges = np.concatenate([[ends], ordered[low:high], [end]])
            off = np.abs(np.arange(high - low + 1) - (high - low) / 2)
            logs = np.log(np.maximum(np.diff(edges), _LEAST_GAP)) - half / 2 * off
            chosen = int(np.argmax(logs + generator.gumbel(size=len(logs))))
            found.append(generator.uniform(edges[chosen], edges[chosen + 1]))
        return np.sort(found)

    return answer


def rank_error(ordered: FloatArray, answers: FloatArray, ps: list[Fraction]) -> float:
    """The mean distance of ranks, in records."""
    target = np.array(list(map(float, ps))) * len(ordered)
    below, upto = (np.searchsorted(ordered, answers, side) for side in ("left", "right"))
    return float(np.maximum(0, np.maximum(below - target, target - upto)).mean())


def rows(records: int, runs: int) -> Iterator[tuple[str, int, dict[str, float]]]:
    """The error of each mechanism for each column and number of quantiles."""
    for name, (draw, bounds) in COLUMNS.items():
        values = draw(np.random.default_rng(3), records)
        ordered = np.sort(values)
        for number in NUMBERS:
            ps = [Fraction(k, number + 1) for k in range(1, number + 1)]
            asked = {
                "without bounds": ours(values, ps, None),
                "ours": ours(values, ps, bounds),
                "OpenDP": opendp_tree(values, ps, bounds),
                "slices": slices(values, ps, bounds),
            }
            if records <= _JOINT_MOST[0] and number <= _JOINT_MOST[1]:
                asked["joint"] = joint(values, ps, bounds)
            yield (
                name,
                number,
                {
                    tool: float(np.mean([rank_error(ordered, ask(), ps) for _ in range(runs)]))
                    for tool, ask in asked.items()
                },
            )


def main(arguments: list[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", default="1000,20000")
    parser.add_argument("--runs", type=int, default=10)
    given = parser.parse_args(arguments)
    tools = "without bounds", "ours", "OpenDP", "joint", "slices"
    print("| column | records | quantiles |", *(f"{tool} |" for tool in tools))
    print("|" + "---|" * (3 + len(tools)))
    for records in map(int, given.records.split(",")):
        for name, number, errors in rows(records, given.runs):
            cells = [errors.get(tool, math.nan) for tool in tools]
            shown = ("" if math.isnan(cell) else f"{cell:.1f}" for cell in cells)
            print(
                f"| {name} | {records:,} | {number} |", *(f"{cell} |" for cell in shown), flush=True
            )


if __name__ == "__main__":
    main()
