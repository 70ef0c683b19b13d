"""Public maps of grey images of 28 × 28 pixels; none of them was made from any data.

Each returns one row per image, of length 1, in half precision: a function of that image alone.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.nn import functional

from prudent.lab.recipes.whitening import of_unit_length
from prudent.lab.scattering import CELLS, CHANNELS, scattering
from prudent.records.whole_network import codes_of, shipped_network

GROUPS = 27
"""Groups of the 81 channels that are normalised together."""

_AT_ONCE = 64  # images whose spectra stay in the cache
_AT_ONCE_ON_GPU = 4096


def scattered(images: Tensor) -> Tensor:
    """Scattering coefficients (n, 81, 7, 7) of images (n, 1, 28, 28), on their device."""
    if images.device.type != "cpu":
        found = torch.cat([scattering(part) for part in torch.split(images, _AT_ONCE_ON_GPU)])
        return found.view(-1, CHANNELS, CELLS, CELLS)
    found = torch.empty(len(images), CHANNELS, CELLS**2)
    parts = torch.split(images, _AT_ONCE), torch.split(found, _AT_ONCE)

    def fill(part: Tensor, place: Tensor) -> None:
        place.copy_(torch.from_numpy(scattering(part.numpy())))

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(fill, *parts))
    return found.view(-1, CHANNELS, CELLS, CELLS)


def scattering_rows(images: Tensor) -> Tensor:
    """Scattering coefficients with mean 0 and variance 1 in each group of each image."""
    return _by_parts(images, lambda part: functional.group_norm(scattered(part), GROUPS).flatten(1))


def glyph_rows(images: Tensor) -> Tensor:
    """Codes of the network that was trained on synthetic glyphs, (n, 256)."""
    network, _ = shipped_network("glyphs")
    return _by_parts(images, lambda part: codes_of(network, part))


def joined_rows(images: Tensor) -> Tensor:
    """Scattering coefficients and codes of the glyph network side by side."""
    both = [scattering_rows(images), glyph_rows(images)]
    return _by_parts(torch.cat(both, 1), lambda part: part)


def _by_parts(images: Tensor, rows: Callable[[Tensor], Tensor]) -> Tensor:
    """Rows of unit length, computed for a few thousand images at a time."""
    parts = torch.split(images, _AT_ONCE_ON_GPU)
    return torch.cat([of_unit_length(rows(part).float()).half() for part in parts])
