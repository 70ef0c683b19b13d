"""The mechanism: its distribution against its price, its branches, and a user's own margin."""

import functools
import math
from fractions import Fraction

import attrs
import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.accounting import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    LaplaceTest,
    PldAccountant,
    RdpAccountant,
    from_json,
    to_json,
)
from prudent.release.columns.column import SourceError
from prudent.release.margins import RobustValue, UnsafeMarginError, check_margin, quantile
from prudent.release.noise import Distribution, ReproducibleNoise
from prudent.release.outcome import Branch, Refused, Released
from prudent.release.ptr import ProposeTestReleaseMechanism, on_lattice
from tests.oracles.array_column import ArrayColumn
from tests.oracles.multisets import data_sets, neighbours, records
from tests.release.recording import Silence

calibrate = ProposeTestReleaseMechanism.calibrate

EPSILON, DELTA = 1.0, 0.05
PROPOSE = 0.25  # an eighth of what a record can do: an accident shows


def far(data: object) -> RobustValue:
    return RobustValue((128,), 10**6, 64)


def near(data: object) -> RobustValue:
    return RobustValue((128,), 0, 64)


class ExactLaw:
    """The exact distribution of what a mechanism shows: the branch, and a value on a window."""

    def __init__(self, mechanism: ProposeTestReleaseMechanism, value: int, margin: int) -> None:
        passes = mechanism.test.tail(mechanism.threshold - min(margin, mechanism.cap))
        steps = np.arange(-40_000, 40_001)  # what is cut can only lower the divergence
        robust = self._noise(mechanism, steps - value, mechanism.steps, robust=True)
        rest = 1 - passes
        if mechanism.falls_back:
            scale = mechanism.sensitivity_in_steps
            failed = rest * self._noise(mechanism, steps - value, scale, robust=False)
        else:
            failed = np.array([rest])
        self.masses = np.concatenate([passes * robust, failed])

    @staticmethod
    def _noise(mechanism, distance: np.ndarray, steps: float, *, robust: bool) -> np.ndarray:
        multiplier = (
            mechanism.robust_noise_multiplier if robust else mechanism.fallback_noise_multiplier
        )
        scale = multiplier * steps
        if mechanism.distribution is Distribution.LAPLACE:
            return np.exp(-np.abs(distance) / scale) * math.tanh(1 / (2 * scale))
        return np.exp(-0.5 * (distance / scale) ** 2) / (scale * math.sqrt(2 * math.pi))


def worst_delta(mechanism: ProposeTestReleaseMechanism, extra_margin: int = 0) -> float:
    """The largest hockey-stick divergence over all small neighbouring data sets."""
    lattice = mechanism.lattice

    @functools.cache
    def shown(counts) -> tuple[int, int]:
        """The value and the margin, which determine the distribution."""
        found = quantile(
            ArrayColumn(records(counts)),
            lattice,
            Fraction(1, 2),
            propose=mechanism.steps,
            cap=mechanism.cap,
        )
        return found.value[0], found.margin + extra_margin

    @functools.cache
    def distribution(value: int, margin: int) -> np.ndarray:
        return ExactLaw(mechanism, value, margin).masses

    pairs = {
        (shown(counts), shown(other))
        for counts in data_sets(5, top=2)
        for other in neighbours(counts)
    }
    worst = 0.0
    for one, other in pairs:
        excess = distribution(*one) - math.exp(EPSILON) * distribution(*other)
        worst = max(worst, float(np.sum(excess[excess > 0])))
    return worst


@pytest.mark.unhurried
@pytest.mark.parametrize("distribution", list(Distribution))
@pytest.mark.parametrize("fallback", [False, True])
def test_the_law_on_real_neighbours_is_within_the_promise(
    distribution: Distribution, fallback: bool
) -> None:
    mechanism = calibrate(
        propose=PROPOSE,
        epsilon=EPSILON,
        delta=DELTA,
        bounds=(0.0, 2.0),
        fallback=fallback,
        distribution=distribution,
    )
    assert 0.2 * DELTA < worst_delta(mechanism) <= DELTA


@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("fallback", [False, True])
def test_the_promise_covers_every_failure_that_is_accepted(share: float, fallback: bool) -> None:
    mechanism = calibrate(
        propose=PROPOSE,
        epsilon=EPSILON,
        delta=DELTA,
        bounds=(0.0, 2.0),
        fallback=fallback,
        failure=share * DELTA,
    )
    assert worst_delta(mechanism) <= DELTA


@pytest.mark.thorough
@pytest.mark.parametrize(
    "distribution",
    [Distribution.LAPLACE, pytest.param(Distribution.GAUSSIAN, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("propose", [0.0, 1.0])
def test_the_price_covers_every_failure_that_is_accepted(distribution, propose) -> None:
    for failure in (None, 0.9e-6):
        mechanism = calibrate(
            propose=propose,
            epsilon=2.0,
            delta=1e-6,
            distribution=distribution,
            failure=failure,
        )
        assert PldAccountant().compose(mechanism.event).get_epsilon(1e-6) <= 2.0


@pytest.mark.parametrize("failure", [0.0, 1.001e-9, 0.4, 0.9, math.nan])
@pytest.mark.parametrize("distribution", list(Distribution))
def test_a_failure_beyond_delta_is_refused(failure: float, distribution: Distribution) -> None:
    with pytest.raises(ValueError, match=r"Expected failure in \(0, delta = 1e-09\], got"):
        calibrate(
            propose=1.0,
            epsilon=1.0,
            delta=1e-9,
            failure=failure,
            distribution=distribution,
        )


def test_a_value_released_as_it_is_has_no_fallback() -> None:
    """Its event holds the price of a test alone."""
    with pytest.raises(ValueError, match="Expected propose > 0 for a fallback"):
        calibrate(propose=0.0, epsilon=1.0, delta=1e-6, bounds=(0, 1), fallback=True)


def test_a_margin_that_is_not_safe_breaks_the_promise() -> None:
    mechanism = calibrate(propose=PROPOSE, epsilon=EPSILON, delta=DELTA, bounds=(0.0, 2.0))
    unsafe = worst_delta(mechanism, extra_margin=mechanism.threshold)
    assert unsafe > DELTA


@pytest.mark.unhurried
@pytest.mark.parametrize(
    ("epsilon", "fallback"),
    [
        (0.001, False),
        (0.3, True),
        (5.0, False),
        pytest.param(0.001, True, marks=pytest.mark.slow),
        pytest.param(0.3, False, marks=pytest.mark.slow),
        pytest.param(5.0, True, marks=pytest.mark.slow),
    ],
)
def test_a_run_costs_at_most_what_was_asked(epsilon: float, fallback: bool) -> None:
    mechanism = calibrate(
        propose=500, epsilon=epsilon, delta=1e-7, bounds=(0, 1e6), fallback=fallback
    )
    spent = PldAccountant().compose(mechanism.event).get_epsilon(1e-7)
    assert 0.9 * epsilon < spent <= epsilon
    assert RdpAccountant().supports(mechanism.event)
    assert from_json(to_json(mechanism.event)) == mechanism.event


@pytest.mark.unhurried
def test_gaussian_noise_has_a_gaussian_test_and_is_solved() -> None:
    mechanism = calibrate(propose=1, epsilon=2.0, delta=1e-5, distribution=Distribution.GAUSSIAN)
    assert isinstance(mechanism.test, DiscreteGaussianTest)
    assert PldAccountant().compose(mechanism.event).get_epsilon(1e-5) <= 2.0
    less = attrs.evolve(mechanism, robust_noise_multiplier=0.85 * mechanism.robust_noise_multiplier)
    assert PldAccountant().compose(less.event).get_epsilon(1e-5) > 2.0


def test_a_value_released_as_it_is_leaves_all_to_the_test() -> None:
    mechanism = calibrate(propose=0, epsilon=0.5, delta=1e-6)
    assert mechanism.test.scale == pytest.approx(2.0)
    assert PldAccountant().compose(mechanism.event).get_epsilon(1e-6) <= 0.5


class TestBranches:
    mechanism = calibrate(propose=1.0, epsilon=1.0, delta=1e-6)
    safe = calibrate(propose=1.0, epsilon=1.0, delta=1e-6, bounds=(0, 10), fallback=True)

    def test_a_large_margin_is_released_near_its_value(self) -> None:
        released = self.mechanism.release(None, far)
        assert isinstance(released, Released)
        assert released.branch is Branch.ROBUST
        assert released.noise_scale == pytest.approx(math.sqrt(2) * 2.0)
        assert abs(released.value - 2.0) < 40 * released.noise_scale

    def test_a_small_one_is_refused_in_the_same_words_whatever_the_data(self) -> None:
        reasons = {
            self.mechanism.release(None, lambda _, v=value: RobustValue((v,), 0, 64)).reason
            for value in (0, 5, 10**9)
        }
        assert len(reasons) == 1

    def test_or_falls_back(self) -> None:
        released = self.safe.release(None, near)
        assert isinstance(released, Released)
        assert released.branch is Branch.FALLBACK
        assert released.noise_scale == pytest.approx(math.sqrt(2) * 2.0 * 10)

    def test_values_lie_on_the_lattice(self) -> None:
        for step in range(30):
            for mechanism, measure in ((self.mechanism, far), (self.safe, near)):
                released = mechanism.release(None, measure, noise=ReproducibleNoise(step))
                assert (released.value / released.spacing).is_integer()

    def test_the_threshold_is_strict(self) -> None:
        def at(margin: int) -> object:
            measure = lambda _: RobustValue((0,), margin, 64)  # noqa: E731
            return self.mechanism.release(None, measure, noise=Silence())

        assert isinstance(at(self.mechanism.threshold), Refused)
        assert isinstance(at(self.mechanism.threshold + 1), Released)

    def test_a_vector_needs_gaussian_noise(self) -> None:
        pair = lambda _: RobustValue((1, 2), 10**6, 64)  # noqa: E731
        with pytest.raises(ValueError, match="GAUSSIAN"):
            self.mechanism.release(None, pair)
        gaussian = attrs.evolve(self.mechanism, distribution=Distribution.GAUSSIAN)
        assert len(gaussian.release(None, pair).value) == 2


class TestDiscretion:
    """An error after data are opened says nothing of them; `test_failures` has every kind."""

    @pytest.mark.parametrize(
        ("error", "shown"),
        [(MemoryError("shape (2, 24901)"), "withheld"), (SourceError("It changed"), "changed")],
    )
    def test_of_what_measures(self, error: Exception, shown: str) -> None:
        def fails(data: object) -> RobustValue:
            raise error

        with pytest.raises(SourceError, match=shown) as caught:
            TestBranches.mechanism.release(None, fails)
        assert "24901" not in str(caught.value)
        assert caught.value.__cause__ is caught.value.__context__ is None

    def test_numpy_warns_of_nothing(self) -> None:
        def dividing(data: object) -> RobustValue:
            np.array([1.0]) / np.array([0.0])
            return near(data)

        assert isinstance(TestBranches.mechanism.release(None, dividing), Refused)


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"propose": -1}, "propose"),
            ({"epsilon": 0}, "epsilon"),
            ({"epsilon": 1e-9}, "epsilon"),
            ({"delta": 0}, "delta"),
            ({"delta": 0.7}, "delta"),
            ({"failure": 0.9}, "failure"),
            ({"fallback": True}, "bounds"),
            ({"fallback": True, "bounds": (0, 1e13)}, "narrower"),
            ({"bounds": (3, 1)}, "bounds"),
            ({"distribution": "gaussian"}, "distribution"),
        ],
    )
    def test_it_is_named(self, change: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            calibrate(**{"propose": 1.0, "epsilon": 1.0, "delta": 1e-6, **change})

    @pytest.mark.parametrize(
        ("test", "message"),
        [
            (LaplaceTest(1.0), "drawn exactly"),
            (DiscreteLaplaceTest(1e6), "at most 2\\*\\*22 records"),
        ],
    )
    def test_a_test_that_cannot_be_drawn_is_named(self, test: object, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            attrs.evolve(calibrate(propose=1.0, epsilon=1.0, delta=1e-6), test=test)


def max_of(data: list[float]) -> float:
    return float(max(data, default=0))


class TestAUsersOwnMargin:
    @staticmethod
    def count_positive(data: list[float]) -> float:
        return float(min(5, sum(x > 0 for x in data)))

    def test_a_safe_one_is_accepted(self) -> None:
        checked = check_margin(
            lambda data: float(len(data)), lambda data: 7, propose=1, domain=[0, 1], size=4
        )
        assert checked == sum(math.comb(n + 1, 1) * 2 for n in range(4))

    @pytest.mark.parametrize(
        ("statistic", "margin", "given", "message"),
        [
            (lambda data: 0.0, lambda data: 2 * len(data), {"propose": 1}, "more than 1"),
            (max_of, lambda data: 1, {"propose": 3, "domain": [0, 9]}, "Both must be 0"),
            (  # a statistic that is no number
                lambda data: sum(data) / len(data) if data else math.nan,
                lambda data: 1,
                {"propose": 1.0, "size": 1},
                "Both must be 0",
            ),
            (  # vectors are compared by their distance
                lambda data: (3.0 * len(data), 4.0 * len(data)),
                lambda data: 1,
                {"propose": 4.9, "size": 1},
                "changes by 5",
            ),
        ],
    )
    def test_an_unsafe_one_is_not(self, statistic, margin, given: dict, message: str) -> None:
        with pytest.raises(UnsafeMarginError, match=message):
            check_margin(statistic, margin, **{"domain": [0], "size": 3, **given})

    def test_infinite_values_that_are_equal_do_not_differ(self) -> None:
        assert check_margin(lambda _: math.inf, lambda _: 1, propose=1, domain=[0], size=2) == 2

    def test_a_statistic_that_is_no_number_lies_at_the_lower_end(self) -> None:
        mechanism = calibrate(propose=1.0, epsilon=1.0, delta=1e-6)
        measure = on_lattice(mechanism, lambda _: math.nan, lambda _: 0)
        assert measure([]).value == (mechanism.lattice.low,)

    def test_a_category_has_no_lattice(self) -> None:
        with pytest.raises(ValueError, match="Expected propose"):
            on_lattice(calibrate(propose=0, epsilon=1, delta=1e-6), max_of, lambda _: 0)

    def test_it_can_be_released(self) -> None:
        mechanism = calibrate(propose=1.0, epsilon=1.0, delta=1e-6)
        measure = on_lattice(mechanism, self.count_positive, lambda data: 10**6)
        assert measure([1, 2, -3]) == RobustValue((128,), 10**6, 64)
        assert isinstance(mechanism.release([1, 2, -3], measure), Released)
