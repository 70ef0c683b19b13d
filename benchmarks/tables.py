"""A private median of a large Parquet file beside DuckDB's exact one.

    python -m benchmarks.tables --rows 100000000

It writes a Parquet file of log-normal doubles into a temporary folder, asks DuckDB for
`quantile_disc(x, 0.5)` and this package for a private median, with and without a proposal, each in
a process of its own and in turns, and deletes the file. Time starts when the engine is loaded;
memory is the largest resident set of the process. Errors beside peers: `benchmarks.table_accuracy`.

    python -m benchmarks.tables --rows 10000000 --questions

asks everyday questions of numbers and twenty words instead, in turns in one warm process, and
prints how many times the processor seconds of DuckDB's exact answer each takes.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

CHUNK = 5_000_000

EXACT = """
import json, resource, sys, time
import duckdb
duckdb.sql("SET enable_progress_bar = false")
start, busy = time.perf_counter(), time.process_time()
value = duckdb.sql(f"SELECT quantile_disc(x, 0.5) FROM read_parquet('{sys.argv[1]}')").fetchone()[0]
"""

CHOSEN = """
import json, resource, sys, time
import prudent.release.columns.opening
from prudent.release.statistics import median
median([0.0] * 5000, epsilon=0.3)  # the samplers are loaded before the clock starts
start, busy = time.perf_counter(), time.process_time()
value = median(sys.argv[1], "x", epsilon=0.3).value
"""

TESTED = """
import json, resource, sys, time
import prudent.release.columns.opening
from prudent.release.statistics import median
median([0.0] * 5000, propose=1e-4, epsilon=0.3, delta=1e-6)  # calibrated before the clock starts
start, busy = time.perf_counter(), time.process_time()
value = median(sys.argv[1], "x", propose=1e-4, epsilon=0.3, delta=1e-6).value
"""

REPORT = """
seconds, busy = time.perf_counter() - start, time.process_time() - busy
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"value": value, "seconds": seconds, "processor": busy, "megabytes": peak}))
"""


ASKED = {
    "DuckDB `quantile_disc`": EXACT,
    "private median": CHOSEN,
    "private median with a proposal": TESTED,
}


QUESTIONS = {
    "median": "SELECT median(x) FROM '{path}'",
    "mean": "SELECT avg(x) FROM '{path}'",
    "count by a text": "SELECT g, count(*) FROM '{path}' GROUP BY g",
    "mean and median by a text": "SELECT g, avg(x), median(x) FROM '{path}' GROUP BY g",
}


def write(path: Path, rows: int) -> None:
    """Log-normal doubles and one of twenty words, a chunk at a time."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    generator = np.random.default_rng(0)
    words = np.array([f"word {place}" for place in range(20)])
    with parquet.ParquetWriter(path, pa.schema({"x": pa.float64(), "g": pa.string()})) as writer:
        for start in range(0, rows, CHUNK):
            size = min(CHUNK, rows - start)
            drawn = {"x": generator.lognormal(size=size), "g": generator.choice(words, size)}
            writer.write_table(pa.table(drawn))


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
        runs = [[measured(each, path) for each in ASKED.values()] for _ in range(rounds)]
    print(f"| {rows:.0e} rows | seconds | processor seconds | MB | answer |")
    print("| --- | --- | --- | --- | --- |")
    for name, results in zip(ASKED, zip(*runs, strict=True), strict=True):
        seconds, busy = (
            statistics.median(one[key] for one in results) for key in ("seconds", "processor")
        )
        most = max(one["megabytes"] for one in results)
        print(f"| {name} | {seconds:.2f} | {busy:.2f} | {most:.0f} | {results[0]['value']:.4f} |")
    for place, name in enumerate(ASKED):
        for key in ("seconds", "processor"):
            ratio = statistics.median(run[place][key] / run[0][key] for run in runs)
            print(f"{name}: ratio of {key} {ratio:.2f} (median of {rounds} rounds in turns)")


def questions(rows: int, rounds: int) -> None:
    import duckdb

    import prudent

    def busy(ask: Callable[[str], object], query: str) -> float:
        before = sum(os.times()[:2])
        ask(query)
        return sum(os.times()[:2]) - before

    exact = duckdb.connect()
    exact.execute("SET enable_progress_bar = false")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.parquet"
        write(path, rows)
        for name, question in QUESTIONS.items():
            query = question.format(path=path)
            private = functools.partial(prudent.sql, epsilon=1.0, delta=1e-6)
            private(query.replace(" GROUP", " WHERE x < 0.1 GROUP"))  # what it loads is loaded
            runs = [
                (busy(lambda sql: exact.execute(sql).fetchall(), query), busy(private, query))
                for _ in range(rounds)
            ]
            theirs, ours = (statistics.median(each) for each in zip(*runs, strict=True))
            print(f"| {name} | {theirs:.2f} | {ours:.2f} | {ours / theirs:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", action="store_true")
    given = parser.parse_args()
    (questions if given.questions else speed)(given.rows, given.rounds)


if __name__ == "__main__":
    main()
