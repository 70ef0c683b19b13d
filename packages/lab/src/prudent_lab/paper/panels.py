"""The data of the paper's figures: its curves, together with exact ones.

The paper prints no settings for its figures beyond those in its captions (δ = 10⁻⁵, δ₀ = 10⁻⁸ under
composition, τ in the appendix), so the rest is chosen here and stated in each title: scale b = 1 of
the test; where many steps are composed, noise with σ₂ = τσ₁ = 4, the least at which the white-box
bound holds, and the paper's own training setting, at which it does not hold.
"""

import csv
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np

from prudent.accounting import LaplaceTest, ProposeTestReleaseDpEvent
from prudent.accounting.losses.domination import case_one, dominating, noisy_margin_case
from prudent.accounting.losses.moments import rdp_to_epsilon_balle, renyi_divergence
from prudent.accounting.losses.pairs import Dominating
from prudent_lab import declared
from prudent_lab.paper import bounds
from prudent_lab.paper.bounds import Array, Setting
from prudent_lab.paper.theorems import (
    direct_epsilon,
    direct_epsilon_sharpened,
    plug_in_rdp,
    ptr_rdp,
)

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


def _over_noise(propose: float, failure: float) -> tuple[Curve, ...]:
    """ε of one release as a function of its noise, by the four analyses."""
    noise = np.linspace(1.0, 8.0, 29)

    def by_renyi(sigma: float) -> float:
        divergence = ptr_rdp(_FRACTIONAL_ORDERS, sigma, propose, 1.0, failure)
        return rdp_to_epsilon_balle(_FRACTIONAL_ORDERS, divergence, _DELTA)

    def exactly(sigma: float) -> float:
        event = ProposeTestReleaseDpEvent(sigma, propose, LaplaceTest(1.0), failure)
        return _least_epsilon(dominating(event))

    def curve(name: str, epsilon: Callable[[float], float]) -> Curve:
        return Curve(name, noise, np.array([epsilon(float(sigma)) for sigma in noise]))

    return (
        curve(DIRECT, lambda sigma: direct_epsilon(sigma, 1.0, failure, _DELTA)),
        curve(RENYI, by_renyi),
        curve(SHARPENED, lambda sigma: direct_epsilon_sharpened(sigma, 1.0, failure, _DELTA)),
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
    plug_in = plug_in_rdp(orders, setting.sampling_rate, **setting.mechanism)
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
        Curve(COMPOSED, rounds, bounds.direct_composed_epsilon(setting, rounds)),
        Curve(BLACK_BOX, rounds, bounds.black_box_epsilon(setting, rounds)),
        Curve(WHITE_BOX, rounds, bounds.white_box_epsilon(setting, rounds)),
        Curve(EXACT_RENYI, rounds, bounds.exact_renyi_epsilon(setting, rounds)),
        Curve(LOSS, rounds, bounds.exact_epsilon(setting, rounds)),
        Curve(NO_TEST, rounds, bounds.exact_epsilon(setting, rounds, test=False)),
    )


_OVER: dict[str, Callable[..., tuple[Curve, ...]]] = {
    "noise": _over_noise,
    "order": _over_order,
    "rounds": _over_rounds,
}
