"""Networks that were trained on public images, as features for a last layer that is trained here.

Each row of features depends on its own record only, so the guarantee of training a last layer on
the features holds for the records.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from prudent import _validate
from prudent._data_files import cached_array
from prudent.certify.features.resnet import features_of, loaded, read_weights
from prudent.lab.datasets import Dataset

_VGG16_WIDTHS = ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3)


class VGG16Features(nn.Module):
    """The convolutions of VGG16 (Simonyan, Zisserman, 2014), averaged over the image.

    Attributes:
        width: features per record, 512.
    """

    width = 512

    def __init__(self) -> None:
        super().__init__()
        self.features = _vgg_convolutions(_VGG16_WIDTHS)

    def forward(self, images: Tensor) -> Tensor:
        """Map standardised images (n, 3, height, width) to features (n, 512)."""
        values: Tensor = self.features(images)
        return values.mean((2, 3))


def _vgg_convolutions(blocks: Sequence[Sequence[int]]) -> nn.Sequential:
    """Blocks of 3 × 3 convolutions with ReLU, each followed by 2 × 2 pooling."""
    layers: list[nn.Module] = []
    inputs = 3
    for widths in blocks:
        for outputs in widths:
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(*layers)


def vgg16(path: Path | str) -> VGG16Features:
    """The convolutions of VGG16 with the weights of a file with torchvision's names."""
    return loaded(VGG16Features(), read_weights(path), path)


def with_features(
    dataset: Dataset,
    network: nn.Module,
    *,
    size: int = 96,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
) -> Dataset:
    """The data set with its images replaced by the network's features.

    Features are computed once and stored in the user's cache, under a name that depends on the
    images, the weights and the size, so that any change is detected.

    Args:
        dataset: RGB images in [0, 1].
        network: `resnet18(...)`, `vgg16(...)` or another that takes standardised
            images.
        size: height and width to which the images are first resized, bilinearly.
        batch_size: number of images at a time.
        device: where to compute; the result is on the host.
    """
    _validate.count(1, size=size)
    _validate.count(1, batch_size=batch_size)
    if dataset.train_features.ndim != 4 or dataset.train_features.shape[1] != 3:
        raise ValueError(
            f"Expected RGB images (n, 3, height, width), got {dataset.name} with records of shape "
            f"{tuple(dataset.train_features.shape[1:])}."
        )
    network = network.to(device).eval()
    weights = _digest(*network.state_dict().values())

    def features(images: Tensor) -> Tensor:
        key = f"{type(network).__name__}-{size}-{weights[:32]}-{_digest(images)[:32]}"
        values = cached_array(
            key, lambda: features_of(network, images, size, batch_size, device).numpy()
        )
        return torch.from_numpy(values)

    return attrs.evolve(
        dataset,
        train_features=features(dataset.train_features),
        train_labels=dataset.train_labels.cpu(),
        test_features=features(dataset.test_features),
        test_labels=dataset.test_labels.cpu(),
        note=f"{dataset.note} Features of {type(network).__name__} at {size} × {size}.",
    )


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    return digest.hexdigest()
