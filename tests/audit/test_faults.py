"""Planted faults: broken versions of the real code, each of which an audit must refute."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dp_accounting import PoissonSampledDpEvent
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent.accounting import PldAccountant, pld_accountant
from prudent.accounting.losses.pairs import Dominating
from prudent.audit import audit
from prudent.release import ptr as mechanisms
from prudent.release import statistics
from prudent.release.exponential import quantile as selection
from prudent.release.lattice import Lattice
from prudent.release.noise import (
    AdditiveMechanism,
    Distribution,
    PartitionSelection,
    ReproducibleNoise,
)
from prudent.training.noise import HostNoise
from tests.audit.releases import CASES, additive, audit_case
from tests.oracles.array_column import ArrayColumn

HALVED = {"count": 300, "median": 800, "mode": 300}


@pytest.mark.unhurried
@pytest.mark.parametrize(("name", "runs"), HALVED.items())
def test_half_of_the_noise_is_found(name: str, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not audit_case(name, runs=runs, seed=1).refuted
    whole = ReproducibleNoise.of_value

    def of_value(self: Any, distribution: Distribution, scale: float, size: int) -> list[int]:
        return whole(self, distribution, scale / 2, size)

    monkeypatch.setattr(ReproducibleNoise, "of_value", of_value)  # tests draw theirs by it, too
    assert audit_case(name, runs=runs, seed=1).refuted


@pytest.mark.parametrize("name", ["count", "sum"])
def test_an_inverted_scale_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale ε instead of 1/ε; at ε = 1 the two agree, so the audit is at another ε."""
    calibrate = AdditiveMechanism.calibrate

    def inverted(epsilon: float, *rest: Any) -> AdditiveMechanism:
        return AdditiveMechanism(multiplier=1 / calibrate(epsilon, *rest).multiplier)

    monkeypatch.setattr(AdditiveMechanism, "calibrate", inverted)
    assert audit_case(name, epsilon=0.5, runs=100, seed=1).refuted


def test_a_margin_without_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReproducibleNoise, "of_test", lambda self, test: 0)
    for name in ("ptr", "mode"):
        assert audit_case(name, runs=80, seed=1).refuted


def test_a_threshold_of_zero_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A margin of 0 that passes half of the time reveals everything: a violation of δ."""
    monkeypatch.setattr(mechanisms.ProposeTestReleaseMechanism, "threshold", property(lambda _: 0))
    found = audit_case("ptr-accident", delta=0.05, runs=150, seed=1)
    assert found.refuted
    assert found.lower_delta is not None
    assert found.lower_delta > 0.1


def test_a_wrong_exponential_base_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """exp(-2cd) instead of exp(-cd)."""
    rate = selection.rate
    assert not audit_case("exponential", epsilon=2.0, runs=250, seed=1).refuted

    def doubled(epsilon: float, spread: Fraction) -> Fraction:
        return 2 * rate(epsilon, spread)

    monkeypatch.setattr(selection, "rate", doubled)
    assert audit_case("exponential", epsilon=2.0, runs=250, seed=1).refuted


def test_a_reused_seed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_value(self: Any, distribution: Distribution, scale: float, size: int) -> list[int]:
        draw = np.random.default_rng(11).laplace(scale=scale, size=size)
        return [round(each) for each in draw.tolist()]

    monkeypatch.setattr(ReproducibleNoise, "of_value", of_value)
    for name in ("count", "sum"):
        assert audit_case(name, runs=300, seed=1).refuted


def less_noise(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    whole, federated = ReproducibleNoise.of_value, HostNoise.add_

    def of_value(self: Any, distribution: Distribution, scale: float, size: int) -> list[int]:
        return whole(self, distribution, factor * scale, size)

    def add_(self: Any, total: Any, noise: Any, state: Any) -> None:
        federated(self, total, factor * noise, state)

    monkeypatch.setattr(ReproducibleNoise, "of_value", of_value)
    monkeypatch.setattr(HostNoise, "add_", add_)


def missing_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    less_noise(monkeypatch, 0.7)


def no_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    def total(self: Any, low: float, high: float, lattice: Lattice) -> int:
        return sum(round(value / lattice.spacing) for value in self.numbers.tolist())

    def squares(self: Any, low: float, high: float, lattice: Lattice, origin: int = 0) -> int:
        steps = (round(value / lattice.spacing) for value in self.numbers.tolist())
        return sum((step - origin) ** 2 for step in steps)

    monkeypatch.setattr(ArrayColumn, "clipped_sum", total)
    monkeypatch.setattr(ArrayColumn, "clipped_squares", squares)

    def all_whole(norms: Any, valid: Any, clip: float) -> Any:
        return valid.to(norms.dtype), norms

    monkeypatch.setattr("prudent.training.aggregation.clip_weights", all_whole)


def half_the_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = AdditiveMechanism.scale
    monkeypatch.setattr(AdditiveMechanism, "scale", lambda self, steps: scale(self, steps) / 2)


def wrong_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """δ of every choice of groups is 0.1 where less is claimed."""
    select = PartitionSelection
    monkeypatch.setattr(
        additive, "PartitionSelection", lambda epsilon, delta: select(epsilon=epsilon, delta=0.1)
    )


def always_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReproducibleNoise, "of_test", lambda self, test: 10**9)


GAUSSIAN = {"federated-round": 3.0, "regression": 3.0}
"""ε of the claim where noise is missing: with less, Gaussian noise takes many more runs to tell."""

FAULTS: dict[str, tuple[Any, dict[str, int]]] = {
    "noise times 0.7": (
        missing_noise,
        {
            **dict.fromkeys(("count", "sum", "mean", "variance", "histogram", "certificate"), 1500),
            **dict.fromkeys(("ptr", "trimmed-mean"), 2000),
            "federated-round": 3000,
            "regression": 6000,
        },
    ),
    "no clipping": (
        no_clipping,
        dict.fromkeys(("sum", "mean", "variance", "federated-round"), 60),
    ),
    "half the sensitivity": (
        half_the_sensitivity,
        {
            **dict.fromkeys(("count", "sum", "mean", "variance", "histogram"), 400),
            "many-quantiles": 800,
        },
    ),
    "the wrong delta": (wrong_delta, {"partitions": 600}),
    "a skipped test": (always_pass, {"ptr-accident": 60}),
}


def planted() -> Iterator[Any]:
    for fault, (_, cases) in FAULTS.items():
        for name, runs in cases.items():
            quick = runs <= 400 and name != "federated-round"
            yield pytest.param(fault, name, marks=[] if quick else [pytest.mark.slow])


@pytest.mark.thorough
@pytest.mark.parametrize(("fault", "name"), list(planted()))
def test_a_planted_fault_is_found(fault: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, cases = FAULTS[fault]
    epsilon = GAUSSIAN.get(name, 1.0) if plant is missing_noise else 1.0
    claim = {"epsilon": epsilon, "delta": 0.05 if name == "ptr-accident" else 1e-6}
    claim |= {"runs": cases[name], "seed": 2}
    assert not audit_case(name, **claim).refuted
    plant(monkeypatch)
    assert audit_case(name, **claim).refuted


def test_every_release_has_an_audit() -> None:
    """A new statistic needs a pair of its own."""
    covered = {name.replace("-", "_") for name in CASES}
    covered |= {"certify_quantile" if "certificate" in covered else ""}
    assert set(statistics.__all__) <= covered


def sampled_count(seed: int) -> Any:
    """A count of a Poisson sample, whose two directions have very different prices."""
    mechanism, noise = AdditiveMechanism.calibrate(2.0), ReproducibleNoise(seed)
    draw = np.random.default_rng(seed)

    def count(data: list[int]) -> int:
        drawn = int(np.sum(draw.random(len(data)) < 0.3))
        return mechanism.noisy([drawn], 1, noise)[0]

    return count


def price(delta: float = 1e-6) -> float:
    event = PoissonSampledDpEvent(0.3, DiscreteLaplaceDpEvent(2.0, 1))
    pld_accountant._KNOWN.clear()
    return PldAccountant().compose(event).get_epsilon(delta)


def test_a_claim_priced_in_one_direction_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    both = price()
    assert both == pytest.approx(math.log1p(0.3 * math.expm1(2.0)), rel=1e-2)
    claim = {"delta": 1e-6, "runs": 2500, "confidence": 0.99, "seed": 3}
    assert not audit(sampled_count(1), [1], [], epsilon=both, **claim).refuted
    whole = Dominating.profile

    def adding_only(self: Any, epsilon: Any, *, adding: bool = False) -> Any:
        return whole(self, epsilon, adding=True)

    monkeypatch.setattr(Dominating, "profile", adding_only)
    monkeypatch.setattr(Dominating, "infinite_mass", lambda self, adding=False: 0.0)
    one = price()
    assert one < 0.5 * both
    monkeypatch.undo()
    assert audit(sampled_count(1), [1], [], epsilon=one, **claim).refuted
