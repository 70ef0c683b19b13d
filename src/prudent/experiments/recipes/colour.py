"""Features of colour images from a network that was pretrained on images from random processes.

Outputs of several stages are averaged over a few cells of the image and over its reflection,
centred and scaled by statistics of random images, and divided by their length. All of this is a
public function of one record, so training on features costs what training on images would.
"""

import hashlib
import json
from collections.abc import Iterator

import attrs
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from prudent.experiments.datasets import Dataset
from prudent.experiments.files import cached_array
from prudent.experiments.models import logistic_regression
from prudent.experiments.recipes.pretraining import SIDE, Encoder, Pretraining, pretrain
from prudent.experiments.recipes.random_images import draw

_VERSION = 1  # of the random images and the pretraining: names files of the cache
_REFERENCES = 8192  # random images whose features are centred and scaled
_AT_ONCE = 1000


@attrs.frozen(eq=False)
class ColourFeatures:
    """A public map from images (n, 3, 32, 32) in [0, 1] to vectors of length 1.

    Attributes:
        encoder: the pretrained network, in evaluation mode.
        cells: for each stage that contributes, its number and the cells per side it is averaged in.
        mean: of the features of random images.
        scale: factor of every feature: 1 / deviation over random images, stages weighted equally.
    """

    encoder: Encoder
    cells: tuple[tuple[int, int], ...]
    mean: Tensor
    scale: Tensor

    def __call__(self, images: Tensor) -> Tensor:
        """The features of images, on the device of the encoder."""
        rows = torch.cat(list(_pooled(self.encoder, self.cells, images)))
        return functional.normalize((rows - self.mean) * self.scale, dim=1)


@torch.no_grad()
def _pooled(
    encoder: Encoder, cells: tuple[tuple[int, int], ...], images: Tensor
) -> Iterator[Tensor]:
    """Averages of the stages' outputs over cells and over the two reflections, in batches."""
    device = next(encoder.parameters()).device
    for batch in torch.split(images, _AT_ONCE):
        batch = batch.to(device).contiguous(memory_format=torch.channels_last)
        total: Tensor | float = 0.0
        for view in (batch, batch.flip(3)):
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                outputs = encoder(view)
            parts = [
                functional.adaptive_avg_pool2d(outputs[stage].float(), side).flatten(1)
                for stage, side in cells
            ]
            total = total + torch.cat(parts, 1)
        assert isinstance(total, Tensor)
        yield total / 2


def colour_features(
    setting: Pretraining,
    cells: tuple[tuple[int, int], ...],
    device: torch.device | str = "cpu",
) -> ColourFeatures:
    """The features of a pretrained network; it is pretrained unless the user's cache holds it."""
    encoder = pretrained(setting, device)
    generator = torch.Generator(device).manual_seed(setting.seed + 2)
    references = draw(_REFERENCES, SIDE, generator, setting.mixture)
    rows = torch.cat(list(_pooled(encoder, cells, references)))
    deviation = rows.std(0)
    sizes = [setting.widths[stage] * side * side for stage, side in cells]
    scale, start = torch.empty_like(deviation), 0
    for size in sizes:
        part = deviation[start : start + size]
        # A feature that hardly varies among random images must not dominate the others.
        scale[start : start + size] = 1 / ((part + 0.05 * part.mean()) * size**0.5)
        start += size
    return ColourFeatures(encoder, cells, rows.mean(0), scale)


def pretrained(setting: Pretraining, device: torch.device | str = "cpu") -> Encoder:
    """The network of a setting, in half precision in the user's cache once it is pretrained."""
    stated = json.dumps(attrs.asdict(setting, value_serializer=_plain), sort_keys=True)
    key = f"encoder-{_VERSION}-{hashlib.sha256(stated.encode()).hexdigest()[:32]}"

    def compute() -> np.ndarray:
        state = pretrain(setting, device).state_dict()
        parts = [v.flatten() for v in state.values() if v.is_floating_point()]
        return torch.cat(parts).half().cpu().numpy()

    values = torch.from_numpy(np.asarray(cached_array(key, compute))).to(device).float()
    encoder = Encoder(setting.widths).to(device, memory_format=torch.channels_last)
    state = {name: v for name, v in encoder.state_dict().items() if v.is_floating_point()}
    pieces = values.split([v.numel() for v in state.values()])
    loaded = {n: piece.view(v.shape) for (n, v), piece in zip(state.items(), pieces, strict=True)}
    encoder.load_state_dict(loaded, strict=False)
    return encoder.eval().requires_grad_(False)


def _plain(instance: object, attribute: object, value: object) -> object:
    return dict(value) if hasattr(value, "keys") else value  # type: ignore[call-overload]


def build(data: Dataset, seed: int) -> nn.Module:
    """One dense layer with zero initial weights."""
    return logistic_regression(tuple(data.train_features.shape[1:]), data.classes)
