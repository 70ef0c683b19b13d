"""The error of private quantiles and means beside that of OpenDP and diffprivlib, on public tables.

    PRUDENT_TABLES=... python -m benchmarks.table_accuracy [--runs 30] [--out FILE.csv]

The peers are told bounds ten times as wide as the data; ours is told nothing. Every number is the
median of |answer - exact value| over runs with fresh noise, in the unit of the data.
"""

import argparse
import csv
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from benchmarks.public_tables import SOURCES, FloatArray, Source

EPSILONS = (0.1, 0.3, 1.0)
QUANTILES = (0.5, 0.9)
_CANDIDATES = 10_001
_WIDER = 10.0


@attrs.frozen
class Row:
    """One statistic of one column at one ε, and the median error of each tool."""

    column: str
    records: int
    statistic: str
    epsilon: float
    exact: float
    ours: float
    opendp: float
    diffprivlib: float

    @property
    def ratio(self) -> float:
        """Our error over that of the better peer; 1 where both are zero."""
        best = min(self.opendp, self.diffprivlib)
        return self.ours / best if best > 0 else (1.0 if self.ours == 0 else float("inf"))


def wide_bounds(values: FloatArray) -> tuple[float, float]:
    """Bounds around the data, ten times as wide."""
    low, high = float(values.min()), float(values.max())
    half = _WIDER * max(high - low, 1e-9) / 2
    return (low + high) / 2 - half, (low + high) / 2 + half


def our_quantile(values: FloatArray, p: float, epsilon: float, whole: bool) -> Callable[[], float]:
    """Ours, without bounds; the type of the array says whether values are whole."""
    import prudent

    typed = values.astype(np.int64) if whole else values
    return lambda: float(prudent.quantile(typed, p=p, epsilon=epsilon))


def opendp_quantile(
    values: FloatArray, p: float, epsilon: float, whole: bool
) -> Callable[[], float]:
    """OpenDP's private quantile among evenly spaced candidates; integers if there are few."""
    import opendp.prelude as opendp

    opendp.enable_features("contrib")
    low, high = wide_bounds(values)
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
    values: FloatArray, p: float, epsilon: float, whole: bool
) -> Callable[[], float]:
    """diffprivlib's quantile between the bounds."""
    tools = diffprivlib_tools()
    bounds = wide_bounds(values)

    def ask() -> float:
        found = float(tools.quantile(values, p, epsilon=epsilon, bounds=bounds))
        return round(found) if whole else found

    return ask


def diffprivlib_tools() -> Any:
    """The statistics of diffprivlib; its models do not import beside a current scikit-learn."""
    sys.modules.setdefault("diffprivlib.models", types.ModuleType("diffprivlib.models"))
    from diffprivlib import tools

    return tools


def our_mean(values: FloatArray, epsilon: float, whole: bool) -> Callable[[], float]:
    """Ours, without bounds."""
    import prudent.release

    typed = values.astype(np.int64) if whole else values
    return lambda: float(prudent.release.mean(typed, epsilon=epsilon))


def opendp_mean(values: FloatArray, epsilon: float) -> Callable[[], float]:
    """OpenDP's noisy sum and count of clamped values, half of ε each."""
    import opendp.prelude as opendp

    opendp.enable_features("contrib", "honest-but-curious")
    bounds = wide_bounds(values)
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


def diffprivlib_mean(values: FloatArray, epsilon: float) -> Callable[[], float]:
    """diffprivlib's mean, which takes the number of records as public."""
    tools = diffprivlib_tools()
    bounds = wide_bounds(values)
    return lambda: float(tools.mean(values, epsilon=epsilon, bounds=bounds))


def error(ask: Callable[[], float], exact: float, runs: int) -> float:
    """The median error over runs; infinite if the tool fails on the data."""
    try:
        return float(np.median([abs(ask() - exact) for _ in range(runs)]))
    except RuntimeError:  # diffprivlib on some columns: its probabilities are not numbers
        return float("inf")


def rows(source: Source, runs: int) -> Iterator[Row]:
    """All rows of one column."""
    values = source.read()
    ordered = np.sort(values)
    for epsilon in EPSILONS:
        for p in QUANTILES:
            exact = float(ordered[int(np.ceil(p * len(ordered))) - 1])
            errors = [
                error(make(values, p, epsilon, source.whole), exact, runs)
                for make in (our_quantile, opendp_quantile, diffprivlib_quantile)
            ]
            yield Row(source.name, len(values), f"p{round(100 * p)}", epsilon, exact, *errors)
        exact = float(np.mean(values))
        errors = [
            error(our_mean(values, epsilon, source.whole), exact, runs),
            error(opendp_mean(values, epsilon), exact, runs),
            error(diffprivlib_mean(values, epsilon), exact, runs),
        ]
        yield Row(source.name, len(values), "mean", epsilon, exact, *errors)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and write a CSV file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--only", default="", help="Columns whose name contains this.")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    found: list[Row] = []
    for source in SOURCES:
        if given.only not in source.name:
            continue
        for row in rows(source, given.runs):
            found.append(row)
            print(
                f"{row.column:28} {row.records:>9,} {row.statistic:5} ε={row.epsilon:<4g} "
                f"ours {row.ours:<10.4g} OpenDP {row.opendp:<10.4g} "
                f"diffprivlib {row.diffprivlib:<10.4g} ratio {row.ratio:.2f}",
                flush=True,
            )
    _write(found, given.out)


def _write(found: list[Row], out: Path | None) -> None:
    with sys.stdout if out is None else out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names: list[Any] = [field.name for field in attrs.fields(Row)]
        writer.writerow([*names, "ratio"])
        writer.writerows([*attrs.astuple(row), round(row.ratio, 3)] for row in found)


if __name__ == "__main__":
    main()
