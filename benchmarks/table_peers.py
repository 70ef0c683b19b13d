"""Counts, sums, means and quantiles by tools that need an environment of their own.

    PYTHON benchmarks/table_peers.py smartnoise|tumult|pipelinedp FOLDER

PYTHON is one in which the tool is installed: `pip install smartnoise-sql`, `tmlt.analytics` (needs
Java) or `pipeline-dp`. `benchmarks.table_accuracy --peer NAME=PYTHON` calls it, and nothing of this
project is imported here. FOLDER holds `requests.json` and a .npy file for each column; the answers
are kept in FOLDER/NAME.json, and what is there is not asked again.

Each run is a group that holds all records, so one query answers all of them, each with noise of its
own: a record is in one group, and ε is that of one answer. A statistic is "count", "sum", "mean" or
a probability.
"""

import functools
import json
import os
import sys
from pathlib import Path

import numpy as np


@functools.lru_cache(maxsize=1)
def grouped(file, runs):
    """All records once for each run."""
    import pandas as pd

    values = np.load(file)
    return pd.DataFrame({"g": np.repeat(np.arange(runs), len(values)), "x": np.tile(values, runs)})


def smartnoise(file, request):
    """SmartNoise's COUNT, SUM and AVG, whose sum and count share ε; it has no quantiles."""
    from snsql import Privacy, from_connection

    aggregate = {"count": "COUNT(x)", "sum": "SUM(x)", "mean": "AVG(x)"}.get(request["statistic"])
    if aggregate is None:
        return None
    low, high = request["bounds"]
    column = {"type": "float", "lower": float(low), "upper": float(high)}
    table = {"row_privacy": True, "censor_dims": False, "g": {"type": "int"}, "x": column}
    frame = grouped(file, request["runs"])
    query = f"SELECT g, {aggregate} AS found FROM s.t GROUP BY g"

    def reader(epsilon):
        privacy = Privacy(epsilon=epsilon, delta=1e-9)
        return from_connection(frame, privacy=privacy, metadata={"": {"s": {"t": table}}})

    cost, _ = reader(1.0).get_privacy_cost(query)  # in units of the ε that it is given
    return [float(row[1]) for row in reader(request["epsilon"] / float(cost)).execute(query)[1:]]


@functools.lru_cache(maxsize=1)
def spark_table(file, runs):
    """All records once for each run, in Spark."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.memory": "4g",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark.createDataFrame(grouped(file, runs)).cache()


def tumult(file, request):
    """Tumult's count, sum, average and quantile, with pure ε."""
    from tmlt.analytics import AddOneRow, KeySet, PureDPBudget, QueryBuilder, Session

    table = spark_table(file, request["runs"])
    statistic, ends = request["statistic"], list(map(float, request["bounds"]))
    keys = KeySet.from_dict({"g": list(range(request["runs"]))})
    groups = QueryBuilder("t").groupby(keys)
    if statistic == "count":
        query = groups.count(name="found")
    elif statistic == "sum":
        query = groups.sum("x", *ends, name="found")
    elif statistic == "mean":
        query = groups.average("x", *ends, name="found")
    else:
        query = groups.quantile("x", statistic, *ends, name="found")
    budget = PureDPBudget(request["epsilon"])
    session = Session.from_dataframe(budget, "t", table, protected_change=AddOneRow())
    return session.evaluate(query, budget).toPandas()["found"].tolist()


def pipelinedp(file, request):
    """PipelineDP's count, sum, mean and percentile, on public partitions."""
    import pipeline_dp

    low, high = map(float, request["bounds"])
    runs, statistic = request["runs"], request["statistic"]
    metrics = pipeline_dp.Metrics
    named = {"count": metrics.COUNT, "sum": metrics.SUM, "mean": metrics.MEAN}
    metric = named[statistic] if statistic in named else metrics.PERCENTILE(100 * statistic)
    accountant = pipeline_dp.NaiveBudgetAccountant(request["epsilon"], total_delta=1e-12)
    engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
    parameters = pipeline_dp.AggregateParams(
        metrics=[metric],
        noise_kind=pipeline_dp.NoiseKind.LAPLACE,
        max_partitions_contributed=1,
        max_contributions_per_partition=1,
        min_value=low,
        max_value=high,
    )
    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda row: (row[0], row[1]),
        partition_extractor=lambda row: row[0],
        value_extractor=lambda row: row[2],
    )
    values = np.load(file).tolist()
    rows = ((run, place, x) for run in range(runs) for place, x in enumerate(values))
    found = engine.aggregate(rows, parameters, extractors, public_partitions=list(range(runs)))
    accountant.compute_budgets()
    return [float(answer[0]) for _, answer in found]


def main():
    """Answer all requests of a folder that were not answered before."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    ask = {"smartnoise": smartnoise, "tumult": tumult, "pipelinedp": pipelinedp}[name]
    kept = folder / f"{name}.json"
    answers = json.loads(kept.read_text()) if kept.exists() else {}
    for request in json.loads((folder / "requests.json").read_text()):
        if json.dumps(request) in answers:
            continue
        try:
            found = ask(str(folder / request["file"]), request)
        except Exception as error:  # a tool that fails on some data has no answer there
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            found = None
        answers[json.dumps(request)] = found
        kept.write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
