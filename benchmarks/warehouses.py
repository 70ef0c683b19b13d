"""Private numbers of a large column in DuckDB, PostgreSQL and Spark, beside the engine's median.

    python -m benchmarks.warehouses measure --engines duckdb,postgres,spark --rows 1e5,1e6,1e7,1e8
    python -m benchmarks.warehouses plot

`measure` makes a table of log-normal doubles inside the engine and asks it, in one client process
per engine and size, for a private median, trimmed mean, mean and description, and for the engine's
own exact median and mean, `--rounds` times each in turns. PostgreSQL is a server of its own with
the settings it is installed with; Spark is a cluster of its own with two workers
(`local-cluster[2,1,2048]`); DuckDB reads a Parquet file inside the client. Every answer is a line
of `benchmarks/warehouses.csv`: a size that is measured again takes the place of its earlier lines.
`plot` draws `docs/images/warehouses.png` from these lines and writes them into
`benchmarks/README.md` as a table.

A client that takes longer than `--minutes` is ended, and what it had answered is kept.
"""

import argparse
import contextlib
import csv
import json
import math
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "warehouses.csv"
PICTURE = ROOT / "docs" / "images" / "warehouses.png"
PAGE = ROOT / "benchmarks" / "README.md"
FIELDS = [
    "engine",
    "rows",
    "question",
    "seconds",
    "queries",
    "rows_out",
    "bytes_out",
    "client_megabytes",
    "answer",
]
ENGINES = ("duckdb", "postgres", "postgres with index", "spark")
QUESTIONS = ("median", "trimmed mean", "mean", "describe", "exact median", "exact mean")
EXACT = {"mean": "exact mean"}
"""What a private answer is compared with, if not with the exact median."""

COST: Any = {"epsilon": 0.3, "delta": 1e-6}
LOG_NORMAL = "exp(sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random()))"
CLUSTER = "local-cluster[2,1,2048]"


# --- the client: one process per engine and size -------------------------------------------------


class Traffic:
    """How many queries were asked, and how much came back, at eight bytes a number."""

    def __init__(self) -> None:
        from prudent.release.columns import queries as table_queries

        self.queries = self.rows = self.bytes = 0
        fetch = table_queries.fetched

        def counted(expression: Any) -> Any:
            columns = fetch(expression)
            self.queries += 1
            rows = len(next(iter(columns.values()), []))
            self.rows += rows
            self.bytes += 8 * rows * len(columns)
            return columns

        table_queries.fetched = counted


def client(engine: str, rows: int, where: str, rounds: int) -> None:
    """Asks everything and prints a line of JSON for each answer."""
    import numpy as np

    from prudent.release.statistics import describe, mean, median, trimmed_mean

    proposal = max(1e-4, 3e3 / rows)  # about what the gaps between records allow
    asked: dict[str, Callable[..., Any]] = {
        "median": lambda **table: median(**table, propose=proposal, **COST),
        "trimmed mean": lambda **table: trimmed_mean(
            **table, trim=1_000, propose=10 * proposal, **COST
        ),
        "mean": lambda **table: mean(**table, epsilon=COST["epsilon"]),
        "describe": lambda **table: describe(**table, epsilon=COST["epsilon"]),
    }
    for ask in asked.values():  # calibrates, before the clock
        ask(data=np.zeros(5_000))
    traffic = Traffic()
    with opened(engine, where, rows) as (table, exact):
        for _ in range(rounds):
            for question in QUESTIONS:
                before = traffic.queries, traffic.rows, traffic.bytes
                start = time.perf_counter()
                if question.startswith("exact "):
                    answer = exact(question.removeprefix("exact "))
                    traffic.queries, traffic.rows, traffic.bytes = (
                        traffic.queries + 1,
                        traffic.rows + 1,
                        traffic.bytes + 8,
                    )
                else:
                    found = asked[question](**table())
                    found = found.mean if question == "describe" else found
                    answer = getattr(found, "value", "refused")
                seconds = time.perf_counter() - start
                after = traffic.queries, traffic.rows, traffic.bytes
                out = [now - then for now, then in zip(after, before, strict=True)]
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                line = [engine, rows, question, round(seconds, 3), *out, round(peak), answer]
                print(json.dumps(dict(zip(FIELDS, line, strict=True))), flush=True)


@contextlib.contextmanager
def opened(engine: str, where: str, rows: int) -> Iterator[tuple[Callable[[], Any], Any]]:
    """What a release is given, and a function that asks the engine for its own median."""
    if engine == "duckdb":
        import duckdb

        duckdb.sql("SET enable_progress_bar = false")
        asks = {"median": "quantile_disc(x, 0.5)", "mean": "avg(x)"}
        yield (
            lambda: {"data": where, "column": "x"},
            lambda what: duckdb.sql(f"SELECT {asks[what]} FROM read_parquet('{where}')").fetchone()[
                0
            ],
        )
    elif engine.startswith("postgres"):
        import psycopg

        with psycopg.connect(where) as connection:
            asks = {"median": "percentile_disc(0.5) WITHIN GROUP (ORDER BY x)", "mean": "avg(x)"}
            yield (
                lambda: {"connect": where, "table": "t", "column": "x"},
                lambda what: connection.execute(f"SELECT {asks[what]} FROM t").fetchone()[0],
            )
    else:
        with spark(Path(where)) as session:
            path = f"{where}/x.parquet"
            made = "exp(sqrt(-2 * ln(1 - rand(1))) * cos(2 * pi() * rand(2))) AS x"
            session.range(0, rows, 1, 8).selectExpr(made).write.parquet(path)
            frame = session.read.parquet(path)
            asks = {"median": "percentile(x, 0.5)", "mean": "avg(x)"}
            yield (
                lambda: {"data": frame, "column": "x"},
                lambda what: frame.selectExpr(asks[what]).collect()[0][0],
            )


@contextlib.contextmanager
def spark(folder: Path) -> Iterator[Any]:
    """A cluster of two workers with a core and 2 GB each, in processes of their own."""
    import pyspark
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.executor.memory": "2g",
        "spark.local.dir": str(folder),
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "8",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(CLUSTER)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    logs = Path(pyspark.__file__).parent / "work" / session.sparkContext.applicationId
    try:
        yield session
    finally:
        session.stop()
        shutil.rmtree(logs, ignore_errors=True)


# --- the benchmark: makes tables, starts clients, writes lines -----------------------------------


def measure(engine: str, sizes: list[int], rounds: int, minutes: float) -> None:
    with tempfile.TemporaryDirectory(prefix="prudent-warehouse-") as folder:
        if engine.startswith("postgres"):
            from tests.servers import postgres

            with postgres() as server:
                for rows in sizes:
                    fill_postgres(server.address, rows, with_index=engine.endswith("index"))
                    record(run(engine, rows, server.address, rounds, minutes))
        for rows in sizes if not engine.startswith("postgres") else []:
            where = Path(folder) / str(rows)
            where.mkdir()
            if engine == "duckdb":
                fill_duckdb(where / "x.parquet", rows)
            target = where / "x.parquet" if engine == "duckdb" else where
            record(run(engine, rows, str(target), rounds, minutes))
            shutil.rmtree(where)


def fill_postgres(address: str, rows: int, *, with_index: bool) -> None:
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS t")
        connection.execute(
            f"CREATE UNLOGGED TABLE t AS SELECT {LOG_NORMAL} AS x FROM generate_series(1, {rows})"
        )
        if with_index:
            connection.execute("CREATE INDEX ON t (x)")
        connection.execute("VACUUM ANALYZE t")


def fill_duckdb(path: Path, rows: int) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")
        made = f"SELECT {LOG_NORMAL} AS x FROM range({rows})"
        connection.execute(f"COPY ({made}) TO '{path}' (FORMAT parquet)")


def run(engine: str, rows: int, where: str, rounds: int, minutes: float) -> list[dict[str, object]]:
    """What a client process answered in time."""
    arguments = ["client", engine, str(rows), where, str(rounds)]
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.warehouses", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,  # so that it can be ended together with what it started
    ) as process:

        def end() -> None:
            print(f"{engine}, {rows:.0e} rows: ended after {minutes:g} minutes", flush=True)
            os.killpg(process.pid, signal.SIGKILL)

        clock = threading.Timer(60 * minutes, end)
        clock.start()
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                lines.append(json.loads(line))
                print(line, end="", flush=True)
        process.wait()
        clock.cancel()
    return lines


def record(lines: list[dict[str, object]]) -> None:
    """Puts new lines in the place of the earlier ones of the same engine and size."""
    measured = {(line["engine"], str(line["rows"])) for line in lines}
    kept = [line for line in recorded() if (line["engine"], line["rows"]) not in measured]
    every = sorted(
        [*kept, *lines],
        key=lambda line: (ENGINES.index(line["engine"]), int(line["rows"])),
    )
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(every)


def recorded() -> list[dict[str, Any]]:
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


# --- the picture ---------------------------------------------------------------------------------


def typical(
    lines: list[dict[str, Any]],
    field: str,
    among: Callable[[list[float]], float] = statistics.median,
) -> dict[tuple[str, str, int], float]:
    """One number for all rounds, by engine, question and rows."""
    groups: dict[tuple[str, str, int], list[float]] = {}
    for line in lines:
        key = line["engine"], line["question"], int(line["rows"])
        groups.setdefault(key, []).append(float(line[field]))
    return {key: among(values) for key, values in groups.items()}


def peaks(lines: list[dict[str, Any]]) -> dict[tuple[str, str, int], float]:
    """Of the first round: a peak is never left again, whoever comes after."""
    return typical(lines, "client_megabytes", min)


def plot() -> None:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from prudent.lab.paper.figures import plots

    lines = recorded()
    seconds, memory = typical(lines, "seconds"), peaks(lines)
    strokes = {
        "median": (plots._BLACK, "-", "o"),
        "trimmed mean": (plots._BLUE, (0, (4, 1.5, 1, 1.5)), "s"),
        "mean": (plots._GREEN, (0, (1, 1)), "D"),
        "exact median": (plots._VERMILION, (0, (6, 2)), "^"),
    }
    engines = [engine for engine in ENGINES if any(key[0] == engine for key in seconds)]
    with mpl.rc_context(plots._SETTINGS):
        figure = Figure(figsize=(3.1 * len(engines), 5.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, len(engines), sharex=True, sharey="row", squeeze=False)
        for place, engine in enumerate(engines):
            for row, (measured, label) in enumerate(
                [(seconds, "seconds"), (memory, "client process, MB")]
            ):
                panel = axes[row][place]
                for question, (colour, dashes, marker) in strokes.items():
                    points = sorted(
                        (rows, value)
                        for (who, what, rows), value in measured.items()
                        if (who, what) == (engine, question)
                    )
                    if points:
                        panel.plot(
                            *zip(*points, strict=True),
                            color=colour,
                            linestyle=dashes,
                            marker=marker,
                            markersize=4,
                            label=question if "exact" in question else f"private {question}",
                        )
                panel.set_xscale("log")
                if row == 0:
                    panel.set_yscale("log")
                else:
                    panel.set_ylim(bottom=0)
                if place == 0:
                    panel.set_ylabel(label)
                if row == 0:
                    panel.set_title(engine)
                else:
                    panel.set_xlabel("rows")
        axes[0][0].legend(loc="upper left", fontsize=8)
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(PICTURE, metadata={"Software": None})
    write(table(lines, seconds))


def table(lines: list[dict[str, Any]], seconds: dict[tuple[str, str, int], float]) -> str:
    """The same lines for a page."""
    queries, rows_out = typical(lines, "queries"), typical(lines, "rows_out")
    bytes_out, memory = typical(lines, "bytes_out"), peaks(lines)
    head = "engine|rows|statistic|seconds|of the exact answer's|queries|rows out|kB out|client MB"
    found = [f"|{head}|", "|---" * 9 + "|"]
    for key, value in seconds.items():
        engine, question, rows = key
        if question.startswith("exact "):
            continue
        exact = seconds.get((engine, EXACT.get(question, "exact median"), rows), math.nan)
        ratio = "–" if math.isnan(exact) else f"{value / exact:.2f}"
        found.append(
            f"|{engine}|{rows:,}|{question}|{value:.1f}|{ratio}|{queries[key]:.0f}"
            f"|{rows_out[key]:.0f}|{bytes_out[key] / 1000:.0f}|{memory[key]:.0f}|"
        )
    return "\n".join(found)


def write(text: str) -> None:
    """Puts the table into the page, between its marks."""
    begin, end = "<!-- warehouses: begin -->", "<!-- warehouses: end -->"
    page = PAGE.read_text()
    before, after = page.index(begin) + len(begin), page.index(end)
    PAGE.write_text(f"{page[:before]}\n{text}\n{page[after:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("measure")
    measured.add_argument("--engines", default=",".join(ENGINES))
    measured.add_argument("--rows", default="1e5,1e6,1e7,1e8")
    measured.add_argument("--rounds", type=int, default=1)
    measured.add_argument("--minutes", type=float, default=12.0)
    commands.add_parser("plot")
    asked = commands.add_parser("client")
    for name, kind in {"engine": str, "rows": int, "where": str, "rounds": int}.items():
        asked.add_argument(name, type=kind)
    given = parser.parse_args()
    if given.command == "client":
        client(given.engine, given.rows, given.where, given.rounds)
    elif given.command == "plot":
        plot()
    else:
        for engine in given.engines.split(","):
            sizes = [int(float(rows)) for rows in given.rows.split(",")]
            measure(engine, sizes, given.rounds, given.minutes)


if __name__ == "__main__":
    main()
