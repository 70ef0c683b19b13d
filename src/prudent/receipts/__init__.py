"""Receipts: what was asked, released and claimed, in a file that anyone can check."""
