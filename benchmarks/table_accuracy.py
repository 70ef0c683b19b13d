"""The error of private statistics beside that of other tools, on public tables.

    PRUDENT_TABLES=... python -m benchmarks.table_accuracy [--runs 30] [--out FILE.csv]
    python -m benchmarks.table_accuracy --only shape --epsilons 0.3,1 --statistics mean
    python -m benchmarks.table_accuracy --only shape --peer tumult=/path/to/its/python
    python -m benchmarks.table_accuracy --groups [--runs 30]

OpenDP and diffprivlib are measured in this process; SmartNoise, Tumult and PipelineDP each by the
Python that is named for it (see `benchmarks.table_peers`), on columns that are not too long.
The peers need bounds. They get those that an analyst would type (`Source.typed`), and others ten
times as wide as the data; ours is told nothing, or the typed ones. Every number is the median of
|answer - exact value| over runs with fresh noise, in the unit of the data.

With --groups: means of 20 groups of 30, 100 and 300 records at ε = 1, of six columns. The peers
follow the laws of their mechanisms, so none needs to be installed: of typed bounds [a, b], OpenDP
divides a sum of clamped values (noise for max(|a|, |b|)) by a count, half of ε each; Tumult a sum
of distances from the midpoint (noise for (b - a)/2) by a count, half each; diffprivlib adds noise
for (b - a)/n to the mean, and takes n as public. A record is in one group, so each has all of ε.
"""

import argparse
import csv
import json
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from benchmarks.public_tables import SOURCES, FloatArray, Source

EPSILONS = (0.1, 0.3, 1.0)
ELSEWHERE = ("smartnoise", "tumult", "pipelinedp")
"""Peers that are called in an environment of their own."""

_CANDIDATES = 10_001
_WIDER = 10.0
_LEVEL = 0.1  # a ratio within a tenth of 1 is level
_LONGEST, _FEWEST = 600_000, 1  # rows that are handed to another environment, and runs of them

Bounds = tuple[float, float]
Statistic = str | float
"""A count, a sum, a mean, or the probability of a quantile."""
Errors = Mapping[str, Mapping[str, float]]
"""The median error of each tool with each kind of bounds: none, typed and wide."""


@attrs.frozen
class Row:
    """One statistic of one column at one ε, and the median error of each tool."""

    column: str
    records: int
    statistic: str
    epsilon: float
    exact: float
    errors: Errors

    @property
    def ratios(self) -> dict[str, float]:
        """Our error over a peer's, by what is compared."""
        ours = self.errors["ours"]
        typed, wide = (
            min(each[kind] for name, each in self.errors.items() if name != "ours")
            for kind in ("typed", "wide")
        )
        return {
            "same typed bounds": _ratio(ours["typed"], typed),
            "ours without, OpenDP with typed": _ratio(ours["none"], self.errors["opendp"]["typed"]),
            "ours without, better peer with typed": _ratio(ours["none"], typed),
            "ours without, better peer with wide": _ratio(ours["none"], wide),
        }

    @property
    def cells(self) -> dict[str, Any]:
        """The row of a CSV file; empty for a tool that was not measured or has no answer."""
        own = {name: getattr(self, name) for name in _NAMES}
        tools = {
            f"{tool}_{kind}": f"{error:.5g}"
            for tool, each in self.errors.items()
            for kind, error in each.items()
            if np.isfinite(error)
        }
        return {**own, **tools, **{name: round(each, 3) for name, each in self.ratios.items()}}


_NAMES = ("column", "records", "statistic", "epsilon", "exact")


def _ratio(ours: float, theirs: float) -> float:
    if theirs > 0:
        return ours / theirs
    return 1.0 if ours == 0 else float("inf")


def statistic_of(name: str) -> Statistic:
    """A name, or the probability of a quantile."""
    return int(name[1:]) / 100 if name.startswith("p") else name


def exact_value(ordered: FloatArray, statistic: Statistic) -> float:
    """The exact statistic of ascending values."""
    if isinstance(statistic, float):
        return float(ordered[int(np.ceil(statistic * len(ordered))) - 1])
    exact = {"count": float(len(ordered)), "sum": float(ordered.sum()), "mean": ordered.mean()}
    return float(exact[statistic])


def wide_bounds(values: FloatArray) -> Bounds:
    """Bounds around the data, ten times as wide."""
    low, high = float(values.min()), float(values.max())
    half = _WIDER * max(high - low, 1e-9) / 2
    return (low + high) / 2 - half, (low + high) / 2 + half


def ours(
    values: FloatArray, statistic: Statistic, epsilon: float, whole: bool, bounds: Bounds | None
) -> Callable[[], float]:
    """Ours; the type of the array says whether values are whole."""
    import prudent.release

    typed = values.astype(np.int64) if whole else values
    if statistic == "count":
        return lambda: float(prudent.release.count(typed, epsilon=epsilon))
    if isinstance(statistic, float):
        quantile, p = prudent.release.quantile, statistic
        return lambda: float(quantile(typed, p=p, epsilon=epsilon, bounds=bounds))
    ask = getattr(prudent.release, statistic)
    return lambda: float(ask(typed, epsilon=epsilon, bounds=bounds))


def opendp(
    values: FloatArray, statistic: Statistic, epsilon: float, whole: bool, bounds: Bounds
) -> Callable[[], float]:
    """OpenDP's; a mean is a noisy sum of clamped values and a noisy count, half of ε each."""
    import opendp.prelude as opendp

    opendp.enable_features("contrib", "honest-but-curious")
    space = (
        opendp.vector_domain(opendp.atom_domain(T=float, nan=False)),
        opendp.symmetric_distance(),
    )

    def noisy(query: Any, part: float) -> Any:
        return opendp.binary_search_chain(
            lambda scale: query >> opendp.m.then_laplace(scale), d_in=1, d_out=part * epsilon
        )

    total = space >> opendp.t.then_clamp(bounds) >> opendp.t.then_sum()
    count = space >> opendp.t.then_count()
    if statistic == "mean":
        halves = noisy(total, 0.5), noisy(count, 0.5)
        return lambda: float(halves[0](values)) / max(1.0, float(halves[1](values)))
    if not isinstance(statistic, float):
        measurement = noisy(total if statistic == "sum" else count, 1.0)
        return lambda: float(measurement(values))
    candidates = _candidates(bounds, whole).tolist()

    def choice(scale: float) -> Any:
        return opendp.m.make_private_quantile(
            *space, opendp.max_divergence(), candidates, statistic, scale
        )

    chosen = choice(opendp.binary_search_param(choice, d_in=1, d_out=epsilon))
    return lambda: float(chosen(values))


def _candidates(bounds: Bounds, whole: bool) -> FloatArray:
    """Of OpenDP's quantile: evenly spaced, or all whole numbers if there are few."""
    low, high = bounds
    if whole and high - low < 25_000:
        return np.arange(np.floor(low), np.ceil(high) + 1)
    return np.linspace(low, high, _CANDIDATES)


def diffprivlib(
    values: FloatArray, statistic: Statistic, epsilon: float, whole: bool, bounds: Bounds
) -> Callable[[], float]:
    """diffprivlib's; a mean takes the number of records as public."""
    # Its models do not import beside a current scikit-learn.
    sys.modules.setdefault("diffprivlib.models", types.ModuleType("diffprivlib.models"))
    from diffprivlib import tools

    if statistic == "count":
        ones = np.ones(len(values))
        return lambda: float(tools.count_nonzero(ones, epsilon=epsilon))
    if isinstance(statistic, float):
        nearest = round if whole else float
        return lambda: nearest(tools.quantile(values, statistic, epsilon=epsilon, bounds=bounds))
    ask = getattr(tools, statistic)
    return lambda: float(ask(values, epsilon=epsilon, bounds=bounds))


_TOOLS: dict[str, Callable[..., Callable[[], float]]] = {
    "ours": ours,
    "opendp": opendp,
    "diffprivlib": diffprivlib,
}


def error(ask: Callable[[], float], exact: float, runs: int) -> float:
    """The median error over runs; infinite if the tool fails on the data."""
    try:
        return float(np.median([abs(ask() - exact) for _ in range(runs)]))
    except RuntimeError:  # diffprivlib on some columns: its probabilities are not numbers
        return float("inf")


def asked_elsewhere(
    python: str, name: str, source: Source, requests: list[dict[str, Any]], kept: Path
) -> list[list[float] | None]:
    """The answers of a peer in another environment; None where it has none.

    Without a Python only those that were kept.
    """
    folder = kept / "".join(each if each.isalnum() else "-" for each in source.name)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "column.npy", source.read())
    (folder / "requests.json").write_text(json.dumps(requests))
    script = Path(__file__).with_name("table_peers.py")
    if python:
        subprocess.run([python, script, name, folder], check=True, stderr=subprocess.DEVNULL)
    found = folder / f"{name}.json"
    answers = json.loads(found.read_text()) if found.exists() else {}
    return [answers.get(json.dumps(request)) for request in requests]


def rows(
    source: Source,
    runs: int,
    statistics: Iterable[str],
    epsilons: Iterable[float] = EPSILONS,
    peers: Mapping[str, str] | None = None,
    kept: Path = Path("peers"),
) -> Iterator[Row]:
    """All rows of one column.

    Args:
        source: The column.
        runs: How often ours, OpenDP and diffprivlib are asked.
        statistics: Their names.
        epsilons: The ε of each release.
        peers: The Python of each tool that needs one of its own.
        kept: Where the answers of these are kept; what they have answered is not asked again.
    """
    values = source.read()
    ordered, whole = np.sort(values), source.whole
    kinds: dict[str, Bounds] = {"typed": source.typed, "wide": wide_bounds(values)}
    asked = [(name, epsilon) for epsilon in epsilons for name in statistics]
    groups = max(_FEWEST, min(runs, _LONGEST // len(values)))
    requests = [
        {
            "file": "column.npy",
            "statistic": statistic_of(name),
            "epsilon": epsilon,
            "bounds": bounds,
            "runs": groups,
        }
        for name, epsilon in asked
        for bounds in kinds.values()
    ]
    elsewhere = {
        name: iter(asked_elsewhere(python, name, source, requests, kept))
        for name, python in (peers or {}).items()
    }
    for name, epsilon in asked:
        statistic = statistic_of(name)
        exact = exact_value(ordered, statistic)

        def ask(
            tool: str,
            bounds: Bounds | None,
            statistic: Statistic = statistic,
            epsilon: float = epsilon,
        ) -> Any:
            return _TOOLS[tool](values, statistic, epsilon, whole, bounds)

        errors = {
            tool: {kind: error(ask(tool, bounds), exact, runs) for kind, bounds in kinds.items()}
            for tool in _TOOLS
        }
        errors["ours"] = {"none": error(ask("ours", None), exact, runs), **errors["ours"]}
        for tool, found in elsewhere.items():
            answers = {kind: next(found) for kind in kinds}
            errors[tool] = {
                kind: float("inf")
                if each is None
                else float(np.median(np.abs(np.array(each) - exact)))
                for kind, each in answers.items()
            }
        yield Row(source.name, len(values), name, epsilon, exact, errors)


GROUPS, GROUP_SIZES = 20, (30, 100, 300)


def _off(g: np.random.Generator, deviation: float) -> FloatArray:
    """How far groups are off the middle of all."""
    return g.normal(0, deviation, (GROUPS, 1))


GROUPED: dict[str, tuple[Callable[[np.random.Generator, int], FloatArray], Bounds]] = {
    "age, normal": (
        lambda g, n: np.clip(np.rint(g.normal(45 + _off(g, 5), 15, (GROUPS, n))), 18, 95),
        (0, 100),
    ),
    "income, log-normal": (
        lambda g, n: g.lognormal(10.5 + _off(g, 0.2), 0.8, (GROUPS, n)),
        (0, 500_000),
    ),
    "score, 0 to 100": (lambda g, n: 100 * g.beta(5, 2, (GROUPS, n)), (0, 100)),
    "cost, Pareto(1.5)": (
        lambda g, n: 1e3 * np.exp(_off(g, 0.2)) * (1 + g.pareto(1.5, (GROUPS, n))),
        (0, 100_000),
    ),
    "purchase, 60 % zero": (
        lambda g, n: g.lognormal(5 + _off(g, 0.2), 1, (GROUPS, n)) * (g.random((GROUPS, n)) > 0.6),
        (0, 5_000),
    ),
    "delay, in minutes": (
        lambda g, n: np.rint(
            g.normal(-5 + _off(g, 2), 8, (GROUPS, n))
            + g.exponential(60, (GROUPS, n)) * (g.random((GROUPS, n)) < 0.25)
        ),
        (-60, 600),
    ),
}
"""Columns by group, a row for each, and the bounds that an analyst would type."""


def group_errors(name: str, records: int, runs: int) -> dict[str, float]:
    """The median error of the means of all groups, at ε = 1."""
    from prudent.release.columns.opening import open_column
    from prudent.release.noise import source_of
    from prudent.release.request import PricedPart, Request, price
    from prudent.release.statistics.moments import OneMoment

    draw, (low, high) = GROUPED[name]
    generator = np.random.default_rng(records)
    values = draw(generator, records)
    exact, clipped = values.mean(axis=1), np.clip(values, low, high)
    whole = bool((values == np.rint(values)).all())
    columns = {
        place: open_column(each, read_as="integer" if whole else None)
        for place, each in enumerate(values)
    }
    mean = OneMoment("mean", 1)
    priced = price(mean, Request(epsilon=1.0, by="group"), columns[0])
    asked = PricedPart(mean, columns, priced.preview, priced)
    answers = [asked.answer(None, source_of(None)) for _ in range(runs)]
    shape, middle = (50 * runs, GROUPS), (low + high) / 2

    def noise(scale: float) -> FloatArray:
        return generator.laplace(0, scale, shape)

    total = clipped.sum(axis=1)
    counts = [np.maximum(1, np.rint(records + noise(2.0))) for _ in range(2)]
    found = {
        "ours": [[float(each[place]) for place in columns] for each in answers],
        "opendp": (total + noise(2 * max(abs(low), abs(high)))) / counts[0],
        "tumult": middle + (total - records * middle + noise(high - low)) / counts[1],
        "diffprivlib": np.clip(total / records + noise((high - low) / records), low, high),
    }
    return {tool: float(np.median(np.abs(np.array(each) - exact))) for tool, each in found.items()}


def by_group(runs: int) -> None:
    """Print a row for each column and size: median errors, and ours over the best peer's."""
    print("| column | records | ours, no bounds | OpenDP | Tumult | diffprivlib | ratio |")
    print("|---|---|---|---|---|---|---|")
    level = 0
    for name in GROUPED:
        for records in GROUP_SIZES:
            own, *peers = group_errors(name, records, runs).values()
            level += own <= min(peers)
            cells = " | ".join(f"{each:,.3g}" for each in (own, *peers))
            print(f"| {name} | {records} | {cells} | {own / min(peers):.2f} |", flush=True)
    print(f"at most the best peer's error: {level} of {len(GROUPED) * len(GROUP_SIZES)}")


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and write a CSV file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--groups", action="store_true", help="Means by group instead.")
    parser.add_argument("--only", default="", help="Columns whose name contains this.")
    parser.add_argument("--except", dest="without", default=None, help="Not those with this.")
    parser.add_argument("--most", type=int, default=10**9, help="Columns of at most this length.")
    parser.add_argument("--statistics", default="count,sum,mean,p50,p90,p99")
    parser.add_argument("--epsilons", default=",".join(map(str, EPSILONS)))
    parser.add_argument(
        "--peer", action="append", default=[], help="NAME=PYTHON, or NAME= for what was kept."
    )
    parser.add_argument(
        "--peers-most", type=int, default=2_000, help="Columns of at most this length for them."
    )
    parser.add_argument("--kept", type=Path, default=Path("peers"), help="Their answers.")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    if given.groups:
        by_group(given.runs)
        return
    peers = dict(each.split("=", 1) for each in given.peer)
    found: list[Row] = []
    for source in SOURCES:
        if given.only not in source.name or (given.without and given.without in source.name):
            continue
        if (records := len(source.read())) > given.most:
            continue
        epsilons = list(map(float, given.epsilons.split(",")))
        chosen = peers if records <= given.peers_most else {}
        statistics = given.statistics.split(",")
        for row in rows(source, given.runs, statistics, epsilons, chosen, given.kept):
            found.append(row)
            print(
                f"{row.column:28} {row.records:>9,} {row.statistic:5} ε={row.epsilon:<4g} "
                f"ours {row.errors['ours']['none']:<10.4g}",
                *(f"{name} {ratio:.2f}" for name, ratio in row.ratios.items()),
                sep="; ",
                flush=True,
            )
    for statistic in given.statistics.split(","):
        _summarise(statistic, [row.ratios for row in found if row.statistic == statistic])
    _write(found, given.out)


def _summarise(statistic: str, ratios: list[dict[str, float]]) -> None:
    """Print how many rows are better, level and worse, and at most twice as bad."""
    for name in ratios[0] if ratios else ():
        column = [each[name] for each in ratios]
        better = sum(ratio < 1 - _LEVEL for ratio in column)
        worse = sum(ratio > 1 + _LEVEL for ratio in column)
        print(
            f"{statistic}, {name}: better {better}, level {len(column) - better - worse}, "
            f"worse {worse} of {len(column)}; at most twice {sum(each <= 2 for each in column)}"
        )


def _write(found: list[Row], out: Path | None) -> None:
    kinds = ("typed", "wide")
    tools = ("ours_none", *(f"{each}_{kind}" for each in (*_TOOLS, *ELSEWHERE) for kind in kinds))
    names = [*_NAMES, *tools, *(found[0].ratios if found else ())]
    with sys.stdout if out is None else out.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.cells for row in found)


if __name__ == "__main__":
    main()
