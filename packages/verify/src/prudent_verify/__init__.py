"""Receipts of prudent checked again: prices, certificates, digests, ledger rows, signatures.

Nothing here imports `prudent`: what its accountant proved is proved again, by other methods.
"""

from prudent_verify.checks import Finding, Standing, Verdict, verify
from prudent_verify.receipt import Receipt, ReceiptError

__all__ = ["Finding", "Receipt", "ReceiptError", "Standing", "Verdict", "verify"]
