"""The data of the paper's figures: its curves, together with exact ones.

The paper prints no settings for its figures beyond those in its captions (δ = 10⁻⁵, δ₀ = 10⁻⁸ under
composition, τ in the appendix), so the rest is chosen here and stated in each title: scale b = 1 of
the test; where many steps are composed, noise with σ₂ = τσ₁ = 4, the least at which the white-box
bound holds, and the paper's own training setting, at which it does not hold.
"""

import csv
import math
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np

from prudent import _validate
from prudent.accounting import (
    LaplaceTest,
    PldAccountant,
    ProposeTestReleaseDpEvent,
    RdpAccountant,
    Reveals,
    Run,
)
from prudent.accounting._numeric import Array
from prudent.accounting.losses.domination import case_one, dominating, noisy_margin_case
from prudent.accounting.losses.moments import rdp_to_epsilon_balle, renyi_divergence
from prudent.accounting.losses.pairs import Dominating
from prudent_lab import declared
from prudent_lab.paper import theorems

DIRECT = "direct (Theorem 4.2)"
SHARPENED = "direct, sharpened"
RENYI = "Rényi (Theorem 4.3)"
EXACT = "exact"
BLACK_BOX = "black-box"
WHITE_BOX = "white-box (Theorem 4.4)"
PLUG_IN = "plug-in: called a lower bound, is not one"
EXACT_RENYI = "exact Rényi"
COMPOSED = "direct, strong composition"
LOSS = "exact (PLD)"
NO_TEST = "no test (PLD)"

_DELTA = 1e-5
_FRACTIONAL_ORDERS = np.concatenate([np.linspace(1.05, 12, 220), np.arange(12.5, 200.5, 0.5)])
ORDERS = np.arange(2.0, 201.0)  # as in the paper, up to 200; exact at integers
_SPLITS = np.geomspace(1e-4, 0.99, 12)  # fractions of the δ that remains after the tests


@attrs.frozen(eq=False)
class Curve:
    """One curve of a panel; NaN leaves a gap."""

    name: str
    x: Array
    y: Array
    spread: Array | None = None  # half the height of a band around it


@attrs.frozen
class Panel:
    """One pair of axes."""

    title: str
    curves: tuple[Curve, ...]
    limits: tuple[float, float] | None = None  # range of the vertical axis


@attrs.frozen(kw_only=True)
class Figure:
    """A figure: one of the paper, or of results."""

    number: int = 0  # number of the figure in the paper
    title: str = ""  # what it shows
    x: str  # label and unit of the horizontal axis
    y: str  # label and unit of the vertical axis
    panels: tuple[Panel, ...]  # panels from left to right, then down
    columns: int  # number of panels per row
    logarithmic: str = ""  # the logarithmic axes: "y", "xy" or none
    # The curve to which a second row of panels relates the others, if any.
    reference: str | None = None
    note: str = ""  # A note for the reader


def figure(number: int) -> Figure:
    """Compute the data of a figure of the paper, 1 to 5."""
    told = declared("prudent_lab.paper", "figures.toml")["figures"][str(number)]
    over = _OVER[told.pop("over")]
    panels = (Panel(title, over(**setting)) for title, setting in told.pop("panels").items())
    return Figure(number=number, panels=tuple(panels), **told)


def write_csv(figure: Figure, path: Path) -> None:
    """Write every point as a row: figure, panel, curve, x, y. Gaps are left out."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["figure", "panel", "curve", "x", "y"])
        writer.writerows(
            [figure.number, panel.title, curve.name, float(x), float(y)]
            for panel in figure.panels
            for curve in panel.curves
            for x, y in zip(curve.x, curve.y, strict=True)
            if np.isfinite(y)
        )


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
        holds = theorems.white_box_applies(orders, self.sampling_rate, *conditions)
        curve = np.full(orders.shape, np.nan)
        if holds.any():
            curve[holds] = theorems.white_box_rdp(
                orders[holds], self.sampling_rate, **self.mechanism
            )
        return curve

    def black_box_curve(self, orders: Array) -> Array:
        """Theorem 4.3 combined with the bound for any Poisson-sampled mechanism."""
        return np.asarray(theorems.black_box_rdp(orders, self.sampling_rate, **self.mechanism))


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
                one = theorems.direct_epsilon(setting.noise_multiplier, *test, delta)
                sampled = theorems.amplify_by_sampling(one, delta, setting.sampling_rate)
                best = np.fmin(best, theorems.strong_composition(*sampled, count, setting.delta))
            except theorems.ConditionError:
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


def _over_noise(propose: float, failure: float) -> tuple[Curve, ...]:
    """ε of one release as a function of its noise, by the four analyses."""
    noise = np.linspace(1.0, 8.0, 29)

    def by_renyi(sigma: float) -> float:
        divergence = theorems.ptr_rdp(_FRACTIONAL_ORDERS, sigma, propose, 1.0, failure)
        return rdp_to_epsilon_balle(_FRACTIONAL_ORDERS, divergence, _DELTA)

    def exactly(sigma: float) -> float:
        event = ProposeTestReleaseDpEvent(sigma, propose, LaplaceTest(1.0), failure)
        return _least_epsilon(dominating(event))

    def curve(name: str, epsilon: Callable[[float], float]) -> Curve:
        return Curve(name, noise, np.array([epsilon(float(sigma)) for sigma in noise]))

    return (
        curve(DIRECT, lambda sigma: theorems.direct_epsilon(sigma, 1.0, failure, _DELTA)),
        curve(RENYI, by_renyi),
        curve(
            SHARPENED, lambda sigma: theorems.direct_epsilon_sharpened(sigma, 1.0, failure, _DELTA)
        ),
        curve(EXACT, exactly),
    )


def _least_epsilon(worst: Dominating | None) -> float:
    """The smallest ε of one release, by inverting its exact profile, which is symmetric."""
    assert worst is not None
    low, high = 0.0, 64.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        private = worst.profile(np.array([middle]))[0] <= _DELTA
        low, high = (low, middle) if private else (middle, high)
    return high


def _over_order(**given: float) -> tuple[Curve, ...]:
    """Rényi divergence of one sampled release over its order."""
    setting = Setting(**given)
    orders = np.arange(2.0, 65.0)
    test = LaplaceTest(setting.test_scale)
    release = ProposeTestReleaseDpEvent(
        setting.noise_multiplier, setting.propose, test, setting.failure
    )
    cases = (case_one(release), noisy_margin_case(release))
    plug_in = theorems.plug_in_rdp(orders, setting.sampling_rate, **setting.mechanism)
    exact = [renyi_divergence(case, orders, setting.sampling_rate) for case in cases]
    return (
        Curve(BLACK_BOX, orders, setting.black_box_curve(orders)),
        Curve(WHITE_BOX, orders, setting.white_box_curve(orders)),
        Curve(PLUG_IN, orders, np.asarray(plug_in)),
        Curve(EXACT_RENYI, orders, np.maximum(*exact)),
    )


def _over_rounds(**given: float) -> tuple[Curve, ...]:
    """ε of many sampled releases over their number."""
    setting = Setting(**given)
    rounds = np.unique(np.geomspace(1, 10_000, 17).round())
    return (
        Curve(COMPOSED, rounds, direct_composed_epsilon(setting, rounds)),
        Curve(BLACK_BOX, rounds, black_box_epsilon(setting, rounds)),
        Curve(WHITE_BOX, rounds, white_box_epsilon(setting, rounds)),
        Curve(EXACT_RENYI, rounds, exact_renyi_epsilon(setting, rounds)),
        Curve(LOSS, rounds, exact_epsilon(setting, rounds)),
        Curve(NO_TEST, rounds, exact_epsilon(setting, rounds, test=False)),
    )


_OVER: dict[str, Callable[..., tuple[Curve, ...]]] = {
    "noise": _over_noise,
    "order": _over_order,
    "rounds": _over_rounds,
}
