"""Worst-case pairs of every release: two neighbours that are as hard to hide as the price says.

A case runs the code that makes a release: its calibration, its margin or weights, its test and its
noise. What does not change the distribution of an answer (opening files, charging a ledger) is
left out, and what depends on the data alone is computed once for each of the two data sets.
"""

import types
from collections.abc import Callable, Mapping

from prudent import _validate
from prudent.audit.auditing import CONFIDENCE
from prudent.audit.releases import additive, composed, selected, tables, tested
from prudent.audit.releases.case import Case
from prudent.audit.result import AuditResult

CASES: Mapping[str, Callable[[float, float], Case]] = types.MappingProxyType(
    {
        "ptr": tested.ptr,
        "ptr-accident": tested.ptr_accident,
        "median": tested.median,
        "quantile": tested.quantile,
        "iqr": tested.iqr,
        "trimmed-mean": tested.trimmed_mean,
        "trimmed-sum": tested.trimmed_sum,
        "mode": tested.mode,
        "mode-of-numbers": tested.mode_of_numbers,
        "count": additive.count,
        "sum": additive.sum,
        "mean": additive.mean,
        "variance": additive.variance,
        "deviation": additive.deviation,
        "proportion": additive.proportion,
        "count-distinct": additive.count_distinct,
        "histogram": additive.histogram,
        "top-k": tables.top_k,
        "join": tables.join,
        "ratio": tables.ratio,
        "weighted-mean": tables.weighted_mean,
        "covariance": tables.covariance,
        "correlation": tables.correlation,
        "certificate": additive.certificate,
        "certified-classifier": composed.certified_classifier,
        "partitions": additive.partitions,
        "exponential": selected.exponential,
        "exponential-quantile": selected.exponential_quantile,
        "median-selected": selected.median,
        "quantiles": selected.quantiles,
        "halved-quantiles": selected.halved_quantiles,
        "many-quantiles": additive.many_quantiles,
        "iqr-selected": selected.iqr,
        "maximum": selected.maximum,
        "minimum": selected.minimum,
        "private-interval": selected.private_interval,
        "sum-private-bounds": selected.sum,
        "mean-private-bounds": selected.mean,
        "variance-private-bounds": selected.variance,
        "describe": selected.describe,
        "regression": composed.regression,
        "best-of-many": composed.best_of_many,
        "federated-round": composed.federated_round,
    }
)
"""A worst-case pair for each release, given the ε and δ of the claim."""


def release(
    name: str,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    runs: int = 20_000,
    confidence: float = CONFIDENCE,
    seed: int | None = None,
    progress: bool = False,
) -> AuditResult:
    """Try to refute the (ε, δ) of one of the releases of this package, on its worst-case pair.

    Args:
        name: One of `CASES`.
        epsilon: The ε that the release is calibrated to, and that is claimed.
        delta: The δ; a release that needs none ignores it, and claims 0.
        runs: The number of runs on each of the two data sets, on average.
        confidence: 1 minus the false-alarm rate.
        seed: Of coins and noise, for tests; None: the operating system's.
        progress: Whether to show a progress bar on standard error.
    """
    _validate.one_of(CASES, name=name)
    _validate.between(1e-2, 10, epsilon=epsilon)
    case = CASES[name](epsilon, delta)
    return case.audit(runs=runs, confidence=confidence, seed=seed, progress=progress)
