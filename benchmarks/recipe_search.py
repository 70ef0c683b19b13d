"""Search of the settings of the MNIST and Fashion-MNIST recipes, on held-out training data.

Models are trained on all but the last 10,000 training records and scored on those; the test part is
never read. Many settings are trained side by side as columns of one matrix, by a simulation of
DP-SGD whose noise comes from torch's generator: fit for choosing settings, not for releasing.

    python -m benchmarks.recipe_search --device cuda --seconds 150 --out search.json
"""

import argparse
import functools
import itertools
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from scipy import optimize, stats

from prudent_lab.datasets import load
from prudent_lab.scattering import scattering

NUMBER = torch.float16 if torch.cuda.is_available() else torch.float32
HELD_OUT = 10_000
EPSILON, DELTA = 3.0, 1e-5


def delta_of(mu: float, epsilon: float = EPSILON) -> float:
    return stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * stats.norm.cdf(
        -epsilon / mu - mu / 2
    )


MU = optimize.brentq(lambda mu: delta_of(mu) - DELTA, 0.05, 5)


def noise_for(q: float, steps: int, mu: float) -> float:
    """σ of DP-SGD by the central limit theorem; exact at q = 1, close enough to choose by."""
    if q == 1:
        return math.sqrt(steps) / mu
    return 1 / math.sqrt(math.log(1 + mu**2 / (q**2 * steps)))


def shifts(copies: int) -> list[tuple[int, int]]:
    """Shifts by rows and columns; the first is none."""
    near = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)]
    return near[:copies]


def shifted(images, shift):
    rows, columns = shift
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    return padded[..., 2 + rows : 30 + rows, 2 + columns : 30 + columns]


def coefficients(images, device):
    parts = torch.split(images[:, 0], 2048)
    return torch.cat([scattering(part.to(device)) for part in parts]).unflatten(2, (7, 7))


def normalised(found, power, groups):
    if power == "log":
        found = torch.log(found.clamp_min(0) + 1e-2)
    elif power != 1:
        found = found.clamp_min(0) ** power
    if groups == "length":
        flat = found.flatten(1)
    else:
        flat = torch.nn.functional.group_norm(found, groups).flatten(1)
    return flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-6)


def featured(found, images, power, groups):
    if power not in ("network", "both"):
        return normalised(found, power, groups)
    code = network_codes(images[:, 0])
    code = code / code.norm(dim=1, keepdim=True).clamp_min(1e-6)
    if power == "network":
        return code
    return torch.cat([normalised(found, 1, groups), code], 1) / math.sqrt(2)


def second_moment(rows):
    total = torch.zeros(rows.shape[1], rows.shape[1], device=rows.device)
    for part in torch.split(rows, 8192):
        total += part.float().T @ part.float()
    return total


def preconditioner(moment, noise, count, alpha, level):
    """(M + E + λ)^-α, symmetric; λ is `level` times the size of the noise, or of the mean value."""
    size = len(moment)
    if noise:
        error = noise * torch.randn(size, size, device=moment.device)
        moment = moment + (error + error.T) / 2
        floor = level * noise * math.sqrt(2 * size)
    else:
        floor = level * count / size
    values, axes = torch.linalg.eigh(moment)
    scale = (values.clamp_min(0) + floor) ** -alpha
    return ((axes * scale) @ axes.T).float()


def mapped(rows, matrix):
    out = []
    for part in torch.split(rows, 8192):
        each = part.float() @ matrix
        out.append((each / each.norm(dim=-1, keepdim=True).clamp_min(1e-9)).to(NUMBER))
    return torch.cat(out)


def search(train, labels, held, held_labels, settings, mu, classes=10):
    """Accuracy on held-out records of settings with the same steps, trained side by side."""
    count, copies, size = train.shape
    device, steps, many = train.device, settings[0]["steps"], len(settings)
    column = {
        name: torch.tensor([float(s[name]) for s in settings], device=device)
        for name in ("q", "clip", "rate", "momentum", "average", "decay")
    }
    sigma = torch.tensor([noise_for(s["q"], steps, mu) for s in settings], device=device)
    weights = torch.zeros(size + 1, many, classes, device=device)
    velocity, mean = torch.zeros_like(weights), torch.zeros_like(weights)
    target = torch.nn.functional.one_hot(labels, classes).float()
    gram = torch.einsum("nkd,nld->nkl", train, train).float() + 1
    flat = train.view(count * copies, size)
    for step in range(steps):
        scale = weights.abs().amax().clamp_min(1e-6)
        scores = (flat @ (weights[:-1] / scale).reshape(size, -1).to(NUMBER)).float() * scale
        scores = scores.view(count, copies, many, classes) + weights[-1]
        rest = (torch.softmax(scores, -1) - target[:, None, None]) / copies
        if copies == 1:
            norms = rest[:, 0].norm(dim=-1) * gram[:, 0, 0, None].sqrt()
        else:
            norms = torch.einsum("nkmc,nlmc,nkl->nm", rest, rest, gram).clamp_min(0).sqrt()
        factor = (column["clip"] / norms.clamp_min(1e-12)).clamp_max(1)
        factor = factor * (torch.rand(count, many, device=device) < column["q"])
        rest = rest * factor[:, None, :, None]
        inner = flat.T @ rest.view(count * copies, -1).to(NUMBER)
        total = torch.cat([inner.float(), rest.sum((0, 1)).reshape(1, -1)]).view_as(weights)
        noise = torch.randn_like(total) * (sigma * column["clip"])[:, None]
        gradient = (total + noise) / (column["q"] * count)[:, None]
        velocity = column["momentum"][:, None] * velocity + gradient
        rate = column["rate"] * (1 - column["decay"] * step / steps)
        weights = weights - rate[:, None] * velocity
        keep = column["average"].clamp_max((step + 1) / (step + 10))[:, None]
        mean = keep * mean + (1 - keep) * weights
    scores = (held.float() @ mean[:-1].reshape(size, -1) + mean[-1].flatten()).view(
        -1, many, classes
    )
    return (scores.argmax(-1) == held_labels[:, None]).float().mean(0).tolist()


def drawn(count, steps, generator):
    """Random settings. `length` is rate · clip · steps / (1 - momentum): how far one may go."""

    def choice(values):
        return values[generator.integers(len(values))]

    return [
        sized(
            {
                "steps": steps,
                "q": float(choice([1.0, 1.0, 0.25])),
                "clip": 10 ** generator.uniform(-3, 0.1),
                "length": 10 ** generator.uniform(2, 4.7),
                "momentum": choice([0.0, 0.9]),
                "average": choice([0.0, 0.9]),
                "decay": choice([0.0, 1.0]),
            }
        )
        for _ in range(count)
    ]


def sized(setting):
    inner = setting["clip"] * setting["steps"]
    return setting | {"rate": setting["length"] * (1 - setting["momentum"]) / inner}


def varied(best, count, steps, generator):
    """Settings near the best ones, with another number of steps."""
    found = []
    for index in range(count):
        old = best[index % len(best)]
        move = 10 ** generator.normal(0, 0.2, 2) if index >= len(best) else (1.0, 1.0)
        change = {"clip": old["clip"] * move[0], "length": old["length"] * move[1]}
        if generator.random() < 0.3:
            change["average"] = [0.0, 0.8, 0.9, 0.97][generator.integers(4)]
        found.append(sized(old | change | {"steps": steps}))
    return found


def variants(dataset):
    """Feature maps to compare: power, groups and preconditioner, the most telling first."""
    both = [
        (1, 27, None),
        (1, 27, ("released", 4, 0.5, 0.3)),
        (1, 27, ("released", 4, 0.5, 1.0)),
        (1, 27, ("released", 8, 0.5, 0.3)),
        (1, 27, ("glyphs", 0, 0.25, 0.1)),
        (1, 27, ("glyphs", 0, 0.5, 1.0)),
    ]
    digits = [
        ("both", 27, ("released", 4, 0.5, 0.3)),
        ("both", 27, None),
        ("network", 27, None),
        ("both", 27, ("released", 8, 0.5, 1.0)),
    ]
    clothes = [
        ("log", 27, ("released", 4, 0.5, 0.3)),
        (1, 27, ("released", 3, 0.5, 0.3)),
        (1, 81, ("released", 4, 0.5, 0.3)),
        (0.5, 27, ("released", 4, 0.5, 0.3)),
    ]
    return both + (digits if dataset == "mnist" else clothes)


@functools.cache
def glyph_network():
    from prudent.certify.features import shipped_network

    return shipped_network("glyphs")[0].layers


def network_codes(images):
    """Codes of the network trained on synthetic glyphs; images (n, 28, 28) in [0, 1]."""
    values = (255 * images).round()[:, None]
    for index, layer in enumerate(glyph_network()):
        weight = torch.from_numpy(layer.weight.astype(np.float32)).to(images.device)
        gain, bias = (torch.from_numpy(v).to(images.device) for v in (layer.gain, layer.bias))
        if layer.size:
            kernel = weight.view(values.shape[1], layer.size, layer.size, -1).permute(3, 0, 1, 2)
            values = torch.nn.functional.conv2d(values, kernel, padding=layer.pad)
            values = torch.nn.functional.max_pool2d(values, layer.pool)
            values = values * gain[:, None, None] + bias[:, None, None]
        else:
            flat = values.permute(0, 2, 3, 1).flatten(1) if values.ndim == 4 else values
            values = flat @ weight * gain + bias
        if index + 1 < len(glyph_network()):
            values = values.clamp(0, 255).round()
    return values


class Data:
    def __init__(self, name, device, limit=None):
        found = load(name)
        images, labels = found.train_features, found.train_labels.to(device)
        self.name, self.device = name, device
        if limit:
            images, labels = images[:limit], labels[:limit]
        held = HELD_OUT if limit is None else limit // 5
        self.labels, self.held_labels = labels[:-held], labels[-held:]
        self.images, self.held_images = images[:-held], images[-held:]
        self.raw = {}

    def part(self, key, images, power, groups):
        if key not in self.raw:
            self.raw[key] = coefficients(images, self.device).to(NUMBER)
        chunks = zip(torch.split(self.raw[key], 4096), torch.split(images, 4096), strict=True)
        return torch.cat(
            [featured(c.float(), i.to(self.device), power, groups).to(NUMBER) for c, i in chunks]
        )

    def rows(self, power, groups, copies=1):
        """Normalised coefficients: training (n, copies, d) and held-out (m, d)."""
        parts = [
            self.part(shift, shifted(self.images, shift), power, groups) for shift in shifts(copies)
        ]
        return torch.stack(parts, 1), self.part("held", self.held_images, power, groups)


def glyph_rows(power, groups, device, count):
    from tools.feature_files.glyphs import Hand, glyphs

    hand = Hand.seeded(3, device)
    images = torch.cat([glyphs(50, 10, hand, variation=0.3) for _ in range(count // 500)])
    return normalised(coefficients(images[:, None], device), power, groups)


def prepared(data, variant, copies, limit=None):
    """Mapped features for a variant, and the budget that is left for training."""
    power, groups, how = variant
    train, held = data.rows(power, groups, copies)
    if how is None:
        return train, held, MU
    kind, noise, alpha, level = how
    if kind == "released":
        moment = second_moment(train[:, 0])
        left = math.sqrt(MU**2 - noise**-2)
    else:
        rows = glyph_rows(power, groups, data.device, limit or 20_000)
        moment, left = second_moment(rows), MU
    count = len(train) if noise else len(rows)
    matrix = preconditioner(moment, noise, count, alpha, level)
    wide = torch.cat([mapped(train[:, k], matrix)[:, None] for k in range(copies)], 1)
    return wide, mapped(held, matrix), left


def explore(data, variant, copies, steps_choices, many, seed, limit=None):
    train, held, left = prepared(data, variant, copies, limit)
    generator = np.random.default_rng(seed)
    found = []

    def tried(settings):
        scores = search(train, data.labels, held, data.held_labels, settings, left)
        found.extend(s | {"score": round(v, 4)} for s, v in zip(settings, scores, strict=True))
        found.sort(key=lambda each: -each["score"])

    for steps in steps_choices[:2]:
        tried(drawn(many, steps, generator))
    best = found[:6]
    for steps in steps_choices:
        tried(varied(best, many, steps, generator))
    return found[:6]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--out", type=Path, default=Path("search.json"))
    parser.add_argument("--many", type=int, default=36)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--steps", type=int, nargs="+", default=[60, 200, 500])
    given = parser.parse_args()
    start, results = time.time(), []
    sets = [Data(name, given.device, given.limit) for name in ("mnist", "fashion-mnist")]
    print("loaded", round(time.time() - start, 1), flush=True)

    def go(data, variant, copies, steps_choices, many):
        begun = time.time()
        best = explore(data, variant, copies, steps_choices, many, len(results), given.limit)
        results.append({"data": data.name, "variant": variant, "copies": copies, "best": best})
        print(data.name, variant, copies, best[0], round(time.time() - begun, 1), flush=True)
        given.out.write_text(json.dumps(results, indent=1))

    lists = [variants(data.name) for data in sets]
    for pair in itertools.zip_longest(*lists):
        for data, variant in zip(sets, pair, strict=True):
            if variant is not None and time.time() - start < 0.7 * given.seconds:
                go(data, variant, 1, given.steps, given.many)
    for copies in (5, 9):
        for data in sets:
            own = [r for r in results if r["data"] == data.name and r["copies"] == 1]
            own.sort(key=lambda r: -sum(b["score"] for b in r["best"][:3]))
            for each in own[:2]:
                if time.time() - start < given.seconds:
                    go(data, each["variant"], copies, given.steps, max(6, 2 * given.many // copies))
    print("done", round(time.time() - start, 1))


if __name__ == "__main__":
    main()
