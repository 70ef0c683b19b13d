"""Every function that the page on proofs names runs beside its definition, and mutants are caught.

Each check below calls the functions that ship, so a fault planted in their code is planted in the
check. `CHECKS` has one for every name on the page.
"""

import importlib
import inspect
import itertools
import math
import random
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent.accounting import (
    ApproximateDpEvent,
    DiscreteGaussianTest,
    PldAccountant,
    ProposeTestReleaseDpEvent,
    RdpAccountant,
    Relation,
    Reveals,
    group_privacy,
)
from prudent.accounting.losses import domination
from prudent.accounting.losses.moments import rdp_to_epsilon_balle
from prudent.accounting.losses.pairs import BoundedRangePair, Dominating, MixturePair
from prudent.budget.filters import AdaptiveFilter
from prudent.budget.prices import pure_epsilon
from prudent.certify.counts import Counts, Pricing
from prudent.release.exponential.measure import UniformMeasure
from prudent.release.exponential.quantile import NearTarget
from prudent.release.margins import RobustValue
from prudent.release.noise import Distribution
from prudent.release.outcome import Refused
from prudent.release.ptr import ProposeTestReleaseMechanism
from tests.oracles.array_column import ArrayColumn
from tests.proofs import test_extracted as extracted
from tests.proofs.test_extracted import GRID, answers, at, columns, of_decay, pytestmark
from tests.proofs.test_page import PYTHON

__all__ = ["pytestmark"]


def profiles(pairs: list[Any], points: list[Fraction]) -> list[list[Fraction]]:
    """The profile of each pair at each point, by the definition."""
    found = answers([("profile", pair, a) for pair in pairs for a in points])
    exact = iter([Fraction(*each) for each in found])
    return [[next(exact) for _ in points] for _ in pairs]


def rational(pairs: Any) -> list[tuple[Fraction, Fraction]]:
    return [(Fraction(*p), Fraction(*q)) for p, q in pairs]


POINTS = [Fraction(n, 8) for n in (1, 3, 7, 8, 9, 12, 20, 40)]  # e^ε


def check_approximate_pair() -> None:
    for q, delta in itertools.product((Fraction(1, 8), Fraction(3, 4)), (0, Fraction(1, 100))):
        (proved,) = answers([("response", q)])
        pair = domination.approximate_pair(-math.log(q), float(delta))
        scaled = [((1 - delta) * p, (1 - delta) * k) for p, k in rational(proved)]
        masses = [*scaled, *([(delta, Fraction(0)), (Fraction(0), delta)] if delta else [])]
        for a, exact in zip(POINTS, profiles([masses], POINTS)[0], strict=True):
            assert math.isclose(at(pair.profile, a), exact, rel_tol=1e-11, abs_tol=1e-13)


def event_with(q: Fraction, failure: Fraction, reveals: Reveals, **changes: Any) -> Any:
    given = {"robust_noise_multiplier": 1.0, "noise_multiplier": math.inf} | changes
    own = {"propose": 0.0, "test": of_decay(q), "failure": float(failure), "reveals": reveals}
    return ProposeTestReleaseDpEvent(**given, **own)


LIKELY = [(Fraction(n, 16), Fraction(m, 10007)) for n, m in ((2, 9), (9, 40), (13, 3), (14, 4000))]


def check_case_two() -> None:
    """The worst of its pairs is the worst of all steps of a margin, at every ε and either way."""
    for (q, failure), reveals in itertools.product(LIKELY, (Reveals.BRANCH, "monotone-branch")):
        event = event_with(q, failure, Reveals(reveals))
        (bound,) = answers([("threshold", q, failure, 200)])
        own, slack = domination.case_two(event)
        assert slack == 0
        asked = [("branch_pair", q, bound, d - 1, d, False, False) for d in range(1, bound + 8)]
        if event.reveals is Reveals.BRANCH:
            asked += [(*each[:3], each[4], each[3], *each[5:]) for each in asked]
        steps = profiles([rational(pair) for pair in answers(asked)], POINTS)
        for a, proved in zip(POINTS, zip(*steps, strict=True), strict=True):
            labels = [MixturePair(p.absent, p.present, p.sigma * math.inf) for p in own]
            shown = max(at(pair.profile, a) for pair in labels)
            assert math.isclose(shown, max(proved), rel_tol=1e-11, abs_tol=1e-13), (q, failure, a)
        assert [p for p in own if p.sigma.tolist() == [1.0]]  # the noise alone
        wanted = []
        for back in (False, True)[: 1 + (event.reveals is Reveals.BRANCH)]:
            for d in domination.telling_margins(event) or ():
                ends = (d, d - 1) if back else (d - 1, d)
                (pair,) = answers([("branch_pair", q, bound, *ends, False, False)])
                wanted += [[float(p), float(k)] for p, k in rational(pair)]
        masses = [[a, b] for p in own[:-1] for a, b in zip(p.present, p.absent, strict=True)]
        np.testing.assert_allclose(masses, wanted, rtol=1e-11, atol=1e-15)


def check_sampled_release() -> None:
    """Sampled, it costs what the worst of its sampled pairs does: Case 1, and the telling steps."""
    monotone = Reveals("monotone-branch")
    for (q, failure), rate in itertools.product(LIKELY, (Fraction(1, 16), Fraction(3, 4))):
        (bound,) = answers([("threshold", q, failure, 200)])
        ends = [(bound, bound + 1), (bound + 1, bound)]
        steps = [("branch_pair", q, bound, *each, False, False) for each in ends]
        cases = {Reveals.BRANCH: steps, monotone: steps[:1], Reveals.MARGIN: [("response", q)]}
        for reveals, asked in cases.items():
            own = event_with(q, failure, reveals)
            found = domination.dominating(dp.PoissonSampledDpEvent(float(rate), own))
            assert found is not None
            # Noise that tells nothing, where it is not that of an accident, which tells all.
            alike = [MixturePair(p.absent, p.present, p.sigma * math.inf) for p in found.pairs[1:]]
            worst = Dominating((found.pairs[0], *alike), found.sampling_rate, found.slack)
            pairs = [rational(p) for p in answers([("case_one", q, bound, False, True), *asked])]
            ways = list(itertools.product(("removing", "adding"), POINTS))
            every = iter(answers([(way, rate, p, a) for way, a in ways for p in pairs]))
            for way, a in ways:
                proved = max(Fraction(*next(every)) for _ in pairs)
                shown = at(partial(worst.profile, adding=way == "adding"), a)
                assert math.isclose(shown, proved, rel_tol=1e-11, abs_tol=1e-13), (way, a)


def check_telling_margins() -> None:
    """The step next to the threshold, which is proved to be the worst, and one on either side."""
    for q, failure in LIKELY:
        (bound,) = answers([("threshold", q, failure, 200)])
        wanted = [margin for margin in (bound, bound + 1, bound + 2) if margin >= 1]
        assert domination.telling_margins(event_with(q, failure, Reveals.BRANCH)) == wanted


def check_noisy_margin_case() -> None:
    for q, fallback, robust in itertools.product((Fraction(1, 8), Fraction(3, 4)), (1, 3), (2, 5)):
        changes = {"noise_multiplier": float(fallback), "robust_noise_multiplier": float(robust)}
        event = event_with(q, Fraction(1, 100), Reveals.MARGIN, **changes)
        (pair,), slack = domination.case_two(event)
        assert slack == 0
        for shown in (pair, domination.noisy_margin_case(event)):
            assert isinstance(shown, MixturePair)
            assert shown.sigma.tolist() == [min(fallback, robust)] * 2
            (proved,) = answers([("response", q)])
            masses = list(zip(shown.present, shown.absent, strict=True))
            exact = [(float(p), float(k)) for p, k in rational(proved)]
            np.testing.assert_allclose(masses, exact, rtol=1e-12)


def check_bounded_range() -> None:
    for root in (Fraction(9, 8), Fraction(3, 2), Fraction(4)):
        pair = BoundedRangePair(2 * math.log(root))
        places = [root**-1, Fraction(1), (1 + root) / 2, root]  # of √a, over all of the range
        proved = answers([("bounded_range", root, place) for place in places])
        for place, exact in zip(places, proved, strict=True):
            shown = at(pair.profile, place**2)
            assert math.isclose(shown, Fraction(*exact), rel_tol=1e-9, abs_tol=1e-13)
        assert at(pair.profile, root**2 * 2) == 0
        assert math.isclose(at(pair.profile, root**-4), 1 - root**-4, rel_tol=1e-12)


def check_composition() -> None:
    """δ of n releases is that of the n-fold product."""
    for q, n in itertools.product((Fraction(1, 2), Fraction(7, 8)), (2, 3, 5)):
        (pair,) = answers([("response", q)])
        whole = pair
        for _ in range(n - 1):
            (whole,) = answers([("product", rational(whole), rational(pair))])
        event = DiscreteLaplaceDpEvent(-math.log(q), 1)
        accountant = PldAccountant().compose(event, n)
        points = [q ** -(n // 2) * Fraction(9, 8), q ** -(n - 1)]
        for a, least in zip(points, profiles([rational(whole)], points)[0], strict=True):
            shown = accountant.get_delta(math.log(a))
            assert least * Fraction(999999, 10**6) <= shown <= least * Fraction(101, 100) + 10**-9


def check_concentrated() -> None:
    """Divergences of Gaussian noise, discrete or not, are the order times ρ, which adds up."""
    orders = [2, 3, 7, 40]
    for sigma, n in itertools.product((Fraction(1, 2), Fraction(3), Fraction(17, 4)), (1, 2, 9)):
        (rho,) = answers([("rho", sigma, [1] * n)])
        wanted = [float(order * Fraction(*rho)) for order in orders]
        for event in (DiscreteGaussianTest(float(sigma)), dp.GaussianDpEvent(float(sigma))):
            shown = RdpAccountant(orders).compose(event, n).rdp
            np.testing.assert_allclose(shown, wanted, rtol=1e-11)


def check_conversion() -> None:
    """At the δ of an order and ε, the conversion returns this ε."""
    cases = list(itertools.product((2, 3, 8, 30), (Fraction(9, 8), Fraction(5)), POINTS[4:]))
    for (order, divergence, a), found in zip(
        cases, answers([("delta", *case) for case in cases]), strict=True
    ):
        if (delta := Fraction(*found)) < 1:
            shown = rdp_to_epsilon_balle(order, math.log(divergence), float(delta))
            assert math.isclose(shown, math.log(a), rel_tol=1e-10), (order, divergence, a)


def check_group_privacy() -> None:
    for k in (2, 3, 7):
        relation = Relation("add-remove", k)
        pure = group_privacy.epsilon_of(DiscreteLaplaceDpEvent(0.25, 1), 0.0, relation)
        assert math.isclose(pure, 0.25 * k, rel_tol=1e-12)
        a = Fraction(5, 4)
        (grown,) = answers([("geometric", a, k)])
        event = ApproximateDpEvent(math.log(a), 1e-9)
        # δ is divided among the links in one of a few ways, so it must be more.
        total = 10 * float(Fraction(*grown)) * 1e-9
        shown = group_privacy.epsilon_of(event, total, relation)
        assert (k - 1) * math.log(a) < shown <= k * math.log(a) * (1 + 1e-3)


def prices() -> list[tuple[list[Fraction], Fraction]]:
    draw = random.Random(11)
    eighths = [
        [Fraction(draw.randint(1, 6), 8) for _ in range(draw.randint(1, 4))] for _ in "x" * 60
    ]
    return [(each, sum(each) + Fraction(draw.choice([-1, 0, 0, 1]), 8)) for each in eighths]


def check_pure_epsilon() -> None:
    for each, budget in prices():
        parts = [dp.SelfComposedDpEvent(DiscreteLaplaceDpEvent(float(p) / 2, 1), 2) for p in each]
        spent = pure_epsilon(dp.ComposedDpEvent(parts))
        assert isinstance(spent, Fraction)
        (proved,) = answers([("admitted", each, budget)])
        assert (spent <= budget) == bool(proved)
        assert spent == sum(each)


def check_filter() -> None:
    for each, budget in prices():
        if budget <= 0:
            continue
        filter_ = AdaptiveFilter(float(budget), 1e-12)
        state, admitted = filter_.opening(), True
        for price in each:
            state = filter_.charged(state, DiscreteLaplaceDpEvent(float(price), 1), None)
            admitted = admitted and filter_.admits(state)
        (proved,) = answers([("admitted", each, budget)])
        assert admitted == bool(proved), (each, budget)


class Told:
    """Noise that is chosen, and what it was asked for."""

    def __init__(self, test: int) -> None:
        self.test, self.scales = test, list[float]()

    def of_test(self, test: Any) -> int:
        return self.test

    def of_value(self, distribution: Any, scale: float, size: int) -> list[int]:
        self.scales.append(scale)
        return [0] * size

    def integer(self, bound: int) -> int:
        raise AssertionError


class Drawn(Told):
    """The same, with these numbers as the noise of values."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__(0)
        self.numbers = numbers

    def of_value(self, distribution: Any, scale: float, size: int) -> list[int]:
        assert distribution is Distribution.LAPLACE
        super().of_value(distribution, scale, size)
        drawn, self.numbers = self.numbers[:size], self.numbers[size:]
        return drawn


def check_released_counts() -> None:
    """Counts are released with a draw for each, of scale T/ε for cells and 1/ε for totals."""
    draw = random.Random(12)
    for sizes, _, cells, totals in extracted.tables()[:200]:
        exact = Counts(np.array(cells), np.array(totals), tuple(sizes), "")
        noise = [([draw.randint(-9, 9) for _ in row], draw.randint(-9, 9)) for row in cells]
        source = Drawn([*itertools.chain(*(row for row, _ in noise)), *(n for _, n in noise)])
        pricing = Pricing(draw.choice([0.1, 1.0, 7.0]))
        found = exact.released(pricing, source)
        (proved,) = answers([("noisy", list(zip(cells, totals, strict=True)), noise)])
        shown = zip(found.cells.tolist(), found.totals.tolist(), strict=True)
        assert [list(each) for each in shown] == proved
        of_totals, of_cells = map(Fraction, pricing.parts)
        assert of_totals + of_cells <= Fraction(pricing.epsilon)
        least = [len(sizes) / of_cells, 1 / of_totals]
        for scale, needed in zip(map(Fraction, source.scales), least, strict=True):
            assert needed <= scale <= needed * Fraction(1 + 2**-50)


def check_mechanism() -> None:
    """It passes above the threshold, not at it; noise is for τ then, and else for all values."""
    for (q, failure), falls in itertools.product(LIKELY, (True, False)):
        (bound,) = answers([("threshold", q, failure, 200)])
        mechanism = ProposeTestReleaseMechanism(
            propose=2.0,
            robust_noise_multiplier=3.0,
            fallback_noise_multiplier=5.0 if falls else math.inf,
            test=of_decay(q),
            failure=float(failure),
            bounds=(0.0, 64.0),
        )
        assert mechanism.threshold == bound
        for margin, over in itertools.product((0, 1, bound), (-1, 0, 1, 2)):
            noise = Told(bound + over - margin)
            value = RobustValue((7,), margin, mechanism.steps)
            found = mechanism.release(None, lambda _, value=value: value, noise=noise)
            passed = over > 0  # `PrivateQuantile.passes`: the threshold is below the noisy margin
            if not passed and not falls:
                assert isinstance(found, Refused)
                continue
            wide = 3.0 * mechanism.steps if passed else 5.0 * mechanism.lattice.diameter
            assert noise.scales == [math.nextafter(wide, math.inf)]
        assert mechanism.lattice.diameter == 32 * mechanism.steps


def check_window() -> None:
    """Distances are exact up to the reach of a window, and at least the reach beyond it."""
    for reach, (p, tau, values) in itertools.product((1, 2, 4), columns()[:300]):
        window = NearTarget.read(ArrayColumn(values), UniformMeasure(GRID), p, reach)
        shown = extracted.distances_of(window)
        (proved,) = answers([extracted.asked_distances((p, tau, values))])
        for own, exact in zip(shown, proved, strict=True):
            sure = reach * p.denominator
            assert own == exact if exact <= sure else sure <= own <= exact, (reach, p, values)


def compared(name: str) -> Callable[[], None]:
    def check() -> None:
        every = extracted.EXACT | extracted.CLOSE | extracted.PAIRS
        cases, asked, shipped = every[name]
        if name in extracted.PAIRS:
            extracted.check_pairs(cases(), asked, shipped)
        else:
            extracted.compare(cases(), asked, shipped, close=name in extracted.CLOSE)

    return check


def check_training() -> None:
    extracted.test_the_step_of_training_agrees()


CHECKS: dict[str, tuple[Callable[[], None], ...]] = {
    "accounting.events.DiscreteLaplaceTest": (compared("tail"), compared("threshold")),
    "accounting.group_privacy.epsilon_of": (check_group_privacy,),
    "accounting.losses.domination.approximate_pair": (check_approximate_pair,),
    "accounting.losses.domination.branch_pair": (compared("branch"),),
    "accounting.losses.domination.case_one": (compared("accident"),),
    "accounting.losses.domination.case_two": (check_case_two,),
    "accounting.losses.domination.dominating": (check_sampled_release,),
    "accounting.losses.domination.margin_pair": (compared("response"),),
    "accounting.losses.domination.noisy_margin_case": (check_noisy_margin_case,),
    "accounting.losses.domination.telling_margins": (check_telling_margins,),
    "accounting.losses.moments.rdp_to_epsilon_balle": (check_conversion,),
    "accounting.losses.pairs.BoundedRangePair": (check_bounded_range,),
    "accounting.losses.pairs.Dominating": (compared("removing"), compared("adding")),
    "accounting.losses.pairs.MixturePair": (compared("profile"),),
    "accounting.pld_accountant.PldAccountant": (check_composition,),
    "accounting.rdp_accountant.RdpAccountant": (check_concentrated,),
    "budget.filters.AdaptiveFilter": (check_filter,),
    "budget.prices.pure_epsilon": (check_pure_epsilon,),
    "certify.counts.Counts": (compared("insert"), check_released_counts),
    "certify.counts.Pricing": (check_released_counts,),
    "certify.counts.decided": (compared("radius"),),
    "certify.counts.moves_of": (compared("moves"),),
    "certify.counts.scores_of": (compared("scores"),),
    "release.exponential.quantile.ExponentialQuantile": (extracted.test_spreads_agree,),
    "release.exponential.quantile.NearTarget": (check_window,),
    "release.margins.interquartile_range": (compared("interquartile range"),),
    "release.margins.quantile": (compared("quantile"), compared("margin of a quantile")),
    "release.ptr.ProposeTestReleaseMechanism": (check_mechanism,),
    "training.aggregation.ProposeTestRelease": (check_training,),
    "training.aggregation.keep_smallest": (check_training,),
}


def test_every_function_of_the_page_has_a_check() -> None:
    assert [f"prudent.{name}" for name in CHECKS] == PYTHON


NEW = [name for name, (check, *_) in CHECKS.items() if check.__name__.startswith("check_")]


@pytest.mark.parametrize("name", NEW)
def test_definitions_agree(name: str) -> None:
    for check in CHECKS[name]:
        check()


def found(name: str) -> Any:
    """A function or class, by its place below the package."""
    module, _, own = name.rpartition(".")
    try:
        return getattr(importlib.import_module(f"prudent.{module}"), own)
    except ModuleNotFoundError:
        return getattr(found(module), own)


@contextmanager
def coded(function: Any, code: Any) -> Iterator[None]:
    """Other code for a function, wherever it was imported."""
    own = inspect.unwrap(getattr(function, "fget", None) or getattr(function, "__func__", function))
    before = own.__code__
    own.__code__ = code
    domination._of_release.cache_clear()
    try:
        yield
    finally:
        own.__code__ = before
        domination._of_release.cache_clear()


def boom(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize("name", CHECKS)
def test_a_function_that_only_raises_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that does not run a function cannot notice."""
    target = found(name)
    function = boom
    if isinstance(target, type):
        monkeypatch.setattr(target, "__init__", boom)
    else:
        function = target
    with coded(function, boom.__code__):
        for check in CHECKS[name]:
            with pytest.raises(ZeroDivisionError):
                check()


DOMINATION, QUANTILE = "accounting.losses.domination", "release.exponential.quantile.NearTarget"
MECHANISM = "release.ptr.ProposeTestReleaseMechanism"
COUNTS = "certify.counts.Counts"
MUTANTS = {
    "PTR passes at the threshold": (MECHANISM, "release", "margin > self", "margin >= self"),
    "fallback noise for tau": (MECHANISM, "release", "self.sensitivity_in_steps", "self.steps"),
    "robust noise for all values": (
        MECHANISM,
        "release",
        "multiplier * self.steps",
        "multiplier * self.sensitivity_in_steps",
    ),
    "a window that begins late": (QUANTILE, "read", "centre - reach)", "centre - reach + 1)"),
    "a window that ends early": (QUANTILE, "read", "centre + reach + 1", "centre + reach"),
    "fewer telling margins": (f"{DOMINATION}.telling_margins", "", "+ 3", "+ 2"),
    "later telling margins": (
        f"{DOMINATION}.telling_margins",
        "",
        "range(math.floor(threshold), ",
        "range(math.floor(threshold) + 1, ",
    ),
    "one direction": (f"{DOMINATION}.case_two", "", "is Reveals.BRANCH", "is None"),
    "no noise alone": (f"{DOMINATION}.case_two", "", "pairs.append(", "("),
    "no sampling": (f"{DOMINATION}.dominating", "", "=rate * inner", "=inner"),
    "the stronger noise": (f"{DOMINATION}.noisy_margin_case", "", "min(", "max("),
    "no share of delta": (f"{DOMINATION}.approximate_pair", "", "(1 - delta) *", "1 *"),
    "twice the range": (
        "accounting.losses.pairs.BoundedRangePair",
        "profile",
        "- self.reach) / 2",
        "- self.reach) / 4",
    ),
    "runs not counted": ("budget.prices.pure_epsilon", "", "* count", "* 1"),
    "charges forgotten": (
        "budget.filters.AdaptiveFilter",
        "_added",
        "_exact_sum(",
        "max(",
    ),
    "a link too few": ("accounting.group_privacy.epsilon_of", "", "distance == 1", "distance < 3"),
    "noise for one table": (COUNTS, "released", "self.tables, source", "1, source"),
    "noise of cells for totals": (COUNTS, "released", "pricing.totals", "pricing.cells"),
    "another order": (
        "accounting.losses.moments.rdp_to_epsilon_balle",
        "",
        "improved_conversion(a, ",
        "improved_conversion(a + 1, ",
    ),
    "runs not added": (
        "accounting.rdp_accountant.RdpAccountant",
        "_add",
        "times * plain",
        "plain",
    ),
    "a run too few": (
        "accounting.pld_accountant.PldAccountant",
        "_maybe_compose",
        "append((leaf, times))",
        "append((leaf, times - 1))",
    ),
}


@pytest.mark.parametrize(("name", "method", "old", "new"), MUTANTS.values(), ids=MUTANTS.keys())
def test_a_mutant_is_caught(name: str, method: str, old: str, new: str) -> None:
    target = inspect.getattr_static(found(name), method) if method else found(name)
    own = inspect.unwrap(getattr(target, "__func__", target))
    source = textwrap.dedent(inspect.getsource(own))
    head, body = source[: source.index("\n    ")], source[source.index("\n    ") :]
    assert old in body
    text = re.sub(r"^@.*\n", "", head + body.replace(old, new), flags=re.MULTILINE)
    space: dict[str, Any] = {}
    exec(f"from __future__ import annotations\n{text}", dict(own.__globals__), space)
    wrong = space[own.__name__].__code__
    with coded(target, wrong), pytest.raises((AssertionError, TypeError)):
        test_definitions_agree(name)
