"""Pairs of several records: against quadrature, peers, and mixtures they must dominate."""

import math

import mpmath
import numpy as np
import pytest

from prudent.accounting.group_privacy import (
    ShiftedPair,
    chained,
    nodes_up_to,
    sampled_counts,
)
from prudent.accounting.losses.composed import as_table
from prudent.accounting.losses.pairs import BoundPair, Dominating, MixturePair, TabulatedPair

EPSILONS = np.array([-2.0, -0.3, 0.0, 0.05, 0.7, 2.5, 9.0])


def hockey_stick(pair, epsilon):
    """P(x > t) - e^ε Q(x > t) in 40 digits, t where the densities cross, by bisection."""
    with mpmath.workdps(40):
        first = list(zip(pair.present.tolist(), pair.up.tolist(), strict=True))
        second = list(zip(pair.absent.tolist(), (-pair.down).tolist(), strict=True))
        factor = mpmath.exp(mpmath.mpf(float(epsilon)))

        def total(law, function):
            return mpmath.fsum(mass * function(shift) for mass, shift in law)

        def is_above(x):
            def density(shift):
                return mpmath.exp(-((x - shift) ** 2) / 2)

            return total(first, density) > factor * total(second, density)

        low, high = mpmath.mpf(-60), mpmath.mpf(60)
        for _ in range(90):
            middle = (low + high) / 2
            low, high = (low, middle) if is_above(middle) else (middle, high)
        seen = total(first, lambda shift: mpmath.ncdf(shift - high))
        return float(seen - factor * total(second, lambda shift: mpmath.ncdf(shift - high)))


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(("records", "rate", "sigma"), [(1, 0.1, 0.8), (3, 0.02, 1.1), (4, 1.0, 5)])
def test_the_profile_is_the_hockey_stick(records, rate, sigma, replaced, swap):
    (pair,) = ShiftedPair.of_sample(records, rate, sigma, replaced=replaced).pairs
    pair = pair.swapped() if swap else pair
    for epsilon, found in zip(EPSILONS, pair.profile(EPSILONS), strict=True):
        exact = hockey_stick(pair, epsilon)
        assert exact * (1 - 1e-15) <= found <= exact * (1 + 1e-9) + 3e-12, epsilon


def test_opposite_shifts_on_a_line_are_the_worst_of_all_directions():
    """Mixtures in the plane with shifts of at most these lengths, by integration on a grid."""
    rng = np.random.default_rng(3)
    axis = np.linspace(-8, 8, 321)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2 / (2 * math.pi)
    nearest = 0.0
    for _ in range(20):
        aligned = rng.random() < 0.3
        masses = rng.dirichlet(np.ones(3))
        lengths = np.array([0.0, *rng.uniform(0.2, 2.0, 2)])

        def density(direction, masses=masses, lengths=lengths, aligned=aligned):
            turn = np.full(3, direction) if aligned else rng.uniform(0, 2 * math.pi, 3)
            inside = lengths if aligned else lengths * rng.uniform(0.5, 1, 3)
            shifts = zip(masses, inside * np.cos(turn), inside * np.sin(turn), strict=True)
            return sum(m * np.exp(-0.5 * ((x - a) ** 2 + (y - b) ** 2)) for m, a, b in shifts)

        first, second = density(0.0), density(math.pi)
        pair = ShiftedPair(masses, lengths, masses, lengths)
        for epsilon in (-0.5, 0.0, 0.5, 1.5):
            found = np.maximum(0.0, first - math.exp(epsilon) * second).sum() * cell
            bound = pair.profile(np.array([epsilon]))[0]
            assert found <= bound + 2e-4
            nearest = max(nearest, found / bound)
    assert nearest > 0.999  # the worst directions are among them


@pytest.mark.parametrize(
    ("records", "rate"), [(3, 1.0), (5, 0.999), (1000, 1e-3), (20_000, 1e-5), (1000, 0.3)]
)
def test_counts_of_many_records_have_binomial_masses_up_to_a_thin_tail(records, rate):
    masses, counts, rest = sampled_counts(records, rate)
    assert (rest > 0) == (counts[-1] < records)
    with mpmath.workdps(40):
        for mass, count in zip(masses, counts, strict=True):
            exact = mpmath.binomial(records, int(count)) * mpmath.mpf(rate) ** int(count)
            exact *= mpmath.mpf(1 - rate) ** int(records - count)
            assert abs(mass - exact) <= 1e-12 * exact + 1e-290
        missing = 1 - mpmath.fsum(map(mpmath.mpf, masses))
    assert missing <= rest + 1e-12


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 8.0])
def test_the_profile_of_twenty_thousand_records_is_not_understated(epsilon):
    """A huge shift of negligible mass spread the nodes of the loss: δ was too low by 4e-4."""
    worst = ShiftedPair.of_sample(20_000, 1e-5, 1.0, replaced=False)
    found = worst.profile(np.array([epsilon]))[0]
    exact = hockey_stick(worst.pairs[0], epsilon)
    assert exact <= found <= exact * (1 + 1e-9)


@pytest.mark.parametrize(
    "pair",
    [
        MixturePair.of((1.0, 1.0, 1.3)),
        MixturePair.of((0.6, 0.5, 1.1), (0.4, 0.45, 0.55), (0.0, 0.05, 3.0)),
        ShiftedPair.of_sample(3, 0.05, 0.7, replaced=False).pairs[0],
    ],
)
def test_a_bound_joined_by_chords_is_above_the_profile_and_near_it(pair):
    nodes = nodes_up_to(30.0)
    bound = BoundPair.of(nodes, pair.profile(nodes), pair.swapped().profile(nodes))
    epsilon = np.concatenate([np.linspace(-40, 40, 4001), np.linspace(-0.1, 0.1, 501)])
    for found, exact in (
        (bound.profile(epsilon), pair.profile(epsilon)),
        (bound.swapped().profile(epsilon), pair.swapped().profile(epsilon)),
        (bound.swapped().swapped().profile(epsilon), pair.profile(epsilon)),
    ):
        assert np.all(found >= exact * (1 - 1e-10) - 1e-300)
        assert np.all(found <= exact * (1 + 1e-2) + 1e-9)


def test_a_bound_that_is_no_profile_is_lowered_to_one():
    """Two bounds that disagree at zero, one with a bump: the hull is still above the profile."""
    pair = MixturePair.of((1.0, 1.0, 1.0))
    nodes = nodes_up_to(20.0)
    exact = pair.profile(nodes)
    rough = exact * (1 + 0.3 * (np.abs(nodes - 2) < 0.2))
    bound = BoundPair.of(nodes, rough, np.minimum(1.0, 1.5 * exact))
    lowered = bound.profile(nodes)
    assert np.all(lowered >= exact * (1 - 1e-12))
    inside = np.abs(nodes - 2) < 0.1
    assert np.all(lowered[inside] < 0.95 * rough[inside])
    assert lowered[0] == pytest.approx(bound.swapped().profile(np.zeros(1))[0])


def test_the_chain_of_two_gaussian_steps_is_above_the_double_step():
    nodes = nodes_up_to(25.0)
    single, double = (MixturePair.of((1.0, 1.0, sigma)) for sigma in (4.0, 2.0))
    bound, exact = chained(single.profile, single.profile, nodes), double.profile(nodes)
    assert np.all(bound >= exact * (1 - 1e-12) - 1e-300)
    near = nodes < 1
    assert np.all(bound[near] <= 1.25 * exact[near])


@pytest.mark.parametrize(("shift", "tabulated"), [(17.0, True), (300.0, False)])
def test_a_table_bounds_its_pair_or_there_is_none(shift, tabulated):
    """Losses of thousands overflow: a table of them had no mass, and so the price of no release."""
    masses, shifts = np.array([1 - 1e-3, 1e-3, 1e-20]), np.array([0.0, 1.0, shift])
    worst = Dominating((ShiftedPair(masses, shifts, np.ones(1), np.zeros(1)),))
    losses = np.linspace(-0.5, 2.0, 501)
    for upper, sign in ((True, 1), (False, -1)):
        table = as_table(worst, upper, 1e-40)
        assert isinstance(table.pairs[0], TabulatedPair) == tabulated
        for adding in (False, True):
            exact, found = (each.profile(losses, adding=adding) for each in (worst, table))
            assert (sign * (found - exact) >= -2e-12).all()
            assert np.abs(found - exact).max() < 1e-5
