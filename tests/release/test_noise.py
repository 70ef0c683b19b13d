"""Noise: on the lattice, of the right distribution, and a check that would notice a wrong scale."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent import release
from prudent._validate import ArgumentError
from prudent.accounting import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
)
from prudent.release.noise import Distribution, ReproducibleNoise, SecureNoise

DRAWS = 4_000
FAR = 6  # standard errors: by chance once in 5e8; what is wrong is another two away
SOURCES = [SecureNoise(), ReproducibleNoise(1)]


def mean_size(draws: list[int]) -> float:
    return float(np.mean(np.abs(draws)))


def expected(weights: np.ndarray) -> tuple[float, float]:
    """Mean size of a symmetric distribution on integers, and the standard error of its estimate."""
    values = np.abs(np.arange(len(weights)) - len(weights) // 2)
    distribution = weights / weights.sum()
    mean = float(distribution @ values)
    return mean, math.sqrt(float(distribution @ values**2) - mean**2) / math.sqrt(DRAWS)


def laplace_weights(scale: float) -> np.ndarray:
    values = np.arange(-math.ceil(50 * scale), math.ceil(50 * scale) + 1)
    return np.exp(-np.abs(values) / scale)


def gaussian_weights(scale: float) -> np.ndarray:
    values = np.arange(-math.ceil(12 * scale), math.ceil(12 * scale) + 1)
    return np.exp(-0.5 * (values / scale) ** 2)


LAWS = {
    "test, Laplace": (lambda source, s: source.of_test(DiscreteLaplaceTest(s)), laplace_weights),
    "test, Gaussian": (lambda source, s: source.of_test(DiscreteGaussianTest(s)), gaussian_weights),
    "value, Laplace": (
        lambda source, s: source.of_value(Distribution.LAPLACE, s, 1)[0],
        laplace_weights,
    ),
    "value, Gaussian": (
        lambda source, s: source.of_value(Distribution.GAUSSIAN, s, 1)[0],
        gaussian_weights,
    ),
}


@pytest.mark.unhurried
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: type(source).__name__)
@pytest.mark.parametrize("distribution", LAWS)
def test_noise_has_the_right_size_and_a_wrong_one_is_noticed(
    distribution: str, source: object
) -> None:
    draw, weights = LAWS[distribution]
    draws = [draw(source, 6.0) for _ in range(DRAWS)]
    mean, error = expected(weights(6.0))
    assert all(isinstance(one, int) for one in draws)
    assert abs(mean_size(draws) - mean) < FAR * error
    assert abs(np.mean(draws)) < FAR * math.sqrt(mean**2 + DRAWS * error**2) / math.sqrt(DRAWS)
    for wrong in (6.0 * 0.8, 6.0 * 1.25):
        mean, error = expected(weights(wrong))
        assert abs(mean_size(draws) - mean) > FAR * error


def test_a_rounded_gaussian_is_one_at_small_scales_too() -> None:
    # At half a step the rounded Gaussian and the discrete one differ by more than the error here.
    draws = np.array(SecureNoise().of_value(Distribution.GAUSSIAN, 0.5, DRAWS))
    zero = math.erf(1 / math.sqrt(2))  # Pr[|N| < 1], half a step being one deviation
    error = math.sqrt(zero * (1 - zero) / DRAWS)
    assert abs(np.mean(draws == 0) - zero) < FAR * error


@pytest.mark.parametrize("distribution", list(Distribution))
def test_wide_noise_does_not_wrap_around(distribution: Distribution) -> None:
    draws = np.array(SecureNoise().of_value(distribution, 2.0**48, 500), dtype=object)
    assert max(abs(draws)) > 2**48
    assert max(abs(draws)) < 2**55


@pytest.mark.parametrize("scale", [0.0, 2.0**49, math.inf])
def test_noise_that_cannot_be_drawn_exactly_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="Propose more"):
        SecureNoise().of_value(Distribution.LAPLACE, scale, 1)


@pytest.mark.parametrize("test", [LaplaceTest(1.0), GaussianTest(1.0)])
def test_continuous_tests_are_refused(test: object) -> None:
    with pytest.raises(ValueError, match="drawn exactly"):
        SecureNoise().of_test(test)  # type: ignore[arg-type]


def test_only_the_reproducible_noise_is_reproducible() -> None:
    def draws(source: object) -> list[int]:
        return source.of_value(Distribution.GAUSSIAN, 1e6, 5)  # type: ignore[attr-defined]

    assert draws(ReproducibleNoise(3)) == draws(ReproducibleNoise(3))
    assert draws(SecureNoise()) != draws(SecureNoise())


def _private_groups(**options: Any) -> object:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"x": [1.0, 2.0], "city": ["a", "b"]})
    return release.count(table, by="city", groups="private", delta=1e-6, **options)


@pytest.mark.parametrize(
    "ask",
    [
        functools.partial(release.count, [1.0, 2.0]),
        functools.partial(release.median, [1.0, 2.0], bounds=(0, 9)),
        functools.partial(release.median, [1.0, 2.0], propose=1, delta=1e-6),
        _private_groups,
    ],
    ids=["sum", "selection", "test", "groups"],
)
@pytest.mark.parametrize("noise", [7, "x", SecureNoise])
def test_what_is_no_source_is_refused_before_the_charge(
    ask: Callable[..., object], noise: Any, tmp_path: Path
) -> None:
    with (
        release.Ledger.create(tmp_path / "x.db", epsilon=5.0, delta=1e-5) as ledger,
        pytest.raises(ArgumentError, match="Expected noise"),
    ):
        ask(epsilon=1.0, noise=noise, ledger=ledger)
    with release.Ledger(tmp_path / "x.db") as ledger:
        assert list(ledger.history()) == []
