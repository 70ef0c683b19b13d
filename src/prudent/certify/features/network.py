"""Weight files of the feature maps that are networks in whole numbers."""

import hashlib
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from prudent._files import replacing
from prudent._formats import reading
from prudent.certify.features.voting import Ballot, Voting
from prudent.experiments.whole_network import (
    FORMAT,
    TOP,
    Floats,
    Layer,
    Network,
    read_network,
)

__all__ = ["FORMAT", "TOP", "Floats", "Layer", "Network", "read", "shipped", "write"]

_HOMES = {"glyphs": "prudent.experiments"}  # also used by recipes; others are beside this module


def read(path: str | os.PathLike[str], name: str) -> Voting:
    """The map of a weight file."""
    code, header = read_network(Path(path))
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    with reading(path, "a file of a feature map"):
        return Voting(name, digest, code, code.entries, Ballot(**header["ballot"]))


def write(
    path: str | os.PathLike[str], layers: tuple[Layer, ...], ballot: Ballot, story: dict[str, Any]
) -> None:
    """Write a weight file; `story` says how the weights were made."""
    shapes = [attrs.asdict(layer, filter=_is_shape) for layer in layers]
    votes = attrs.asdict(ballot)
    header = {"format": FORMAT, "layers": shapes, "ballot": votes, "story": story}
    arrays: dict[str, npt.NDArray[Any]] = {"header": np.array(json.dumps(header))}
    for i, layer in enumerate(layers):
        arrays |= {f"weight{i}": layer.weight, f"gain{i}": layer.gain, f"bias{i}": layer.bias}
    with replacing(Path(path), "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _is_shape(attribute: "attrs.Attribute[Any]", value: Any) -> bool:
    return attribute.name in ("size", "pad", "pool")


def shipped(name: str) -> Voting:
    """A map whose weights come with the package."""
    home = _HOMES.get(name, "prudent.certify.features")
    with resources.as_file(resources.files(home) / f"{name}.npz") as path:
        return read(path, name)
