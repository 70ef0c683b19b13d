"""Certified accuracy over five draws of noise.

    python -m benchmarks.certify OUT.json [--dataset mnist] [--features letters] [--epsilon 0.3 0.1]

The test records are read once for each row; nothing is chosen by them. What other rules certify:
`prudent certify --compare`.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from prudent.certify.classifier import RECORDS, CertifiedClassifier
from prudent.certify.counts import decided
from prudent_lab import certifying as experiment
from prudent_lab.certifying import coded_by, of_codes

DRAWS = 5


def row(winners, radii, truth):
    right = winners == truth
    found = {str(k): 100 * float(np.mean(right & (radii >= k))) for k in RECORDS}
    return found | {"median": float(np.median(np.where(right, radii, -1)))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--features", default="letters")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.3, 0.1])
    given = parser.parse_args()
    train, test = experiment.read(given.dataset)
    classes = int(max(train[1].max(), test[1].max())) + 1
    story = json.loads(given.out.read_text()) if given.out.exists() else {}
    known = CertifiedClassifier(1.0, classes, 1024, given.features).known()
    coded = of_codes(known.partition)
    records, queries = (coded_by(known.partition, part[0]) for part in (train, test))
    for epsilon in given.epsilon:
        model = CertifiedClassifier(epsilon, classes, 1024, coded)
        exact = model.count(records, train[1])
        draws = []
        for _ in range(DRAWS):
            draws.append(row(*decided(*model.fit_counts(exact).scores(queries)), test[1]))
        mean = {key: float(np.mean([each[key] for each in draws])) for key in draws[0]}
        story[f"{given.dataset} {given.features} {epsilon:g}"] = {"mean": mean, "draws": draws}
        print(
            given.features,
            epsilon,
            {key: round(value, 2) for key, value in mean.items()},
            flush=True,
        )
        given.out.write_text(json.dumps(story, indent=1) + "\n")


if __name__ == "__main__":
    main()
