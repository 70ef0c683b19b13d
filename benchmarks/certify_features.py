"""Which public features certify most: networks and kernels, scored by certified accuracy.

    PRUDENT_DATA=... OUT=... python benchmarks/certify_features.py [--seconds 280]

Needs torch and numpy; reads the idx files of `mnist` and `emnist-az` under $PRUDENT_DATA. The
networks never see a digit: they are trained to name letters, or invented glyphs. Scores are
measured on digits 50,000 to 60,000 with class sums of the first 50,000 ("held"), and, for the
record, on the test digits with sums of all 60,000 ("test").
"""

import argparse
import gzip
import json
import math
import os
import sys
import time
import types
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[1] / "src" / "prudent" / "certify" / "features"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RECORDS = (0, 100, 500, 1000, 2000, 3000, 4000, 6000)
WIDTH = 256
GLYPHS = 2000 if DEVICE.type == "cuda" else 40


def idx(path):
    raw = gzip.decompress(Path(path).read_bytes())
    rank = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(rank)]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape)


def load():
    root = Path(os.environ["PRUDENT_DATA"])
    parts = {}
    for part, stem in (
        ("digits", "mnist/train"),
        ("test", "mnist/t10k"),
        ("letters", "emnist-az/emnist-az-train"),
    ):
        x = torch.tensor(idx(root / f"{stem}-images-idx3-ubyte.gz"))
        y = torch.tensor(idx(root / f"{stem}-labels-idx1-ubyte.gz")).long()
        if part == "letters":
            x, y = x.transpose(1, 2).contiguous(), y - 1
        parts[part] = x.to(DEVICE), y.to(DEVICE)
    return parts


def glyph_images(classes, copies, variation):
    source = (
        (ROOT / "glyphs.py")
        .read_text()
        .replace("import attrs\n", "")
        .replace("@attrs.frozen(eq=False)\nclass Hand:", "@_dataclass\nclass Hand:")
    )
    module = types.ModuleType("glyphs")
    import dataclasses

    module._dataclass = dataclasses.dataclass
    sys.modules["glyphs"] = module
    exec(compile(source, "glyphs.py", "exec"), module.__dict__)
    hand = module.Hand.seeded(5, DEVICE)
    images = [
        (255 * module.glyphs(20, copies, hand, variation=variation)).round().byte()
        for _ in range(classes // 20)
    ]
    return torch.cat(images), torch.arange(classes, device=DEVICE).repeat_interleave(copies)


def dihedral(x, y, classes):
    """Each of the eight turns and mirror images of a class is a class."""
    parts = []
    for mirror in (False, True):
        flat = x.flip(2) if mirror else x
        parts += [flat.rot90(turns, (1, 2)) for turns in range(4)]
    return torch.cat(parts), torch.cat([y + classes * i for i in range(8)])


def bent(x, jitter):
    n = len(x)
    angle = 0.15 * jitter * torch.randn(n, device=DEVICE)
    size = torch.exp(0.1 * jitter * torch.randn(n, 2, device=DEVICE))
    c, s = torch.cos(angle), torch.sin(angle)
    turned = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
    skew = torch.diag_embed(size)
    skew[:, 0, 1] = 0.2 * jitter * torch.randn(n, device=DEVICE)
    shift = 0.06 * jitter * torch.randn(n, 2, 1, device=DEVICE)
    grid = functional.affine_grid(
        torch.cat([turned @ skew, shift], 2), (n, 1, 28, 28), align_corners=False
    )
    bend = 0.05 * jitter * torch.randn(n, 2, 5, 5, device=DEVICE)
    field = functional.interpolate(bend, (28, 28), mode="bicubic", align_corners=True)
    return functional.grid_sample(x, grid + field.permute(0, 2, 3, 1), align_corners=False)


class Net(nn.Module):
    def __init__(self, classes, channels, deep, drop, cosine):
        super().__init__()
        a, b, c, d = channels

        def conv(i, o, pad):
            return [nn.Conv2d(i, o, 3, padding=pad, bias=False), nn.BatchNorm2d(o), nn.ReLU()]

        self.body = nn.Sequential(
            *conv(1, a, 1),
            nn.MaxPool2d(2),
            *conv(a, b, 1),
            *(conv(b, b, 1) if deep else []),
            nn.MaxPool2d(2),
            *conv(b, c, 0),
            *conv(c, d, 0),
            nn.Flatten(),
            nn.Dropout(drop),
            nn.Linear(9 * d, WIDTH, bias=False),
            nn.BatchNorm1d(WIDTH),
        )
        self.drop, self.cosine = nn.Dropout(drop), cosine
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x):
        f = functional.relu(self.body(x))
        if self.cosine:
            return (
                self.cosine
                * functional.normalize(f, dim=1)
                @ functional.normalize(self.head.weight, dim=1).T
            )
        return self.head(self.drop(f))


def train(x, y, config):
    torch.manual_seed(1)
    classes = int(y.max()) + 1
    net = Net(
        classes,
        config.get("channels", (32, 64, 128, 128)),
        config.get("deep", False),
        config.get("drop", 0.2),
        config.get("cosine", 0),
    ).to(DEVICE)
    net = net.to(memory_format=torch.channels_last)
    steps, rate = config["steps"], 4e-3
    optimiser = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=5e-2, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, rate, total_steps=steps, pct_start=0.15
    )
    began = time.time()
    for _ in range(steps):
        rows = torch.randint(len(x), (512,), device=DEVICE)
        images = bent(x[rows].float()[:, None] / 255, config.get("jitter", 1.0))
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
            logits = net(images)
        loss = functional.cross_entropy(
            logits.float(), y[rows], label_smoothing=config.get("smooth", 0.0)
        )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
    print(f"  trained {time.time() - began:.0f} s, loss {loss.item():.3f}")
    return net.eval()


@torch.no_grad()
def features(net, images):
    return torch.cat([net.body(b.float()[:, None] / 255).float() for b in images.split(4000)])


def unit(x):
    return functional.normalize(x, dim=1)


def whitening(f, y, shrink):
    """Mean, and the matrix that makes the covariance within classes the identity."""
    classes = int(y.max()) + 1
    one = torch.zeros(classes, f.shape[1], device=DEVICE).index_add_(0, y, f)
    count = torch.bincount(y, minlength=classes).clamp_min(1)[:, None]
    within = f - (one / count)[y]
    cov = (within.T @ within / len(f)).double()
    cov = (1 - shrink) * cov + shrink * cov.diagonal().mean() * torch.eye(len(cov), device=DEVICE)
    values, vectors = torch.linalg.eigh(cov)
    return f.mean(0), (vectors * values.clamp_min(1e-9).rsqrt() @ vectors.T).float()


def sums_of(h, u, y, q):
    """Sums over each class of h(cosine), queries by classes, in pieces."""
    one = functional.one_hot(y, 10).float()
    return torch.cat([h(part @ u.T) @ one for part in q.split(2000)])


def curve(sums, y, labels, noise):
    """Certified accuracy of scores 2Σk − n: one record moves a gap by at most 1."""
    scores = 2 * sums - torch.bincount(y, minlength=10)
    scores = scores + 2 * math.sqrt(2.5) * noise * torch.randn_like(scores)
    top = scores.topk(2)
    radius = torch.ceil(top.values[:, 0] - top.values[:, 1]) - 1
    right = top.indices[:, 0] == labels
    row = {k: round(100 * (right & (radius >= k)).float().mean().item(), 1) for k in RECORDS}
    row["median"] = torch.where(right, radius, -1).median().item()
    return row


def ramp(a, b):
    return lambda c: ((c - a) / (b - a)).clamp(0, 1)


def kernels(d):
    found = {"rect": None, "split": None}
    for a, b in ((0, 1), (0, 0.6), (0.1, 0.5), (0.2, 0.4), (0.25, 0.6), (0.3, 0.5), (0.4, 0.6)):
        found[f"ramp {a} {b}"] = ramp(a, b)
    for t in (0.0, 0.5, 1.0, 1.5, 2.0):
        found[f"random {t}"] = t
    found["random 1.0 D1024"] = 1.0
    for tables, each in ((32, 128), (32, 256), (16, 1024)):
        for low, high in ((0.6, 1.0), (0.8, 1.2)):
            found[f"votes {tables}x{each} {low} {high}"] = tables, each, low, high
    return found


def votes(u, y, q, tables, each, low, high):
    """Sums over each class of the weights of what records vote for: random directions."""
    g = torch.Generator(DEVICE).manual_seed(7)
    signs = torch.randint(2, (u.shape[1], tables * each), generator=g, device=DEVICE) * 2.0 - 1
    one, counts = functional.one_hot(y, 10).float(), torch.zeros(tables * each, 10, device=DEVICE)
    near = torch.cat([(p @ signs).view(-1, tables, each).argmax(2) for p in u.split(2000)])
    for t in range(tables):
        counts.index_add_(0, near[:, t] + each * t, one)
    return torch.cat([ramp(low, high)(p @ signs) @ counts / tables for p in q.split(2000)])


def vectors_of(name, value, phi):
    if name == "rect":
        return unit(phi.relu())
    if name == "split":
        return unit(torch.cat([phi.relu(), (-phi).relu()], 1))
    if name.startswith("random"):
        dims = 1024 if "D1024" in name else 4096
        g = torch.Generator(DEVICE).manual_seed(7)
        signs = torch.randint(2, (phi.shape[1], dims), generator=g, device=DEVICE) * 2.0 - 1
        return unit((unit(phi) @ signs - value).relu())
    return unit(phi)


def report(label, phi, data, noise, out):
    """phi: features of digits and of test digits, signed, not yet of length 1."""
    y, ty = data["digits"][1], data["test"][1]
    for name, value in kernels(phi[0].shape[1]).items():
        u, t = (vectors_of(name, value, part) for part in phi)
        h = value if name.startswith("ramp") else (lambda c: c)

        def sums(u, y, q, name=name, value=value, h=h):
            return votes(u, y, q, *value) if name.startswith("votes") else sums_of(h, u, y, q)

        loud = noise * (math.sqrt(value[1] / 5) if name.startswith("votes") else 1.0)
        held = curve(sums(u[:50000], y[:50000], u[50000:]), y[:50000], y[50000:], loud)
        test = curve(sums(u, y, t), y, ty, loud)
        print(
            f"{label:24s} {name:18s} held",
            *(f"{k}:{v}" for k, v in held.items()),
            "| test",
            *(test[k] for k in (0, 1000, 2000, 4000)),
            flush=True,
        )
        out[f"{label} / {name}"] = {"held": held, "test": test}


NETS = {
    "letters": {"data": "letters", "steps": 2600},
    "glyphs": {"data": "glyphs", "steps": 2600, "variation": 0.2},
    "letters-cosine": {"data": "letters", "steps": 2000, "cosine": 16.0},
    "letters-turned": {"data": "turned", "steps": 2600},
    "letters-deep": {"data": "letters", "steps": 2600, "deep": True, "smooth": 0.1},
    "glyphs-varied": {"data": "glyphs", "steps": 2600, "variation": 0.35, "deep": True},
    "glyphs-many": {"data": "glyphs", "steps": 4000, "variation": 0.2, "classes": 10_000},
    "letters+glyphs": {"data": "mixed", "steps": 3000, "deep": True, "variation": 0.2},
}


def pictures(config, data):
    x, y = data["letters"]
    if config["data"] == "letters":
        return x, y
    if config["data"] == "turned":
        return dihedral(x, y, 26)
    classes = min(GLYPHS, 40) if DEVICE.type == "cpu" else config.get("classes", GLYPHS)
    gx, gy = glyph_images(classes, 120_000 // max(2000, classes), config["variation"])
    if config["data"] == "glyphs":
        return gx, gy
    return torch.cat([x, gx]), torch.cat([y, gy + 26])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=280)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    began, results = time.time(), {}
    out = Path(os.environ.get("OUT", "."))
    torch.backends.cuda.matmul.allow_tf32 = True
    data = load()
    if DEVICE.type == "cpu":  # a trial of the script, not a measurement
        data = {k: (x[:1000], y[:1000]) for k, (x, y) in data.items()}
        data["digits"] = tuple(p.repeat(60, *[1] * (p.ndim - 1)) for p in data["digits"])
    for name, config in NETS.items():
        if options.only and name not in options.only.split(","):
            continue
        if time.time() - began > options.seconds - 25:
            print("no time for", name)
            continue
        print(name, config, round(time.time() - began), flush=True)
        x, y = pictures(config, data)
        net = train(x, y, config | ({"steps": options.steps} if options.steps else {}))
        part = torch.randperm(len(x), device=DEVICE)[:60000]
        raw = features(net, x[part])
        digits, test = features(net, data["digits"][0]), features(net, data["test"][0])
        noise = 4.2 if config["data"] == "glyphs" else 13.0
        for kind, act in (("post", torch.relu), ("pre", lambda v: v)):
            mean, matrix = whitening(act(raw), y[part], 0.02)
            phi = [(act(v) - mean) @ matrix for v in (digits, test)]
            if kind == "pre" and name not in ("letters", "glyphs"):
                continue
            report(f"{name} {kind}", phi, data, noise, results)
        net.head = nn.Identity()
        np.savez_compressed(
            out / f"{name}.npz",
            **{k: v.half().cpu().numpy() for k, v in net.state_dict().items() if v.ndim},
        )
        if name in ("letters", "glyphs"):
            np.savez_compressed(
                out / f"features-{name}.npz",
                **{
                    k: (16 * v.relu()).round().clamp(0, 255).byte().cpu().numpy()
                    for k, v in (("digits", digits), ("test", test), ("public", raw[:30000]))
                },
                labels=y[part][:30000].cpu().numpy(),
            )
        (out / "results.json").write_text(json.dumps(results, indent=1))
    print("all", round(time.time() - began))


if __name__ == "__main__":
    main()
