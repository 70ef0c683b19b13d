"""Audits of private training: white box, many canaries in one run, and black box."""
