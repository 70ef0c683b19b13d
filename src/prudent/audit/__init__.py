"""Statistical attempts to refute a claimed (ε, δ), by running the mechanism that claims it.

result = audit(mechanism, with_record, without_record, epsilon=1.0, delta=1e-6, runs=20_000)
result.lower, result.share, result.refuted, result.sentence
"""

from prudent.audit.auditing import AuditResult, audit

__all__ = ["AuditResult", "audit"]
