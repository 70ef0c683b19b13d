"""Audit a mechanism: run it on two neighbouring data sets and try to tell them apart."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track

from prudent import _progress, _validate
from prudent.audit.lower_bounds import BoolArray, bound_of_scores
from prudent.audit.result import AuditResult, MeasuredCurve
from prudent.audit.scores import Outputs, Score, best_score, each

Data = TypeVar("Data")

CONFIDENCE = 0.95
"""Confidence of an audit by default: one in twenty audits of an exact claim is a false alarm."""

_HELD_OUT = {False: 0.25, True: 0.5}
"""Fraction of the runs on which thresholds are chosen; more where the score is learned alone."""

_COINS = 0xC015  # tells the stream of the coins from others with the same seed
_PARTS = 100  # of the work, for the progress bar


def audit(
    mechanism: Callable[[Data], Any],
    with_record: Data,
    without_record: Data,
    *,
    epsilon: float,
    delta: float = 0.0,
    runs: int = 20_000,
    confidence: float = CONFIDENCE,
    score: Callable[[Any], float] | None = None,
    seed: int | None = None,
    progress: bool = False,
    name: str | None = None,
) -> AuditResult:
    """Try to refute that a mechanism is (epsilon, delta)-DP, on one pair of neighbours.

        audit(lambda data: sum(data) + laplace(scale=1), [1, 1, 1], [1, 1], epsilon=1.0)

    A fair coin decides for each run which of the two data sets the mechanism sees. Where no score
    is given, one is learned on half of the runs: from the frequencies of categories (a refusal is
    one) and of numbers. The other half is counted. See `prudent.audit.lower_bounds` for the bound
    and its proof.

    Guarantee:
        If the mechanism is (epsilon, delta)-DP and its runs are independent, the result is
        `refuted` with a probability of at most 1 - confidence.

    Args:
        mechanism: A function from data to an output: a number, an array, a category, an outcome of
            `prudent.release`, or tuples and mappings of these. Each call is a run.
        with_record: A data set.
        without_record: Its neighbour. The bound holds for any two data sets that the claim calls
            neighbours; choose the pair that is hardest to hide.
        epsilon: ε of the claim.
        delta: δ of the claim.
        runs: The number of runs on each of the two data sets, on average.
        confidence: 1 minus the false-alarm rate.
        score: A function from an output to a number that is high where the output speaks for the
            record, fixed before the runs. None: it is learned.
        seed: Of the coins, to repeat an audit; None draws new ones.
        progress: Whether to show a progress bar on standard error.
        name: What to call the mechanism; its own name by default.
    """
    coins = fair_coins(runs, seed)
    data = (without_record, with_record)
    outputs = run_all(mechanism, data, coins, progress=progress)
    return judge(
        outputs,
        coins,
        name=name or str(getattr(mechanism, "__name__", type(mechanism).__name__)),
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        scores=() if score is None else (each(score),),
        learn=score is None,
    )


MOST_RUNS = 10**8
"""More runs than anyone waits for."""


def fair_coins(runs: int, seed: int | None = None) -> BoolArray:
    """Return one coin for each of 2 `runs` runs; without a seed, different ones each time."""
    runs = _validate.count(8, MOST_RUNS, runs=runs)
    return tossed(2 * runs, seed)


def tossed(count: int, seed: int | None = None) -> BoolArray:
    """Return so many fair coins."""
    # Not the stream that a mechanism with the same seed draws its noise from.
    generator = np.random.default_rng(None if seed is None else [seed, _COINS])
    return generator.random(count) < 0.5


def judge(
    outputs: Sequence[Any],
    present: BoolArray,
    *,
    name: str,
    epsilon: float,
    delta: float,
    confidence: float,
    scores: Sequence[Score] = (),
    learn: bool = True,
) -> AuditResult:
    """Return what the outputs of runs refute, given the coins that chose their data.

    Learned scores compete with those that were fixed before the runs if `learn` is true; the
    best is chosen on held-out runs.
    """
    _validate.positive(epsilon=epsilon)
    _validate.between(0, 1, ends="[)", delta=delta)
    _validate.between(0.5, 1, ends="[)", confidence=confidence)
    held_out = _HELD_OUT[not scores]
    first = math.ceil(held_out * len(outputs))
    outputs = Outputs(outputs)
    if learn:
        _ = outputs.told  # described once, for all slices
    score = best_score(
        scores, outputs[:first], present[:first], delta=delta, confidence=confidence, learn=learn
    )
    found = score(outputs)
    bound = bound_of_scores(found, present, delta=delta, confidence=confidence, held_out=held_out)
    return AuditResult.of(
        bound,
        name=name,
        claimed=epsilon,
        delta=delta,
        confidence=confidence,
        curve=MeasuredCurve.of(found[first:], present[first:], confidence),
    )


def run_all(
    mechanism: Callable[[Data], Any],
    data: tuple[Data, Data],
    coins: BoolArray,
    *,
    progress: bool = False,
) -> list[Any]:
    """Return the outputs of all runs, in the order of their coins.

    `data` are the data without the record, and with it.
    """
    bar: Any = {"console": Console(stderr=True), "transient": True, "disable": not progress}
    outputs: list[Any] = []
    with _progress.part("runs", len(coins)):
        for part in track(np.array_split(coins, min(_PARTS, len(coins))), "runs", **bar):
            outputs += [mechanism(data[coin]) for coin in part.astype(int).tolist()]
            _progress.advance(len(part))
    return outputs
