"""Tests of receipts and model cards."""
