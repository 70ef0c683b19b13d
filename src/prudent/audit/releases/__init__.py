"""Worst-case pairs of every release: two neighbours that are as hard to hide as the price says.

A case runs the code that makes a release: its calibration, its margin or weights, its test and its
noise. What does not change the distribution of an answer (opening files, charging a ledger) is
left out, and what depends on the data alone is computed once for each of the two data sets.
"""
