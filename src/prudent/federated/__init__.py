"""Federated learning: one client is one record, and a round is one step of a plan.

`PrivateStrategy` is a strategy for Flower (extra `federated`). `RoundRelease` releases the updates
of one round and can be used without Flower.
"""

from typing import TYPE_CHECKING, Any

from prudent.federated.release import RoundOutcome, RoundRelease

if TYPE_CHECKING:
    from prudent.federated.strategy import PrivateStrategy

__all__ = ["PrivateStrategy", "RoundOutcome", "RoundRelease"]


def __getattr__(name: str) -> Any:
    """Import Flower only when its strategy is requested, so that a release works without it."""
    if name != "PrivateStrategy":
        raise AttributeError(f"module 'prudent.federated' has no attribute {name!r}")
    from prudent.federated.strategy import PrivateStrategy

    return PrivateStrategy
