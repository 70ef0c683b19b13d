"""Certificates against worst functions of finite mechanisms, all small data and closed forms."""

import itertools
import math
from collections import Counter

import dp_accounting as dp
import numpy as np
import pytest
from scipy import special, stats

from prudent.accounting import (
    ADD_REMOVE,
    REPLACE_ONE,
    ZERO_OUT,
    AccuracyCertificate,
    Certifier,
    DiscreteLaplaceTest,
    LaplaceTest,
    ProposeTestReleaseDpEvent,
    Relation,
)
from prudent.accounting.group_privacy import event_at_distance
from prudent.accounting.losses.loss_tables import TradeOff
from prudent.accounting.robustness import (
    MOST_RECORDS,
    CertificateMethod,
    ChangedData,
    mean_at_least,
)
from tests.accounting.test_group_privacy import LADDERS, PTR, counting_laws, sampled
from tests.raising import refused


def certificate(event, relation=ADD_REMOVE, **arguments):
    return Certifier(event, relation).certificate(**arguments)


def withstands(event, relation=ADD_REMOVE, **arguments):
    return Certifier(event, relation).withstands(**arguments)


VALUES = (0.3, 0.6, 0.9, 0.99, 0.999)


def neyman_pearson(value, first, second):
    """The least E_second g of all g in [0, 1] with E_first g = value, for laws on finite sets."""
    order = np.argsort(second / first)
    filled = np.cumsum(first[order])
    share = np.clip((value - (filled - first[order])) / first[order], 0.0, 1.0)
    return float(share @ second[order])


def gaussian_laws(records, rate, sigma, steps):
    """Laws of a sampled noisy count of several steps on a grid, with the records and without."""
    x = np.linspace(-5 * sigma, 5 * sigma + records, 401)
    masses = stats.binom.pmf(np.arange(records + 1), records, rate)
    present = sum(m * stats.norm.pdf(x, count, sigma) for count, m in enumerate(masses))
    absent = stats.norm.pdf(x, 0, sigma)
    laws = []
    for density in (present, absent):
        one = density / density.sum()
        laws.append(one if steps == 1 else np.outer(one, one).ravel())
    return laws


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    ("records", "rate", "sigma"), [(1, 0.5, 1.0), (3, 0.2, 1.0), (4, 0.6, 3.0)]
)
def test_sampled_gaussians_lose_what_the_worst_function_loses(records, rate, sigma, steps):
    certifier = Certifier(sampled(rate, dp.GaussianDpEvent(sigma), steps))
    present, absent = gaussian_laws(records, rate, sigma, steps)
    for value in VALUES:
        found = certifier.certificate(accuracy=value, records=records)
        worst = min(neyman_pearson(value, absent, present), neyman_pearson(value, present, absent))
        assert found.method is CertificateMethod.EXACT
        assert worst - 2e-3 <= found.at_least <= worst + 1e-6  # the grid cuts off 6e-7


@pytest.mark.unhurried
def test_a_wrong_direction_or_an_inverted_factor_would_be_caught():
    """The broken versions promise more than the worst function keeps."""
    event = sampled(0.2, dp.GaussianDpEvent(1.0), 2)
    present, absent = gaussian_laws(3, 0.2, 1.0, 2)
    right = ChangedData.of(event_at_distance(event, Relation(records=3)))
    curve = right.added

    def promises_too_much(bound):
        return any(
            bound(value)
            > min(neyman_pearson(value, absent, present), neyman_pearson(value, present, absent))
            + 1e-3
            for value in VALUES
        )

    one_way = ChangedData(right.removing, right.removing), ChangedData(right.adding, right.adding)
    inverted = TradeOff(*((-t, delta) for t, delta in (curve.forward, curve.backward)))
    assert not promises_too_much(right.after)
    assert any(promises_too_much(broken.after) for broken in one_way)
    assert promises_too_much(lambda value: min(value, curve.reversed.least(value)))
    assert promises_too_much(lambda value: min(value, inverted.least(value)))
    assert promises_too_much(
        lambda value: certificate(event, accuracy=value, records=2).at_least
    )  # off by one record


@pytest.mark.parametrize("relation", [ADD_REMOVE, ZERO_OUT, REPLACE_ONE])
@pytest.mark.parametrize("steps", [1, 9])
def test_gaussian_noise_on_all_data_has_a_closed_form(relation, steps):
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(10.0), steps)
    certifier = Certifier(event, relation)
    for value, records in itertools.product(VALUES, (1, 4)):
        shift = Relation(relation.adjacency, records).distance * math.sqrt(steps) / 10.0
        exact = special.ndtr(special.ndtri(value) - shift)
        found = certifier.certificate(accuracy=value, records=records)
        assert exact - 1e-4 <= found.at_least <= exact + 1e-12


NOISY_COUNT = DiscreteLaplaceTest(2.0)


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE_ONE])
def test_a_chain_of_records_is_below_the_worst_function_of_a_noisy_count(relation, rate):
    certifier = Certifier(dp.PoissonSampledDpEvent(rate, NOISY_COUNT), relation)
    assert certifier.method is CertificateMethod.GROUP
    for records, value in itertools.product((1, 2), VALUES):
        laws = counting_laws(records, rate, replaced=relation is REPLACE_ONE)
        worst = min(neyman_pearson(value, *pair) for pair in itertools.permutations(laws))
        found = certifier.certificate(accuracy=value, records=records).at_least
        assert found <= worst + 1e-12
        assert worst - found <= (1e-3 if relation.distance * records == 1 else 0.1)


@pytest.mark.unhurried
def test_no_small_data_set_is_a_counterexample():
    """All data sets of up to four records in {-1, 0, 1}, any mix of changes, random functions."""
    rate, outcomes = 0.4, np.arange(-40, 41)
    noise = np.exp(-np.abs(outcomes[:, None] - np.arange(-4, 5)) / NOISY_COUNT.scale)
    noise /= noise.sum(axis=0)

    def law(data):
        counts = np.ones(1)
        for record in data:
            coin = {-1: [rate, 1 - rate, 0.0], 0: [0, 1.0, 0], 1: [0.0, 1 - rate, rate]}[record]
            counts = np.convolve(counts, coin)
        padded = np.pad(counts, (9 - len(counts)) // 2)
        return noise @ padded

    data = [d for n in range(5) for d in itertools.combinations_with_replacement((-1, 0, 1), n)]
    laws = np.array([law(d) for d in data])
    bags = [Counter(d) for d in data]
    generator = np.random.default_rng(0)
    slopes = np.subtract.outer(generator.uniform(-4, 4, 12), outcomes)
    functions = special.expit(slopes * generator.choice([-3.0, 3.0, 0.7], (12, 1)))
    expected = laws @ functions.T
    single = ChangedData.of(dp.PoissonSampledDpEvent(rate, NOISY_COUNT))
    nearest = math.inf
    for (i, one), (j, other) in itertools.product(enumerate(bags), repeat=2):
        changes = sum(((one - other) + (other - one)).values())
        if not 0 < changes <= 3:
            continue
        for value, after in zip(expected[i], expected[j], strict=True):
            gap = after - single.after_many(value, changes)[0]
            assert gap > -1e-12, (data[i], data[j])
            nearest = min(nearest, gap)
    assert nearest < 1e-2  # some of these come close to the worst


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("ladder", LADDERS)
def test_propose_test_release_on_a_ladder_keeps_what_is_promised(ladder, rate):
    none, one, two = (ladder.law(rung) + 1e-300 for rung in range(3))
    keeps = 1 - rate
    event = dp.PoissonSampledDpEvent(rate, PTR)
    single = ChangedData.of(event)
    groups = {
        1: (none, keeps * none + rate * one),
        2: (none, keeps**2 * none + 2 * rate * keeps * one + rate**2 * two),
    }
    for records, laws in groups.items():
        for (p, q), value in itertools.product(itertools.permutations(laws), VALUES):
            promised, _ = single.after_many(value, records)
            assert promised <= neyman_pearson(value, p, q) + 1e-9


PLANS = {
    "gaussian": sampled(0.05, dp.GaussianDpEvent(4.0), 30),
    "ptr": sampled(
        0.05, ProposeTestReleaseDpEvent(4.0, 0.5, LaplaceTest(8.0), 1e-6, None, "branch"), 30
    ),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE_ONE])
def test_more_bad_records_leave_less(name, relation):
    certifier = Certifier(PLANS[name], relation)
    found = [certifier.certificate(accuracy=0.97, records=k).at_least for k in (0, 1, 2, 9)]
    assert found[0] == 0.97
    assert all(later < earlier for earlier, later in itertools.pairwise(found))
    assert found[-1] >= 0


MNIST = 1024 / 60_000


def test_a_majority_withstands_many_records_under_much_noise():
    event = sampled(MNIST, dp.GaussianDpEvent(8.0), 600)
    assert 0.51 < certificate(event, accuracy=0.999, records=58).at_least < 0.53


@pytest.mark.parametrize(("name", "relation"), [("gaussian", ADD_REMOVE), ("ptr", REPLACE_ONE)])
def test_the_number_withstood_is_the_largest(name, relation):
    certifier = Certifier(PLANS[name], relation)
    most = certifier.withstands(accuracy=0.97, above=0.7)
    inside, outside = (
        certifier.certificate(accuracy=0.97, records=k).at_least for k in (most, most + 1)
    )
    assert inside > 0.7 >= outside


def test_nothing_is_lost_without_data_and_all_without_noise():
    assert certificate(dp.NoOpDpEvent(), accuracy=0.9, records=9).at_least == pytest.approx(0.9)
    assert withstands(dp.NoOpDpEvent(), accuracy=0.9) == MOST_RECORDS
    lost = certificate(dp.NonPrivateDpEvent(), accuracy=0.9, records=1)
    assert (lost.at_least, withstands(dp.NonPrivateDpEvent(), accuracy=0.9)) == (0, 0)
    assert str(lost) == (
        "If the expected accuracy is 0.9, then with one record added (or one removed) nothing is"
        " proved."
    )


@pytest.mark.parametrize(("accuracy", "records"), [(0.0, 3), (1.0, 3), (0.97, 100_000)])
def test_the_ends(accuracy, records):
    found = certificate(PLANS["ptr"], accuracy=accuracy, records=records).at_least
    assert 0 <= found < 1
    assert (found > 0.5) == (accuracy == 1)


@pytest.mark.parametrize("bias", [0.2, 0.9, 0.999])
@pytest.mark.parametrize("runs", [1, 10, 100])
def test_the_confidence_is_kept_by_coins_and_not_by_much_less(bias, runs):
    """Coins are among the values in [0, 1]; the chance of an overstatement, by enumeration."""
    wins = np.arange(runs + 1)
    bounds = np.array([mean_at_least(win / runs, runs=runs, confidence=0.9) for win in wins])
    chances = stats.binom.pmf(wins, runs, bias)
    assert chances[bounds > bias].sum() <= 0.1
    clopper_pearson = stats.beta.ppf(0.1, wins, runs - wins + 1)[1:]
    assert np.all(bounds[1:] <= clopper_pearson + 1e-12)
    assert bounds[-1] == pytest.approx(0.1 ** (1 / runs), abs=1e-9)
    assert np.all(np.diff(bounds) > 0)


def test_a_certificate_of_several_runs_starts_from_their_confidence_bound():
    found = certificate(PLANS["gaussian"], accuracy=0.97, records=2, runs=50, confidence=0.9)
    assert found.expected == mean_at_least(0.97, runs=50, confidence=0.9)
    assert found == AccuracyCertificate(
        records=2,
        accuracy=0.97,
        expected=found.expected,
        at_least=certificate(PLANS["gaussian"], accuracy=found.expected, records=2).at_least,
        relation=ADD_REMOVE,
        method=CertificateMethod.EXACT,
        runs=50,
        confidence=0.9,
    )
    assert str(found) == (
        "By 50 independent runs of average accuracy 0.97, the expected accuracy is at least 0.88812"
        " (confidence 0.9); with up to 2 records added (or up to 2 removed) it is at least"
        " 0.85869"
        " (exact for k records)."
    )


@pytest.mark.parametrize(
    ("relation", "records", "words"),
    [
        (ADD_REMOVE, 0, "with no bad record it is at least 0.9 "),
        (ZERO_OUT, 2, "with up to 2 records zeroed out (or up to 2 empty ones filled in) it is"),
        (REPLACE_ONE, 1, "with one record replaced by any other it is at least 0.8"),
        (Relation("replace-one", 7), 3, "with up to 3 records replaced by any others it is"),
    ],
)
def test_the_change_is_named(relation, records, words):
    found = certificate(PLANS["gaussian"], relation, accuracy=0.9, records=records)
    assert words in found.sentence
    assert found.relation == Relation(relation.adjacency)


def test_laplace_noise_scales_only_without_sampling():
    whole, part = dp.LaplaceDpEvent(9.0), sampled(0.5, LaplaceTest(9.0))
    methods = [certificate(e, accuracy=0.9, records=2).method for e in (whole, part)]
    assert methods == [CertificateMethod.EXACT, CertificateMethod.GROUP]
    pure = certificate(whole, accuracy=0.9, records=2).at_least
    assert pure == pytest.approx(1 - math.exp(2 / 9) * 0.1, abs=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        *({"accuracy": 97}, {"accuracy": math.nan}, {"relation": "add-remove"}),
        *({"records": -1}, {"records": 1.5}, {"records": 10**7}),
        *({"runs": 0}, {"runs": 3, "confidence": 1.0}),
    ],
    ids=str,
)
def test_what_is_refused(changes):
    *_, argument = changes
    with refused(argument):
        certificate(PLANS["gaussian"], **({"accuracy": 0.9, "records": 2} | changes))


def test_a_level_that_is_not_reached_is_refused():
    with refused("above"):
        withstands(PLANS["gaussian"], accuracy=0.4)
