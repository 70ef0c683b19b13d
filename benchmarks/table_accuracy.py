"""The error of private quantiles and means beside that of OpenDP and diffprivlib, on public tables.

    PRUDENT_TABLES=... python -m benchmarks.table_accuracy [--runs 30] [--out FILE.csv]
    python -m benchmarks.table_accuracy --only shape --epsilons 0.3,1 --statistics mean

The peers need bounds. They get those that an analyst would type (`Source.typed`), and others ten
times as wide as the data; ours is told nothing, or the typed ones. Every number is the median of
|answer - exact value| over runs with fresh noise, in the unit of the data.
"""

import argparse
import csv
import sys
import types
import warnings
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from benchmarks.public_tables import SOURCES, FloatArray, Source

EPSILONS = (0.1, 0.3, 1.0)
QUANTILES = (0.5, 0.9, 0.99)
_CANDIDATES = 10_001
_WIDER = 10.0


Bounds = tuple[float, float]


@attrs.frozen
class Row:
    """One statistic of one column at one ε, and the median error of each tool.

    Attributes:
        ours: Of prudent without bounds.
        ours_typed: Of prudent with the bounds that an analyst would type.
        opendp_typed: Of OpenDP with the same bounds; `diffprivlib_typed` likewise.
        opendp_wide: Of OpenDP with bounds ten times too wide; `diffprivlib_wide` likewise.
    """

    column: str
    records: int
    statistic: str
    epsilon: float
    exact: float
    ours: float
    ours_typed: float
    opendp_typed: float
    diffprivlib_typed: float
    opendp_wide: float
    diffprivlib_wide: float

    @property
    def ratios(self) -> tuple[float, float, float, float]:
        """Our error over a peer's.

        With the same typed bounds, over the better one's; ours without bounds, over OpenDP's and
        over the better one's with typed bounds, and over the better one's with too wide ones.
        """
        typed = min(self.opendp_typed, self.diffprivlib_typed)
        wide = min(self.opendp_wide, self.diffprivlib_wide)
        return (
            _ratio(self.ours_typed, typed),
            _ratio(self.ours, self.opendp_typed),
            _ratio(self.ours, typed),
            _ratio(self.ours, wide),
        )


def _ratio(ours: float, theirs: float) -> float:
    if theirs > 0:
        return ours / theirs
    return 1.0 if ours == 0 else float("inf")


def wide_bounds(values: FloatArray) -> Bounds:
    """Bounds around the data, ten times as wide."""
    low, high = float(values.min()), float(values.max())
    half = _WIDER * max(high - low, 1e-9) / 2
    return (low + high) / 2 - half, (low + high) / 2 + half


def our_quantile(
    values: FloatArray, p: float, epsilon: float, whole: bool, bounds: Bounds | None
) -> Callable[[], float]:
    """Ours; the type of the array says whether values are whole."""
    import prudent

    typed = values.astype(np.int64) if whole else values
    return lambda: float(prudent.quantile(typed, p=p, epsilon=epsilon, bounds=bounds))


def opendp_quantile(
    values: FloatArray, p: float, epsilon: float, whole: bool, bounds: Bounds
) -> Callable[[], float]:
    """OpenDP's private quantile among evenly spaced candidates; integers if there are few."""
    import opendp.prelude as opendp

    opendp.enable_features("contrib")
    low, high = bounds
    candidates = np.linspace(low, high, _CANDIDATES)
    if whole and high - low < 200_000:
        candidates = np.arange(np.floor(low), np.ceil(high) + 1)
    space = (
        opendp.vector_domain(opendp.atom_domain(T=float, nan=False)),
        opendp.symmetric_distance(),
    )
    make = opendp.m.make_private_quantile
    scale = opendp.binary_search_param(
        lambda scale: make(*space, opendp.max_divergence(), candidates.tolist(), p, scale),
        d_in=1,
        d_out=epsilon,
    )
    measurement = make(*space, opendp.max_divergence(), candidates.tolist(), p, scale)
    return lambda: float(measurement(values))


def diffprivlib_quantile(
    values: FloatArray, p: float, epsilon: float, whole: bool, bounds: Bounds
) -> Callable[[], float]:
    """diffprivlib's quantile between the bounds."""
    tools = diffprivlib_tools()

    def ask() -> float:
        found = float(tools.quantile(values, p, epsilon=epsilon, bounds=bounds))
        return round(found) if whole else found

    return ask


def diffprivlib_tools() -> Any:
    """The statistics of diffprivlib; its models do not import beside a current scikit-learn."""
    sys.modules.setdefault("diffprivlib.models", types.ModuleType("diffprivlib.models"))
    from diffprivlib import tools

    return tools


def our_mean(
    values: FloatArray, epsilon: float, whole: bool, bounds: Bounds | None
) -> Callable[[], float]:
    """Ours."""
    import prudent.release

    typed = values.astype(np.int64) if whole else values
    return lambda: float(prudent.release.mean(typed, epsilon=epsilon, bounds=bounds))


def opendp_mean(values: FloatArray, epsilon: float, bounds: Bounds) -> Callable[[], float]:
    """OpenDP's noisy sum and count of clamped values, half of ε each."""
    import opendp.prelude as opendp

    opendp.enable_features("contrib", "honest-but-curious")
    space = (
        opendp.vector_domain(opendp.atom_domain(T=float, nan=False)),
        opendp.symmetric_distance(),
    )
    total = space >> opendp.t.then_clamp(bounds) >> opendp.t.then_sum()
    count = space >> opendp.t.then_count()
    noisy_total = opendp.binary_search_chain(
        lambda scale: total >> opendp.m.then_laplace(scale), d_in=1, d_out=epsilon / 2
    )
    noisy_count = opendp.binary_search_chain(
        lambda scale: count >> opendp.m.then_laplace(scale), d_in=1, d_out=epsilon / 2
    )
    return lambda: float(noisy_total(values)) / max(1.0, float(noisy_count(values)))


def diffprivlib_mean(values: FloatArray, epsilon: float, bounds: Bounds) -> Callable[[], float]:
    """diffprivlib's mean, which takes the number of records as public."""
    tools = diffprivlib_tools()
    return lambda: float(tools.mean(values, epsilon=epsilon, bounds=bounds))


def error(ask: Callable[[], float], exact: float, runs: int) -> float:
    """The median error over runs; infinite if the tool fails on the data."""
    try:
        return float(np.median([abs(ask() - exact) for _ in range(runs)]))
    except RuntimeError:  # diffprivlib on some columns: its probabilities are not numbers
        return float("inf")


def rows(
    source: Source, runs: int, statistics: Container[str], epsilons: Iterable[float] = EPSILONS
) -> Iterator[Row]:
    """All rows of one column."""
    values = source.read()
    ordered = np.sort(values)
    typed, wide, whole = source.typed, wide_bounds(values), source.whole

    def row(statistic: str, exact: float, asked: Iterable[Callable[[], float]]) -> Row:
        errors = [error(ask, exact, runs) for ask in asked]
        return Row(source.name, len(values), statistic, epsilon, exact, *errors)

    for epsilon in epsilons:
        for p in QUANTILES:
            if (name := f"p{round(100 * p)}") not in statistics:
                continue
            asked = [
                *(our_quantile(values, p, epsilon, whole, bounds) for bounds in (None, typed)),
                *(
                    make(values, p, epsilon, whole, bounds)
                    for bounds in (typed, wide)
                    for make in (opendp_quantile, diffprivlib_quantile)
                ),
            ]
            yield row(name, float(ordered[int(np.ceil(p * len(ordered))) - 1]), asked)
        if "mean" not in statistics:
            continue
        asked = [
            *(our_mean(values, epsilon, whole, bounds) for bounds in (None, typed)),
            *(
                make(values, epsilon, bounds)
                for bounds in (typed, wide)
                for make in (opendp_mean, diffprivlib_mean)
            ),
        ]
        yield row("mean", float(np.mean(values)), asked)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and write a CSV file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--only", default="", help="Columns whose name contains this.")
    parser.add_argument("--most", type=int, default=10**9, help="Columns of at most this length.")
    parser.add_argument("--statistics", default="p50,p90,p99,mean")
    parser.add_argument("--epsilons", default=",".join(map(str, EPSILONS)))
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    found: list[Row] = []
    for source in SOURCES:
        if given.only not in source.name or len(source.read()) > given.most:
            continue
        epsilons = list(map(float, given.epsilons.split(",")))
        for row in rows(source, given.runs, given.statistics.split(","), epsilons):
            found.append(row)
            same, opendp, without, wide = row.ratios
            print(
                f"{row.column:28} {row.records:>9,} {row.statistic:5} ε={row.epsilon:<4g} "
                f"ours {row.ours:<10.4g} our error over the better peer's: at typed bounds "
                f"{same:.2f}, ours without {without:.2f} (OpenDP {opendp:.2f}), peers with wide "
                f"{wide:.2f}",
                flush=True,
            )
    for statistic in given.statistics.split(","):
        _summarise(statistic, [row.ratios for row in found if row.statistic == statistic])
    _write(found, given.out)


def _summarise(statistic: str, ratios: list[tuple[float, float, float, float]]) -> None:
    """Print how many rows are better, level (within a tenth) and worse, for each comparison."""
    for name, column in zip(
        (
            "same typed bounds",
            "ours without, OpenDP with typed",
            "ours without, better peer with typed",
            "ours without, better peer with wide",
        ),
        zip(*ratios, strict=True),
        strict=True,
    ):
        better = sum(ratio < 0.9 for ratio in column)
        worse = sum(ratio > 1.1 for ratio in column)
        print(
            f"{statistic}, {name}: better {better}, level {len(column) - better - worse}, "
            f"worse {worse} of {len(column)}"
        )


def _write(found: list[Row], out: Path | None) -> None:
    with sys.stdout if out is None else out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names: list[Any] = [field.name for field in attrs.fields(Row)]
        writer.writerow([*names, "same_bounds", "opendp", "ours_without", "peers_wide"])
        writer.writerows(
            [*attrs.astuple(row), *(round(ratio, 3) for ratio in row.ratios)] for row in found
        )


if __name__ == "__main__":
    main()
