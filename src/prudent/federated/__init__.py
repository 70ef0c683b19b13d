"""Federated learning: one client is one record, and a round is one step of a plan.

`PrivateStrategy` is a strategy for Flower (extra `federated`); `RoundRelease` is what it does with
the updates of a round, for any other way of collecting them.
"""

from typing import TYPE_CHECKING, Any

from prudent.federated.release import RoundOutcome, RoundRelease

if TYPE_CHECKING:
    from prudent.federated.strategy import PrivateStrategy

__all__ = ["PrivateStrategy", "RoundOutcome", "RoundRelease"]


def __getattr__(name: str) -> Any:
    """Flower is looked for when its strategy is, so that a release can do without it."""
    if name != "PrivateStrategy":
        raise AttributeError(f"module 'prudent.federated' has no attribute {name!r}")
    from prudent.federated.strategy import PrivateStrategy

    return PrivateStrategy
