"""ResNet18 up to its third stage, its features as a map, and the files that hold such networks.

Each row of features depends on its own record only. Weights are read from a file; none are shipped
or downloaded. Input is RGB in [0, 1], standardised here with the mean and deviation of ImageNet, on
which the network was trained.
"""

import functools
import hashlib
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from prudent import _validate
from prudent._files import sha256
from prudent._formats import reading
from prudent.certify.counts import Codes, Flags, whole
from prudent.records.arrays import ArrayForm, numbers_of
from prudent_lab.data_files import is_file, search_folders

_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)
_RESNET_WIDTHS = (64, 128, 256, 512)
_AT_ONCE = 256  # images

Network = TypeVar("Network", bound=nn.Module)


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """The tensors of a .safetensors file."""
    path = _validate.path(path=path)
    if not is_file(path):
        raise FileNotFoundError(f"Expected a file of weights, got {str(path)!r}.")
    from safetensors.torch import load_file

    with reading(path, "a .safetensors file"):
        return dict(load_file(path))


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
    """ResNet18 (He et al., 2015) up to its last stage, averaged over the image."""

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

    Its names are torchvision's, batch normalisation is folded into the convolutions.
    """
    weights = read_weights(path)
    stages = max((s for s in range(1, 5) if f"layer{s}.0.conv1.weight" in weights), default=1)
    return loaded(ResNet18Features(stages), weights, path)


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
    network: nn.Module, images: Tensor, size: int, device: torch.device | str = "cpu"
) -> Tensor:
    """The features of RGB images in [0, 1], resized and standardised; on the host."""
    mean, deviation = (
        torch.tensor(channel, device=device).view(3, 1, 1) for channel in (_MEAN, _DEVIATION)
    )
    rows = []
    for batch in torch.split(images, _AT_ONCE):
        resized = functional.interpolate(batch.to(device), (size, size), mode="bilinear")
        rows.append(network((resized - mean) / deviation).cpu())
    return torch.cat(rows)


Real = npt.NDArray[np.float64]

WEIGHTS = "resnet18-to-layer3-bnfolded.safetensors"
SIDE = 64  # height and width to which images are resized
WIDTH = 256  # how many features there are
FINE = 1 << 12  # steps of a square root in a unit
_FARTHEST = float(1 << 20)  # with weights below 2¹², sums of 256 products are exact in float64


class ResNet18Embedding:
    """Features of images, bytes or numbers from 0 to 1, each (3, height, width).

    Images are computed one by one; one without a number above 1 is read as numbers from 0 to 1.
    """

    name = "resnet18"

    def __init__(
        self, network: ResNet18Features | None = None, digest: str = "", width: int = WIDTH
    ) -> None:
        self._network, self._digest, self.width = network, digest, width

    @functools.cached_property
    def network(self) -> ResNet18Features:
        """The network, read when first needed."""
        return self._network or resnet18(find_weights(WEIGHTS))

    @property
    def digest(self) -> str:
        """Of the weights and the size of images."""
        weights = self._digest or sha256(find_weights(WEIGHTS))
        return hashlib.sha256(f"{weights} {SIDE}".encode()).hexdigest()

    def __call__(self, records: Any) -> npt.NDArray[np.float64]:
        """The features of images; NaN for what is no image."""
        return np.array([self._row(record) for record in records]).reshape(len(records), self.width)

    def _row(self, record: Any) -> npt.NDArray[np.float64]:
        """The features of one image, computed alone: its row depends on no other."""
        values = numbers_of(record)  # None for what is no array of numbers, such as ragged lists
        if values is None or values.ndim != 3 or len(values) != 3 or not values.size:
            return np.full(self.width, np.nan)
        if not ((values >= 0) & (values <= 255)).all():
            return np.full(self.width, np.nan)
        unit = values if values.max() <= 1 else values / 255
        images = torch.tensor(unit[None], dtype=torch.float32)  # aligned as torch aligns all
        row: npt.NDArray[np.float64] = features_of(self.network, images, SIDE)[0].double().numpy()
        return row


@attrs.frozen(eq=False)
class Whitened:
    """A map for colour images: codes by whitened square roots of the features of ResNet18.

    The features are averages of rectified activations: large ones vary most, and all have a large
    common part that says little. So their square roots are centred and whitened, by statistics of
    images that random processes drew. Some of these are the landmarks: no photograph but those of
    ImageNet was ever looked at.

    Every step is of one row alone: roots are rounded to whole numbers, and their products with
    whole numbers, and all sums of these, are exact in float64.
    """

    centre: Real  # subtracted from the roots, in steps
    matrix: Real  # from roots to directions, whole numbers, (features, directions)
    digest: str  # as for `Features`
    # From images to features; None: records are features already.
    embedding: ResNet18Embedding | None = None
    name: str = "resnet18"  # as for `Features`

    @property
    def width(self) -> int:
        """How many entries a code has."""
        return int(self.matrix.shape[1])

    def codes(self, records: Any) -> tuple[Codes, Flags]:
        """Codes of images."""
        given = records if self.embedding is None else self.embedding(records)
        rows, present = ArrayForm((len(self.centre),)).read(given)
        return whole((roots(rows) - self.centre) @ self.matrix), present


def roots(rows: Real) -> Real:
    """Square roots of features, in whole steps."""
    found: Real = np.rint(FINE * np.sqrt(rows.clip(min=0.0))).clip(max=_FARTHEST)
    return found


def resnet18_map() -> Whitened:
    """The map `resnet18`, whose statistics come with the package."""
    place = resources.files("prudent_lab.features") / "resnet18-landmarks.npz"
    with resources.as_file(place) as path, np.load(path, allow_pickle=False) as archive:
        centre, matrix = (archive[name].astype(np.float64) for name in ("centre", "matrix"))
        return Whitened(centre, matrix, sha256(path), ResNet18Embedding())
