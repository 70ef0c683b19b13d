"""A private median of a large Parquet file beside DuckDB's exact one, and errors beside peers.

    python -m benchmarks.tables speed --rows 100000000
    python -m benchmarks.tables accuracy --trials 200

`speed` writes a Parquet file of log-normal doubles into a temporary folder, asks DuckDB for
`quantile_disc(x, 0.5)` and this package for a private median, each in a process of its own and in
turns, and deletes the file. Time starts when the engine is loaded; memory is the largest resident
set of the process. `accuracy` releases medians of synthetic data of several shapes at equal ε.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

CHUNK = 5_000_000
DELTA = 1e-6

EXACT = """
import json, resource, sys, time
import duckdb
duckdb.sql("SET enable_progress_bar = false")
start, busy = time.perf_counter(), time.process_time()
value = duckdb.sql(f"SELECT quantile_disc(x, 0.5) FROM read_parquet('{sys.argv[1]}')").fetchone()[0]
"""

PRIVATE = """
import json, resource, sys, time
import prudent.release.columns.opening
from prudent.release.statistics import median
median([0.0] * 5000, propose=1e-4, epsilon=0.3, delta=1e-6)  # calibrated once, before the clock
start, busy = time.perf_counter(), time.process_time()
value = median(sys.argv[1], "x", propose=1e-4, epsilon=0.3, delta=1e-6).value
"""

REPORT = """
seconds, busy = time.perf_counter() - start, time.process_time() - busy
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"value": value, "seconds": seconds, "processor": busy, "megabytes": peak}))
"""


def write(path: Path, rows: int) -> None:
    """Log-normal doubles, a chunk at a time."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    generator = np.random.default_rng(0)
    with parquet.ParquetWriter(path, pa.schema({"x": pa.float64()})) as writer:
        for start in range(0, rows, CHUNK):
            size = min(CHUNK, rows - start)
            writer.write_table(pa.table({"x": generator.lognormal(size=size)}))


def measured(script: str, path: Path) -> dict[str, float]:
    """What a script did in a process of its own."""
    answer = subprocess.run(
        [sys.executable, "-c", script + REPORT, str(path)],
        capture_output=True,
        check=True,
        text=True,
    )
    return dict(json.loads(answer.stdout))


def speed(rows: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.parquet"
        write(path, rows)
        runs = [(measured(EXACT, path), measured(PRIVATE, path)) for _ in range(rounds)]
    print(f"| {rows:.0e} rows | seconds | processor seconds | MB | answer |")
    print("| --- | --- | --- | --- | --- |")
    for name, results in zip(
        ("DuckDB `quantile_disc`", "private median"), zip(*runs, strict=True), strict=True
    ):
        seconds, busy = (
            statistics.median(one[key] for one in results) for key in ("seconds", "processor")
        )
        most = max(one["megabytes"] for one in results)
        print(f"| {name} | {seconds:.2f} | {busy:.2f} | {most:.0f} | {results[0]['value']:.4f} |")
    for key in ("seconds", "processor"):
        ratio = statistics.median(private[key] / exact[key] for exact, private in runs)
        print(f"\nratio of {key}: {ratio:.2f} (median of {rounds} rounds in turns)")


def accuracy(records: int, trials: int, epsilons: list[float]) -> None:
    """Median errors at equal ε; whoever needs bounds is told those of the shape."""
    from prudent.release.comparison import CANDIDATES, SHAPES, compare_mechanisms

    print(f"| {records:,} records | ε | prudent | refused | OpenDP | diffprivlib |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, shape in SHAPES.items():
        values = np.asarray(shape.rvs(records, np.random.default_rng(0)))
        truth = np.sort(values)[(records + 1) // 2 - 1]
        for row in compare_mechanisms(
            shape, records=records, epsilons=epsilons, delta=DELTA, trials=trials, seed=0
        ):
            peer = _peer_error(values, row.epsilon, shape.bounds, float(truth), trials)
            ours = "-" if row.tested is None else f"{row.tested:.3g}"
            print(
                f"| {name}, bounds {shape.bounds} | {row.epsilon:g} | {ours} | {row.refused:.0%} "
                f"| {row.exponential:.3g} | {peer} |"
            )
    print(
        f"\nMedians of |answer - true median| over {trials} releases, δ = {DELTA:g}. prudent knows "
        "the shape but no bounds, and proposes what a rehearsal on made-up data suggests. OpenDP "
        f"chooses among {CANDIDATES} evenly spaced candidates within the bounds (noisy maximum), "
        "diffprivlib among the gaps between records (exponential mechanism); both are pure ε-DP. "
        "diffprivlib draws with floating-point arithmetic."
    )


def _peer_error(
    values: np.ndarray, epsilon: float, bounds: tuple[float, float], truth: float, trials: int
) -> str:
    """diffprivlib's median error; it has no answer where ties make its probabilities undefined."""
    import diffprivlib

    answers = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(trials):
            try:
                answers.append(diffprivlib.tools.median(values, epsilon=epsilon, bounds=bounds))
            except RuntimeError:
                return "fails"
    return f"{np.median(np.abs(np.array(answers) - truth)):.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    timed = commands.add_parser("speed")
    timed.add_argument("--rows", type=int, default=100_000_000)
    timed.add_argument("--rounds", type=int, default=3)
    compared = commands.add_parser("accuracy")
    compared.add_argument("--records", type=int, default=20_000)
    compared.add_argument("--trials", type=int, default=100)
    compared.add_argument("--epsilons", default="0.1,0.3,1,3")
    given = parser.parse_args()
    if given.command == "speed":
        speed(given.rows, given.rounds)
    else:
        accuracy(given.records, given.trials, [float(each) for each in given.epsilons.split(",")])


if __name__ == "__main__":
    main()
