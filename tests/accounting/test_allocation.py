"""Random allocation: a record takes part in one of several steps, chosen uniformly."""

import math

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from prudent.accounting import (
    GaussianTest,
    PldAccountant,
    ProposeTestReleaseDpEvent,
    RandomAllocationDpEvent,
    RdpAccountant,
)
from prudent.accounting.losses import allocation
from prudent.accounting.losses.allocation import allocated_gaussian


def epoch(sigma: float, steps: int) -> RandomAllocationDpEvent:
    return RandomAllocationDpEvent(dp.GaussianDpEvent(sigma), steps)


def call(level: float, mu: float) -> float:
    """E(L - level)₊ of one factor L, in closed form."""
    if level <= 0:
        return 1 - level
    z = math.log(level) / mu + mu / 2
    return float(stats.norm.sf(z - mu) - level * stats.norm.sf(z))


def two_steps(epsilon: float, sigma: float) -> tuple[float, float]:
    """δ of removing and of adding a record, by quadrature over the first of two steps."""
    mu = 1 / sigma

    def factor(x: float) -> float:
        return math.exp(mu * x - mu * mu / 2)

    def removing(x: float) -> float:
        return 0.5 * call(2 * math.exp(epsilon) - factor(x), mu) * float(stats.norm.pdf(x))

    def adding(x: float) -> float:
        level = 2 * math.exp(-epsilon) - factor(x)  # (level - L)₊ = (L - level)₊ - 1 + level
        short = call(level, mu) - 1 + level if level > 0 else 0.0
        return 0.5 * math.exp(epsilon) * short * float(stats.norm.pdf(x))

    ends = -12.0, 12.0 + mu
    return tuple(integrate.quad(f, *ends, limit=400, epsabs=1e-13)[0] for f in (removing, adding))


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_two_steps_agree_with_quadrature(sigma: float, epsilon: float) -> None:
    pair = allocated_gaussian(sigma, 2)
    tables = pair.forward[0], pair.backward[0]
    for table, exact in zip(tables, two_steps(epsilon, sigma), strict=True):
        found = float(table.profile(np.array([epsilon]))[0])
        assert exact - 1e-12 <= found <= exact * 1.005 + 1e-12


def test_three_steps_agree_with_enumeration() -> None:
    """Every pair of two normal variables on a fine grid, the third in closed form."""
    sigma, epsilon = 1.0, 0.5
    x = np.linspace(-8, 9, 801)
    weights = stats.norm.pdf(x) * (x[1] - x[0])
    factors = np.exp(x / sigma - 1 / (2 * sigma**2))
    levels = 3 * math.exp(epsilon) - (factors[:, None] + factors)
    z = np.log(np.maximum(levels, 1e-300)) * sigma + 1 / (2 * sigma)
    calls = np.where(
        levels <= 0, 1 - levels, stats.norm.sf(z - 1 / sigma) - levels * stats.norm.sf(z)
    )
    exact = float(weights @ calls @ weights) / 3
    found = float(allocated_gaussian(sigma, 3).forward[0].profile(np.array([epsilon]))[0])
    assert exact * (1 - 1e-4) <= found <= exact * 1.003


def moment(sigma: float, steps: int, order: int) -> mpmath.mpf:
    """E(S/t)^order without the record, from the multinomial theorem, in 60 digits."""
    with mpmath.workdps(60):
        series = [
            mpmath.exp((k * k - k) / (2 * mpmath.mpf(sigma) ** 2)) / mpmath.factorial(k)
            for k in range(order + 1)
        ]
        power, base, left = [mpmath.mpf(1)] + [mpmath.mpf(0)] * order, series, steps
        while left:
            if left & 1:
                power = product(power, base)
            base, left = product(base, base), left >> 1
        return power[order] * mpmath.factorial(order) / mpmath.mpf(steps) ** order


def product(a: list[mpmath.mpf], b: list[mpmath.mpf]) -> list[mpmath.mpf]:
    return [mpmath.fsum(a[i] * b[k - i] for i in range(k + 1)) for k in range(len(a))]


@pytest.mark.unhurried
@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 7), (0.8, 60), (1.5, 234)])
def test_moments_agree_with_the_multinomial_theorem(sigma: float, steps: int) -> None:
    table = allocated_gaussian(sigma, steps).forward[0]
    for order in (1, 2, 3, 5):
        found = float(np.sum(table.masses * np.exp((order - 1) * table.losses)))
        exact = float(moment(sigma, steps, order))
        # A convex function of the sum: never below, and by grids as fine as these hardly above.
        assert exact * (1 - 1e-10) <= found, order
        assert found - 1 <= (exact - 1) * 1.01 + 1e-7, order


def test_the_grid_may_not_lower_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would notice masses that are moved to the lower point alone."""
    allocated_gaussian.cache_clear()
    monkeypatch.setattr(allocation.np, "expm1", lambda x: 0 * x + 1e-300)
    table = allocation._PartialSum(0.01, 0, np.ones(1))
    lowered = table.plus(table, 0.01)
    monkeypatch.undo()
    exact = table.plus(table, 0.01)
    assert np.sum(exact.masses * np.exp(exact.logs)) == pytest.approx(2.0, rel=1e-12)
    assert np.sum(lowered.masses * np.exp(lowered.logs)) != pytest.approx(2.0, rel=1e-4)
    allocated_gaussian.cache_clear()


def test_one_step_is_the_gaussian_mechanism() -> None:
    plain = PldAccountant().compose(dp.GaussianDpEvent(1.3)).get_epsilon(1e-6)
    assert PldAccountant().compose(epoch(1.3, 1)).get_epsilon(1e-6) == plain


def test_other_mechanisms_are_refused() -> None:
    tested = ProposeTestReleaseDpEvent(1.0, 0.5, GaussianTest(4.0), 1e-8)
    for inner in (tested, dp.LaplaceDpEvent(1.0)):
        assert not PldAccountant().supports(RandomAllocationDpEvent(inner, 10))
    assert not RdpAccountant().supports(epoch(1.0, 10))
    relation = dp.NeighboringRelation.REPLACE_ONE
    assert not PldAccountant(relation).supports(epoch(1.0, 10))
