"""Colour images drawn from random processes: data to pretrain on that are public.

| process | what it draws |
| --- | --- |
| `coloured_noise` | Gaussian fields with a power-law spectrum, as natural images have |
| `dead_leaves` | opaque shapes of all sizes that hide each other, with texture |
| `untrained_generator` | outputs of convolutional generators whose weights are random |

`draw` mixes them. An image is a function of the generator's seed alone, so a network trained on
them is public. Baradad et al. (2021) learned features from such processes, and Tang et al. (2023)
used them as priors for private training.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from prudent import _validate

Process = Callable[[int, int, torch.Generator], Tensor]
"""Draws a number of images (count, 3, side, side) in [0, 1] on the generator's device."""

_LEAVES = 20
_WIDTHS = (32, 32, 32, 24, 24)  # channels of the generator's layers, from 4 × 4 pixels on
_SHARING = 16  # images per set of random weights


def _uniform(
    generator: torch.Generator, *shape: int, low: float = 0.0, high: float = 1.0
) -> Tensor:
    drawn = torch.rand(shape, generator=generator, device=generator.device)
    return drawn * (high - low) + low


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)


def coloured_noise(count: int, side: int, generator: torch.Generator) -> Tensor:
    """Gaussian fields whose amplitude falls as a random power of the frequency.

    Powers are drawn per image, directions are stretched at random, and channels are mixed by a
    random matrix that favours grey, as channels of photographs are correlated.
    """
    return _squashed(_mixed(_fields(count, side, generator), generator), generator)


def dead_leaves(count: int, side: int, generator: torch.Generator) -> Tensor:
    """Leaves of random shape, size and texture, each in front of those before.

    Radii have a density proportional to r⁻³, the only power for which images look alike at all
    scales, between a smallest one, drawn per image from 3 % to 20 % of the side, and 60 %. The
    texture of a leaf is a picture of `untrained_generator`, fainter or stronger.
    """
    device = generator.device
    pictures = untrained_generator(-(-count // 8), side, generator)
    image = pictures[torch.arange(count, device=device) % len(pictures)]
    textures = image - 0.5

    def draws(low: float, high: float) -> Tensor:
        return _uniform(generator, _LEAVES, count, 1, 1, low=low, high=high)

    radius = _radii(draws(0, 1), generator)
    y, x, angle = draws(-1.1, 1.1), draws(-1.1, 1.1), draws(0, math.pi)
    stretch, shape, softness = draws(0.35, 1), draws(0, 1), draws(0.5, 2)
    contrast, phase, waves = draws(0, 1), draws(0, 2 * math.pi), draws(2, 14)
    hues = _uniform(generator, _LEAVES, count, 3, 1, 1) - 0.5
    palette = _uniform(generator, 1, count, 3, 1, 1) - 0.5
    saturation = _uniform(generator, 1, count, 1, 1, 1)
    colours = draws(0, 1).unsqueeze(2) + (0.7 * hues + 0.5 * palette) * saturation
    ramps = _normal(generator, _LEAVES, count, 3, 1, 1) * 0.15
    striped = draws(0, 1) < 0.25
    axis = torch.linspace(-1, 1, side, device=device)
    rows, columns = axis.view(1, side, 1), axis.view(1, 1, side)
    for leaf in range(_LEAVES):
        cosine, sine = angle[leaf].cos(), angle[leaf].sin()
        down, right = rows - y[leaf], columns - x[leaf]
        along = (right * cosine + down * sine) / radius[leaf]
        across = (down * cosine - right * sine) / (radius[leaf] * stretch[leaf])
        edge = (1 - _distance(along, across, shape[leaf])) * radius[leaf] * side / 2
        inside = (edge * softness[leaf] + 0.5).clamp(0, 1).unsqueeze(1)
        wave = torch.where(striped[leaf], (waves[leaf] * along + phase[leaf]).sin(), 0)
        relief = textures.roll(leaf, 0) + 0.2 * wave.unsqueeze(1)
        shade = colours[leaf] + ramps[leaf] * along.unsqueeze(1)
        image = torch.lerp(image, shade + relief * contrast[leaf].unsqueeze(1), inside)
    return image.clamp(0, 1)


def _radii(uniform: Tensor, generator: torch.Generator) -> Tensor:
    """Radii of leaves (leaves, count, 1, 1), made of uniform numbers.

    In half of the images large leaves come first: otherwise little is seen of the small ones.
    """
    count = uniform.shape[1]
    smallest = 0.06 * (_uniform(generator, count, 1, 1) * 1.9).exp()
    radius = (uniform / smallest**2 + (1 - uniform) / 1.2**2).rsqrt()
    sorts = _uniform(generator, count, 1, 1) < 0.5
    return torch.where(sorts, radius.sort(dim=0, descending=True).values, radius)


def _distance(along: Tensor, across: Tensor, kind: Tensor) -> Tensor:
    """Distances from the middle of an ellipse, a box or a triangle, whose edge is at 1."""
    ellipse = (along.square() + across.square()).sqrt()
    box = torch.maximum(along.abs(), across.abs())
    triangle = torch.maximum(across.abs() + 0.5 * along, -along)
    return torch.where(kind < 0.45, ellipse, torch.where(kind < 0.75, box, triangle))


def untrained_generator(count: int, side: int, generator: torch.Generator) -> Tensor:
    """Outputs of generators with random weights: layers that convolve, add noise and upsample.

    Sixteen images share the weights of the convolutions and differ in the gains of channels (the
    "style"), as StyleGAN's do (Karras et al., 2019), and in the noise. Filters are oriented waves
    and activations saturate, which draws contours; independent weights and ReLU draw clouds.
    """
    nets = -(-count // _SHARING)
    images = nets * _SHARING

    def normal(*shape: int) -> Tensor:
        return _normal(generator, *shape)

    size, inputs = 4, _WIDTHS[0]
    values = normal(images, inputs, size, size)
    for width in _WIDTHS[1:]:
        size = min(2 * size, side)
        values = functional.interpolate(values, (size, size), mode="bilinear")
        filters = _waves(nets * width * inputs, generator).view(nets, width, inputs, 5, 5)
        filters = filters * normal(nets, width, inputs, 1, 1) / math.sqrt(inputs)
        style = 1 + 0.8 * normal(images, inputs, 1, 1)
        # Each network is one group of channels; the images that share it are the batch.
        grouped = (values * style).view(nets, _SHARING, inputs, size, size).transpose(0, 1)
        grouped = functional.pad(
            grouped.reshape(_SHARING, nets * inputs, size, size), (2, 2, 2, 2), "replicate"
        )
        values = functional.conv2d(grouped, filters.flatten(0, 1), groups=nets)
        values = values.view(_SHARING, nets, width, size, size).transpose(0, 1).flatten(0, 1)
        values = values + normal(images, 1, size, size) * 0.25 * normal(images, width, 1, 1)
        values = values / (values.square().mean((2, 3), keepdim=True) + 1e-6).sqrt()
        gain, bias = (
            _uniform(generator, images, width, 1, 1, low=0.5, high=5),
            normal(images, width, 1, 1),
        )
        values = (values * gain + bias).tanh()
        inputs = width
    if size < side:
        values = functional.interpolate(values, (side, side), mode="bilinear")
    to_colour = normal(images, 3, inputs)
    # Few channels dominate an image; all of them together would look alike everywhere.
    to_colour = to_colour * _uniform(generator, images, 1, inputs, low=-4, high=0.5).exp()
    colours = torch.einsum("bcij,bkc->bkij", values, to_colour)
    centred = colours - colours.mean((2, 3), keepdim=True)
    scaled = centred / (centred.square().mean((1, 2, 3), keepdim=True) + 1e-6).sqrt()
    return _squashed(_mixed(scaled, generator), generator)[:count]


def _waves(count: int, generator: torch.Generator) -> Tensor:
    """Filters (count, 5, 5): a Gaussian window times a wave of random direction and phase."""
    axis = torch.arange(-2.0, 3.0, device=generator.device)
    angle, phase, frequency = (
        _uniform(generator, count, 1, 1, high=high) for high in (2 * math.pi, 2 * math.pi, 1.8)
    )
    rows, columns = axis.view(1, 5, 1), axis.view(1, 1, 5)
    wave = (frequency * (rows * angle.sin() + columns * angle.cos()) + phase).cos()
    filters = wave * (-(rows.square() + columns.square()) / 4).exp()
    return filters / (filters.square().sum((1, 2), keepdim=True) + 1e-6).sqrt()


def _fields(count: int, side: int, generator: torch.Generator) -> Tensor:
    """Gaussian fields (count, 3, side, side) of mean 0 and deviation 1 with power-law spectra."""
    device = generator.device

    def uniform(low: float, high: float) -> Tensor:
        return _uniform(generator, count, 1, 1, 1, low=low, high=high)

    ticks = torch.fft.fftfreq(side, device=device) * side
    rows, columns = ticks.view(1, 1, side, 1), ticks[: side // 2 + 1].abs().view(1, 1, 1, -1)
    angle, stretch = uniform(0, math.pi), uniform(0.4, 1)
    along = rows * angle.cos() + columns * angle.sin()
    across = (columns * angle.cos() - rows * angle.sin()) * stretch
    amplitude = (along.square() + across.square()).clamp_min(1e-6).pow(-uniform(0.4, 1.9) / 2)
    amplitude[..., 0, 0] = 0
    white = _normal(generator, count, 3, side, side)
    field: Tensor = torch.fft.irfft2(torch.fft.rfft2(white) * amplitude, s=(side, side))
    return field / (field.square().mean((2, 3), keepdim=True) + 1e-8).sqrt()


def _mixed(fields: Tensor, generator: torch.Generator) -> Tensor:
    """The channels mixed by random matrices with a strong common part."""
    count = len(fields)
    mix = 0.35 * _normal(generator, count, 3, 3)
    grey = 0.6 + 0.8 * _uniform(generator, count, 1)
    mix[:, :, 0] += grey
    return torch.einsum("bkc,bcij->bkij", mix, fields)


def _squashed(fields: Tensor, generator: torch.Generator) -> Tensor:
    """The fields with random contrast and brightness, mapped into [0, 1]."""
    count = len(fields)
    contrast = 0.4 + 1.2 * _uniform(generator, count, 1, 1, 1)
    bright = 0.7 * _normal(generator, count, 1, 1, 1)
    tint = 0.4 * _normal(generator, count, 3, 1, 1)
    return torch.sigmoid(fields * contrast + bright + tint)


PROCESSES: Mapping[str, Process] = MappingProxyType(
    {"noise": coloured_noise, "leaves": dead_leaves, "generator": untrained_generator}
)
"""The processes by name."""

Mixture = tuple[tuple[str, float], ...]
"""Names of processes and their fractions."""

MIXTURE: Mixture = (("noise", 0.1), ("leaves", 0.45), ("generator", 0.45))


def draw(count: int, side: int, generator: torch.Generator, mixture: Mixture = MIXTURE) -> Tensor:
    """Draw images (count, 3, side, side) in [0, 1], a fixed number of them from each process.

    They are made on the device of the generator. The fractions of the mixture add up to 1;
    rounding goes to the last.
    """
    _validate.count(1, count=count)
    _validate.count(4, side=side)
    shares = [round(fraction * count) for _, fraction in mixture[:-1]]
    shares.append(count - sum(shares))
    parts = [
        PROCESSES[name](share, side, generator)
        for (name, _), share in zip(mixture, shares, strict=True)
        if share > 0
    ]
    return torch.cat(parts)
