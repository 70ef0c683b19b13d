"""Which public training of the features certifies most: a sweep, scored by certified accuracy.

    PRUDENT_DATA=... OUT=... python benchmarks/certify_features.py [--quick] [--seconds 280]

Needs torch and numpy; reads the idx files of `mnist` and `emnist-az` under $PRUDENT_DATA. The
features never see a digit: they are trained on letters, on synthetic glyphs, or on both. Scores are
measured on digits 50,000 to 60,000 with class sums of the first 50,000 ("held"), and, for the
record, on the test digits with sums of all 60,000 ("test").
"""

import argparse
import gzip
import json
import math
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RECORDS = (0, 100, 500, 1000, 2000, 3000, 4000, 5000, 6000)


def idx(path):
    raw = gzip.decompress(Path(path).read_bytes())
    rank = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(rank)]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape)


def load():
    root = Path(os.environ["PRUDENT_DATA"])
    parts = {}
    for part, images, labels in (
        ("digits", "mnist/train-images-idx3-ubyte.gz", "mnist/train-labels-idx1-ubyte.gz"),
        ("test", "mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz"),
        (
            "unseen",
            "emnist-az/emnist-az-test-images-idx3-ubyte.gz",
            "emnist-az/emnist-az-test-labels-idx1-ubyte.gz",
        ),
        (
            "letters",
            "emnist-az/emnist-az-train-images-idx3-ubyte.gz",
            "emnist-az/emnist-az-train-labels-idx1-ubyte.gz",
        ),
    ):
        x, y = torch.tensor(idx(root / images)), torch.tensor(idx(root / labels)).long()
        if part in ("letters", "unseen"):
            x, y = x.transpose(1, 2).contiguous(), y - 1
        parts[part] = x.to(DEVICE), y.to(DEVICE)
    return parts


# ---- pictures to train on -------------------------------------------------------------------


def glyphs(classes, copies, jitter=0.2):
    """Random characters: each class a few random curves, each copy drawn anew by another hand."""
    dev, curves, points = DEVICE, 4, 14
    number = torch.randint(1, curves + 1, (classes, 1), device=dev)
    start = torch.rand(classes, curves, 1, 2, device=dev) * 2 - 1
    # strokes: cubic Bezier curves; a share of them continue where the one before ended, or are arcs
    control = torch.rand(classes, curves, 4, 2, device=dev) * 2 - 1
    straight = torch.rand(classes, curves, 1, 1, device=dev) < 0.3
    line = start + (control[:, :, 3:] - start) * torch.linspace(0, 1, 4, device=dev)[:, None]
    control = torch.where(straight, line, control)
    joined = torch.rand(classes, curves, device=dev) < 0.6
    for i in range(1, curves):
        move = torch.where(joined[:, i, None], control[:, i - 1, 3] - control[:, i, 0], 0.0)
        control[:, i, 0] += move
        control[:, i, 1] += move / 2
    spread = jitter * torch.rand(classes, 1, 1, 1, 1, device=dev)  # some classes vary more
    control = control[:, None] + spread * torch.randn(classes, copies, curves, 4, 2, device=dev)
    # a stroke that continues another one starts at its jittered end
    for i in range(1, curves):
        control[:, :, i, 0] = torch.where(
            joined[:, None, i, None], control[:, :, i - 1, 3], control[:, :, i, 0]
        )
    t = torch.linspace(0, 1, points, device=dev)
    basis = torch.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3])
    xy = torch.einsum("abscd,cp->abspd", control, basis)
    xy = affine_points(xy.flatten(0, 1)).unflatten(0, (classes, copies))
    used = torch.arange(curves, device=dev)[None] < number
    return render(xy.flatten(0, 1), used.repeat_interleave(copies, 0))


def affine_points(xy):
    n = len(xy)
    angle = 0.15 * torch.randn(n, device=DEVICE)
    shear = 0.25 * torch.randn(n, device=DEVICE)
    aspect = torch.exp(0.2 * torch.randn(n, device=DEVICE))
    c, s = torch.cos(angle), torch.sin(angle)
    turn = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
    skew = torch.zeros_like(turn)
    skew[:, 0, 0], skew[:, 0, 1], skew[:, 1, 1] = aspect, shear, 1
    return torch.einsum("nspd,nde->nspe", xy, skew @ turn)


def render(xy, used):
    """Draw curves as MNIST draws digits: in a box of 20 pixels, centred by the centre of mass."""
    n, curves, points, _ = xy.shape
    flat, mask = xy.flatten(1, 2), used.repeat_interleave(points, 1)[..., None]
    big = 1e3
    high = torch.where(mask, flat, -big).amax(1)
    low = torch.where(mask, flat, big).amin(1)
    size = (high - low).amax(1).clamp_min(0.2)
    flat = flat * (18 / size)[:, None, None]
    centre = (flat * mask).sum(1) / mask.sum(1)
    flat = flat - centre[:, None] + 14 + 0.5 * torch.randn(n, 1, 2, device=DEVICE)
    flat = torch.where(mask, flat, big).unflatten(1, (curves, points))
    a, b = flat[:, :, :-1].flatten(1, 2), flat[:, :, 1:].flatten(1, 2)
    grid = torch.stack(
        torch.meshgrid(
            torch.arange(28.0, device=DEVICE), torch.arange(28.0, device=DEVICE), indexing="xy"
        ),
        -1,
    ).flatten(0, 1)
    # distance of pixels to segments, in pieces to bound memory
    out = []
    for aa, bb in zip(a.split(512), b.split(512), strict=True):
        ab = bb - aa
        length = (ab * ab).sum(-1).clamp_min(1e-6)
        rel = grid[None, None] - aa[:, :, None]
        t = ((rel * ab[:, :, None]).sum(-1) / length[..., None]).clamp(0, 1)
        d = ((rel - t[..., None] * ab[:, :, None]) ** 2).sum(-1).amin(1)
        out.append(d)
    distance = torch.cat(out).sqrt()
    width = 0.7 + 0.9 * torch.rand(n, 1, device=DEVICE)
    return torch.sigmoid((width - distance) / 0.35).unflatten(1, (28, 28))


class Letters:
    """Batches of letters; each class may be warped as a whole, which makes it a new character."""

    def __init__(self, images, labels, warp, jitter=1.0):
        self.images, self.warp, self.jitter = images, warp, jitter
        self.members = [(labels == c).nonzero()[:, 0] for c in range(26)]

    def __call__(self, classes, copies):
        picks = [torch.randperm(26)[: min(classes, 26)] for _ in range(math.ceil(classes / 26))]
        chosen = torch.cat(picks)[:classes].tolist()
        rows = torch.cat(
            [m[torch.randint(len(m), (copies,), device=DEVICE)] for m in
             (self.members[c] for c in chosen)]
        )
        x = self.images[rows].float()[:, None] / 255
        strong = torch.rand(classes, device=DEVICE) < self.warp
        if classes <= 26 and self.warp == 0:
            strong[:] = False
        return warp(x, classes, copies, strong, self.jitter)[:, 0]


def warp(x, classes, copies, strong, jitter):
    """A small random affine and elastic warp of each picture; a large shared one of a class."""
    n = len(x)

    def maps(count, turn, scale, shear):
        angle = turn * torch.randn(count, device=DEVICE)
        size = torch.exp(scale * torch.randn(count, 2, device=DEVICE))
        c, s = torch.cos(angle), torch.sin(angle)
        turned = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
        skew = torch.diag_embed(size)
        skew[:, 0, 1] = shear * torch.randn(count, device=DEVICE)
        return turned @ skew

    own = maps(n, 0.12 * jitter, 0.08 * jitter, 0.15 * jitter)
    shared = maps(classes, 3.0, 0.15, 0.3)
    flip = torch.where(torch.rand(classes, 1, 1, device=DEVICE) < 0.5, -1.0, 1.0)
    shared = shared * torch.cat([flip, torch.ones_like(flip)], -1)
    shared = torch.where(strong[:, None, None], shared, torch.eye(2, device=DEVICE))
    total = shared.repeat_interleave(copies, 0) @ own
    shift = 0.05 * jitter * torch.randn(n, 2, 1, device=DEVICE)
    grid = F.affine_grid(torch.cat([total, shift], 2), (n, 1, 28, 28), align_corners=False)
    bend = 0.04 * jitter * torch.randn(n, 2, 5, 5, device=DEVICE)
    bend = bend + (
        torch.where(strong, 0.12, 0.0)[:, None, None, None]
        * torch.randn(classes, 2, 5, 5, device=DEVICE)
    ).repeat_interleave(copies, 0)
    field = F.interpolate(bend, (28, 28), mode="bicubic", align_corners=True)
    return F.grid_sample(x, grid + field.permute(0, 2, 3, 1), align_corners=False)


# ---- features -------------------------------------------------------------------------------


class Features(nn.Module):
    """A small convolutional network; non-negative outputs of length 1."""

    def __init__(self, width=256, channels=(32, 64, 128, 128), deep=False):
        super().__init__()
        a, b, c, d = channels

        def conv(i, o, pad):
            return [nn.Conv2d(i, o, 3, padding=pad, bias=False), nn.BatchNorm2d(o), nn.ReLU()]

        self.body = nn.Sequential(
            *conv(1, a, 1), nn.MaxPool2d(2),
            *conv(a, b, 1), *(conv(b, b, 1) if deep else []), nn.MaxPool2d(2),
            *conv(b, c, 0), *conv(c, d, 0), nn.Flatten(),
            nn.Linear(9 * d, width, bias=False), nn.BatchNorm1d(width),
        )

    def forward(self, x):
        return F.normalize(F.relu(self.body(x[:, None]).float()), dim=1, eps=1e-6)


def loss_of(u, classes, copies, scale, margin):
    """Cross-entropy of each copy against the mean kernels of the classes, itself left out."""
    kernel = (u @ u.T).view(classes, copies, classes, copies)
    sums = kernel.sum(3)
    own = torch.arange(classes, device=u.device)
    means = sums / copies
    rest = (sums[own, :, own] - 1) / (copies - 1)
    means = means.clone()
    means[own, :, own] = rest - margin
    target = own.repeat_interleave(copies)
    return F.cross_entropy(scale * means.view(classes * copies, classes), target)


def train(config, letters, deadline):
    torch.manual_seed(config.get("seed", 1))
    network = Features(config["width"], config.get("channels", (32, 64, 128, 128)),
                       config.get("deep", False)).to(DEVICE)
    steps = config["steps"]
    optimiser = torch.optim.AdamW(network.parameters(), lr=config.get("lr", 3e-3), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, config.get("lr", 3e-3), total_steps=steps, pct_start=0.1)
    source = Letters(*letters, config.get("warp", 0.5), config.get("jitter", 1.0))
    classes, copies = config.get("classes", 52), config.get("copies", 16)
    network.train()
    began = time.time()
    for step in range(steps):
        kind = config["data"]
        if kind == "both":
            kind = ("letters", "glyphs")[step % 2]
        with torch.no_grad():
            if kind == "letters":
                x = source(classes, copies)
            else:
                x = glyphs(classes, copies, config.get("hand", 0.2))
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
            u = network(x)
        loss = loss_of(u, classes, copies, config["scale"], config.get("margin", 0.0))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 500 == 0 and time.time() > deadline:
            break
    return network.eval(), loss.item(), time.time() - began


@torch.no_grad()
def embed(network, images):
    return torch.cat([network(b.float() / 255) for b in images.split(4000)])


# ---- certified curves -----------------------------------------------------------------------


def curve(u, y, q, labels, noise, affine=True):
    """Certified accuracy in percent; one record moves a gap by 1/2 (1 where not affine)."""
    one = F.one_hot(y, int(labels.max()) + 1).float()
    rows = torch.cat([u, torch.full((len(u), 1), 0.5, device=u.device)], 1) if affine else u
    sums = one.T @ rows
    sums = sums + noise * (1.25**0.5 if affine else 1) * torch.randn_like(sums)
    queries = torch.cat([q, torch.full((len(q), 1), -1.0, device=u.device)], 1) if affine else q
    scores = queries @ sums.T
    top = scores.topk(2)
    radius = torch.ceil((top.values[:, 0] - top.values[:, 1]) * (2 if affine else 1)) - 1
    right = top.indices[:, 0] == labels
    found = {str(k): round(100 * (right & (radius >= k)).float().mean().item(), 2) for k in RECORDS}
    found["median"] = torch.where(right, radius, -1).median().item()
    return found


def scored(name, us, data, noise):
    u, t = us
    y, ty = data["digits"][1], data["test"][1]
    out = {
        "held": curve(u[:50000], y[:50000], u[50000:], y[50000:], noise),
        "test": curve(u, y, t, ty, noise),
        "plain": curve(u, y, t, ty, noise, affine=False),
    }
    for part, row in out.items():
        print(f"{name:34s} {part:5s}", " ".join(f"{k}:{v}" for k, v in row.items()), flush=True)
    return out


BASE = {"data": "letters", "scale": 16.0, "width": 256, "steps": 2200, "warp": 0.5, "hand": 0.2}
SWEEP = {
    "letters": {},
    "glyphs": {"data": "glyphs"},
    "both": {"data": "both"},
    "glyphs-hand4": {"data": "glyphs", "hand": 0.4},
    "letters-nowarp": {"warp": 0.0, "classes": 26, "copies": 32},
    "both-scale8": {"data": "both", "scale": 8.0},
    "both-scale32": {"data": "both", "scale": 32.0},
    "glyphs-scale8": {"data": "glyphs", "scale": 8.0},
    "glyphs-scale32": {"data": "glyphs", "scale": 32.0, "hand": 0.4},
    "glyphs-hand7": {"data": "glyphs", "hand": 0.7},
    "both-512": {"data": "both", "width": 512},
    "both-deep": {"data": "both", "deep": True},
    "both-warp15": {"data": "both", "warp": 0.15, "hand": 0.4},
    "both-margin": {"data": "both", "margin": 0.2},
    "both-jitter2": {"data": "both", "jitter": 1.8, "hand": 0.4},
    "both-64": {"data": "both", "width": 64},
    "glyphs-deep": {"data": "glyphs", "deep": True, "hand": 0.4, "width": 512, "steps": 5000},
    "both-long": {"data": "both", "deep": True, "hand": 0.4, "width": 512, "steps": 5000},
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=280)
    options = parser.parse_args()
    began = time.time()
    torch.backends.cuda.matmul.allow_tf32 = True
    out = Path(os.environ.get("OUT", "."))
    data = load()
    print("data", round(time.time() - began, 1), DEVICE, flush=True)
    results, features = {}, {}
    for name, change in SWEEP.items():
        if options.only and name not in options.only.split(","):
            continue
        if time.time() - began > options.seconds:
            print("no time for", name)
            continue
        config = BASE | change
        if options.steps:
            config["steps"] = options.steps
        network, loss, took = train(config, data["letters"], began + options.seconds)
        us = embed(network, data["digits"][0]), embed(network, data["test"][0])
        print(f"{name}: loss {loss:.3f}, {took:.0f} s, active {(us[0] > 0).float().mean():.2f}")
        features[name] = us
        noise = 4.2 if config["data"] == "glyphs" else 13.0
        results[name] = {"config": config, "loss": loss, "seconds": took,
                         **scored(name, us, data, noise)}
        if config["data"] == "glyphs":
            kept = embed(network, data["letters"][0]), embed(network, data["unseen"][0])
            row = curve(kept[0], data["letters"][1], kept[1], data["unseen"][1], noise)
            print(f"{name:34s} A-Z  ", " ".join(f"{k}:{v}" for k, v in row.items()), flush=True)
            results[name]["letters"] = row
        np.savez_compressed(out / f"{name}.npz", **{
            k: v.half().cpu().numpy() for k, v in network.state_dict().items() if v.ndim})
        (out / "results.json").write_text(json.dumps(results, indent=1))
    names = list(features)
    for group in (["both", "both-512"], ["both-scale8", "both-scale32"], ["glyphs", "glyphs-512"],
                  [n for n in names if n.startswith("both")],
                  [n for n in names if n.startswith("glyphs")]):
        if len(group) > 1 and all(n in features for n in group):
            joined = [torch.cat([features[n][i] for n in group], 1) / math.sqrt(len(group))
                      for i in (0, 1)]
            results["+".join(group)] = scored("+".join(group)[:34], joined, data, 13.0)
    (out / "results.json").write_text(json.dumps(results, indent=1))
    print("all", round(time.time() - began, 1))


if __name__ == "__main__":
    main()
