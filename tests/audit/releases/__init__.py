"""Worst-case pairs of every release: two neighbours that are as hard to hide as the price says.

A case runs the code that makes a release: its calibration, its margin or weights, its test and its
noise. What does not change the distribution of an answer (opening files, charging a ledger) is
left out, and what depends on the data alone is computed once for each of the two data sets.
"""

from prudent.audit.auditing import CONFIDENCE
from tests.audit.releases import additive, composed, selected, tested
from tests.audit.releases.case import CaseResult, Make

CASES: dict[str, Make] = tested.CASES | additive.CASES | selected.CASES | composed.CASES
"""A worst-case pair for each release, given the ε and δ of the claim."""


def audit_case(
    name: str,
    *,
    runs: int,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    confidence: float = CONFIDENCE,
    seed: int | None = None,
) -> CaseResult:
    """Try to refute the (ε, δ) of one of the releases of this package, on its worst-case pair.

    Args:
        name: One of `CASES`.
        runs: The number of runs on each of the two data sets, on average.
        epsilon: The ε that the release is calibrated to, and that is claimed.
        delta: The δ; a release that needs none ignores it, and claims 0.
        confidence: 1 minus the false-alarm rate.
        seed: Of coins and noise; None: the operating system's.
    """
    return CASES[name](epsilon, delta).audit(runs=runs, confidence=confidence, seed=seed)
