import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prudent.accounting.losses import moments
from tests.raising import refused

DIGITS = 60


def exact_gaussian_delta(epsilon, sigma):
    with mpmath.workdps(DIGITS):
        e, s = mpmath.mpf(epsilon), mpmath.mpf(sigma)
        half = 1 / (2 * s)
        return mpmath.ncdf(half - e * s) - mpmath.exp(e) * mpmath.ncdf(-half - e * s)


def laplace_integral(integrand, scale):
    """Integrates integrand(p, q) over the line, p and q the densities at 0 and at 1."""
    with mpmath.workdps(30):
        b = mpmath.mpf(scale)

        def point(s):
            return integrand(
                mpmath.exp(-abs(s) / b) / (2 * b), mpmath.exp(-abs(s - 1) / b) / (2 * b)
            )

        inner = mpmath.linspace(0, 1, 9)
        return mpmath.quad(point, [-mpmath.inf, -b, *inner, 1 + b, mpmath.inf])


@pytest.mark.parametrize("scale", [0.2, 1, 50])
@pytest.mark.parametrize("order", [1.01, 2, 3.5, 256])
def test_laplace_rdp_is_the_integral(scale, order):
    with mpmath.workdps(30):
        moment = laplace_integral(lambda p, q: q**order * p ** (1 - order), scale)
        expected = float(mpmath.log(moment) / (mpmath.mpf(order) - 1))
    assert moments.laplace_rdp(order, scale) == pytest.approx(expected, rel=1e-12, abs=0)


def test_laplace_rdp_stays_finite_and_tends_to_epsilon():
    assert moments.laplace_rdp(1e9, 0.01) == pytest.approx(100, rel=1e-8)
    assert moments.laplace_rdp(1 + 1e-9, 1e4) == pytest.approx(0.5e-8, rel=1e-3, abs=0)


@pytest.mark.parametrize("sigma", [0.1, 0.7, 4, 100])
@pytest.mark.parametrize("share", [-3, -0.5, 0, 0.2, 1, 3, 8, 30])
def test_gaussian_profile_keeps_its_digits(sigma, share):
    epsilon = share / sigma + (0.5 / sigma**2 if share >= 0 else 0)
    expected = exact_gaussian_delta(epsilon, sigma)
    assert moments.gaussian_delta(epsilon, sigma) == pytest.approx(float(expected), rel=1e-9, abs=0)


def test_gaussian_profile_is_an_array_for_an_array():
    grid = np.array([[0.0, 1.0], [-1.0, 2.0]])
    assert np.shape(moments.gaussian_delta(grid, 1.0)) == (2, 2)
    assert np.ndim(moments.gaussian_delta(1.0, 1.0)) == 0


@given(st.floats(0.05, 50), st.floats(-14, -0.5))
def test_gaussian_epsilon_is_the_smallest_and_on_the_safe_side(sigma, exponent):
    delta = 10**exponent
    epsilon = moments.gaussian_epsilon(sigma, delta)
    assert exact_gaussian_delta(epsilon, sigma) <= delta
    if epsilon > 0:
        assert exact_gaussian_delta(epsilon * (1 - 1e-7), sigma) > delta


def test_gaussian_epsilon_is_zero_when_delta_covers_everything():
    assert moments.gaussian_epsilon(10.0, 0.5) == 0


def test_gaussian_epsilon_where_the_printed_formula_fails():
    assert moments.gaussian_epsilon(0.1, 1e-5) == pytest.approx(91.8, abs=0.05)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: moments.laplace_rdp(1, 1), "order"),
        (lambda: moments.gaussian_delta(1, 0), "sigma"),
        (lambda: moments.gaussian_delta(math.inf, 1), "epsilon"),
        (lambda: moments.gaussian_epsilon(1, 0), "delta"),
    ],
)
def test_bad_arguments_are_named(call, name):
    with refused(name):
        call()
