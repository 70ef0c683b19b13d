"""Worst-case pairs of releases made of others: the best of many, a round, a classifier."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dp_accounting as dp
import numpy as np

from prudent.accounting import PldAccountant
from prudent.accounting.losses.repeated_selection import Geometric
from prudent.certify.classifier import CertifiedClassifier
from prudent.release.noise import AdditiveMechanism, Noise
from prudent.tune import Candidate, tune
from prudent.tune.tuning import calibrate
from tests.audit.releases.case import Case, Make, Run

_MEAN = 3.0  # the expected number of candidates
_CLIENTS = 4
_RECORDS = [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]] * 50  # two numbers and a label


def best_of_many(epsilon: float, delta: float) -> Case:
    """The largest of a random number of noisy counts, each of which a record raises by 1.

    The price of a selection is a bound; no pair is known that attains it.
    """
    trials = Geometric(_MEAN)
    scale = calibrate(_count, trials, epsilon=epsilon, delta=delta)
    counting = AdditiveMechanism(multiplier=scale)

    def prepare(data: Sequence[int], noise: Noise) -> Run:
        def candidate(_: Any, __: Path) -> float:
            return float(counting.noisy([len(data)], 1, noise)[0])

        several = Candidate(run=candidate, event=_count(scale))
        return lambda: tune(several, lambda _: None, trials=trials, delta=delta).score

    return Case(
        epsilon=epsilon,
        delta=delta,
        pair=([1] * 5, [1] * 4),
        prepare=prepare,
    )


def _count(scale: float) -> dp.DpEvent:
    return AdditiveMechanism(multiplier=scale).event


def federated_round(epsilon: float, delta: float) -> Case:
    """One round of federated averaging, in which a client sends far more than the clip allows."""
    import torch

    from prudent.training import Plan, Sum
    from prudent.training.adapters.federated.release import RoundRelease
    from prudent.training.keystream import Key

    plan = Plan(
        sampling_rate=1.0,
        steps=1,
        expected_batch=1.0,
        aggregation=Sum(clip=1.0, noise_multiplier=1.0),
    ).calibrate(epsilon=epsilon, delta=delta)

    def prepare(data: Sequence[float], noise: Noise) -> Run:
        updates = [torch.tensor([value], dtype=torch.float64) for value in data]

        def run() -> float:
            key = Key(noise.integer(2**256).to_bytes(32, "big"))  # a new one for each run
            released, _ = RoundRelease(plan, dimension=1, key=key)(updates)
            return float(released)

        return run

    at = 0.0, float(PldAccountant().compose(plan.event).get_delta(0.0))
    return Case(
        epsilon=epsilon,
        delta=delta,
        pair=([*[-1.0] * _CLIENTS, 50.0], [-1.0] * _CLIENTS),
        prepare=prepare,
        score=lambda output: output,
        delta_at=at,
    )


def certified_classifier(epsilon: float, delta: float) -> Case:
    """Counts at two landmarks: a record raises a cell by 1, and the total of its class by 1."""

    def fit(data: Any, noise: Noise) -> tuple[int, int]:
        rows = np.array(data)
        model = CertifiedClassifier(epsilon, 2, np.eye(2), noise=noise).fit(rows[:, :2], rows[:, 2])
        return int(model.counts_.cells[0, 0]), int(model.counts_.totals[0])

    totals, cells = CertifiedClassifier(epsilon).pricing.parts

    def score(output: tuple[int, int]) -> float:
        """The log-likelihood ratio: 50 records without the record, 51 with it, in both numbers."""
        loss = [abs(value - 50) - abs(value - 51) for value in output]
        return cells * loss[0] + totals * loss[1]

    return Case(
        epsilon=epsilon,
        pair=([*_RECORDS, [1.0, 0.0, 0.0]], _RECORDS),
        prepare=lambda data, noise: partial(fit, data, noise),
        score=score,
        exact=epsilon,
    )


def regression(epsilon: float, delta: float) -> Case:
    """The noisy sums of a regression's step, for a record that is far beyond what is clipped."""
    from prudent.estimators.engine import SumEngine, sums
    from prudent.estimators.engine import calibrate as shared
    from prudent.estimators.rows import ArrayRows

    prices = shared(epsilon, delta, {"steps": sums(0.9), "count": sums(0.1)})

    def pairs(rows: Any) -> tuple[Any, Any]:
        return rows[:, :1], rows[:, 1:]

    def prepare(data: list[list[float]], noise: Noise) -> Run:
        rows = ArrayRows.of(["x", "y"], np.array(data))

        def run() -> tuple[float, float]:
            engine = SumEngine(rows, prices, noise)
            return float(engine.cross("steps", pairs, (1.0, 1.0))[0, 0]), engine.count()

        return run

    def score(output: tuple[float, float]) -> float:
        """The log-likelihood ratio, up to a constant: each sum grows by 1 with the record."""
        sizes = (prices.multiplier(name) for name in ("steps", "count"))
        return sum(value / size**2 for value, size in zip(output, sizes, strict=True))

    at = 0.0, float(PldAccountant().compose(prices.event).get_delta(0.0))
    return Case(
        epsilon=epsilon,
        delta=delta,
        pair=([[0.0, 0.0], [1e9, 1e9]], [[0.0, 0.0]]),
        prepare=prepare,
        score=score,
        delta_at=at,
    )


CASES: dict[str, Make] = {
    "certified-classifier": certified_classifier,
    "regression": regression,
    "best-of-many": best_of_many,
    "federated-round": federated_round,
}
