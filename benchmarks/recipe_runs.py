"""The numbers of the digit recipes: settings refined on held-out records, then five seeds.

For each set of features, settings of DP-SGD near those that `recipe_search` found are trained side
by side with three draws of the noise, and settings of TSGD+PTR one by one with the library; both
are scored on the last 10,000 training records. The best of each is then trained by the library on
all training records with five seeds, and scored on the test part.

    python -m benchmarks.recipe_runs --device cuda --seconds 330 --out runs.json
"""

import argparse
import json
import math
import time
from pathlib import Path

import attrs
import numpy as np
import torch

from benchmarks.recipe_search import MU, NUMBER, search, sized
from prudent.accounting import GaussianTest
from prudent.training.keystream import Key
from prudent_lab.datasets import load
from prudent_lab.experiment import Setup, run
from prudent_lab.recipes.digits import (
    ReleasedWhitening,
    glyph_rows,
    joined_rows,
    linear,
    loss_over_views,
    scattering_rows,
    views,
)
from prudent_lab.settings import Experiment

HELD_OUT = 10_000
SEEDS = range(5)

# key: data set, rows, views, noise of the released moment, its floor, a setting to start from
FEATURES = {
    "joined": ("mnist", joined_rows, 5, 4.0, 0.3, (0.04, 26_000, 0.9)),
    "fashion": ("fashion-mnist", scattering_rows, 1, 4.0, 0.3, (0.05, 50_000, 0.9)),
    "scattering": ("mnist", scattering_rows, 1, 4.0, 0.3, (0.1, 35_000, 0.9)),
    "fashion-views": ("fashion-mnist", scattering_rows, 5, 4.0, 0.3, (0.05, 50_000, 0.9)),
    "scattering-views": ("mnist", scattering_rows, 5, 4.0, 0.3, (0.1, 35_000, 0.9)),
    "glyphs": ("mnist", glyph_rows, 1, None, 0.3, (0.036, 40_000, 0.9)),
    "plain": ("mnist", scattering_rows, 1, None, 0.3, (0.16, 50_000, 0.9)),
    "fashion-plain": ("fashion-mnist", scattering_rows, 1, None, 0.3, (0.4, 40_000, 0.9)),
}


def candidates(start, steps, count, generator):
    clip, length, momentum = start
    found = []
    for index in range(count):
        move = 10 ** generator.normal(0, 0.3, 2) if index else (1.0, 1.0)
        found.append(
            sized(
                {
                    "steps": steps,
                    "q": 1.0,
                    "clip": clip * move[0],
                    "length": length * move[1],
                    "momentum": momentum if generator.random() < 0.7 else 0.0,
                    "average": [0.8, 0.9, 0.95][generator.integers(3)],
                    "decay": 0.0,
                }
            )
        )
    return found


def refined(data, mu, start, steps_choices, count, seed):
    """The best settings by their mean accuracy over three draws of the noise."""
    train = data.train_features if data.train_features.ndim == 3 else data.train_features[:, None]
    train, held, best = train.to(NUMBER), data.test_features, []
    generator = np.random.default_rng(seed)
    for steps in steps_choices:
        settings = candidates(start, steps, count, generator)
        scores = search(train, data.train_labels, held, data.test_labels, settings * 3, mu)
        means = np.array(scores).reshape(3, count).mean(0)
        best += [s | {"score": float(m)} for s, m in zip(settings, means, strict=True)]
    return sorted(best, key=lambda each: -each["score"])[:5]


def parts(data):
    """The data set with held-out training records in place of its test part."""
    held = min(HELD_OUT, len(data.train_labels) // 4)
    return attrs.evolve(
        data,
        train_features=data.train_features[:-held],
        train_labels=data.train_labels[:-held],
        test_features=data.train_features[-held:][:, :1].squeeze(1)
        if data.train_features.ndim == 3
        else data.train_features[-held:],
        test_labels=data.train_labels[-held:],
    )


def experiment_of(name, setting, records, **changes):
    options = {
        "dataset": name,
        "method": "dpsgd",
        "batch": records,
        "steps": int(setting["steps"]),
        "clip": float(setting["clip"]),
        "lr": float(setting["rate"]),
        "momentum": float(setting["momentum"]),
        "average": float(setting["average"]),
    }
    return Experiment.of(**options | changes)


def ptr_grid(setting):
    """Settings of TSGD+PTR around one of DP-SGD: a proposal near its clip, steps as long."""
    for wide, propose, trim in (
        (4.0, 0.25, 0.05),
        (4.0, 0.25, 0.3),
        (1.0, 0.5, 0.3),
        (30.0, 0.25, 0.05),
    ):
        clip = float(setting["clip"]) * wide
        yield {
            "method": "ptr",
            "clip": clip,
            "propose": propose,
            "test": GaussianTest(100.0),
            "trim": trim,
            "trim_up": 0.01,
            "trim_down": 0.005,
            "lr": float(setting["rate"]) / max(1.0, wide * propose),
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=330)
    parser.add_argument("--out", type=Path, default=Path("runs.json"))
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--steps", type=int, nargs="+", default=[300])
    parser.add_argument("--only", nargs="+", default=list(FEATURES))
    given = parser.parse_args()
    start, results = time.time(), []

    def note(**entry):
        results.append(entry | {"at": round(time.time() - start, 1)})
        print(json.dumps(results[-1]), flush=True)
        given.out.write_text(json.dumps(results, indent=1))

    def trained(data, experiment, release):
        setup = Setup(release=release, build=linear, loss=loss_over_views)
        begun = time.time()
        result = run(
            experiment,
            setup=setup,
            dataset=data,
            device=given.device,
            evaluations=1,
        )
        return result.plain() | {"seconds": round(time.time() - begun, 1)}

    def prepared(key):
        name, rows, copies, noise, floor, _ = FEATURES[key]
        data = load(name)
        if given.limit:
            data = attrs.evolve(
                data,
                train_features=data.train_features[: given.limit],
                train_labels=data.train_labels[: given.limit],
                test_features=data.test_features[:200],
                test_labels=data.test_labels[:200],
            )
        release = None if noise is None else ReleasedWhitening(noise_multiplier=noise, floor=floor)
        return views(rows, copies)(data, torch.device(given.device)), release

    def seeds(key, data, release, setting, **change):
        for seed in SEEDS:
            experiment = experiment_of(
                FEATURES[key][0], setting, len(data.train_labels), seed=seed, **change
            )
            answer = trained(data, experiment, release)
            note(key=key, stage="test", method=experiment.rule.method.value, seed=seed, **answer)

    def without_test(key):
        data, release = prepared(key)
        noise, guess = FEATURES[key][3], FEATURES[key][5]
        mu = MU if noise is None else math.sqrt(MU**2 - noise**-2)
        split = parts(data)
        split = split if release is None else release.apply(split, Key.random())
        best = refined(split, mu, guess, given.steps, given.count, 7)
        note(key=key, stage="held-out", method="dpsgd", best=best[:3])
        del split
        seeds(key, data, release, best[0])
        return best[0]

    def with_test(key, setting):
        data, release = prepared(key)
        split, tried = parts(data), []
        for change in ptr_grid(setting):
            held = experiment_of(FEATURES[key][0], setting, len(split.train_labels), **change)
            answer = trained(split, held, release)
            tried.append((answer["accuracy"], change))
            shown = {k: str(v) for k, v in change.items()}
            note(key=key, stage="held-out", method="ptr", change=shown, **answer)
        del split
        seeds(key, data, release, setting, **max(tried, key=lambda pair: pair[0])[1])

    found = {}
    for key in given.only:
        if time.time() - start < 0.6 * given.seconds:
            found[key] = without_test(key)
    for key, setting in found.items():
        if time.time() - start < given.seconds:
            with_test(key, setting)
    print("done", round(time.time() - start, 1))


if __name__ == "__main__":
    main()
