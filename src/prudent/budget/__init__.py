"""Budgets: ledgers, the filters that decide whether a charge fits, and their storage."""
