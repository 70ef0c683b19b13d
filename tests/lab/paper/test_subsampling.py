import math

import mpmath
import numpy as np
import pytest

from prudent.accounting.losses.moments import laplace_rdp
from prudent_lab.paper import theorems as subsampling
from prudent_lab.paper.theorems import ConditionError, ptr_rdp

RATE = 256 / 60_000
PAPER = {"noise_multiplier": 1.1, "propose": 0.5, "test_scale": 1.0, "failure": 1e-8}
SMALL = {"noise_multiplier": 0.2, "propose": 0.1, "test_scale": 0.1, "failure": 1e-8}
INSIDE = {"noise_multiplier": 8.0, "propose": 0.5, "failure": 1e-8}


def quadrature(exponent, rate, scale):
    """E_P[(1-q + q Q/P)^e] - 1 by integrating over the noise itself."""
    with mpmath.workdps(30):
        e, q, b = mpmath.mpf(exponent), mpmath.mpf(rate), mpmath.mpf(scale)

        def point(s):
            mixture = 1 - q + q * mpmath.exp((abs(s) - abs(s - 1)) / b)
            return mpmath.exp(-abs(s) / b) / (2 * b) * (mixture**e)

        # Outside [0, 1] the ratio is constant; between, short panels follow high orders.
        inner = mpmath.quad(point, mpmath.linspace(0, 1, 9))
        left = (1 - q + q * mpmath.exp(-1 / b)) ** e / 2
        right = (1 - q + q * mpmath.exp(1 / b)) ** e * mpmath.exp(-1 / b) / 2
        return left + inner + right


def exact_log_moment(order, rate, cumulant_excess):
    """Errata 2.2: 1 + Σ C(a,k) (1-q)^(a-k) q^k (m_k - 1), with m_k - 1 given."""
    total = sum(
        math.comb(order, k) * (1 - rate) ** (order - k) * rate**k * cumulant_excess(k)
        for k in range(2, order + 1)
    )
    return math.log1p(total) / (order - 1)


def exact_rdp(order, rate, noise_multiplier, propose, test_scale, failure):
    def case_1(k):
        safe, trusting = (
            math.expm1((k - 1) * k / (2 * s**2))
            for s in (noise_multiplier, propose * noise_multiplier)
        )
        return float((1 - failure) * safe + failure * trusting)

    def case_2(k):
        return float(
            np.expm1((k - 1) * (k / (2 * noise_multiplier**2) + laplace_rdp(k, test_scale)))
        )

    return tuple(exact_log_moment(order, rate, case) for case in (case_1, case_2))


@pytest.mark.parametrize(("rate", "scale"), [(1e-5, 0.2), (0.01, 1), (0.3, 50), (1 - 1e-3, 0.5)])
@pytest.mark.parametrize("order", [-255, -3.5, 0.4, 1.01, 2, 17.3, 256])
def test_moments_are_the_integral(order, rate, scale):
    with mpmath.workdps(30):
        expected = float(mpmath.log(quadrature(order, rate, scale)))
    found = subsampling.laplace_log_moment(order, rate, scale)
    assert found == pytest.approx(expected, rel=1e-11, abs=0)


def test_panels_follow_very_high_orders():
    found = [subsampling.laplace_log_moment(order, 1.0, 0.5) for order in (3000.0, 20_000.0)]
    expected = np.array([2999, 19_999]) * laplace_rdp([3000, 20_000], 0.5)
    assert found == pytest.approx(expected, abs=1e-9)


def test_moments_at_their_fixed_points():
    moment = subsampling.laplace_log_moment
    assert [moment(e, 0.3, 1.0) for e in (0.0, 1.0)] == pytest.approx([0, 0], abs=1e-15)
    assert [moment(e, 0.0, 0.3) for e in (-4.0, 0.5, 7.0)] == [0, 0, 0]
    assert moment(3.0, 1.0, 1.0) == pytest.approx(2 * laplace_rdp(3, 1), rel=1e-13)


def test_the_errata_table_of_the_paper_setting():
    orders = np.array([2, 4, 6, 8, 11])
    formula = subsampling._white_box_formula(orders * 1.0, RATE, 1.1, 0.5, 1.0, 1e-8)
    assert formula == pytest.approx([1.27e-4, 2.57e-4, 3.90e-4, 5.25e-4, 7.33e-4], rel=5e-3, abs=0)
    black_box = subsampling.black_box_rdp(orders, RATE, **PAPER)
    assert black_box == pytest.approx([5.91e-5, 1.34e-4, 9.67e-2, 4.51, 10.5], rel=6e-3, abs=0)
    exact = np.array([exact_rdp(int(a), RATE, 1.1, 0.5, 1.0, 1e-8) for a in orders])
    assert exact[:, 0] == pytest.approx([2.34e-5, 4.75e-5, 3.77e-2, 4.36, 10.3], rel=5e-3, abs=0)
    assert exact[:, 1] == pytest.approx(
        [5.91e-5, 1.23e-4, 1.92e-4, 2.69e-4, 1.13e-3], rel=5e-3, abs=0
    )


@pytest.mark.parametrize(("scale", "ratio"), [(1.0, 1.10), (4.0, 1.66)])
@pytest.mark.parametrize("rate", [1e-4, 0.001, 0.01])
def test_white_box_is_a_bound_inside_its_conditions(scale, ratio, rate):
    orders = np.arange(2, 60)
    orders = orders[subsampling.white_box_applies(orders, rate, 8.0, 0.5, scale)]
    assert orders.size >= 5
    bound = subsampling.white_box_rdp(orders, rate, test_scale=scale, **INSIDE)
    exact = np.array([max(exact_rdp(int(a), rate, 8.0, 0.5, scale, 1e-8)) for a in orders])
    assert np.all(bound >= exact)
    assert bound / exact == pytest.approx(ratio, abs=0.01)


def test_white_box_formula_is_the_one_of_the_appendix():
    """Both directions, with the three moments of the printed formula taken from quadrature."""
    q, b, sigma, order = 0.02, 1.5, 8.0, 4.5
    with mpmath.workdps(30):
        terms = []
        for e in (mpmath.mpf(order), 1 - mpmath.mpf(order)):
            r = [quadrature(e - shift, q, b) for shift in range(3)]
            share = r[0] - 2 * (1 - mpmath.mpf(q)) * r[1] + (1 - mpmath.mpf(q)) ** 2 * r[2]
            terms.append(r[0] + 2 * order * (order - 1) / sigma**2 * share)
        expected = float(mpmath.log(max(terms)) / (order - 1))
        assert terms[0] != terms[1]
    assert subsampling.white_box_rdp(order, q, sigma, 0.5, b, 1e-8) == pytest.approx(
        expected, rel=1e-11, abs=0
    )


def test_white_box_case_1_counts_when_failure_is_large():
    q, order = 1e-3, 3.0
    expected = math.log1p(2 * q**2 * order * 2 * (0.5 / 80**2 + 0.5 / 4**2)) / 2
    found = subsampling.white_box_rdp(order, q, 80.0, 0.05, 50.0, 0.5)
    assert found == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling_rate": 0.1}, r"sampling_rate <= 0\.084\d+, got 0\.1 \(0\.015\d* too large\)"),
        ({"noise_multiplier": 1.1}, r"noise_multiplier >= 4, got 0\.55 \(3\.45 too small\)"),
        ({"propose": 1.25}, r"propose <= 1, got 1\.25 \(0\.25 too large\)"),
        ({"order": [2, 50]}, r"order <= 5\.385\d* at order 50 .*first condition.*44\.6 too large"),
        (
            {"order": 14.0, "sampling_rate": 0.05, "noise_multiplier": 20.0},
            r"its second condition on the order",
        ),
    ],
)
def test_white_box_refuses_and_says_why(changes, message):
    arguments = {"order": 2, "sampling_rate": RATE, "test_scale": 1.0, **INSIDE, **changes}
    with pytest.raises(ConditionError, match=message) as caught:
        subsampling.white_box_rdp(**arguments)
    assert "prudent.PldAccountant" in str(caught.value)
    arguments.pop("failure")
    assert not np.all(subsampling.white_box_applies(**arguments))


def test_white_box_applies_to_no_order_of_the_paper_experiments():
    orders = np.concatenate([np.linspace(1.001, 2, 50), np.arange(2, 257)])
    for rate, sigma, propose in [
        (RATE, 1.1, 0.5),
        (1024 / 5e4, 1.1, 2 / 3),
        (2048 / 5e4, 2.2, 0.6),
    ]:
        assert not subsampling.white_box_applies(orders, rate, sigma, propose, 1.0).any()


@pytest.mark.parametrize(("q", "small"), [(0.05, 10.0), (0.08, 4.0)])
def test_white_box_orders_are_checked_against_the_rate_inside_the_laplace_test(q, small):
    """Errata 1, 15: the test can raise the share of the record up to q' = q/(q+(1-q)e^(-1/b))."""
    b = 1.0
    share = q / (q + (1 - q) * math.exp(-1 / b))
    orders = np.linspace(1.05, 30, 4000)
    length = np.log1p(1 / (share * (orders - 1)))
    first = small**2 * length / 2 - 2 * math.log(small)
    second = (small**2 * length**2 / 2 - math.log(5) - 2 * math.log(small)) / (
        length + np.log(share * orders) + 1 / (2 * small**2)
    )
    expected = (orders <= first) & (orders <= second)
    assert 0 < expected.sum() < orders.size
    assert np.any((orders <= first) & (orders > second))
    found = subsampling.white_box_applies(orders, q, 2 * small, 0.5, b)
    assert found.tolist() == expected.tolist()


def black_box_by_hand(order, rate, factor, **parameters):
    with mpmath.workdps(60):
        q = mpmath.mpf(rate)
        total = (1 - q) ** (order - 1) * (order * q - q + 1)
        for k in range(2, order + 1):
            curve = mpmath.mpf(float(ptr_rdp(k, **parameters)))
            term = mpmath.binomial(order, k) * q**k * (1 - q) ** (order - k)
            total += (factor if k >= 3 else 1) * term * mpmath.exp((k - 1) * curve)
        return float(mpmath.log(total) / (order - 1))


@pytest.mark.parametrize("order", [2, 3, 10, 64])
@pytest.mark.parametrize("rate", [1e-5, 0.02, 1.0])
def test_black_box_and_plug_in_are_the_published_sums(order, rate):
    for function, factor in [(subsampling.black_box_rdp, 3), (subsampling.plug_in_rdp, 1)]:
        expected = black_box_by_hand(order, rate, factor, **PAPER)
        assert function(order, rate, **PAPER) == pytest.approx(expected, rel=1e-11, abs=0)


@pytest.mark.parametrize("parameters", [PAPER, {**PAPER, "noise_multiplier": 4, "failure": 1e-4}])
def test_black_box_and_plug_in_are_never_below_the_exact_value(parameters):
    orders = np.arange(2, 20)
    exact = np.array([max(exact_rdp(int(a), 0.01, **parameters)) for a in orders])
    black_box = subsampling.black_box_rdp(orders, 0.01, **parameters)
    plug_in = subsampling.plug_in_rdp(orders, 0.01, **parameters)
    assert np.all(exact <= plug_in * (1 + 1e-12))
    assert np.all(plug_in <= black_box)


def test_fractional_orders_lie_on_the_chord_and_above_the_exact_moment():
    whole = subsampling.black_box_rdp([2, 3], RATE, **PAPER)
    chord = (0.75 * whole[0] + 0.25 * 2 * whole[1]) / 1.25
    assert subsampling.black_box_rdp(2.25, RATE, **PAPER) == pytest.approx(chord, rel=1e-13)
    assert subsampling.black_box_rdp(1.5, RATE, **PAPER) == pytest.approx(whole[0], rel=1e-13)
    # The Laplace test alone is part of the release, so its exact moment is a floor.
    floor = subsampling.laplace_log_moment(2.25, RATE, 1.0) / 1.25
    assert subsampling.black_box_rdp(2.25, RATE, **PAPER) > floor


def test_no_sampling_costs_nothing_and_shapes_are_kept():
    assert subsampling.black_box_rdp([[2, 3.5]], 0.0, **PAPER).tolist() == [[0, 0]]
    assert np.ndim(subsampling.black_box_rdp(2, 0.1, **PAPER)) == 0
    assert subsampling.plug_in_rdp(5, 1.0, **PAPER) == pytest.approx(ptr_rdp(5, **PAPER))
    assert np.isfinite(subsampling.black_box_rdp(256, 0.5, **SMALL))
