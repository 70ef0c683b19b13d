"""ResNet18 as a fixed network that computes features, and the files that hold such networks.

Each row of features depends on its own record only. Weights are read from a file; none are shipped
or downloaded. Input is RGB in [0, 1], standardised here with the mean and deviation of ImageNet, on
which the network was trained.
"""

from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from prudent import _validate
from prudent._data_files import is_file, search_folders
from prudent._formats import reading

_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)
_RESNET_WIDTHS = (64, 128, 256, 512)
_EPSILON = 1e-5

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


def resnet18(path: Path | str) -> ResNet18Features:
    """ResNet18 with the weights of a file, with as many stages as the file has.

    The file is torchvision's, or one whose batch normalisation is already folded into the
    convolutions.
    """
    weights = _folded(read_weights(path))
    stages = max((s for s in range(1, 5) if f"layer{s}.0.conv1.weight" in weights), default=1)
    return loaded(ResNet18Features(stages), weights, path)


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


def loaded(network: Network, weights: dict[str, Tensor], path: Path | str) -> Network:
    """The network with its weights taken from those of a file, for use without training it."""
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
