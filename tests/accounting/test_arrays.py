"""Accountants answer arrays as they answer numbers, element by element."""

import math

import dp_accounting as dp
import numpy as np
import pytest

from prudent.accounting import ApproximateDpEvent, PldAccountant, RdpAccountant
from tests.raising import refused

EVENTS = {
    "single": dp.GaussianDpEvent(1.0),
    "bounded": ApproximateDpEvent(1.0, 1e-7),
    "two": dp.SelfComposedDpEvent(dp.LaplaceDpEvent(2.0), 2),
    "nothing": dp.NoOpDpEvent(),
    "everything": dp.GaussianDpEvent(0.0),
}


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("kind", [PldAccountant, RdpAccountant])
def test_few_numbers_are_the_scalars(name, kind):
    accountant = kind().compose(EVENTS[name])
    deltas = np.array([[1e-5, 0.1], [0.0, 1e-5]])
    found = accountant.get_epsilon(deltas)
    assert found.shape == (2, 2)
    assert found.tolist() == [[accountant.get_epsilon(float(d)) for d in row] for row in deltas]
    epsilons = [0.0, 0.5, 0.5, math.inf]
    assert accountant.get_delta(epsilons).tolist() == [accountant.get_delta(e) for e in epsilons]


def test_a_number_gives_a_float():
    accountant = PldAccountant().compose(EVENTS["single"])
    for delta in (1e-5, np.float64(1e-5), np.array(1e-5)):
        assert type(accountant.get_epsilon(delta)) is float
        assert accountant.get_epsilon(delta) == accountant.get_epsilon(1e-5)
    assert accountant.get_epsilon([]).shape == (0,)
    assert accountant.get_delta(np.zeros((2, 0))).shape == (2, 0)


@pytest.mark.parametrize(
    "bad", [-0.1, 1.5, "small", [0.1, 1.5], [0.1, math.nan], ["a"], [True], [[0.1, -1e-9]]]
)
@pytest.mark.parametrize("kind", [PldAccountant, RdpAccountant])
def test_every_number_is_checked(bad, kind):
    with refused("target_delta"):
        kind().compose(dp.GaussianDpEvent(1.0)).get_epsilon(bad)
