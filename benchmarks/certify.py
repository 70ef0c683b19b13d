"""Certified accuracy over five draws of noise.

    python -m benchmarks.certify OUT.json [--dataset mnist] [--features letters] [--epsilon 0.3 0.1]
    python -m benchmarks.certify benchmarks/certify.json --picture docs/images/certified.svg

The test records are read once for each row; nothing is chosen by them. What other rules certify:
`prudent certify --compare`. The rows of MNIST are in `benchmarks/certify.json`: README,
docs/certify.md and the picture take their numbers from it, which a test compares.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from prudent.certify.classifier import RECORDS, CertifiedClassifier
from prudent.certify.counts import decided
from prudent.certify.report import CertifyResult
from prudent_lab import certifying as experiment
from prudent_lab import demo
from prudent_lab.certifying import coded_by, of_codes

DRAWS = 5
CURVE = range(0, 10_001, 50)  # numbers of bad records at which the picture has a point


def row(winners, radii, truth):
    right = winners == truth
    found = {str(k): 100 * float(np.mean(right & (radii >= k))) for k in RECORDS}
    return found | {"median": float(np.median(np.where(right, radii, -1)))}


def curve(winners, radii, truth):
    return [100 * float(np.mean((winners == truth) & (radii >= k))) for k in CURVE]


def picture(story, path):
    """The picture of README: what the demo draws of one draw of noise, by the mean of all."""
    first = demo.CLASSIFIERS[0]
    found = story[f"mnist {first.features} {first.epsilon:g}"]
    points = [(k, value / 100) for k, value in zip(CURVE, found["curve"], strict=True)]
    result = CertifyResult(points[0][1], {}, {}, {}, found["mean"]["median"], points, first.epsilon)
    with demo.panels(1, path) as (axes,):
        demo.draw_certified([(first, result)], axes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--features", default="letters")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.3, 0.1])
    parser.add_argument("--picture", type=Path, help="Draw what the file holds; measure nothing.")
    given = parser.parse_args()
    if given.picture:
        picture(json.loads(given.out.read_text()), given.picture)
        return
    train, test = experiment.read(given.dataset)
    classes = int(max(train[1].max(), test[1].max())) + 1
    story = json.loads(given.out.read_text()) if given.out.exists() else {}
    known = CertifiedClassifier(1.0, classes, 1024, given.features).known()
    coded = of_codes(known.partition)
    records, queries = (coded_by(known.partition, part[0]) for part in (train, test))
    for epsilon in given.epsilon:
        model = CertifiedClassifier(epsilon, classes, 1024, coded)
        exact = model.count(records, train[1])
        draws, curves = [], []
        for _ in range(DRAWS):
            found = decided(*model.fit_counts(exact).scores(queries))
            draws.append(row(*found, test[1]))
            curves.append(curve(*found, test[1]))
        mean = {key: float(np.mean([each[key] for each in draws])) for key in draws[0]}
        story[f"{given.dataset} {given.features} {epsilon:g}"] = {
            "mean": mean,
            "draws": draws,
            "curve": [round(float(value), 4) for value in np.mean(curves, axis=0)],
        }
        print(
            given.features,
            epsilon,
            {key: round(value, 2) for key, value in mean.items()},
            flush=True,
        )
        given.out.write_text(json.dumps(story, indent=1) + "\n")


if __name__ == "__main__":
    main()
