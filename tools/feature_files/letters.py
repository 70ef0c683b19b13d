"""Train the network of the map `letters`, on public letters; no digit is seen.

The network learns to name letters. Each of the eight turns and mirror images of a letter is a class
of its own, so that it learns shapes rather than the alphabet. Its last activations are centred and
whitened by their covariance within these classes: directions in which copies of one character
differ count little. The result is the code of an image.
"""

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from prudent._progress import track
from prudent.certify.features import TOP, Floats, Layer, write_network

_WEIGHT = 127
_CHUNK = 2000
_TURNS = 8


@attrs.frozen
class NetworkRecipe:
    """How the network is trained."""

    steps: int = 5000
    batch: int = 512
    channels: tuple[int, ...] = (32, 64, 64, 128, 128)
    width: int = 256
    jitter: float = 1.0  # size of the random warp of each image
    rate: float = 4e-3  # the largest learning rate
    decay: float = 5e-2
    drop: float = 0.2  # fraction of activations left out in training
    smoothing: float = 0.0  # of labels
    half: bool = False  # whether a GPU computes activations in bfloat16
    sample: int = 6000  # letters that the covariance is taken of, times eight
    shrink: float = 0.02  # weight of the mean variance in the covariance
    seed: int = 1


class Convolutions(nn.Module):
    """The network in floating point: convolutions, a dense layer, and a head that names classes."""

    def __init__(self, recipe: NetworkRecipe, classes: int) -> None:
        super().__init__()
        *inner, third, last = recipe.channels
        pads = [1] * len(inner) + [0, 0]
        # Images shrink 28, 14, 7 by pooling, and 5, 3 because the last two have no padding.
        self.pools = [2] + [1] * (len(inner) - 2) + [2, 1, 1]
        self.blocks = nn.ModuleList()
        inputs = 1
        for outputs, pad in zip((*inner, third, last), pads, strict=True):
            convolution = nn.Conv2d(inputs, outputs, 3, padding=pad, bias=False)
            self.blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(outputs)))
            inputs = outputs
        dense = nn.Linear(9 * last, recipe.width, bias=False)
        self.blocks.append(nn.Sequential(dense, nn.BatchNorm1d(recipe.width)))
        self.drop, self.head = nn.Dropout(recipe.drop), nn.Linear(recipe.width, classes)

    def stages(self, images: Tensor) -> list[Tensor]:
        """The activations after each layer, of images (n, 28, 28) in [0, 1]."""
        values, found = images[:, None], []
        for block, pool in zip(self.blocks, (*self.pools, 0), strict=True):
            if not pool:
                values = self.drop(values.flatten(1))
            values = functional.relu(block(values))
            if pool > 1:
                values = functional.max_pool2d(values, pool)
            found.append(values)
        return found

    def forward(self, images: Tensor) -> Tensor:
        """The scores of the classes."""
        scores: Tensor = self.head(self.drop(self.stages(images)[-1]))
        return scores


def turned(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """All turns and mirror images, each a class of its own."""
    classes = int(labels.max()) + 1
    parts = [each.rot90(turns, (1, 2)) for each in (images, images.flip(2)) for turns in range(4)]
    return torch.cat(parts), torch.cat([labels + classes * i for i in range(_TURNS)])


def bent(images: Tensor, jitter: float, random: torch.Generator) -> Tensor:
    """Each image with a small affine and elastic warp of its own; (n, 28, 28)."""
    count, device = len(images), images.device

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, device=device)

    angle = 0.15 * jitter * normal(count)
    cos, sin = torch.cos(angle), torch.sin(angle)
    turn = torch.stack([cos, -sin, sin, cos], -1).view(count, 2, 2)
    skew = torch.diag_embed(torch.exp(0.1 * jitter * normal(count, 2)))
    skew[:, 0, 1] = 0.2 * jitter * normal(count)
    shift = 0.06 * jitter * normal(count, 2, 1)
    grid = functional.affine_grid(
        torch.cat([turn @ skew, shift], 2), [count, 1, 28, 28], align_corners=False
    )
    bend = 0.05 * jitter * normal(count, 2, 5, 5)
    field = functional.interpolate(bend, (28, 28), mode="bicubic", align_corners=True)
    grid = grid + field.permute(0, 2, 3, 1)
    return functional.grid_sample(images[:, None], grid, align_corners=False)[:, 0]


def trained(
    recipe: NetworkRecipe, images: Tensor, labels: Tensor, device: torch.device | str = "cpu"
) -> tuple[tuple[Layer, ...], dict[str, Any]]:
    """Train a network; return its layers in whole numbers, and how they were made.

    `images` are public letters, bytes (n, 28, 28). The same device and versions of libraries
    give the same weights.
    """
    random = seeded(recipe, device)
    images, labels = turned(images.to(device), labels.to(device))
    model, loss = fitted(recipe, images, labels, random)
    order = torch.randperm(len(images), generator=random, device=device)
    chosen = order[: _TURNS * recipe.sample]
    layers = whole(model, images[chosen], labels[chosen], recipe.shrink)
    return layers, attrs.asdict(recipe) | {"loss": loss, "torch": torch.__version__}


def seeded(recipe: NetworkRecipe, device: torch.device | str) -> torch.Generator:
    """The source of randomness of a recipe; initial weights follow its seed too."""
    torch.manual_seed(recipe.seed)
    return torch.Generator(device).manual_seed(recipe.seed)


def fitted(
    recipe: NetworkRecipe, images: Tensor, labels: Tensor, random: torch.Generator
) -> tuple[Convolutions, float]:
    """A network trained to name public images, and its mean loss in the last 100 steps.

    `images` are bytes (n, 28, 28), on the device of the random numbers.
    """
    device = images.device
    model = Convolutions(recipe, int(labels.max()) + 1).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), recipe.rate, weight_decay=recipe.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, recipe.rate, total_steps=recipe.steps, pct_start=0.15
    )
    half = recipe.half and device.type == "cuda"
    losses = []
    for _ in track(range(recipe.steps), "training the map"):
        rows = torch.randint(len(images), (recipe.batch,), generator=random, device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            scores = model(bent(images[rows].float() / TOP, recipe.jitter, random)).float()
        loss = functional.cross_entropy(scores, labels[rows], label_smoothing=recipe.smoothing)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        losses.append(loss.detach())
    return model.eval(), round(torch.stack(losses[-100:]).mean().item(), 4)


def whole(model: Convolutions, images: Tensor, labels: Tensor, shrink: float) -> tuple[Layer, ...]:
    """The network in whole numbers, and a last layer that centres and whitens its activations."""
    public, names = images.cpu(), labels.cpu().numpy()
    body = rounded(model.cpu(), public[:_CHUNK].float() / TOP)
    return (*body, whitening(_activations(body, public.numpy()), names, shrink))


@torch.no_grad()
def rounded(model: Convolutions, sample: Tensor) -> tuple[Layer, ...]:
    """The network in whole numbers: normalisation folded in, weights and activations 8 bits each.

    The range of each activation is taken from a sample of public images.
    """
    stages = model.stages(sample)
    layers, before = [], 1.0 / TOP  # what one step of the input is worth
    for index, block in enumerate(model.blocks):
        linear, norm = block[0], block[1]  # type: ignore[index]
        factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        weight = (linear.weight * factor.view(-1, *[1] * (linear.weight.ndim - 1))).double()
        bias = (norm.bias - norm.running_mean * factor).double()
        flat = weight.flatten(1)
        if weight.ndim == 2:  # channels last, as the whole-number network flattens images
            flat = weight.view(len(weight), -1, 9).transpose(1, 2).flatten(1)
        after = max(float(torch.quantile(stages[index].flatten()[:4_000_000], 0.9999)), 1e-6) / TOP
        convolution = weight.ndim == 4
        layers.append(
            dense_layer(
                flat.T.numpy() * (before / after),
                bias.numpy() / after,
                size=3 if convolution else 0,
                pad=linear.padding[0] if convolution else 0,
                pool=model.pools[index] if convolution else 1,
            )
        )
        before = after
    return tuple(layers)


def dense_layer(
    matrix: npt.NDArray[np.float64], bias: npt.NDArray[np.float64], **shape: int
) -> Layer:
    """A layer with these weights, rounded to 8 bits for each output."""
    steps = np.maximum(np.abs(matrix).max(axis=0), 1e-12) / _WEIGHT
    return Layer(
        weight=np.rint(matrix / steps).astype(np.int8),
        gain=steps.astype(np.float32),
        bias=bias.astype(np.float32),
        **({"size": 0} | shape),
    )


def whitening(rows: Floats, labels: npt.NDArray[np.int64], shrink: float) -> Layer:
    """The layer that centres activations and makes their covariance within classes the identity.

    `shrink` is the weight of the mean variance in the covariance.
    """
    values = rows.astype(np.float64)
    counts = np.bincount(labels)
    sums = np.zeros((len(counts), values.shape[1]))
    np.add.at(sums, labels, values)
    inner = values - (sums / np.maximum(counts, 1)[:, None])[labels]
    covariance = inner.T @ inner / len(values)
    size = len(covariance)
    covariance = (1 - shrink) * covariance + shrink * np.trace(covariance) / size * np.eye(size)
    scales, axes = np.linalg.eigh(covariance)
    matrix = axes / np.sqrt(scales) @ axes.T
    centred = (values - values.mean(axis=0)) @ matrix
    unit = 255.0 / np.quantile(np.abs(centred), 0.999)  # most entries then use all of 8 bits
    return dense_layer(matrix * unit, -values.mean(axis=0) @ matrix * unit)


def _activations(layers: tuple[Layer, ...], images: npt.NDArray[np.uint8]) -> Floats:
    parts = []
    for start in range(0, len(images), _CHUNK):
        values = images[start : start + _CHUNK, :, :, None].astype(np.float32)
        for layer in layers:
            values = layer(values)
        parts.append(values)
    return np.concatenate(parts)


def make(
    path: Path,
    recipe: NetworkRecipe | None = None,
    *,
    device: str = "cpu",
    steps: int | None = None,
) -> dict[str, Any]:
    """Train the network by its recipe, write its weight file, and return how it was made.

    It takes a minute on a GPU, hours on a CPU; fewer steps than the recipe's are for a trial.
    """
    from prudent_lab.datasets import load

    recipe = recipe or NetworkRecipe()
    if steps is not None:
        recipe = attrs.evolve(recipe, steps=steps)
    public = load("emnist-az")
    images = (public.train_features[:, 0] * TOP).round().to(torch.uint8)
    layers, provenance = trained(recipe, images, public.train_labels, device)
    write_network(path, layers, provenance)
    return provenance
