"""The scattering transform: its filters against their formula and against kymatio's numbers."""

import math

import numpy as np
import pytest
from scipy import fft

from prudent_lab.scattering import CHANNELS, low_pass, morlet, scattering


def formula(
    side: int, deviation: float, angle: float, frequency: float, slant: float
) -> np.ndarray:
    """A Gabor filter pixel by pixel, from its quadratic form."""
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    form = turn @ np.diag([1, slant**2]) @ turn.T / (2 * deviation**2)
    wave = frequency * turn[:, 0]
    values = np.zeros((side, side), dtype=complex)
    for row in range(side):
        for column in range(side):
            for over_rows in range(-2, 3):
                for over_columns in range(-2, 3):
                    point = np.array([row + side * over_rows, column + side * over_columns])
                    values[row, column] += np.exp(-point @ form @ point + 1j * (wave @ point))
    return values * slant / (2 * math.pi * deviation**2)


@pytest.mark.parametrize(("scale", "turn"), [(0, 0), (0, 5), (1, 3)])
def test_wavelets_follow_their_formula(scale: int, turn: int) -> None:
    angle, deviation = (3 - turn) * math.pi / 8, 0.8 * 2**scale
    wave = formula(12, deviation, angle, 0.75 * math.pi / 2**scale, 0.5)
    envelope = formula(12, deviation, angle, 0.0, 0.5)
    wanted = wave - envelope * wave.sum() / envelope.sum()
    found = morlet(12, scale, turn)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    assert abs(found.sum()) < 1e-12


# Fourier transforms on 36 × 36 pixels at three places, printed by kymatio 0.3.0, whose π is 3.1415.
KYMATIO = {
    (0, 0): [0.017338, 0.79587, 0.010503],
    (0, 5): [0.033781, -0.001764, -0.081079],
    (1, 3): [0.112757, 3e-06, -0.003283],
}


@pytest.mark.parametrize(("scale", "turn"), list(KYMATIO))
def test_wavelets_are_those_of_kymatio(scale: int, turn: int) -> None:
    spectrum = fft.fft2(morlet(36, scale, turn))
    found = [spectrum[place] for place in ((1, 0), (5, 9), (30, 4))]
    np.testing.assert_allclose(found, KYMATIO[scale, turn], atol=4e-5)


def test_the_average_is_that_of_kymatio() -> None:
    spectrum = fft.fft2(low_pass(36)).real
    found = [spectrum[place] for place in ((0, 0), (1, 2), (5, 34))]
    np.testing.assert_allclose(found, [1.000029, 0.822896, 0.322804], atol=4e-5)


def test_the_transform_is_that_of_kymatio() -> None:
    image = np.add.outer(np.arange(28) * 3, np.arange(28) * 7) % 11 / 10
    found = scattering(image[None]).reshape(CHANNELS, 7, 7)[[0, 3, 12, 17, 40, 80], 2, 5]
    wanted = [0.512436, 0.070767, 0.012664, 0.000661, 0.000117, 0.000784]
    np.testing.assert_allclose(found, wanted, atol=4e-5, rtol=1e-3)


@pytest.mark.thorough
def test_coefficients_of_an_image_are_the_same_bits_at_any_place_in_a_chunk() -> None:
    images = np.random.default_rng(0).random((256, 28, 28)).astype(np.float32)
    order = np.random.default_rng(1).permutation(256)
    assert np.array_equal(scattering(images[order]), scattering(images)[order])
