"""Worst-case pairs of releases that are made of others: the best of many, and a federated round."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dp_accounting as dp

from prudent.accounting import PldAccountant
from prudent.accounting.losses.trial_counts import Geometric
from prudent.audit.releases.case import GAUSSIAN, Case, Run
from prudent.release.noise import Noise
from prudent.release.sums.additive import AdditiveMechanism
from prudent.tune import Candidate, tune
from prudent.tune.pricing import calibrate

_MEAN = 3.0  # the expected number of candidates
_CLIENTS = 4


def best_of_many(epsilon: float, delta: float) -> Case:
    """The largest of a random number of noisy counts, each of which a record raises by 1."""
    trials = Geometric(_MEAN)
    scale = calibrate(_count, trials, epsilon=epsilon, delta=delta)
    counting = AdditiveMechanism(multiplier=scale)

    def prepare(data: Sequence[int], noise: Noise) -> Run:
        def candidate(_: Any, __: Path) -> float:
            return float(counting.noisy([len(data)], 1, noise)[0])

        several = Candidate(run=candidate, event=_count(scale))
        return lambda: tune(several, lambda _: None, trials=trials, delta=delta).score

    return Case(
        name="best-of-many",
        epsilon=epsilon,
        delta=delta,
        with_record=[1] * 5,
        without_record=[1] * 4,
        prepare=prepare,
        notes=("The price of a selection is a bound; no pair is known that attains it.",),
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
        name="federated-round",
        epsilon=epsilon,
        delta=delta,
        with_record=[*[-1.0] * _CLIENTS, 50.0],
        without_record=[-1.0] * _CLIENTS,
        prepare=prepare,
        score=lambda output: output,
        delta_at=at,
        notes=GAUSSIAN,
    )
