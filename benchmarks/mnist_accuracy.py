"""Accuracy on MNIST at full size, every method priced by the same accountant.

`python -m benchmarks.mnist_accuracy --device cuda --seeds 3` runs the settings below and prints
mean and spread; `--only NAME ...` picks some; `--corrupt label:0.1` makes records bad; `--out FILE`
also writes JSON lines. `--settings FILE` runs other experiments: {name: fields of `Experiment`}.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from prudent.accounting import LaplaceTest
from prudent_lab.datasets import load
from prudent_lab.experiment import run
from prudent_lab.settings import Experiment

PAPER = Experiment.of(noise_multiplier=1.1, test=LaplaceTest(1.0), reveals="margin", lr=0.15)
OURS = Experiment.of(steps=2344, batch=512, lr=1.0)

SETTINGS = {
    "TSGD+PTR, paper, ε=3": PAPER,
    "TSGD+PTR, paper, ε=5": PAPER.changed(epsilon=5),
    "TSGD+PTR, ours, ε=3": OURS,
    "TSGD+Gaussian, ε=3": OURS.changed(method="trimmed"),
    "DP-SGD, ε=3": OURS.changed(method="dpsgd"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--corrupt", default="none")
    parser.add_argument("--settings", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    settings = SETTINGS
    if options.settings:
        chosen = json.loads(options.settings.read_text())
        settings = {name: Experiment.of(**fields) for name, fields in chosen.items()}
    data = load("mnist")
    for name, setting in settings.items():
        if options.only and name not in options.only:
            continue
        experiment = setting.changed(corrupt=options.corrupt)
        plan = experiment.plan(len(data.train_labels))
        rows = []
        for seed in range(options.seeds):
            began = time.perf_counter()
            result = run(
                experiment.changed(seed=seed),
                device=options.device,
                dataset=data,
                evaluations=5,
            )
            seconds = time.perf_counter() - began
            curve = [round(entry.evaluation["accuracy"], 4) for entry in result.fitted.history]
            rows.append(
                {"name": name, "corrupt": options.corrupt, "seed": seed}
                | result.plain()
                | {"curve": curve, "milliseconds_per_step": 1000 * seconds / plan.steps}
            )
        scores = [100 * row["accuracy"] for row in rows]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        print(
            f"{name:24s} ε={rows[0]['epsilon'] or float('nan'):.3f} T={plan.steps} "
            f"σ={rows[0]['noise_multiplier']:.3f} accuracy {statistics.mean(scores):.2f} "
            f"± {spread:.2f} pass {rows[0]['pass_rate'] or 0:.2f} "
            f"{rows[0]['milliseconds_per_step']:.2f} ms/step {rows[0]['curve']}",
            flush=True,
        )
        if options.out:
            with options.out.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
