"""Differentially private releases that test before they trust."""
