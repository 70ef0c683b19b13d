"""The events that the accountants support under each of dp_accounting's neighbouring relations.

| relation | supported events |
|---|---|
| ADD_OR_REMOVE_ONE | every event of this package, and those of dp_accounting |
| REPLACE_SPECIAL | the same, with the same ε, and dp_accounting's events for this relation |
| REPLACE_ONE | those of dp_accounting; no event of this package |

Replacing a record by a special, empty record removes it from everything a mechanism computes: its
batch, its margin, its sum. So the dominating pairs are those of removing a record. Replacing it by
any other record moves a margin by up to two, which the events of this package do not describe.
"""

from typing import TypeAlias

import attrs
import dp_accounting as dp
from dp_accounting import NeighboringRelation

from prudent import _validate
from prudent.accounting.domination import Parts, additive_parts
from prudent.accounting.events import (
    ApproximateDpEvent,
    BinomialSelectionDpEvent,
    ExponentialMechanismDpEvent,
    MarginTest,
    ProposeTestReleaseDpEvent,
    WorstOfDpEvent,
)

ErrorDetails: TypeAlias = dp.PrivacyAccountant.CompositionErrorDetails


def check_neighbouring(neighboring_relation: NeighboringRelation) -> NeighboringRelation:
    """Return the argument if it is a `NeighboringRelation`; raise ValueError otherwise."""
    if not isinstance(neighboring_relation, NeighboringRelation):
        _validate.one_of(list(NeighboringRelation), neighboring_relation=neighboring_relation)
    return neighboring_relation


def refused(leaf: dp.DpEvent, relation: NeighboringRelation) -> ErrorDetails | None:
    """Return why an event of this package is not supported under a relation; None if it is."""
    inner = leaf
    while isinstance(inner, dp.PoissonSampledDpEvent):
        inner = inner.event
    ours = isinstance(
        inner,
        MarginTest
        | ProposeTestReleaseDpEvent
        | ExponentialMechanismDpEvent
        | ApproximateDpEvent
        | BinomialSelectionDpEvent
        | WorstOfDpEvent,
    )
    if not ours or relation is not NeighboringRelation.REPLACE_ONE:
        return None
    return ErrorDetails(
        leaf,
        f"{type(inner).__name__} describes adding or removing a record. Compose it under "
        "ADD_OR_REMOVE_ONE: replacing a record is removing one and adding another.",
    )


def with_halved_noise(leaf: dp.DpEvent) -> dp.DpEvent:
    """Correct an event for replacing a record, where dp_accounting's Rényi accountant is wrong.

    A noise multiplier is relative to what one record can add; replacing a record moves the sum by
    twice as much. dp_accounting's PLD accountant takes this into account. Its Rényi accountant
    charges the event like a removed record: for a Gaussian, a quarter of the divergence. Halving
    the noise corrects this.
    """
    match leaf:
        case dp.GaussianDpEvent() | dp.LaplaceDpEvent():
            return attrs.evolve(leaf, noise_multiplier=leaf.noise_multiplier / 2)
        case dp.SampledWithoutReplacementDpEvent():
            match additive_parts(leaf.event):
                case Parts(sigma=sigma, others=()):
                    return attrs.evolve(leaf, event=dp.GaussianDpEvent(sigma / 2))
    return leaf
