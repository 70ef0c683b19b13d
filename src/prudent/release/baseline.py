"""What Propose-Test-Release is compared with: a quantile chosen by the exponential mechanism.

It is pure DP, always answers, and for one number with good candidates it is hard to beat. It needs
what Propose-Test-Release does without: public bounds, or candidates, that hold the answer. It is no
more precise than its candidates are dense; a variant that draws from the gaps between records has
no such limit, and is the better peer on smooth data in a known range.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import dp_accounting as dp
import numpy as np
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent import _validate
from prudent.release.columns.column import Column
from prudent.release.failures import withheld
from prudent.release.lattice import FloatArray, IntArray, check_bounds
from prudent.release.margins.quantile import rational
from prudent.release.mechanism import Branch, Released
from prudent.release.noise import load_opendp
from prudent.release.statistics import LedgerLike, Source, check_names, open_records

DEFAULT_CANDIDATES = 1024
"""Evenly spaced between the bounds, when no candidates are given."""


def exponential_quantile(
    data: Any = None,
    column: str | None = None,
    *,
    p: Any = 0.5,
    epsilon: float,
    candidates: Sequence[float] | None = None,
    bounds: tuple[float, float] | None = None,
    ledger: LedgerLike | None = None,
    **source: Unpack[Source],
) -> Released:
    """The candidate that splits the data most nearly as p : 1 - p, chosen with pure ε-DP.

    Args:
        data: See `prudent.release.statistics.median`.
        column: See `prudent.release.statistics.median`.
        p: In (0, 1], exact: 0.9 is 9/10.
        epsilon: ε of this release; there is no δ.
        candidates: Public values to choose among; None: evenly spaced between the bounds.
        bounds: Public bounds; used when there are no candidates.
        ledger: Charged before any data is read.
        **source: See `Source`; groups are not offered here.

    Returns:
        The chosen candidate, at its public value: its `noise_scale` is 0.
    """
    check_names(source, Source)
    exact = rational(p)
    _validate.positive(epsilon=epsilon)
    values = _candidates(candidates, bounds)
    records = open_records(data, column, source, "numbers")
    if isinstance(records, dict):
        raise ValueError("Expected one column, got groups. Release from each of them by itself.")
    event = pure_event(epsilon)
    below, above = exact.denominator - exact.numerator, exact.numerator
    # A record moves one of the two counts by 1, so a score by the larger of their weights.
    choose = _noisy_max(max(below, above), epsilon)
    if ledger is not None:
        ledger.charge(event, f"exponential {exact}-quantile")
    scores = withheld(_scores, records, values, below, above)
    return Released(float(values[choose(scores)]), Branch.SELECTED, 0.0, 0.0, event)


def pure_event(epsilon: float) -> dp.DpEvent:
    """An event no ε-DP mechanism exceeds: two answers, one of them e^ε times as likely."""
    return DiscreteLaplaceDpEvent(_validate.positive(epsilon=epsilon), 1)


def _candidates(
    candidates: Sequence[float] | None, bounds: tuple[float, float] | None
) -> FloatArray:
    if candidates is None and bounds is None:
        raise ValueError(
            "Expected candidates or bounds, got neither: the exponential mechanism chooses among "
            "public values. Without any, use prudent.release.median."
        )
    if candidates is None:
        assert bounds is not None
        values = np.linspace(*check_bounds(bounds), DEFAULT_CANDIDATES)
    else:
        values = np.unique(np.asarray(candidates, np.float64))
    if len(values) == 0 or not np.isfinite(values).all():
        raise _validate.ArgumentError("candidates", "a list of finite numbers", got=candidates)
    return values


def _scores(records: Column, values: FloatArray, below: int, above: int) -> IntArray:
    """Minus how far each candidate is from having p of the data below it, in whole numbers."""
    fewer = records.counts_below(values)
    more = records.count() - records.counts_below(np.nextafter(values, math.inf))
    return np.asarray(-np.abs(below * fewer - above * more))


def _noisy_max(sensitivity: int, epsilon: float) -> Callable[[IntArray], int]:
    """OpenDP's noisy maximum, with the least scale whose own privacy map allows it."""
    opendp = load_opendp()
    space = (
        opendp.vector_domain(opendp.atom_domain(T="i64")),
        opendp.linf_distance(T="i64"),
    )
    scale = 2 * sensitivity / epsilon
    while True:  # a step or two: the first scale is off by a rounding at most
        measurement = opendp.m.make_noisy_max(*space, opendp.max_divergence(), scale=scale)
        if measurement.map(sensitivity) <= epsilon:
            return lambda scores: int(measurement(scores.tolist()))
        scale = math.nextafter(scale, math.inf)
