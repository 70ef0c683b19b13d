"""Federated learning: one client is one record, and a round is one step of a plan.

`PrivateStrategy` is a strategy for Flower (extra `federated`). `RoundRelease` releases the updates
of one round and can be used without Flower. The names are listed in `__init__.pyi`, and each is
imported when it is first used.
"""

from prudent import _lazy

__all__, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
