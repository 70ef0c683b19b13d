"""Statistical attempts to refute a claimed (ε, δ), through the code that makes the releases.

result = audit(mechanism, with_record, without_record, epsilon=1.0, delta=1e-6, runs=20_000)
result.lower, result.share, result.refuted, result.sentence

release("median", epsilon=1.0, delta=1e-6)  # one of the releases of this package
"""

from prudent.audit.auditing import audit
from prudent.audit.releases import CASES, release
from prudent.audit.releases.case import Case
from prudent.audit.result import AuditResult

__all__ = ["CASES", "AuditResult", "Case", "audit", "release"]
