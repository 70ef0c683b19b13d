"""Receipts checked again: prices by ball arithmetic, certificates, digests, chains, signatures.

Nothing here imports the accountant: what it proved is proved again, by other methods.
"""
