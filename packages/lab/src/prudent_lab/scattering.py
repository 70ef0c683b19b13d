"""The scattering transform of an image (Bruna and Mallat, 2013): features without any training.

Morlet wavelets at two scales and eight angles; moduli, and moduli of wavelets of moduli; each
averaged by a Gaussian and sampled every four pixels: 81 channels of 7 × 7 numbers. Filters and
conventions are those of kymatio (Andreux et al., 2020).
"""

import functools
import math
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
from scipy import fft

if TYPE_CHECKING:
    from torch import Tensor

SIDE = 28
SCALES = 2
ANGLES = 8
CHANNELS = 1 + SCALES * ANGLES + ANGLES * ANGLES
CELLS = 7
_PADDED = 36
_EDGE = (_PADDED - SIDE) // 2
_COPIES = range(-2, 3)  # how many periods of an envelope are added up

Complex = npt.NDArray[np.complex128]
Real = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]


def gabor(side: int, deviation: float, angle: float, frequency: float, slant: float) -> Complex:
    """A Gaussian envelope times a plane wave on a periodic grid; without a wave of mass about 1."""
    ticks = np.arange(side)[:, None] + side * np.array(_COPIES)
    along, across = (
        ticks[:, None, :, None] * math.cos(angle) + ticks[None, :, None, :] * math.sin(angle),
        ticks[None, :, None, :] * math.cos(angle) - ticks[:, None, :, None] * math.sin(angle),
    )
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * deviation**2))
    wave: Complex = (envelope * np.exp(1j * frequency * along)).sum(axis=(2, 3))
    return wave * slant / (2 * math.pi * deviation**2)


def morlet(side: int, scale: int, turn: int) -> Complex:
    """The wavelet of a scale 0, 1, … and an angle 0 to 7: a Gabor filter made to have mean zero."""
    angle = (ANGLES // 2 - 1 - turn) * math.pi / ANGLES
    deviation, frequency = 0.8 * 2**scale, 0.75 * math.pi / 2**scale
    wave = gabor(side, deviation, angle, frequency, 4 / ANGLES)
    envelope = gabor(side, deviation, angle, 0.0, 4 / ANGLES)
    mean: complex = wave.sum() / envelope.sum()
    return wave - envelope * mean


def low_pass(side: int) -> Real:
    """The Gaussian that averages."""
    return gabor(side, 0.8 * 2 ** (SCALES - 1), 0.0, 0.0, 1.0).real


@functools.cache
def _wavelets() -> Floats:
    """Fourier transforms of the wavelets, (scales, angles, side, side); they are real."""
    bank = [[fft.fft2(morlet(_PADDED, j, t)).real for t in range(ANGLES)] for j in range(SCALES)]
    return np.array(bank, dtype=np.float32)


@functools.cache
def _averages(step: int) -> Floats:
    """Matrix from an image sampled every `step` pixels to its averages in the 7 × 7 cells."""
    response: Real = fft.ifft2(_sampled_spectrum(fft.fft2(low_pass(_PADDED)).real, step)).real
    side = _PADDED // step
    kept = np.arange(_EDGE, _EDGE + SIDE, 4) // step
    rows = [np.roll(response, (r, c), (0, 1)).ravel() for r in kept for c in kept]
    matrix = np.array(rows, dtype=np.float32).T
    assert matrix.shape == (side * side, CELLS * CELLS)
    return matrix


def _sampled_spectrum(spectrum: Real, step: int) -> Real:
    """The spectrum of a filter for images sampled every `step` pixels: its low frequencies."""
    if step == 1:
        return spectrum
    side = spectrum.shape[-1] // step
    low = np.r_[: side // 2, spectrum.shape[-1] - side // 2 : spectrum.shape[-1]]
    sampled: Real = spectrum[np.ix_(low, low)]
    return sampled


def _moduli(spectrum: Any, wavelets: Any, step: int, fourier: Any) -> Any:
    """|x ∗ ψ| sampled every `step` pixels, for each image and wavelet."""
    product = spectrum[:, None] * wavelets
    if step > 1:  # sampling an image folds its spectrum
        count, angles, side, _ = product.shape
        folded = product.reshape(count, angles, step, side // step, step, side // step)
        product = folded.mean(axis=(2, 4))
    return abs(fourier.ifft2(product))


@overload
def scattering(images: npt.NDArray[np.generic]) -> Floats: ...
@overload
def scattering(images: "Tensor") -> "Tensor": ...
def scattering(images: Any) -> Any:
    """Scattering coefficients (n, 81, 49) of images (n, 28, 28) in [0, 1], as float32.

    Arrays and tensors go through the same lines; a tensor stays on its device.
    """
    arrays = isinstance(images, np.ndarray)
    if arrays:
        library: Any = np
        fourier: Any = fft
        pixels = images.astype(np.float32)
    else:
        import torch

        library, fourier, pixels = torch, torch.fft, images.float()
    mirrored = np.pad(np.arange(SIDE), _EDGE, mode="reflect")
    padded = pixels.reshape(-1, SIDE, SIDE)[:, mirrored][:, :, mirrored]
    count = len(padded)

    def constant(values: Floats) -> Any:
        return values if arrays else library.from_numpy(values).to(images.device)

    def averaged(values: Any, step: int) -> Any:
        return values.reshape(count, -1, (_PADDED // step) ** 2) @ constant(_averages(step))

    wavelets = constant(_wavelets())
    spectrum = fourier.fft2(padded)
    fine = _moduli(spectrum, wavelets[0], 1, fourier)
    coarse = _moduli(spectrum, wavelets[1], 2, fourier)
    parts = [averaged(padded, 1), averaged(fine, 1), averaged(coarse, 2)]
    for angle in range(ANGLES):  # only the fine scale has a coarser one to be analysed by
        second = _moduli(fourier.fft2(fine[:, angle]), wavelets[1], 2, fourier)
        parts.append(averaged(second, 2))
    return library.concatenate(parts, axis=1)
