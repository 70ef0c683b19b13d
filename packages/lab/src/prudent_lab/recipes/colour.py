"""Features of colour images from a network that was pretrained on images from random processes.

Outputs of all stages are averaged over a few cells of the image and over its reflection, whitened
by statistics of random images, and divided by their length. All of this is a public function of
one record, so training on features costs what training on images would.
"""

import functools
import hashlib
import json
from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from prudent._validate import ArgumentError
from prudent_lab.data_files import cached_array
from prudent_lab.datasets import Dataset
from prudent_lab.experiment import Setup
from prudent_lab.recipes.digits import of_unit_length
from prudent_lab.recipes.pretraining import SIDE, Encoder, Pretraining, pretrain
from prudent_lab.recipes.random_images import draw

_VERSION = 1  # of the random images and the pretraining; part of the names of cached files
_REFERENCES = 16_384  # random images whose features define the whitening
_AT_ONCE = 1024
_MOST_ON_CPU = 10**5  # images seen in pretraining

Cells = tuple[tuple[int, int], ...]
"""For each stage that contributes, its number and the cells per side in which it is averaged."""

CELLS: Cells = ((1, 2), (2, 4), (3, 2))


@attrs.frozen(eq=False)
class ColourFeatures:
    """A public map from images (n, 3, 32, 32) in [0, 1] to vectors of length 1.

    An image with a pixel that is not finite is mapped to zero, so its gradient is zero.
    """

    encoder: Encoder  # the pretrained network, in evaluation mode
    cells: Cells  # where its outputs are averaged
    mean: Tensor  # mean of the averages over random images
    whitening: Tensor  # matrix by which centred averages are multiplied

    def __call__(self, images: Tensor) -> Tensor:
        """The features of images, on the device of the encoder."""
        parts = [
            of_unit_length((rows - self.mean) @ self.whitening)
            for rows in pooled(self.encoder, self.cells, images)
        ]
        return torch.cat(parts)


@torch.no_grad()
def pooled(encoder: Encoder, cells: Cells, images: Tensor) -> Iterator[Tensor]:
    """Averages of a network's outputs over cells and over the image and its reflection."""
    device = next(encoder.parameters()).device
    for batch in torch.split(images, _AT_ONCE):
        placed = batch.to(device).contiguous(memory_format=torch.channels_last)
        views = []
        for view in (placed, placed.flip(3)):
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                outputs = encoder(view)
            parts = [
                functional.adaptive_avg_pool2d(outputs[stage].float(), side).flatten(1)
                for stage, side in cells
            ]
            views.append(torch.cat(parts, 1))
        yield (views[0] + views[1]) / 2


def whitening_of(rows: Tensor, sizes: list[int], floor: float) -> Tensor:
    """The matrix that makes features uncorrelated and, above a floor, of equal variance.

    Rows are centred features of random images, of which each stage has a size; stages get the same
    weight first. The floor is relative to the largest variance.
    """
    deviation = rows.std(0)
    # A feature that hardly varies among random images must not dominate the others.
    parts = [
        (part + 0.05 * part.mean()) * len(part) ** 0.5 for part in torch.split(deviation, sizes)
    ]
    scale = 1 / torch.cat(parts)
    scaled = rows * scale
    variances, directions = torch.linalg.eigh(scaled.T @ scaled / len(rows))
    gains = (variances.clamp_min(0) / variances.max() + floor).rsqrt()
    whitening: Tensor = scale[:, None] * (directions * gains) @ directions.T
    return whitening


@functools.lru_cache(maxsize=1)
def colour_features(
    setting: Pretraining,
    device: torch.device | str = "cpu",
    cells: Cells = CELLS,
    floor: float = 1e-3,
) -> ColourFeatures:
    """The features of a pretrained network; it is pretrained unless the user's cache holds it."""
    encoder = pretrained(setting, device)
    generator = torch.Generator(device).manual_seed(setting.seed + 2)
    parts: list[Tensor] = []
    for _ in range(0, _REFERENCES, _AT_ONCE):  # random images of the size of records
        drawn = draw(_AT_ONCE, setting.side, generator, setting.mixture)
        images = functional.interpolate(drawn, (SIDE, SIDE), mode="bilinear", antialias=True)
        parts += pooled(encoder, cells, images)
    rows = torch.cat(parts)
    mean = rows.mean(0)
    sizes = [setting.widths[stage] * side * side for stage, side in cells]
    return ColourFeatures(encoder, cells, mean, whitening_of(rows - mean, sizes, floor))


def pretrained(setting: Pretraining, device: torch.device | str = "cpu") -> Encoder:
    """The network of a setting, kept in half precision in the user's cache."""
    stated = json.dumps(attrs.asdict(setting), sort_keys=True)
    key = f"encoder-{_VERSION}-{hashlib.sha256(stated.encode()).hexdigest()[:32]}"

    def compute() -> npt.NDArray[np.generic]:
        if torch.device(device).type == "cpu" and setting.steps * setting.batch > _MOST_ON_CPU:
            raise ArgumentError(
                "device",
                "a GPU for the first run of this recipe",
                got="cpu",
                why="its network is not in the cache yet, and a CPU would pretrain it for days",
                hint="Run it once with --device cuda; later runs read the network from the cache.",
            )
        values = _weights(pretrain(setting, device)).values()
        stored: npt.NDArray[np.generic]
        stored = torch.cat([value.flatten() for value in values]).half().cpu().numpy()
        return stored

    values = torch.from_numpy(np.asarray(cached_array(key, compute))).to(device).float()
    encoder = Encoder(setting.widths).to(device)
    wanted = _weights(encoder)
    parts = torch.split(values, [tensor.numel() for tensor in wanted.values()])
    named = zip(wanted.items(), parts, strict=True)
    encoder.load_state_dict({name: p.view(t.shape) for (name, t), p in named}, strict=False)
    return encoder.eval().requires_grad_(False)


def _weights(encoder: Encoder) -> dict[str, Tensor]:
    """The weights and statistics of a network, without its counters of batches."""
    return {name: v for name, v in encoder.state_dict().items() if v.is_floating_point()}


def linear_head(data: Dataset, seed: int) -> nn.Module:
    """One dense layer with zero initial weights and no bias, which would lengthen gradients."""
    head = nn.Linear(data.train_features.shape[1], data.classes, bias=False)
    nn.init.zeros_(head.weight)
    return head


NETWORK = Pretraining(steps=3000)
"""The network of the recipes."""


def prepare(data: Dataset, device: torch.device) -> Dataset:
    """The data set with its images replaced by features, on the device."""
    if tuple(data.train_features.shape[1:]) != (3, SIDE, SIDE):
        raise ArgumentError("dataset", f"of colour images of {SIDE} × {SIDE} pixels", got=data.name)
    return data.mapped(colour_features(NETWORK, device))


SETUP = Setup(prepare=prepare, build=linear_head)
"""The linear model on features of the recipes."""
