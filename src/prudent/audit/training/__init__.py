"""Audits of private training: white box, and many canaries in one run."""
