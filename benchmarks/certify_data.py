"""Certified accuracy on photographs, texts and a table, beside DP-SGD and beside other maps.

    PRUDENT_DATA=... python -m benchmarks.certify_data run OUT.json [--dataset imdb]
    PRUDENT_DATA=... python -m benchmarks.certify_data maps OUT.json [--dataset imdb]

`run` fits the classifier at two budgets, certifies and attacks it, and trains a linear model on the
same features by DP-SGD at the same (ε, δ): it has no certificate, and is the best of three learning
rates, chosen on the test records. `maps` compares public maps on training records that are left out
of the sums, without noise. Embeddings are computed on first use, which takes long on a CPU; see
docs/certify.md for the files they need.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

import prudent
from prudent.certify import experiment
from prudent.certify.classifier import decided, scores_of
from prudent.certify.features import FeatureMap, Vectors, feature_map
from prudent.certify.features.backbone import thresholded
from prudent.certify.features.embedded import Embedded, computed_once
from prudent.certify.features.sentences import Histogram, direction_of
from prudent.certify.features.table import CENSUS, Column, Partitions
from prudent.certify.features.voting import rectified
from prudent.experiments.models import logistic_regression
from prudent.release.noise import ReproducibleNoise

DATASETS = ("cifar10", "imdb", "census")
RECORDS = (0, 10, 100, 500, 1000)
DELTA = 1e-6
BATCH, STEPS = 1024, 400


def unit(rows):
    rows = np.asarray(rows, dtype=np.float64)
    return rows / np.maximum(np.sqrt(np.square(rows).sum(axis=1, keepdims=True)), 1e-12)


def embedded(dataset):
    """The second step of the map of a data set, and embeddings or records with their labels."""
    (x, y), (test, truth) = experiment.read(dataset)
    fast, (x, test) = computed_once(feature_map(experiment.MAPS[dataset]), x, test)
    return fast, (x, y), (test, truth)


def linear_inputs(dataset, fast, rows):
    """What the linear model sees: vectors of length 1, of the cells for a table."""
    return unit(fast.records(rows) if dataset == "census" else rows).astype(np.float32)


def dp_sgd(train, test, classes, epsilon):
    """Accuracy and balanced accuracy of a linear model trained by DP-SGD."""
    best = (0.0, 0.0, 0.0)
    x, y = torch.from_numpy(train[0]), torch.from_numpy(train[1])
    plan = prudent.Plan(
        sampling_rate=BATCH / len(y),
        steps=STEPS,
        aggregation=prudent.Sum(clip=1.0, noise_multiplier=1.0),
    ).calibrate(epsilon=epsilon, delta=DELTA)
    for rate in (1.0, 4.0, 16.0):
        torch.manual_seed(0)
        model = logistic_regression((x.shape[1],), classes)
        prudent.fit(
            plan,
            model,
            nn.CrossEntropyLoss(reduction="none"),
            (x, y),
            lr=rate,
            average=0.97,
            execution=prudent.Execution(seed=0),
            progress=False,
        )
        with torch.no_grad():
            right = model(torch.from_numpy(test[0])).argmax(1).numpy() == test[1]
        balanced = np.mean([right[test[1] == label].mean() for label in range(classes)])
        best = max(best, (float(balanced), float(right.mean()), rate))
    return {"accuracy": 100 * best[1], "balanced": 100 * best[0], "lr": best[2]}


def run(dataset):
    """Certificates, attacks and the comparison at two budgets."""
    fast, train, test = embedded(dataset)
    classes = int(test[1].max()) + 1
    inputs = [(linear_inputs(dataset, fast, rows), labels) for rows, labels in (train, test)]
    found = {}
    for epsilon in (0.3, 1.0):
        _, result = experiment.run(
            lambda: (train, test),
            features=fast,
            classes=classes,
            epsilon=epsilon,
            delta=DELTA,
            records=RECORDS,
            noise=ReproducibleNoise(0),
        )
        found[f"epsilon {epsilon}"] = result.plain() | {
            "records": len(train[1]),
            "dp_sgd": dp_sgd(*inputs, classes, epsilon),
        }
        print(dataset, epsilon, json.dumps(found[f"epsilon {epsilon}"]), flush=True)
    return found


def compared(dataset, x, y) -> Iterator[tuple[str, FeatureMap]]:
    """Maps to compare; none is made from the records that are certified."""
    width = x.shape[1]

    def vectors(name: str, function: Callable) -> tuple[str, FeatureMap]:
        return name, Vectors(len(function(x[:2])[0]), function, name)

    if dataset == "cifar10":
        yield vectors("features of length 1", unit)
        yield vectors("what exceeds 0.05 (kept)", thresholded)
        yield vectors("minus 0.05, both signs", lambda rows: rectified(unit(unit(rows) - 0.05)))
        yield vectors("square roots", lambda rows: unit(np.sqrt(rows)))
        yield vectors("squares", lambda rows: unit(np.square(rows)))
    if dataset == "imdb":
        kept = feature_map("minilm")
        assert isinstance(kept, Embedded)
        assert isinstance(kept.rest, Histogram)
        centre = kept.rest.centre
        yield vectors("embeddings of length 1, both signs", lambda rows: unit(rectified(rows)))
        yield vectors("centred by made-up text", lambda rows: unit(rectified(unit(rows) - centre)))
        yield "histogram of one direction (kept)", kept.rest
        random = np.random.RandomState(0).randn(width)
        within = float(np.std(unit(x) @ random))  # of records: this map is only for comparison
        yield "histogram of a random direction", Histogram("random", "", centre, random / within)
        yield (
            "histogram of the direction of the private records (no guarantee)",
            Histogram("private", "", unit(x).mean(axis=0), direction_of(unit(x), y)),
        )
    if dataset == "census":
        numbers = {0, 5, 16, 17, 18, 29, 38}
        every = [
            (Column(j, tuple(np.linspace(0, top, 6)[1:])) if j in numbers else Column(j, cells=61),)
            for j, top in ((j, {0: 90, 38: 52, 29: 6}.get(j, 5000)) for j in range(width))
        ]
        yield "all 40 columns, 32 of them", Partitions("all", tuple(every[:32]))
        yield "eight partitions by columns that matter (kept)", CENSUS
        core = [partition[0] for partition in CENSUS.partitions[:7]]
        pairs = [(a, b) for i, a in enumerate(core) for b in core[i + 1 :]]
        yield "16 pairs of them", Partitions("pairs", tuple(pairs[:16]))


def maps(dataset):
    """Certified accuracy of each map on every fifth training record, from the sums of the rest."""
    _, (x, y), _ = embedded(dataset)
    held = np.arange(len(y)) % 5 == 0
    classes = int(y.max()) + 1
    found = {}
    for name, features in compared(dataset, x, y):
        pairing = features.pairing
        vectors, finite = pairing.records(features.records(x[~held]))
        labels = np.where(finite, y[~held], -1)
        sums = np.zeros((classes, features.width + 1), dtype=np.int64)
        for label in range(classes):
            members = vectors[labels == label]
            sums[label, :-1] = members.sum(axis=0)
            sums[label, -1] = round((1 << 16) * pairing.constant) * len(members)
        guess, radii = decided(scores_of(pairing.queries(features.queries(x[held])), sums, pairing))
        right, radii = guess == y[held], radii * 5 // 4
        row = {str(k): round(100 * float(np.mean(right & (radii >= k))), 1) for k in RECORDS}
        found[name] = row | {"median_radius": float(np.median(np.where(right, radii, -1)))}
        print(dataset, name, json.dumps(found[name]), flush=True)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("run", "maps"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--dataset", choices=DATASETS)
    options = parser.parse_args()
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    measure = {"run": run, "maps": maps}[options.what]
    for dataset in [options.dataset] if options.dataset else DATASETS:
        known.setdefault(options.what, {})[dataset] = measure(dataset)
        options.out.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
