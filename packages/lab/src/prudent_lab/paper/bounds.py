"""ε of many Poisson-sampled steps by each analysis in the paper and by exact accounting."""

import math
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from prudent import _validate
from prudent.accounting import LaplaceTest, PldAccountant, RdpAccountant, Reveals, Run
from prudent.accounting.losses.moments import rdp_to_epsilon_balle
from prudent_lab.paper.theorems import (
    ConditionError,
    amplify_by_sampling,
    black_box_rdp,
    direct_epsilon,
    strong_composition,
    white_box_applies,
    white_box_rdp,
)

Array: TypeAlias = NDArray[np.float64]

ORDERS = np.arange(2.0, 201.0)  # as in the paper, up to 200; exact at integers
_SPLITS = np.geomspace(1e-4, 0.99, 12)  # fractions of the δ that remains after the tests


@attrs.frozen
class Setting:
    """The paper's mechanism: a Laplace test that releases its noisy margin, in sampled steps."""

    sampling_rate: float  # probability with which each record is in a step
    noise_multiplier: float  # σ₁ for sensitivities of 1
    propose: float  # τ; the robust branch has noise σ₂ = τσ₁
    test_scale: float = 1.0  # b, the scale of the Laplace noise on the margin
    failure: float = 1e-8  # δ₀, the probability with which a margin of 0 passes
    delta: float = 1e-5  # target δ

    def __attrs_post_init__(self) -> None:
        _validate.between(0, 1, ends="(]", sampling_rate=self.sampling_rate)
        _validate.fields(self, _validate.positive, "propose", "test_scale")
        _validate.between(0, 1, ends="()", delta=self.delta)
        self.run(1)  # validates the other fields

    def run(self, steps: int) -> Run:
        """The run as the exact accountants take it."""
        return Run(
            sampling_rate=self.sampling_rate,
            steps=steps,
            noise_multiplier=self.noise_multiplier,
            test=LaplaceTest(self.test_scale),
            propose=self.propose,
            failure=self.failure,
            reveals=Reveals.MARGIN,  # the paper publishes the noisy margin
        )

    @property
    def mechanism(self) -> dict[str, float]:
        """What is released of a sample, as the theorems take it."""
        names = ("noise_multiplier", "propose", "test_scale", "failure")
        return {name: getattr(self, name) for name in names}

    def white_box_curve(self, orders: Array) -> Array:
        """The Rényi bound of Theorem 4.4; NaN at orders where its conditions fail."""
        conditions = (self.noise_multiplier, self.propose, self.test_scale)
        holds = white_box_applies(orders, self.sampling_rate, *conditions)
        curve = np.full(orders.shape, np.nan)
        if holds.any():
            curve[holds] = white_box_rdp(orders[holds], self.sampling_rate, **self.mechanism)
        return curve

    def black_box_curve(self, orders: Array) -> Array:
        """Theorem 4.3 combined with the bound for any Poisson-sampled mechanism."""
        return np.asarray(black_box_rdp(orders, self.sampling_rate, **self.mechanism))


def white_box_epsilon(setting: Setting, steps: Array) -> Array:
    """ε by Theorem 4.4 after each number of steps; NaN where no order satisfies its conditions."""
    return _epsilon_by_orders(setting.white_box_curve(ORDERS), steps, setting.delta)


def black_box_epsilon(setting: Setting, steps: Array) -> Array:
    """ε by the black-box bound after each number of steps."""
    return _epsilon_by_orders(setting.black_box_curve(ORDERS), steps, setting.delta)


def _epsilon_by_orders(curve: Array, steps: Array, delta: float) -> Array:
    known = np.isfinite(curve)
    if not known.any():
        return np.full(len(steps), np.nan)
    curves = (count * curve[known] for count in steps)
    return np.array([rdp_to_epsilon_balle(ORDERS[known], each, delta) for each in curves])


def direct_composed_epsilon(setting: Setting, steps: Array) -> Array:
    """ε by Theorem 4.2, amplified by sampling and composed by the optimal composition theorem.

    The δ that remains after the tests is split between the Gaussians and the composition, by the
    best of a few splits. NaN where the tests alone use all of δ.
    """

    def composed(count: int) -> float:
        spare = setting.delta / (count * setting.sampling_rate) - setting.failure
        best = math.nan
        for share in _SPLITS:
            delta = setting.failure + min(share * spare, 0.5)
            test = setting.test_scale, setting.failure
            try:
                one = direct_epsilon(setting.noise_multiplier, *test, delta)
                sampled = amplify_by_sampling(one, delta, setting.sampling_rate)
                best = np.fmin(best, strong_composition(*sampled, count, setting.delta))
            except ConditionError:
                continue
        return float(best)

    return np.array([composed(int(count)) for count in steps])


def exact_renyi_epsilon(setting: Setting, steps: Array) -> Array:
    """ε by exact Rényi divergences at the same orders, with failures charged to δ if that helps."""
    event = setting.run(1).event
    runs = (RdpAccountant(list(ORDERS)).compose(event, int(count)) for count in steps)
    return np.array([run.get_epsilon(setting.delta) for run in runs])


def exact_epsilon(setting: Setting, steps: Array, *, test: bool = True) -> Array:
    """ε by privacy-loss distributions: exact up to discretisation, rounded up."""
    runs = (setting.run(int(count)) for count in steps)
    runs = (run if test else attrs.evolve(run, test=None) for run in runs)
    return np.array([run.epsilon(setting.delta, PldAccountant) for run in runs])
