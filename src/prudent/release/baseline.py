"""The baseline for Propose-Test-Release: a quantile chosen by the exponential mechanism.

It is pure DP, always answers, and is hard to beat for one number with good candidates. Unlike
Propose-Test-Release it needs public bounds or candidates that contain the answer. Its precision is
limited by the spacing of the candidates. A variant that draws from the gaps between records has no
such limit, and is the better baseline on smooth data in a known range.
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
from prudent.release.noise import load_opendp
from prudent.release.outcome import Branch, Released
from prudent.release.request import LedgerLike, TableOptions, check_names, open_records

DEFAULT_CANDIDATES = 1024
"""Number of candidates, evenly spaced between the bounds, when none are given."""


def exponential_quantile(
    data: Any = None,
    column: str | None = None,
    *,
    p: Any = 0.5,
    epsilon: float,
    candidates: Sequence[float] | None = None,
    bounds: tuple[float, float] | None = None,
    ledger: LedgerLike | None = None,
    **source: Unpack[TableOptions],
) -> Released:
    """Choose, with pure ε-DP, a candidate that splits the data approximately as p : 1 - p.

    Args:
        data: See `prudent.release.median`.
        column: See `prudent.release.median`.
        p: The probability, in (0, 1], taken as an exact fraction: 0.9 means 9/10.
        epsilon: ε of this release; there is no δ.
        candidates: Public values to choose from; None means evenly spaced between the bounds.
        bounds: Public bounds; used when there are no candidates.
        ledger: The ledger to charge before any data is read.
        **source: See `TableOptions`; groups are not supported.

    Returns:
        The chosen candidate. No noise is added to it, so `noise_scale` is 0.
    """
    check_names(source, TableOptions)
    exact = rational(p)
    _validate.positive(epsilon=epsilon)
    values = _candidates(candidates, bounds)
    records = open_records(data, column, source, "numbers")
    if isinstance(records, dict):
        raise ValueError("Expected one column, got groups. Release from each of them by itself.")
    event = pure_event(epsilon)
    below, above = exact.denominator - exact.numerator, exact.numerator
    # A record changes one of the two counts by 1, and so a score by at most the larger weight.
    choose = _noisy_max(max(below, above), epsilon)
    if ledger is not None:
        ledger.charge(event, f"exponential {exact}-quantile")
    scores = withheld(_scores, records, values, below, above)
    return Released(float(values[choose(scores)]), Branch.SELECTED, 0.0, 0.0, event)


def pure_event(epsilon: float) -> dp.DpEvent:
    """The event of randomised response with ratio e^ε, which dominates every ε-DP mechanism."""
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
    """The integer scores: minus the distance of each candidate from a split as p : 1 - p."""
    fewer = records.counts_below(values)
    more = records.count() - records.counts_below(np.nextafter(values, math.inf))
    return np.asarray(-np.abs(below * fewer - above * more))


def _noisy_max(sensitivity: int, epsilon: float) -> Callable[[IntArray], int]:
    """OpenDP's noisy maximum, at the least scale that its own privacy map certifies for ε."""
    opendp = load_opendp()
    space = (
        opendp.vector_domain(opendp.atom_domain(T="i64")),
        opendp.linf_distance(T="i64"),
    )
    scale = 2 * sensitivity / epsilon
    while True:  # one or two iterations: the first scale is off by at most a rounding error
        measurement = opendp.m.make_noisy_max(*space, opendp.max_divergence(), scale=scale)
        if measurement.map(sensitivity) <= epsilon:
            return lambda scores: int(measurement(scores.tolist()))
        scale = math.nextafter(scale, math.inf)
