"""Slow, independent ways to the same numbers: quadrature, enumeration, simulation."""
