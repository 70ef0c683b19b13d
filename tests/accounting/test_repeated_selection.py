"""Private selection: its price against exact output laws, explicit attacks and a peer."""

import math
from functools import lru_cache, partial

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant as PeerAccountant
from mpmath import mp
from scipy import special

from prudent.accounting import (
    ApproximateDpEvent,
    Binomial,
    BinomialSelectionDpEvent,
    Geometric,
    NegativeBinomial,
    PldAccountant,
    Poisson,
    RdpAccountant,
    TrialCount,
    WorstOfDpEvent,
    why_infinite,
)
from prudent.accounting.losses.domination import DominatedDpEvent
from prudent.accounting.losses.loss_tables import Array, TradeOff
from prudent.accounting.losses.pairs import Dominating, MixturePair
from prudent.accounting.losses.repeated_selection import selected, selected_divergences, trial_count
from prudent.accounting.rdp_accountant import DEFAULT_ORDERS
from tests.raising import refused

COUNTS: list[TrialCount] = [
    Geometric(4),
    NegativeBinomial(6, 0.0),
    NegativeBinomial(5, 0.5),
    Poisson(3),
    Poisson(1),
    Binomial(6, 0.7),
    Binomial(5, 1.0),
]
EPSILONS = np.array([0.0, 0.02, 0.3, 0.7, 1.5, 3.0, 6.0, 9.0])


@lru_cache
def probabilities(count: TrialCount, most: int) -> list[float]:
    """Pr[K = k] for k up to `most`, from the definitions of the laws."""
    with mp.workdps(40):
        match count:
            case NegativeBinomial():
                gamma, eta = mp.mpf(count.halting), mp.mpf(count.shape)
                if eta == 0:
                    weights = [(1 - gamma) ** k / k for k in range(1, most + 1)]
                    total = -mp.log(gamma)
                else:
                    weights = [
                        (1 - gamma) ** k * mp.rf(eta, k) / mp.factorial(k)
                        for k in range(1, most + 1)
                    ]
                    total = gamma**-eta - 1
                return [0.0, *(float(w / total) for w in weights)]
            case Poisson():
                mean = mp.mpf(count.mean)
                return [float(mp.e**-mean * mean**k / mp.factorial(k)) for k in range(most + 1)]
            case Binomial():
                p, n = mp.mpf(count.probability), count.draws
                return [float(mp.binomial(n, k) * p**k * (1 - p) ** (n - k)) for k in range(n + 1)]
    raise AssertionError(count)


def generating(count: TrialCount, u: Array) -> Array:
    """f(u) = E u^K, to full precision."""
    match count:
        case NegativeBinomial(shape=shape, halting=gamma):
            log_rest = np.log(gamma + (1 - gamma) * (1 - u))
            if gamma == 1:
                return u
            if shape == 0:
                return log_rest / math.log(gamma)
            return np.expm1(-shape * log_rest) / math.expm1(-shape * math.log(gamma))
        case Poisson(mean=mean):
            return np.exp(-mean * (1 - u))
        case Binomial(draws=draws, probability=p):
            with np.errstate(divide="ignore"):
                return np.exp(draws * np.log1p(-p * (1 - u)))
    raise AssertionError(count)


@pytest.mark.parametrize("count", COUNTS)
def test_generating_functions_are_those_of_the_laws(count: TrialCount) -> None:
    masses = np.array(probabilities(count, 600))
    k = np.arange(len(masses))
    assert masses.sum() == pytest.approx(1, abs=1e-12)
    assert masses[0] == pytest.approx(count.none, abs=1e-15)
    assert masses @ k == pytest.approx(count.expected, rel=1e-9)
    for u in (0.0, 0.3, 0.9, 1.0):
        slope = float(masses[1:] @ (k[1:] * u ** (k[1:] - 1.0)))
        with np.errstate(divide="ignore"):
            assert np.exp(count.log_slope(np.array([u])))[0] == pytest.approx(slope, abs=1e-12)
        whole = float(masses @ np.where(k == 0, 1.0, u**k))
        assert generating(count, np.array([u]))[0] == pytest.approx(whole, abs=1e-12)
    levels = count.log_slope(np.array([0.5, 0.9]))
    if levels[0] < levels[1]:
        np.testing.assert_allclose(count.ranks(levels), [0.5, 0.9])


def test_slopes_of_a_fixed_number_are_accurate_at_low_ranks() -> None:
    ranks = np.array([1e-15, 1e-9, 0.3])
    found = Binomial(4, 1.0).log_slope(ranks)
    np.testing.assert_allclose(found, math.log(4) + 3 * np.log(ranks), rtol=1e-14)


def selection_law(masses: Array, count: TrialCount) -> Array:
    """The exact law of the best of K draws of a finite mechanism: none, then worst to best."""
    upto = np.append(0.0, np.cumsum(masses))
    numbers = np.array(probabilities(count, 600))
    powers = upto[:, None] ** np.arange(len(numbers))
    return np.append(numbers[0], np.diff(powers @ numbers))


def hockey_stick(first: Array, second: Array, epsilon: float) -> float:
    return float(np.maximum(0.0, first - math.exp(epsilon) * second).sum())


def random_pair(seed: int) -> tuple[Array, Array]:
    """Two laws on a few outputs in the order of their scores, some with infinite losses."""
    draw = np.random.default_rng(seed)
    size = int(draw.integers(2, 9))
    first, second = draw.dirichlet(np.full(size, draw.choice([0.3, 1.0, 5.0])), size=2)
    if seed % 3 == 0:
        second[draw.integers(size)] = 0.0
    return first / first.sum(), second / second.sum()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))]
)
def test_the_price_covers_exact_laws_of_finite_mechanisms(seed: int, count: TrialCount) -> None:
    first, second = random_pair(seed)
    pair = MixturePair(second, first, np.full(len(first), math.inf))  # absent, present
    worst = selected(Dominating((pair,)), count)
    one, other = selection_law(first, count), selection_law(second, count)
    for adding, (a, b) in ((False, (one, other)), (True, (other, one))):
        exact = np.array([hockey_stick(a, b, x) for x in EPSILONS])
        found = worst.profile(EPSILONS, adding=adding)
        assert np.all(found >= exact - 1e-12)
        with np.errstate(divide="ignore", invalid="ignore"):
            seen = a > 0
            loss = float(np.max(np.log(a[seen]) - np.log(b[seen])))
        assert worst.largest_loss(adding=adding) >= loss - 1e-9


class Careless(TradeOff):
    """A trade-off curve without privacy loss in the ranks: what a wrong proof would use."""

    def searched(self, u: Array) -> Array:
        return u


def test_a_price_that_forgets_the_ranks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = np.array([0.8, 0.15, 0.05]), np.array([0.6, 0.1, 0.3])
    pair = MixturePair(second, first, np.full(3, math.inf))
    count = Poisson(6)
    exact = np.array(
        [
            hockey_stick(selection_law(first, count), selection_law(second, count), x)
            for x in EPSILONS
        ]
    )
    assert np.all(selected(Dominating((pair,)), count).profile(EPSILONS) >= exact)
    monkeypatch.setattr("prudent.accounting.losses.repeated_selection.TradeOff", Careless)
    assert np.any(selected(Dominating((pair,)), count).profile(EPSILONS) < exact)
    assert np.any(Dominating((pair,)).profile(EPSILONS) < exact)  # one candidate's price alone


@pytest.mark.parametrize("loss", [0.1, 6.0])
def test_numbers_whose_slopes_underflow(loss: float) -> None:
    share = 1 / (1 + math.exp(loss))
    first = np.array([share, 1 - share])
    pair = MixturePair(first, first[::-1].copy(), np.full(2, math.inf))
    worst = selected(Dominating((pair,)), Poisson(1500))
    # Both laws in closed form: the worse output alone is seen if no candidate has the better one.
    apart = 1500 * (1 - 2 * share)
    assert apart <= worst.largest_loss() <= 1.1 * apart + 1.1 * loss + 1500 * share
    assert np.all(np.isfinite(worst.profile(EPSILONS)))
    assert np.all(worst.profile(EPSILONS) <= 1)


def exact_composition(one: Array, other: Array, mu: float, epsilon: float) -> float:
    """The profile of a finite pair together with a Gaussian of sensitivity mu."""
    total = 0.0
    for a, b in zip(one.tolist(), other.tolist(), strict=True):
        if b == 0:
            total += a
        elif a > 0:
            shift = epsilon + math.log(b) - math.log(a)
            seen = special.ndtr(mu / 2 - shift / mu)
            total += a * seen - math.exp(epsilon) * b * special.ndtr(-mu / 2 - shift / mu)
    return total


@pytest.mark.parametrize(
    "count", [Geometric(4), *(pytest.param(c, marks=pytest.mark.slow) for c in COUNTS[1:])]
)
def test_composition_with_a_gaussian_covers_exact_laws(count: TrialCount) -> None:
    first, second = np.array([0.6, 0.3, 0.1]), np.array([0.5, 0.25, 0.25])
    pair = MixturePair(second, first, np.full(3, math.inf))
    mu = 0.6
    event = count.event(DominatedDpEvent(Dominating((pair,))))
    found = PldAccountant().compose(event).compose(dp.GaussianDpEvent(1 / mu))
    one, other = selection_law(first, count), selection_law(second, count)
    for epsilon in EPSILONS:
        exact = max(
            exact_composition(one, other, mu, epsilon), exact_composition(other, one, mu, epsilon)
        )
        assert found.get_delta(float(epsilon)) >= exact * (1 - 1e-9)


def attained(count: TrialCount, mu: float, epsilon: float) -> float:
    """The largest A(E) - e^ε A'(E) of simple mechanisms with the profile of a Gaussian.

    The best scores go to the outputs with the lowest losses, up to rank u; next come those with the
    highest losses, which are the event E. Q' of the event and of everything below it are T(u) and
    what remains, so the value is exact.
    """
    u = special.ndtr(np.linspace(-2, 6, 161))[:, None]
    width = u * np.geomspace(1e-9, 1, 1500)
    v, part = (special.ndtr(special.ndtri(x) - mu) for x in (u, width))
    f = partial(generating, count)
    gained = f(u) - f(u - width)
    return float(np.max(gained - math.exp(epsilon) * (f(v) - f(np.maximum(v - part, 0.0)))))


@pytest.mark.unhurried
@pytest.mark.parametrize(
    ("count", "share"),
    [
        (Geometric(10), 0.985),
        (Geometric(100), 0.98),
        (Poisson(10), 0.97),
        (Binomial(20, 0.5), 0.96),
    ],
)
def test_the_price_is_nearly_attained(count: TrialCount, share: float) -> None:
    mu, delta = 0.5, 1e-5
    event = dp.GaussianDpEvent(1 / mu)
    epsilon = PldAccountant().compose(count.event(event)).get_epsilon(delta)
    assert attained(count, mu, epsilon) <= delta
    assert attained(count, mu, share * epsilon) > delta
    # Charging only the candidate that is released is refuted by a real mechanism.
    alone = PldAccountant().compose(event).get_epsilon(delta)
    assert attained(count, mu, alone) > 3 * delta


@pytest.mark.parametrize(
    ("mean", "shape"),
    [
        (30, 1.0),
        *(
            pytest.param(mean, shape, marks=pytest.mark.slow)
            for mean, shape in [(1, 1.0), (1, math.inf), (10, math.inf), (100, 0.0), (100, 2.5)]
        ),
    ],
)
def test_never_worse_than_the_renyi_bounds_of_dp_accounting(mean: float, shape: float) -> None:
    base = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(1.1)), 300)
    event = RepeatAndSelectDpEvent(base, mean, shape)
    orders = [order for order in DEFAULT_ORDERS if order > 1]
    peer = PeerAccountant(orders).compose(event).get_epsilon(1e-6)
    renyi = RdpAccountant(orders).compose(event).get_epsilon(1e-6)
    exact = PldAccountant().compose(event).get_epsilon(1e-6)
    slack = 1.03 if mean == 1 and math.isinf(shape) else 1 + 1e-4  # the probability of no run
    assert renyi <= slack * peer
    assert exact <= renyi
    assert exact <= (peer if mean == 1 else 0.9 * peer)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("seed", [1])
def test_divergences_cover_exact_laws(seed: int, count: TrialCount) -> None:
    first, second = random_pair(seed)
    orders = np.array([1.5, 2.0, 3.0, 8.0, 40.0, math.inf])

    def divergences(p: Array, q: Array) -> Array:
        seen = p > 0
        losses = np.log(p[seen]) - np.log(q[seen])
        finite = [special.logsumexp((a - 1) * losses, b=p[seen]) / (a - 1) for a in orders[:-1]]
        return np.append(finite, losses.max())

    base = np.maximum(divergences(first, second), divergences(second, first))
    laws = selection_law(first, count), selection_law(second, count)
    exact = np.maximum(divergences(*laws), divergences(*laws[::-1]))
    assert np.all(selected_divergences(count, orders, base) >= exact - 1e-12)
    event = count.event(dp.GaussianDpEvent(1.0))
    assert trial_count(event) is not None


@pytest.mark.unhurried
def test_pure_privacy_stays_pure() -> None:
    base = ApproximateDpEvent(0.4, 0.0)
    geometric = PldAccountant().compose(Geometric(50).event(base)).get_epsilon(0.0)
    assert 0.8 < geometric <= 3 * 0.4 + 1e-9  # Liu and Talwar 2019
    logarithmic = PldAccountant().compose(NegativeBinomial(50, 0.0).event(base)).get_epsilon(0.0)
    assert logarithmic <= 2 * 0.4 * (1 + 5e-3)
    assert PldAccountant().compose(Geometric(1).event(base)).get_epsilon(0.0) == pytest.approx(0.4)
    fixed = PldAccountant().compose(Binomial(3, 1.0).event(base)).get_epsilon(0.0)
    assert 0.8 < fixed <= 3 * 0.4 + 1e-9
    assert why_infinite(Geometric(50).event(base), 0.0) is None


def test_many_candidates_are_priced_by_the_better_bound() -> None:
    event = Poisson(1000).event(dp.LaplaceDpEvent(2.0))
    renyi, exact = RdpAccountant().compose(event), PldAccountant().compose(event)
    assert exact.get_epsilon(1e-6) <= renyi.get_epsilon(1e-6) < math.inf
    assert exact.get_delta(12.0) <= renyi.get_delta(12.0)


def test_a_single_candidate_costs_what_it_costs() -> None:
    base = dp.GaussianDpEvent(1.3)
    for count in (Geometric(1), Binomial(1, 1.0), NegativeBinomial(1, 0.0)):
        found = PldAccountant().compose(count.event(base)).get_epsilon(1e-6)
        assert found == pytest.approx(PldAccountant().compose(base).get_epsilon(1e-6), rel=2e-3)
        assert found >= PldAccountant().compose(base).get_epsilon(1e-6)


@pytest.mark.slow
def test_the_worst_of_several_mechanisms() -> None:
    gaussian, laplace = dp.GaussianDpEvent(2.0), dp.LaplaceDpEvent(1.5)
    worst = WorstOfDpEvent([gaussian, laplace])
    for accountant in (PldAccountant, RdpAccountant):
        for delta in (1e-8, 1e-2):
            single = [accountant().compose(one).get_epsilon(delta) for one in worst.events]
            found = accountant().compose(worst).get_epsilon(delta)
            assert max(single) <= found * (1 + 1e-9)
            if accountant is PldAccountant:
                assert found == pytest.approx(max(single), rel=1e-3)
    # Below the larger of two ε at one δ the smaller one may be worse at another δ.
    selection = Geometric(10).event(worst)
    for one in worst.events:
        alone = PldAccountant().compose(Geometric(10).event(one)).get_epsilon(1e-6)
        assert PldAccountant().compose(selection).get_epsilon(1e-6) >= alone * (1 - 1e-3)
    with pytest.raises(ValueError, match="at least one"):
        WorstOfDpEvent([])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Geometric(0.5), "mean"),
        (lambda: Poisson(math.nan), "mean"),
        (lambda: NegativeBinomial(3, -0.1), "shape"),
        (lambda: Binomial(0, 0.5), "draws"),
        (lambda: Binomial(3, 0.0), "probability"),
        (lambda: BinomialSelectionDpEvent(dp.GaussianDpEvent(1.0), 3, 1.5), "probability"),
    ],
)
def test_arguments_are_checked(make: object, name: str) -> None:
    with refused(name):
        make()  # type: ignore[operator]


def test_more_candidates_than_ranks_can_tell_apart_have_the_bound_of_the_peer() -> None:
    event = RepeatAndSelectDpEvent(dp.GaussianDpEvent(5.0), 1e9, 1.0)
    theirs = PeerAccountant(DEFAULT_ORDERS).compose(event).get_epsilon(1e-6)
    ours = RdpAccountant(DEFAULT_ORDERS).compose(event).get_epsilon(1e-6)
    assert ours == pytest.approx(theirs, rel=0.05)
    assert not PldAccountant().supports(event)


@pytest.mark.parametrize("epsilon", [0.01, 1.0])
@pytest.mark.parametrize(
    ("mean", "shape"), [(3.0, 0.5), (1e3, 0.0), (1e4, 0.5), (1e6, 1.0), (1e5, 2.0)]
)
def test_pure_candidates_cost_no_more_than_two_and_the_shape(
    epsilon: float, mean: float, shape: float
) -> None:
    """(2 + η)ε, the bound of Papernot and Steinke (2022, Corollary 3), whatever the mean."""
    event = RepeatAndSelectDpEvent(dp.LaplaceDpEvent(1 / epsilon), mean, shape)
    accountant = PldAccountant().compose(event)
    for delta in (0.0, 1e-12, 1e-6):
        assert accountant.get_epsilon(delta) <= (2 + shape) * epsilon * (1 + 1e-12)


@pytest.mark.parametrize("count", COUNTS, ids=str)
def test_the_largest_shift_covers_all_ranks_of_pure_candidates(count: TrialCount) -> None:
    """log f'(u)/f'(v), over a grid of ranks that two ε-DP laws can have, of unequal ε."""
    for forward, backward in [(0.3, 0.3), (1.0, 0.2), (0.1, 2.0)]:
        u, v = np.meshgrid(np.linspace(0, 1, 201)[1:-1], np.linspace(0, 1, 2001)[1:-1])
        possible = (
            (u <= np.exp(forward) * v)
            & (1 - u <= np.exp(forward) * (1 - v))
            & (v <= np.exp(backward) * u)
            & (1 - v <= np.exp(backward) * (1 - u))
        )
        shifts = (count.log_slope(u) - count.log_slope(v))[possible]
        bound = count.largest_shift(forward, backward)
        assert shifts.max() <= bound * (1 + 1e-12)


@pytest.mark.parametrize("more", [2.3e-16, 1e-15, 1e-13, 1e-11, 1e-6])
@pytest.mark.parametrize("shape", [0.0, 0.5, 2.0, 1e3])
def test_a_mean_next_to_one_costs_next_to_one_candidate(more: float, shape: float) -> None:
    count = NegativeBinomial(1 + more, shape)
    with mp.workdps(40):
        gamma, eta = mp.mpf(count.halting), mp.mpf(shape)
        mean = (
            (1 / gamma - 1) / (-mp.log(gamma) if shape == 0 else (1 - gamma**eta) / eta)
            if gamma < 1
            else mp.mpf(1)
        )
        assert abs(mean - mp.mpf(count.mean)) < 1e-13 * (1 + shape)
    one = PldAccountant().compose(dp.LaplaceDpEvent(2.0)).get_epsilon(0.0)
    found = PldAccountant().compose(count.event(dp.LaplaceDpEvent(2.0))).get_epsilon(0.0)
    assert one <= found <= one * (1 + 1e-3) + 10 * more * (1 + shape)
