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

_NAMES = {
    tested: "ptr ptr-accident median quantile iqr trimmed-mean trimmed-sum mode mode-of-numbers",
    additive: "count sum mean variance deviation proportion count-distinct histogram certificate "
    "partitions many-quantiles",
    tables: "top-k join ratio weighted-mean covariance correlation",
    selected: "exponential exponential-quantile median-selected quantiles halved-quantiles "
    "iqr-selected maximum minimum private-interval sum-private-bounds mean-private-bounds "
    "variance-private-bounds describe",
    composed: "certified-classifier regression best-of-many federated-round",
}

CASES: Mapping[str, Callable[[float, float], Case]] = types.MappingProxyType(
    {
        name: getattr(module, name.replace("-", "_"))
        for module, names in _NAMES.items()
        for name in names.split()
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
