"""The models of the experiments, with seeded weights.

| function | for | parameters |
| --- | --- | ---: |
| `tutorial_cnn()` | 1 × 28 × 28 images, 10 classes | 26,010 |
| `tutorial_cnn(classes=26)` | 1 × 28 × 28 images, 26 classes | 26,538 |
| `tutorial_cnn((3, 32, 32))` | CIFAR-10 | 37,274 |
| `opacus_cnn()` | CIFAR-10 | 131,466 |
| `tanh_cnn()` | CIFAR-10 | 605,226 |
| `multilayer_perceptron`, `logistic_regression` | tables, features of a fixed network | |
"""

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import nn

from prudent import _validate

_WIDEST = 10**7  # entries of a layer; a matrix of the next width would fill any memory
_MOST_CHANNELS = 2**12  # of an image


def tutorial_cnn(
    shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10, seed: int = 0
) -> nn.Sequential:
    """The small network of the tensorflow/privacy tutorial, for images of even size 20 or more.

    Two convolutions with overlapping pooling and two dense layers, with ReLU in between. The first
    convolution pads as TensorFlow's "same" does, which for stride 2, kernel 8 and an even size is 3
    on every side.

    Args:
        shape: channels, height and width of an image.
        classes: the number of outputs.
        seed: seed of the initial weights, which are Glorot-uniform; biases are zero.
    """
    channels, *sides = [
        _validate.count(1, shape=size) for size in _validate.values(shape=shape)
    ] or [0]
    if len(sides) != 2 or any(side % 2 or not 20 <= side <= 2**12 for side in sides):
        raise _validate.ArgumentError(
            "shape", "with even height and width from 20 to 4096", got=shape
        )
    if channels > _MOST_CHANNELS:
        raise _validate.ArgumentError("shape", f"of at most {_MOST_CHANNELS} channels", got=shape)
    classes = _outputs(classes)
    height, width = (_side_after_convolutions(side) for side in sides)
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


def _side_after_convolutions(side: int) -> int:
    pooled = side // 2 - 1
    return (pooled - 4) // 2 + 1 - 1


def opacus_cnn(
    shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10, seed: int = 0
) -> nn.Sequential:
    """The network of the CIFAR-10 example of Opacus: four convolutions with average pooling.

    Args:
        shape: channels, height and width of an image; sides of at least 8.
        classes: the number of outputs.
        seed: seed of the initial weights and biases, which are uniform within 1/√(inputs of a
            unit), as PyTorch's default.
    """
    channels, classes = _image(shape, 8), _outputs(classes)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((channels, 32, 64, 64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
    layers[-1:] = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes)]
    model = nn.Sequential(*layers)
    generator = torch.Generator().manual_seed(_validate.count(seed=seed))
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            bound = 1 / math.sqrt(math.prod(layer.weight.shape[1:]))
            for values in layer.parameters():
                nn.init.uniform_(values, -bound, bound, generator=generator)
    return model


def tanh_cnn(
    shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10, seed: int = 0
) -> nn.Sequential:
    """Eight convolutions with tanh and average pooling, for CIFAR-10 (Papernot et al., 2021).

    Args:
        shape: channels, height and width of an image; sides of at least 8.
        classes: the number of outputs, each the average of a channel of the last convolution.
        seed: seed of the initial weights, which are Glorot-uniform; biases are zero.
    """
    inputs, classes = _image(shape, 8), _outputs(classes)
    layers: list[nn.Module] = []
    for width in (32, 64, 128):
        for outputs in (width, width):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Tanh()]
            inputs = outputs
        layers.append(nn.AvgPool2d(2))
    layers += [nn.Conv2d(128, 256, 3, padding=1), nn.Tanh(), nn.Conv2d(256, classes, 3, padding=1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return _initialised(nn.Sequential(*layers), seed)


def _image(shape: tuple[int, int, int], least: int) -> int:
    """The channels of an image whose sides are at least `least`."""
    sizes = [_validate.count(1, shape=size) for size in _validate.values(shape=shape)]
    if len(sizes) != 3 or not all(least <= side <= 2**12 for side in sizes[1:]):
        raise _validate.ArgumentError(
            "shape", f"of an image with height and width from {least} to 4096", got=shape
        )
    if sizes[0] > _MOST_CHANNELS:
        raise _validate.ArgumentError("shape", f"of at most {_MOST_CHANNELS} channels", got=shape)
    return sizes[0]


def _outputs(classes: int) -> int:
    return _validate.count(1, _WIDEST, classes=classes)


def multilayer_perceptron(
    shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (64,), seed: int = 0
) -> nn.Sequential:
    """Dense layers with ReLU in between, for tables or features.

    Args:
        shape: the shape of one record; it is flattened.
        classes: the number of outputs.
        hidden: the widths of the hidden layers.
        seed: seed of the initial weights, which are Glorot-uniform; biases are zero.
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


CONVOLUTIONAL: dict[str, Callable[[tuple[int, int, int], int, int], nn.Sequential]] = {
    "tutorial": tutorial_cnn,
    "opacus": opacus_cnn,
    "tanh": tanh_cnn,
}
"""The networks for images by name, each made from a shape, a number of classes and a seed."""


def _initialised(model: nn.Sequential, seed: int) -> nn.Sequential:
    generator = torch.Generator().manual_seed(_validate.count(seed=seed))
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return model
