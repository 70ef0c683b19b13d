"""Private statistics of large columns in DuckDB, PostgreSQL and Spark, beside the exact ones.

    python -m benchmarks.warehouses measure --engines duckdb,postgres,spark --rows 1e7,1e8
    python -m benchmarks.warehouses plot

`measure` makes a table of two columns of log-normal doubles and one of forty words inside the
engine and asks it, in one client process per engine and size, each of `QUESTIONS` and the engine's
own exact answer of the same kind, `--rounds` times in turns after a first one that warms the
process up; with `--rounds 0` only the first. What is compared are processor seconds, of the
client and of the engine's processes together: other work on the machine changes them less than the
time on the clock, and an engine that uses more cores gains nothing.
PostgreSQL is a server of its own with the settings it is installed with; Spark is a process
of its own with two threads (`local[2]`); DuckDB reads a Parquet file inside the client. Every
answer is a line of `benchmarks/warehouses.csv`: what is measured again takes the place of its
earlier lines.
`plot` draws `docs/images/warehouses.png` from these lines and writes them into
`benchmarks/README.md` as a table.

A client that takes longer than `--minutes` is ended, and what it had answered is kept.
"""

import argparse
import contextlib
import csv
import json
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
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "warehouses.csv"
PICTURE = ROOT / "docs" / "images" / "warehouses.png"
PAGE = ROOT / "benchmarks" / "README.md"
FIELDS = [
    "engine",
    "rows",
    "question",
    "seconds",
    "processor_seconds",
    "queries",
    "rows_out",
    "bytes_out",
    "client_megabytes",
]
ENGINES = ("duckdb", "postgres", "postgres with index", "spark")

PURE: Any = {"epsilon": 0.3}
PTR: Any = {"epsilon": 0.3, "delta": 1e-6}
WORDS = 40
LISTED = [str(word) for word in range(4)]
LOG_NORMAL = "exp(sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random()))"
MADE = f"{LOG_NORMAL} AS x, {LOG_NORMAL} AS y, CAST(range % {WORDS} AS VARCHAR) AS c"
MEDIANS = {
    "duckdb": "quantile_disc(x, 0.5)",
    "postgres": "percentile_disc(0.5) WITHIN GROUP (ORDER BY x)",
    "spark": "percentile(x, 0.5)",
}
_BY_LISTED = f"WHERE c IN ({', '.join(map(repr, LISTED))}) GROUP BY c"


class Question(NamedTuple):
    """A private statistic: how a release is asked for it, and the exact answer of its kind."""

    ask: Callable[..., Any]
    exact: str


def asked(name: str, *columns: str, **given: Any) -> Callable[..., Any]:
    """Ask for a statistic of columns; a number of rows calls for a proposal."""

    def ask(rows: int, **table: Any) -> Any:
        from prudent.release import statistics

        options = {key: each(rows) if callable(each) else each for key, each in given.items()}
        names = dict(zip(("column", SECOND.get(name, "other")), columns, strict=False))
        return getattr(statistics, name)(**table, **names, **options)

    return ask


SECOND = {"weighted_mean": "weights"}


def proposal(rows: int) -> float:
    """About what the gaps between records allow."""
    return max(1e-4, 3e3 / rows)


QUESTIONS = {
    "count": Question(asked("count", **PURE), "count(*) FROM t"),
    "proportion": Question(
        asked("proportion", "x > 2", **PURE), "avg(CASE WHEN x > 2 THEN 1.0 ELSE 0.0 END) FROM t"
    ),
    "sum": Question(asked("sum", "x", **PURE), "sum(x) FROM t"),
    "mean": Question(asked("mean", "x", **PURE), "avg(x) FROM t"),
    "mean, bounds": Question(asked("mean", "x", bounds=(0, 100), **PURE), "avg(x) FROM t"),
    "variance": Question(asked("variance", "x", **PURE), "var_pop(x) FROM t"),
    "deviation, bounds": Question(
        asked("deviation", "x", bounds=(0, 100), **PURE), "stddev_pop(x) FROM t"
    ),
    "median": Question(asked("median", "x", propose=proposal, **PTR), "{median} FROM t"),
    "trimmed mean": Question(
        asked("trimmed_mean", "x", trim=1_000, propose=lambda rows: 10 * proposal(rows), **PTR),
        "{median} FROM t",
    ),
    "maximum": Question(asked("maximum", "x", **PURE), "max(x) FROM t"),
    "describe": Question(
        asked("describe", "x", **PURE), "count(x), avg(x), stddev_pop(x), {median} FROM t"
    ),
    "histogram": Question(
        asked("histogram", "x", **PURE), "floor(x * 4), count(*) FROM t GROUP BY floor(x * 4)"
    ),
    "ratio": Question(asked("ratio", "x", "y", **PURE), "sum(x) / sum(y) FROM t"),
    "weighted mean": Question(
        asked("weighted_mean", "x", "y", **PURE), "sum(x * y) / sum(y) FROM t"
    ),
    "covariance": Question(asked("covariance", "x", "y", **PURE), "covar_pop(x, y) FROM t"),
    "correlation": Question(asked("correlation", "x", "y", **PURE), "corr(x, y) FROM t"),
    "distinct": Question(asked("count_distinct", "c", **PURE), "count(DISTINCT c) FROM t"),
    "top 3": Question(
        asked("top_k", "c", k=3, **PTR),
        "c, count(*) AS n FROM t GROUP BY c ORDER BY n DESC LIMIT 3",
    ),
    "count of each word": Question(
        asked("count", by="c", groups=[str(word) for word in range(WORDS)], **PURE),
        "c, count(*) FROM t GROUP BY c",
    ),
    "mean of 4 words": Question(
        asked("mean", "x", by="c", groups=LISTED, **PURE), f"c, avg(x) FROM t {_BY_LISTED}"
    ),
}


# --- the client: one process per engine and size -------------------------------------------------


class Traffic:
    """How many queries were asked, and how much came back, at eight bytes a number."""

    def __init__(self) -> None:
        from prudent.release.columns import opening, queries

        self.queries = self.rows = self.bytes = 0
        fetch, batches = queries.fetched, queries.arrow_batches

        def counted(expression: Any) -> Any:
            columns = fetch(expression)
            self.queries += 1
            rows = len(next(iter(columns.values()), []))
            self.rows += rows
            self.bytes += 8 * rows * len(columns)
            return columns

        def watched(expression: Any, *size: int) -> Iterator[Any]:
            self.queries += 1
            yield from batches(expression, *size)  # within this process: nothing comes back

        queries.fetched = opening.fetched = counted
        queries.arrow_batches = watched


def processor_seconds(engine: str, where: str) -> float:
    """Of this process and those that it started, and of the server, so far."""
    roots = []
    if engine.startswith("postgres"):
        import psycopg

        with psycopg.connect(where) as connection:
            (folder,) = connection.execute("SHOW data_directory").fetchone() or ("",)
            told = connection.execute("SELECT pg_read_file(%s)", [f"{folder}/postmaster.pid"])
            roots.append(int((told.fetchone() or ("0",))[0].split()[0]))
    every = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            every[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    found = 0
    roots += [process for process, (parent, _) in every.items() if parent == os.getpid()]
    while roots:
        found += sum(every[root][1] for root in roots if root in every)
        roots = [process for process, (parent, _) in every.items() if parent in roots]
    return time.process_time() + found / os.sysconf("SC_CLK_TCK")


def client(engine: str, rows: int, where: str, rounds: int, questions: list[str]) -> None:
    """Asks everything and prints a line of JSON for each answer."""
    traffic = Traffic()
    with opened(engine, where, rows) as (table, exact):
        for question in questions:
            own = QUESTIONS[question]
            for turn in range(rounds + 1):
                for name, ask in (
                    (question, lambda own=own: own.ask(rows, **table())),
                    (f"exact {question}", lambda own=own: exact(own.exact)),
                ):
                    before = traffic.queries, traffic.rows, traffic.bytes
                    used, start = processor_seconds(engine, where), time.perf_counter()
                    ask()
                    seconds = time.perf_counter() - start
                    used = processor_seconds(engine, where) - used
                    after = traffic.queries, traffic.rows, traffic.bytes
                    out = [now - then for now, then in zip(after, before, strict=True)]
                    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
                    if (
                        turn or not rounds
                    ):  # the first warms the process up: it calibrates and imports
                        line = [engine, rows, name, round(seconds, 3), round(used, 3), *out, peak]
                        print(json.dumps(dict(zip(FIELDS, line, strict=True))), flush=True)


@contextlib.contextmanager
def opened(engine: str, where: str, rows: int) -> Iterator[tuple[Callable[[], Any], Any]]:
    """What a release is given, and a function that asks the engine itself."""
    median = MEDIANS[engine.split()[0]]
    if engine == "duckdb":
        import duckdb

        duckdb.sql("SET enable_progress_bar = false")
        duckdb.sql(f"CREATE VIEW t AS FROM read_parquet('{where}')")
        yield (
            lambda: {"data": where},
            lambda what: duckdb.sql(f"SELECT {what.format(median=median)}").fetchall(),
        )
    elif engine.startswith("postgres"):
        import psycopg

        with psycopg.connect(where) as connection:
            yield (
                lambda: {"connect": where, "table": "t"},
                lambda what: connection.execute(f"SELECT {what.format(median=median)}").fetchall(),
            )
    else:
        with spark(Path(where)) as session:
            path = f"{where}/x.parquet"
            made = [
                f"exp(sqrt(-2 * ln(1 - rand({i}))) * cos(2 * pi() * rand({i + 1}))) AS {name}"
                for i, name in ((1, "x"), (3, "y"))
            ]
            words = f"CAST(id % {WORDS} AS STRING) AS c"
            session.range(0, rows, 1, 8).selectExpr(*made, words).write.parquet(path)
            frame = session.read.parquet(path)
            frame.createOrReplaceTempView("t")
            yield (
                lambda: {"data": frame},
                lambda what: session.sql(f"SELECT {what.format(median=median)}").collect(),
            )


@contextlib.contextmanager
def spark(folder: Path) -> Iterator[Any]:
    """A process of its own with two threads and 2 GB."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(folder),
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "8",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


# --- the benchmark: makes tables, starts clients, writes lines -----------------------------------


def measure(
    engine: str, sizes: list[int], rounds: int, minutes: float, questions: list[str]
) -> None:
    with tempfile.TemporaryDirectory(prefix="prudent-warehouse-") as folder:
        if engine.startswith("postgres"):
            from tests.servers import postgres

            with postgres() as server:
                for rows in sizes:
                    fill_postgres(server.address, rows, with_index=engine.endswith("index"))
                    record(run(engine, rows, server.address, rounds, minutes, questions))
        for rows in sizes if not engine.startswith("postgres") else []:
            where = Path(folder) / str(rows)
            where.mkdir()
            if engine == "duckdb":
                fill_duckdb(where / "x.parquet", rows)
            target = where / "x.parquet" if engine == "duckdb" else where
            record(run(engine, rows, str(target), rounds, minutes, questions))
            shutil.rmtree(where)


def fill_postgres(address: str, rows: int, *, with_index: bool) -> None:
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS t")
        connection.execute(
            f"CREATE UNLOGGED TABLE t AS SELECT {MADE} FROM generate_series(1, {rows}) AS r (range)"
        )
        if with_index:
            connection.execute("CREATE INDEX ON t (x)")
        connection.execute("VACUUM ANALYZE t")


def fill_duckdb(path: Path, rows: int) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")
        made = f"SELECT {MADE} FROM range({rows})"
        connection.execute(f"COPY ({made}) TO '{path}' (FORMAT parquet)")


def run(
    engine: str, rows: int, where: str, rounds: int, minutes: float, questions: list[str]
) -> list[dict[str, object]]:
    """What a client process answered in time."""
    arguments = ["client", engine, str(rows), where, str(rounds), ";".join(questions)]
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
    """Puts new lines in the place of the earlier ones of the same engine, size and question."""

    def key(line: dict[str, Any]) -> tuple[int, int, int, str]:
        name = line["question"].removeprefix("exact ")
        place = list(QUESTIONS).index(name)
        return ENGINES.index(line["engine"]), int(line["rows"]), place, line["question"]

    measured = set(map(key, lines))
    every = sorted([*(line for line in recorded() if key(line) not in measured), *lines], key=key)
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
    """One number for all rounds, by engine, question and rows.

    Lines of idle cores may tell the seconds on the clock alone.
    """
    groups: dict[tuple[str, str, int], list[float]] = {}
    for line in lines:
        key = line["engine"], line["question"], int(line["rows"])
        known = line[field] or (line["seconds"] if field == "processor_seconds" else None)
        if known:
            groups.setdefault(key, []).append(float(known))
    return {key: among(values) for key, values in groups.items()}


def peaks(lines: list[dict[str, Any]]) -> dict[tuple[str, str, int], float]:
    """Of the first round: a peak is never left again, whoever comes after."""
    return typical(lines, "client_megabytes", min)


def plot() -> None:
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from prudent_lab.paper import plots

    lines = recorded()
    seconds, memory = typical(lines, "processor_seconds"), peaks(lines)
    strokes = {
        "median": ("#000000", "-", "o"),
        "trimmed mean": ("#0072B2", (0, (4, 1.5, 1, 1.5)), "s"),
        "mean": ("#009E73", (0, (1, 1)), "D"),
        "exact median": ("#D55E00", (0, (6, 2)), "^"),
    }
    engines = [engine for engine in ENGINES if any(key[0] == engine for key in seconds)]
    with style.context(plots.STYLE):
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
    """The same lines for a page: seconds, and in brackets how many times the exact answer's."""
    queries, rows_out = typical(lines, "queries", max), typical(lines, "rows_out", max)
    where = list(dict.fromkeys((engine, rows) for engine, _, rows in seconds))
    heads = ["statistic", "queries", "rows out", *(f"{name}, {rows:,}" for name, rows in where)]
    found = [f"|{'|'.join(heads)}|", "|---" * len(heads) + "|"]
    for question in QUESTIONS:
        known = [
            (name, question, rows) for name, rows in where if (name, question, rows) in seconds
        ]
        if not known:
            continue
        cells = []
        for name, rows in where:
            own = seconds.get((name, question, rows))
            exact = seconds.get((name, f"exact {question}", rows))
            if exact is None and question == "trimmed mean":  # it is the same question
                exact = seconds.get((name, "exact median", rows))
            ratio = f" ({own / exact:.{0 if own > 10 * exact else 1}f})" if own and exact else ""
            cells.append("–" if own is None else f"{own:.2f}{ratio}")
        most = [f"{max(out.get(key, 0) for key in known):.0f}" for out in (queries, rows_out)]
        found.append(f"|{'|'.join([question, *most, *cells])}|")
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
    measured.add_argument("--rows", default="1e7")
    measured.add_argument("--rounds", type=int, default=3)
    measured.add_argument("--questions", default=";".join(QUESTIONS), help="separated by ;")
    measured.add_argument("--minutes", type=float, default=12.0)
    commands.add_parser("plot")
    one = commands.add_parser("client")
    for name, kind in {
        "engine": str,
        "rows": int,
        "where": str,
        "rounds": int,
        "questions": str,
    }.items():
        one.add_argument(name, type=kind)
    given = parser.parse_args()
    if given.command == "client":
        client(given.engine, given.rows, given.where, given.rounds, given.questions.split(";"))
    elif given.command == "plot":
        plot()
    else:
        for engine in given.engines.split(","):
            sizes = [int(float(rows)) for rows in given.rows.split(",")]
            measure(engine, sizes, given.rounds, given.minutes, given.questions.split(";"))


if __name__ == "__main__":
    main()
