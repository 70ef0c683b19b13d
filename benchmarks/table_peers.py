"""Means and quantiles by tools that need an environment of their own.

    PYTHON benchmarks/table_peers.py smartnoise|tumult|pipelinedp FOLDER

PYTHON is one in which the tool is installed: `pip install smartnoise-sql`, `tmlt.analytics` (needs
Java) or `pipeline-dp`. `benchmarks.table_accuracy --peer NAME=PYTHON` calls it, and nothing of this
project is imported here. FOLDER holds `requests.json` and a .npy file for each column; the answers
are written to FOLDER/NAME.json.

Each run is a group that holds all records, so one query answers all of them, each with noise of its
own: a record is in one group, and ε is that of one answer.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np


def smartnoise(values, request):
    """SmartNoise's AVG: a sum and a count share ε; it has no quantiles."""
    import pandas as pd
    from snsql import Privacy, from_connection

    if request["p"] is not None:
        return None
    low, high = request["bounds"]
    column = {"type": "float", "lower": float(low), "upper": float(high)}
    table = {"row_privacy": True, "censor_dims": False, "g": {"type": "int"}, "x": column}
    runs = request["runs"]
    frame = pd.DataFrame({"g": np.repeat(np.arange(runs), len(values)), "x": np.tile(values, runs)})
    query = "SELECT g, AVG(x) AS found FROM s.t GROUP BY g"

    def reader(epsilon):
        privacy = Privacy(epsilon=epsilon, delta=1e-9)
        return from_connection(frame, privacy=privacy, metadata={"": {"s": {"t": table}}})

    cost, _ = reader(1.0).get_privacy_cost(query)  # in units of the ε that it is given
    return [float(row[1]) for row in reader(request["epsilon"] / float(cost)).execute(query)[1:]]


def tumult(values, request):
    """Tumult's average and quantile, with pure ε."""
    import pandas as pd
    from pyspark.sql import SparkSession
    from tmlt.analytics import AddOneRow, KeySet, PureDPBudget, QueryBuilder, Session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    low, high = map(float, request["bounds"])
    runs = request["runs"]
    frame = pd.DataFrame({"g": np.repeat(np.arange(runs), len(values)), "x": np.tile(values, runs)})
    groups = QueryBuilder("t").groupby(KeySet.from_dict({"g": list(range(runs))}))
    if request["p"] is None:
        query = groups.average("x", low, high, name="found")
    else:
        query = groups.quantile("x", request["p"], low, high, name="found")
    budget = PureDPBudget(request["epsilon"])
    session = Session.from_dataframe(
        budget, "t", spark.createDataFrame(frame), protected_change=AddOneRow()
    )
    return session.evaluate(query, budget).toPandas()["found"].tolist()


def pipelinedp(values, request):
    """PipelineDP's mean and percentile, on public partitions."""
    import pipeline_dp

    low, high = map(float, request["bounds"])
    runs, p = request["runs"], request["p"]
    metrics = pipeline_dp.Metrics
    accountant = pipeline_dp.NaiveBudgetAccountant(request["epsilon"], total_delta=1e-12)
    engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
    parameters = pipeline_dp.AggregateParams(
        metrics=[metrics.MEAN if p is None else metrics.PERCENTILE(100 * p)],
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
    rows = [(run, place, x) for run in range(runs) for place, x in enumerate(values.tolist())]
    found = engine.aggregate(rows, parameters, extractors, public_partitions=list(range(runs)))
    accountant.compute_budgets()
    return [float(answer[0]) for _, answer in found]


def main():
    """Answer all requests of a folder."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    ask = {"smartnoise": smartnoise, "tumult": tumult, "pipelinedp": pipelinedp}[name]
    answers = []
    for request in json.loads((folder / "requests.json").read_text()):
        try:
            answers.append(ask(np.load(folder / request["file"]), request))
        except Exception as error:  # a tool that fails on some data has no answer there
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            answers.append(None)
        (folder / f"{name}.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
