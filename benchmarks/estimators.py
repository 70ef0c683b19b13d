"""Private linear regression beside that of others, table by table.

    PRUDENT_TABLES=... python -m benchmarks estimators [--runs 20] [--methods ours,TukeyEM]
    python -m benchmarks estimators --write

Every number is the median, over fits with fresh noise, of R² on a fifth of the records that no fit
has seen; δ = 1e-6. Rows of the same table, method and ε in `estimators.csv` are replaced, so peers
that need another environment can be run there; `--write` only puts them into README.md.
`benchmarks.regression_tables` has the tables.
"""

import argparse
import csv
import fcntl
import math
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

import attrs
import numpy as np

from benchmarks.public_tables import FloatArray, folder
from benchmarks.regression_peers import FOR_ONE_FEATURE, Method, Predict, available
from benchmarks.regression_tables import DEVELOPMENT, TABLES, Table

RESULTS = Path(__file__).with_suffix(".csv")
PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- regression: begin -->", "<!-- regression: end -->"
EPSILONS = (0.3, 1.0, 3.0)
DELTA = 1e-6
PEER_RUNS = 5


@attrs.frozen
class Row:
    """One method on one table at one ε.

    Attributes:
        kind: Whether settings were chosen on the table ("development") or not ("held out").
        records: In the training part, as features are.
        least_squares: R² of ordinary least squares.
        r2: The median R²; minus infinity if most fits had no answer.
        seconds: Processor time of one fit.
    """

    table: str
    kind: str
    records: int
    features: int
    least_squares: float
    method: str
    epsilon: float
    runs: int
    r2: float
    seconds: float

    @property
    def key(self) -> tuple[str, str, float]:
        """What there is one row of."""
        return self.table, self.method, self.epsilon

    @property
    def large(self) -> bool:
        """Whether there are 200 records per coefficient."""
        return self.records >= 200 * (self.features + 1)


def ours(features: FloatArray, target: FloatArray, epsilon: float, delta: float) -> Predict | None:
    """Ours, without bounds."""
    from prudent.estimators import LinearRegression, TooFewRecordsError

    try:
        return LinearRegression(epsilon=epsilon, delta=delta).fit(features, target).predict
    except TooFewRecordsError:
        return None


def r_squared(predicted: FloatArray, target: FloatArray) -> float:
    """The share of the variance that a prediction explains."""
    left = float(np.sum((target - predicted) ** 2))
    return 1 - left / float(np.sum((target - target.mean()) ** 2))


def least_squares(features: FloatArray, target: FloatArray) -> Predict:
    """Ordinary least squares."""
    rows = np.concatenate([np.ones((len(target), 1)), features], axis=1)
    found = np.linalg.lstsq(rows, target, rcond=None)[0]
    return lambda given: found[0] + given @ found[1:]


def measure(
    table: Table, methods: dict[str, Method], epsilons: Iterable[float], runs: int
) -> Iterable[Row]:
    """Rows of one table."""
    features, target, test, truth = table.split()
    kind = "development" if table in DEVELOPMENT else "held out"
    plain = r_squared(least_squares(features, target)(test), truth)
    for name, fit in methods.items():
        if name in FOR_ONE_FEATURE and features.shape[1] > 1:
            continue
        repeats = runs if name == "ours" else min(runs, PEER_RUNS)
        for epsilon in epsilons:
            found, start = [], time.process_time()
            for _ in range(repeats):
                predict = fit(features, target, epsilon, DELTA)
                score = -math.inf if predict is None else r_squared(predict(test), truth)
                found.append(score if math.isfinite(score) else -math.inf)
            yield Row(
                table.name,
                kind,
                len(target),
                features.shape[1],
                plain,
                name,
                epsilon,
                repeats,
                float(np.median(found)),
                (time.process_time() - start) / repeats,
            )


def read() -> dict[tuple[str, str, float], Row]:
    """What was measured before."""
    if not RESULTS.exists():
        return {}
    types = {field.name: field.type for field in attrs.fields(Row)}
    with RESULTS.open(newline="") as file:
        rows = [
            Row(**{name: types[name](text) for name, text in line.items()})
            for line in csv.DictReader(file)
        ]
    return {row.key: row for row in rows}


def write(rows: Iterable[Row]) -> None:
    """Keep what was measured, in the order of the tables."""
    order = list(TABLES)
    ordered = sorted(rows, key=lambda row: (order.index(row.table), row.method, row.epsilon))
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in attrs.fields(Row)])
        for row in ordered:
            writer.writerow(
                [
                    f"{value:.4g}" if isinstance(value, float) else value
                    for value in attrs.astuple(row)
                ]
            )


def keep(found: Iterable[Row]) -> None:
    """Add rows to those measured before; several processes may do so."""
    with (folder() / "estimators.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write({**read(), **{row.key: row for row in found}}.values())


def summary(rows: Iterable[Row], kinds: Iterable[str] = ("held out", "development")) -> str:
    """For each method and ε: tables with R² > 0, with 0.9 of least squares, of how many."""
    rows = [row for row in rows if row.large]
    methods = sorted({row.method for row in rows}, key=lambda name: (name != "ours", name))
    lines = ["| tables | method | " + " | ".join(f"ε = {e:g}" for e in EPSILONS) + " |"]
    lines.append("|---|---|" + "---|" * len(EPSILONS))
    for kind in kinds:
        for method in methods:
            cells = []
            for epsilon in EPSILONS:
                of = [r for r in rows if (r.kind, r.method, r.epsilon) == (kind, method, epsilon)]
                positive = sum(row.r2 > 0 for row in of)
                close = sum(row.r2 >= 0.9 * row.least_squares for row in of)
                cells.append(f"{positive} / {close} of {len(of)}" if of else "")
            lines.append(f"| {kind} | {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def by_name(rows: Iterable[Row]) -> str:
    """R² of each table that no setting was chosen on: ours at each ε, and of others at ε = 1."""
    others = ("TukeyEM", "boosted AdaSSP, standardised for free", "diffprivlib, perfect bounds")
    shown = [*(("ours", epsilon) for epsilon in EPSILONS), *((name, 1.0) for name in others)]
    names = ["records", "features", "least squares", *(f"{m}, ε = {e:g}" for m, e in shown)]
    lines = ["| table | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    held = {row.key: row for row in rows if row.kind == "held out"}
    for first in (row for row in held.values() if row.key[1:] == ("ours", 1.0)):
        cells = [f"{first.records:,}", str(first.features), f"{first.least_squares:.3f}"]
        for method, epsilon in shown:
            row = held.get((first.table, method, epsilon))
            r2 = -math.inf if row is None else row.r2
            cells.append(f"{r2:.3f}" if r2 > 0 else "–")
        lines.append(f"| `{first.table}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and keep."""
    methods: dict[str, Method] = {"ours": ours, **available()}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--methods", default=None, help="Parts of names, separated by commas.")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--epsilons", default=",".join(f"{epsilon:g}" for epsilon in EPSILONS))
    parser.add_argument("--write", action="store_true", help="Write README.md alone.")
    given = parser.parse_args(arguments)
    if given.write:
        before, rest = PAGE.read_text().split(BEGIN)
        found = list(read().values())
        text = f"{summary(found, ['held out'])}\n\nR² above 0:\n\n{by_name(found)}"
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")
        return
    if given.methods:
        parts = given.methods.split(",")
        methods = {name: fit for name, fit in methods.items() if any(p in name for p in parts)}
    warnings.simplefilter("ignore")
    epsilons = [float(text) for text in given.epsilons.split(",")]
    for name in given.tables.split(","):
        found = list(measure(TABLES[name], methods, epsilons, given.runs))
        keep(found)
        for row in found:
            print(
                f"{row.table:16} n = {row.records:>9,} d = {row.features:>2} "
                f"{row.method:28} ε = {row.epsilon:<4g} R² = {row.r2:8.3f} "
                f"least squares {row.least_squares:.3f}  {row.seconds:.2f} s",
                flush=True,
            )
    print(summary(read().values()))


if __name__ == "__main__":
    main()
