"""Choice of the settings of the CIFAR10 recipes, on held-out training records.

Models are trained on all but the last 5,000 training records and scored on those; the test part is
never read. DP-SGD with sampling rate 1 is simulated with noise from torch's generator: fit for
choosing settings, not for releasing.

    python -m benchmarks.cifar10_search --device cuda

The first run pretrains the network on random images, which takes minutes on a GPU.
"""

import argparse
import itertools
import json
import math

import torch
from scipy import optimize, stats
from torch.nn import functional

from prudent_lab.datasets import load
from prudent_lab.recipes import colour

HELD_OUT = 5_000
DELTA = 1e-5
CLASSES = 10
MOMENTUM, AVERAGE = 0.9, 0.9
CANDIDATES = (
    ("2, 2 and 2 cells", ((1, 2), (2, 2), (3, 2)), 1e-3),
    ("the same, higher floor", ((1, 2), (2, 2), (3, 2)), 1e-2),
    ("the same, lower floor", ((1, 2), (2, 2), (3, 2)), 1e-4),
    ("with the stem", ((0, 4), (1, 2), (2, 2), (3, 2)), 1e-3),
    ("finer first stage", ((1, 4), (2, 2), (3, 2)), 1e-3),
    ("finer second stage", ((1, 2), (2, 4), (3, 2)), 1e-3),
)
STEPS = (100, 200)
CLIPS = (0.25, 0.5, 1.0)
LENGTHS = {1: (6e3, 12e3, 20e3), 3: (18e3, 36e3, 72e3), 8: (36e3, 72e3, 144e3)}
"""By ε: the clip times the sum of learning rates, how far weights can move at most."""


def strength(epsilon: float) -> float:
    """The largest clip / noise of one Gaussian release with this ε at DELTA."""

    def excess(mu: float) -> float:
        low = stats.norm.cdf(-epsilon / mu - mu / 2)
        return stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * low - DELTA

    return float(optimize.brentq(excess, 0.05, 5))


def scored(train, held, mu, steps, clip, length):
    """Held-out accuracy in percent of simulated DP-SGD on all records; no noise if mu is None."""
    (rows, labels), (held_rows, held_labels) = train, held
    generator = torch.Generator(rows.device).manual_seed(0)
    lr = length * (1 - MOMENTUM) / (clip * steps)
    noise = 0.0 if mu is None else math.sqrt(steps) / mu * clip / len(rows)
    targets = functional.one_hot(labels, CLASSES).float()
    weights, speed, average = torch.zeros(3, rows.shape[1], CLASSES, device=rows.device)
    for step in range(steps):
        errors = (rows @ weights).softmax(1) - targets
        # Rows have length 1, so the length of a gradient is that of the error.
        errors *= (clip / errors.norm(dim=1, keepdim=True).clamp_min(1e-6)).clamp_max(1)
        gradient = rows.T @ errors / len(rows)
        gradient += noise * torch.randn(gradient.shape, generator=generator, device=rows.device)
        speed = MOMENTUM * speed + gradient
        weights = weights - lr * speed
        average = torch.lerp(average, weights, max(1 - AVERAGE, 1 / (step + 1)))
    right = (held_rows @ average).argmax(1) == held_labels
    return round(100 * right.float().mean().item(), 2)


def searched(train, held):
    """The best settings and their held-out accuracies, by ε."""
    found = {"without noise": scored(train, held, None, 400, 10.0, 2.4e6)}
    for epsilon, lengths in LENGTHS.items():
        mu = strength(epsilon)
        grid = itertools.product(STEPS, CLIPS, lengths)
        tried = [(scored(train, held, mu, *setting), setting) for setting in grid]
        accuracy, (steps, clip, length) = max(tried)
        lr = length * (1 - MOMENTUM) / (clip * steps)
        found[epsilon] = {"accuracy": accuracy, "steps": steps, "clip": clip, "lr": round(lr, 1)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    device = torch.device(parser.parse_args().device)
    data = load("cifar10")
    labels = data.train_labels.to(device)
    for name, cells, floor in CANDIDATES:
        features = colour.colour_features(colour.NETWORK, device, cells, floor)
        rows = features(data.train_features)
        train, held = (
            (rows[part], labels[part]) for part in (slice(-HELD_OUT), slice(-HELD_OUT, None))
        )
        shown = {"features": name, "floor": floor, "numbers": rows.shape[1]}
        print(json.dumps(shown | searched(train, held)), flush=True)


if __name__ == "__main__":
    main()
