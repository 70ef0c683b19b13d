import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prudent.accounting.losses.moments import gaussian_delta, laplace_rdp, rdp_to_epsilon_balle
from prudent_lab.paper import theorems
from prudent_lab.paper.theorems import ConditionError
from tests.raising import refused

ORDERS = np.arange(2, 201)


def case_profiles(epsilon, sigma, propose, scale, failure):
    """Exact privacy profiles of both cases (Errata 2.1), by integrating over the Laplace loss."""
    case_1 = (1 - failure) * gaussian_delta(epsilon, sigma) + failure * gaussian_delta(
        epsilon, propose * sigma
    )
    peak = 1 / scale
    nodes, weights = np.polynomial.legendre.leggauss(80)
    density = np.exp((peak * nodes - peak) / 2) / 4
    smooth = peak * np.sum(weights * density * gaussian_delta(epsilon - peak * nodes, sigma))
    ends = gaussian_delta(epsilon - peak, sigma) + np.exp(-peak) * gaussian_delta(
        epsilon + peak, sigma
    )
    return case_1, ends / 2 + smooth


@pytest.mark.parametrize(
    ("failure", "direct", "sharpened"), [(9e-6, 2.061, 1.926), (9.9e-6, 2.182, 1.926)]
)
def test_the_errata_numbers(failure, direct, sharpened):
    assert theorems.direct_epsilon(4, 1, failure, 1e-5) == pytest.approx(direct, abs=6e-4)
    assert theorems.direct_epsilon_sharpened(4, 1, failure, 1e-5) == pytest.approx(
        sharpened, abs=6e-4
    )
    curve = theorems.ptr_rdp(ORDERS, 4, 0.5, 1, failure)
    assert rdp_to_epsilon_balle(ORDERS, curve, 1e-5) == pytest.approx(1.972, abs=6e-4)


@given(st.floats(0.5, 10), st.floats(0.05, 1), st.floats(0.5, 8), st.floats(0.01, 0.99))
def test_direct_analyses_hold_and_the_sharpened_one_is_never_larger(sigma, propose, scale, share):
    delta, failure = 1e-5, share * 1e-5
    plain = theorems.direct_epsilon(sigma, scale, failure, delta)
    sharp = theorems.direct_epsilon_sharpened(sigma, scale, failure, delta)
    assert sharp <= plain
    for epsilon in (plain, sharp):
        assert max(case_profiles(epsilon, sigma, propose, scale, failure)) <= delta * (1 + 1e-9)


def test_sharpened_is_limited_by_case_1_when_failure_takes_nearly_all_of_delta():
    case_2 = theorems.direct_epsilon_sharpened(1.0, 50, 1e-9, 1e-5)
    assert theorems.direct_epsilon_sharpened(1.0, 50, 1e-5 * (1 - 1e-9), 1e-5) > case_2 + 1


@pytest.mark.parametrize("function", [theorems.direct_epsilon, theorems.direct_epsilon_sharpened])
def test_direct_analysis_refuses_when_failure_eats_delta(function):
    with pytest.raises(ConditionError, match=r"delta > failure.*1e-05 too small.*PldAccountant"):
        function(4, 1, 2e-5, 1e-5)


@pytest.mark.parametrize(
    ("order", "sigma", "propose", "scale", "failure"),
    [(1.01, 4, 0.5, 1, 1e-8), (2, 1.1, 0.5, 1, 1e-8), (7.5, 1.1, 0.5, 50, 1e-4),
     (6, 1.1, 0.5, 1, 1e-8), (30, 4, 0.9, 0.2, 0.5), (256, 2, 1.5, 3, 0.1)],
)  # fmt: skip
def test_ptr_rdp_is_the_larger_moment(order, sigma, propose, scale, failure):
    with mpmath.workdps(400):
        a, s, d0 = mpmath.mpf(order), mpmath.mpf(sigma), mpmath.mpf(failure)
        small, b = mpmath.mpf(propose) * s, mpmath.mpf(scale)
        one = (1 - d0) * mpmath.exp(a * (a - 1) / (2 * s**2)) + d0 * mpmath.exp(
            a * (a - 1) / (2 * small**2)
        )
        two = (
            mpmath.exp(a * (a - 1) / (2 * s**2))
            * (a * mpmath.exp((a - 1) / b) + (a - 1) * mpmath.exp(-a / b))
            / (2 * a - 1)
        )
        expected = float(mpmath.log(max(one, two)) / (a - 1))
    assert theorems.ptr_rdp(order, sigma, propose, scale, failure) == pytest.approx(
        expected, rel=1e-12, abs=0
    )


def test_ptr_rdp_never_overflows():
    assert np.isfinite(theorems.ptr_rdp([1 + 1e-9, 1e6], 1e-3, 1e-3, 1e-3, 1e-300)).all()


def test_case_1_takes_over_from_order_5_on_the_paper_setting():
    orders = np.arange(2, 40)
    two = orders / (2 * 1.1**2) + laplace_rdp(orders, 1)
    above = theorems.ptr_rdp(orders, 1.1, 0.5, 1, 1e-8) > two
    assert orders[above].min() == 5
    above = theorems.ptr_rdp(orders, 4, 0.5, 1, 1e-8) > orders / 32 + laplace_rdp(orders, 1)
    assert orders[above].min() >= 21


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((1, 4, 0.5, 1, 1e-8), "order"),
        ((2, 0, 0.5, 1, 1e-8), "noise_multiplier"),
        ((2, 4, 0, 1, 1e-8), "propose"),
        ((2, 4, 0.5, -1, 1e-8), "scale"),
        ((2, 4, 0.5, 1, 0.6), "failure"),
        ((2, 4, 0.5, 1, 0), "failure"),
    ],
)
def test_bad_arguments_are_named(arguments, name):
    with refused(name):
        theorems.ptr_rdp(*arguments)
