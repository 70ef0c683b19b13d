"""Worst-case pairs of every release: two neighbours that are as hard to hide as the price says.

A case runs the code that makes a release: its calibration, its margin or weights, its test and its
noise. What does not change the distribution of an answer (opening files, charging a ledger) is
left out, and what depends on the data alone is computed once for each of the two data sets.
"""

import types
from collections.abc import Mapping

from prudent import _validate
from prudent.audit.auditing import CONFIDENCE
from prudent.audit.releases import additive, composed, selected, tested
from prudent.audit.releases.case import Make, named
from prudent.audit.result import AuditResult

_ALL = tested.CASES | additive.CASES | selected.CASES | composed.CASES

CASES: Mapping[str, Make] = types.MappingProxyType(
    {name: named(name, make) for name, make in _ALL.items()}
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
