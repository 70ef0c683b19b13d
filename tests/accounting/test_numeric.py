from fractions import Fraction

import mpmath
import numpy as np
import pytest

from prudent.accounting import _numeric
from tests.raising import refused

POINTS = [-0.999, -0.7, -0.5, -0.499, -1e-3, -1e-9, 1e-12, 1e-5, 0.3, 0.499, 0.5, 2.0, 40.0]


@pytest.mark.parametrize("x", POINTS)
def test_second_order_remainders_keep_their_digits(x):
    with mpmath.workdps(40):
        power = float(mpmath.expm1(x) - mpmath.mpf(x))
    assert _numeric.expm1_minus(np.array(x)) == pytest.approx(power, rel=2e-15, abs=0)


def test_remainders_vanish_at_zero():
    assert _numeric.expm1_minus(np.zeros(2)).tolist() == [0, 0]


def test_smallest_rounds_up_and_keeps_a_lower_end_that_holds():
    roots = np.array([0.1, 2 / 3, -1.0])
    found = _numeric.smallest(lambda x: x >= roots, np.zeros(3), np.ones(3))
    assert np.all(found >= roots)
    assert found == pytest.approx([0.1, 2 / 3, 0.0], rel=1e-15)


@pytest.mark.parametrize("order", [1, 0.5, np.inf, np.nan, [2, 1], [3, np.inf]])
def test_orders_must_exceed_one(order):
    with refused("order"):
        _numeric.orders(order)


@pytest.mark.parametrize("parts", [1, 3, 7, 49, 1000])
@pytest.mark.parametrize("value", [1.0, 0.1, 0.3, 0.7, 1 / 3, 1e-9, 5.0])
def test_shares_do_not_add_up_to_more(value, parts):
    """Also if each is divided again, and what it is multiplied to is rounded up."""
    share = _numeric.float_share(value, parts)
    assert Fraction(share) * parts <= Fraction(value)
    assert share >= value / parts * (1 - 1e-14)
    halves = [share * 0.3, share - share * 0.3]
    whole = [_numeric.float_above(Fraction(half) * parts) for half in halves]
    assert parts == 1 or sum(map(Fraction, whole)) <= Fraction(value)
