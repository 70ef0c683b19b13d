"""What the maps of digits were chosen by: training digits 50,000 to 60,000.

    python -m benchmarks.certify_choice letters [--fine]    # or glyphs; minutes on a GPU

Wherever ε is stated these digits are left out, so no private record had a say. They are divided
into five folds. Counts of four of them, 8,000 digits, get noise of ε · 50,000/8,000, and 2,000 bad
records of 50,000 are 320 of 8,000: counts, noise and bad records have the proportions of the
private release. The setting with the largest mean, over 0, 100, 500, 1,000 and 2,000 bad records,
of certified accuracy on the fifth fold is kept: first on a coarse grid, then (--fine) around the
best.
"""

import argparse
import itertools

import attrs
import numpy as np
import torch
from tools.feature_files import landmarks as made
from tools.feature_files.glyphs import digits

from prudent.certify.classifier import RECORDS
from prudent.certify.features import TOP, Images, shipped_network
from prudent_lab.certifying import CHOSEN_ON
from prudent_lab.datasets import load

FOLDS, DRAWS = 5, 4
PROPORTION = 8000 / CHOSEN_ON["mnist"]
EPSILON = {"letters": 0.3, "glyphs": 1.0}
COARSE = {
    "mix": (0.0, 0.25, 0.5, 0.75, 1.0),
    "letters": ((2000, 4000), (4000, 4000), (4000, 8000), (6000, 6000), (8000, 4000), (0, 8000)),
    "glyphs": tuple(itertools.product((0, 4000, 8000, 12_000), (4000, 8000, 12_000))),
    "crowding": ((0, 0.4, 0.8), (0, 0.2, 0.5, 0.8), (0, 0.3, 0.6, 0.9)),
    "low": (0.7, 0.75, 0.8, 0.85, 0.9),  # quantiles of what the ramp is of
    "high": (0.3, 0.55, 0.8, 0.95),  # of those above `low`
}
FINE = {
    "mix": (0.4, 0.5, 0.6),
    "letters": ((5000, 7000), (6000, 6000), (7000, 5000)),
    "glyphs": ((12_000, 12_000),),
    "crowding": ((0, 0.2, 0.4, 0.6), (0.1, 0.2, 0.3, 0.5, 0.65), (0, 0.15, 0.3, 0.45, 0.6)),
    "low": (0.85, 0.88, 0.9, 0.92, 0.94),
    "high": (0.5, 0.65, 0.8, 0.9),
}


def held_out():
    data = load("mnist")
    first = CHOSEN_ON["mnist"]
    pictures = (TOP * data.train_features[first:, 0]).round().to(torch.uint8).numpy()
    return pictures, data.train_labels[first:].numpy()


def unit(rows):
    return rows / rows.norm(dim=1, keepdim=True)


def rounded(rows):
    """Landmarks as they are stored: see `landmarks.write`."""
    steps = 4 * rows / rows.square().mean(1, keepdim=True).sqrt()
    return unit(steps.round().clamp(-15, 15))


def candidates(name, grid, pictures, device):
    """Settings, and the codes of digits and landmarks that they make."""
    networks = ("letters", "glyphs") if name == "letters" else ("glyphs",)
    most = max(first for first, _ in grid[name])
    recipe = attrs.evolve(made.RECIPES[name], count=max(most, 1))
    drawn = made._letters(recipe) if name == "letters" else made._glyphs(recipe)
    strokes = (TOP * digits(12_000, recipe.seed)).round().to(torch.uint8).numpy()

    def coded(each):
        parts = []
        for network in networks:
            alone = Images(network, "", ((shipped_network(network)[0], 1.0),))
            parts.append(unit(torch.tensor(alone.codes(each)[0], device=device)))
        return parts

    given = [coded(each) for each in (pictures, drawn, strokes)]
    for mix in grid["mix"] if name == "letters" else (1.0,):

        def joined(parts, mix=mix):
            return unit(torch.cat([parts[0], mix * parts[-1]], 1)) if len(parts) > 1 else parts[0]

        queries, others, own = map(joined, given)
        for first, second in grid[name]:
            yield (mix, first, second), queries, rounded(torch.cat([others[:first], own[:second]]))


def maps(name, grid, device):
    pictures, numbers = held_out()
    labels = torch.tensor(numbers, device=device)
    size = len(labels) // FOLDS
    epsilon = EPSILON[name] / PROPORTION
    bad = torch.tensor(RECORDS, device=device) * PROPORTION
    found = []

    def laplace(scale, *shape):
        return torch.distributions.Laplace(torch.tensor(0.0, device=device), scale).sample(shape)

    for setting, queries, landmarks in candidates(name, grid, pictures, device):
        alike = landmarks @ landmarks.T
        crowds = (alike.topk(51).values.sum(1) - alike.diag()) / 50
        products = queries @ landmarks.T
        near = products.topk(50).values.mean(1)
        for own, of_landmarks, of_queries in itertools.product(*grid["crowding"]):
            cells = (products - own * crowds).argmax(1)
            values = products - of_landmarks * crowds - of_queries * near[:, None]
            ranked = values[::50].flatten().sort().values
            tables = []
            for fold in range(FOLDS):
                kept = torch.arange(len(labels), device=device) // size != fold
                table = torch.zeros(10, len(landmarks), device=device)
                ones = torch.ones(int(kept.sum()), device=device)
                table.index_put_((labels[kept], cells[kept]), ones, accumulate=True)
                for _ in range(DRAWS):
                    noisy = table + laplace(1 / (0.9 * epsilon), *table.shape)
                    totals = table.sum(1) + laplace(1 / (0.1 * epsilon), 10)
                    tables.append((fold, noisy, totals))
            for low, share in itertools.product(grid["low"], grid["high"]):
                ends = [low, low + share * (1 - low)]
                ramp = [ranked[int(q * len(ranked))].item() for q in ends]
                weights = ((values - ramp[0]) / (ramp[1] - ramp[0])).clamp(0, 1)
                total = torch.zeros(len(RECORDS), device=device)
                for fold, table, totals in tables:
                    rows = slice(fold * size, (fold + 1) * size)
                    best = (weights[rows] @ table.T - totals / 2).topk(2)
                    radii = 2 * (best.values[:, 0] - best.values[:, 1])
                    right = best.indices[:, 0] == labels[rows]
                    total += (right[:, None] & (radii[:, None] > bad)).float().mean(0)
                row = (total / len(tables)).tolist()
                crowding = (own, of_landmarks, of_queries)
                found.append((float(np.mean(row)), *setting, crowding, ramp, row))
    for mean, *rest in sorted(found, key=lambda each: -each[0])[:20]:
        print(round(100 * mean, 2), *rest)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("letters", "glyphs"))
    parser.add_argument("--fine", action="store_true")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    maps(given.what, FINE if given.fine else COARSE, device)


if __name__ == "__main__":
    main()
