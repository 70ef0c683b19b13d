"""The models of the experiments, with seeded weights.

| function | for | parameters |
| --- | --- | ---: |
| `tutorial_cnn()` | 1 × 28 × 28 images, 10 classes | 26,010 |
| `tutorial_cnn(classes=26)` | 1 × 28 × 28 images, 26 classes | 26,538 |
| `tutorial_cnn((3, 32, 32))` | CIFAR-10 | 37,274 |
| `multilayer_perceptron`, `logistic_regression` | tables, features of a fixed network | |

`vgg16` was trained on public images. Each row of its features depends on its own record only, so
the guarantee of training a last layer on the features holds for the records.
"""

import hashlib
import itertools
import math
from collections import OrderedDict
from pathlib import Path

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from prudent import _validate
from prudent_lab.data_files import cached_array
from prudent_lab.datasets import Dataset
from prudent_lab.features.resnet import features_of, loaded, read_weights

_WIDEST = 10**7  # entries of a layer; a matrix of the next width would fill any memory
_MOST_CHANNELS = 2**12  # of an image


def tutorial_cnn(
    shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10, seed: int = 0
) -> nn.Sequential:
    """The small network of the tensorflow/privacy tutorial, for images of even size 20 or more.

    Two convolutions with overlapping pooling and two dense layers, with ReLU in between. The first
    convolution pads as TensorFlow's "same" does, which for stride 2, kernel 8 and an even size is 3
    on every side.

    Initial weights are Glorot-uniform; biases are zero.
    """
    channels, *sides = (_validate.count(1, shape=size) for size in _validate.values(shape=shape))
    if len(sides) != 2 or not all(side % 2 == 0 and 20 <= side <= 2**12 for side in sides):
        allowed = "with even height and width from 20 to 4096"
        raise _validate.ArgumentError("shape", allowed, got=shape)
    if channels > _MOST_CHANNELS:
        raise _validate.ArgumentError("shape", f"of at most {_MOST_CHANNELS} channels", got=shape)
    classes = _validate.count(1, _WIDEST, classes=classes)
    height, width = ((side // 2 - 5) // 2 for side in sides)  # after both convolutions
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(channels, 16, kernel_size=8, stride=2, padding=3)),
        ("relu1", nn.ReLU()),
        ("pool1", nn.MaxPool2d(2, stride=1)),
        ("conv2", nn.Conv2d(16, 32, kernel_size=4, stride=2)),
        ("relu2", nn.ReLU()),
        ("pool2", nn.MaxPool2d(2, stride=1)),
        ("flatten", nn.Flatten()),
        ("dense1", nn.Linear(32 * height * width, 32)),
        ("relu3", nn.ReLU()),
        ("dense2", nn.Linear(32, classes)),
    ]
    return _initialised(nn.Sequential(OrderedDict(layers)), seed)


def multilayer_perceptron(
    shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (64,), seed: int = 0
) -> nn.Sequential:
    """Dense layers with ReLU in between, for tables or features.

    A record is flattened. Initial weights are Glorot-uniform; biases are zero.
    """
    sizes = [_validate.count(1, shape=size) for size in _validate.values(shape=shape)]
    widths = [math.prod(sizes), *_validate.values(hidden=hidden), classes]
    widths = [_validate.count(1, width=width) for width in widths]
    if max(widths) > _WIDEST:
        raise _validate.ArgumentError("width", f"at most {_WIDEST:,}", got=max(widths))
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return _initialised(nn.Sequential(*layers[:-1]), seed)


def logistic_regression(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One dense layer with zero initial weights, for tables or as last layer on features."""
    model = multilayer_perceptron(shape, classes, hidden=())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def _initialised(model: nn.Sequential, seed: int) -> nn.Sequential:
    generator = torch.Generator().manual_seed(_validate.count(seed=seed))
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return model


_VGG16_WIDTHS = ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3)


class VGG16Features(nn.Module):
    """The convolutions of VGG16 (Simonyan, Zisserman, 2014), averaged over the image."""

    width = 512

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for widths in _VGG16_WIDTHS:
            for outputs in widths:
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
                inputs = outputs
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """Map standardised images (n, 3, height, width) to features (n, 512)."""
        values: Tensor = self.features(images)
        return values.mean((2, 3))


def vgg16(path: Path | str) -> VGG16Features:
    """The convolutions of VGG16 with the weights of a file with torchvision's names."""
    return loaded(VGG16Features(), read_weights(path), path)


def with_features(
    dataset: Dataset, network: nn.Module, *, size: int = 96, device: torch.device | str = "cpu"
) -> Dataset:
    """The data set with its images replaced by the network's features.

    Features are computed once and stored in the user's cache, under a name that depends on the
    images, the weights and the size, so that any change is detected.
    """
    _validate.count(1, size=size)
    if dataset.train_features.ndim != 4 or dataset.train_features.shape[1] != 3:
        raise ValueError(
            f"Expected RGB images (n, 3, height, width), got {dataset.name} with records of shape "
            f"{tuple(dataset.train_features.shape[1:])}."
        )
    network = network.to(device).eval()
    weights = _digest(*network.state_dict().values())

    def features(images: Tensor) -> Tensor:
        key = f"{type(network).__name__}-{size}-{weights[:32]}-{_digest(images)[:32]}"
        values = cached_array(key, lambda: features_of(network, images, size, device).numpy())
        return torch.from_numpy(values)

    note = f"{dataset.note} Features of {type(network).__name__} at {size} × {size}."
    return attrs.evolve(dataset.mapped(features, Tensor.cpu), note=note)


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    return digest.hexdigest()
