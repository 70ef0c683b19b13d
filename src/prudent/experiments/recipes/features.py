"""Maps of grey images that use no data: scattering coefficients, normalised by record."""

import os
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.nn import functional

from prudent.experiments.scattering import CELLS, CHANNELS, scattering

_AT_ONCE = 64  # images whose spectra stay in the cache
_AT_ONCE_ON_GPU = 4096


def scattered(images: Tensor, device: torch.device | str = "cpu") -> Tensor:
    """Scattering coefficients (n, 81, 7, 7) of images (n, 1, 28, 28), on the device."""
    device = torch.device(device)
    if device.type == "cpu":
        chunks = torch.split(images, _AT_ONCE)
        found = torch.empty(len(images), CHANNELS, CELLS**2)

        def work(index: int) -> None:
            part = torch.from_numpy(scattering(chunks[index].numpy()))
            found[index * _AT_ONCE : index * _AT_ONCE + len(part)] = part

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(work, range(len(chunks))))
    else:
        parts = [scattering(part.to(device)) for part in torch.split(images, _AT_ONCE_ON_GPU)]
        found = torch.cat(parts)
    return found.unflatten(2, (CELLS, CELLS))


def group_normalised(features: Tensor, groups: int) -> Tensor:
    """Features (n, channels, …) with mean 0 and variance 1 in each group of each record."""
    return functional.group_norm(features, groups)
