"""The trade-off between two distributions: how small a probability can be under the other one.

Let P and Q be two distributions of an output, δ(t) an upper bound on sup over events of P - e^t Q,
and δ'(t) one on sup of Q - e^t P. An event, or the expectation of a function with values in [0, 1],
that is u under P is under Q, for every t ≥ 0, at least

    e^-t (u - δ(t))    and    1 - δ'(t) - e^t (1 - u).

The first is the definition of δ; the second is that of δ' for the complement. Every t gives a valid
bound, so nothing is lost but tightness by taking finitely many.
"""

from functools import cached_property
from typing import Any, TypeAlias

import attrs
import numpy as np

from prudent.accounting.losses.loss_tables import Array

Profile: TypeAlias = tuple[Array, Array]
"""Values of t, increasing from zero, and upper bounds on δ(t) at these."""


@attrs.frozen(eq=False, slots=False)
class TradeOff:
    """Lower bounds on probabilities under Q, given those under P.

    Attributes:
        forward: The profile of P against Q.
        backward: The profile of Q against P.
    """

    forward: Profile
    backward: Profile

    @property
    def reversed(self) -> "TradeOff":
        """The trade-off of Q and P."""
        return TradeOff(self.backward, self.forward)

    def least(self, u: Array | float, rest: Array | float | None = None) -> Array:
        """The greatest of the bounds over all t, up to rounding.

        Args:
            u: Probabilities under P.
            rest: 1 - u, where that is known more precisely.
        """
        u, rest = np.asarray(u), np.asarray(1 - u if rest is None else rest)
        flat = self._flat(u[..., None], ...).max(axis=-1)
        steep = self._steep(rest[..., None], ...).max(axis=-1)
        return np.asarray(np.maximum(flat, steep))

    def searched(self, u: Array) -> Array:
        """As `least`, much faster: for convex profiles the best t is found by bisection.

        Which t is chosen does not affect validity.
        """
        below, above = self._bends
        low, high = np.searchsorted(below, -u), np.searchsorted(above, u - 1)
        return np.maximum(self._flat(u, low), self._steep(1 - u, high))

    def _flat(self, u: Array, at: Any) -> Array:
        return np.asarray(self._factors[0][at] * (u - self.forward[1][at]))

    def _steep(self, rest: Array, at: Any) -> Array:
        return np.asarray(1 - self._factors[1][at] * rest - self.backward[1][at])

    @cached_property
    def _factors(self) -> tuple[Array, Array]:
        return np.exp(-self.forward[0]), np.exp(self.backward[0])

    @cached_property
    def _bends(self) -> tuple[Array, Array]:
        """Where the best t changes, in -u and in u - 1."""
        shrink, grow = self._factors
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            below = np.diff(shrink * self.forward[1]) / np.diff(shrink)
            above = -np.diff(self.backward[1]) / np.diff(grow)
        below, above = (np.nan_to_num(bends, nan=0.0, posinf=1.0) for bends in (below, above))
        return -np.minimum.accumulate(below), -np.minimum.accumulate(above)
