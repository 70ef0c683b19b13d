"""Which events the accountants price under each of dp_accounting's neighbouring relations.

| relation | priced |
|---|---|
| ADD_OR_REMOVE_ONE | every event of this package, and dp_accounting's |
| REPLACE_SPECIAL | the same at the same price, and the events dp_accounting has for it |
| REPLACE_ONE | what dp_accounting prices; no event of this package |

Replacing a record by a special, empty one is removing it from everything a mechanism computes: its
batch, its margin, its sum. So the pairs are those of removing a record. Replacing it by any other
record moves a margin by up to two, which the events of this package do not describe.
"""

from typing import TypeAlias

import attrs
import dp_accounting as dp
from dp_accounting import NeighboringRelation

from prudent import _validate
from prudent.accounting.domination import Parts, additive_parts
from prudent.accounting.events import MarginTest, ProposeTestReleaseDpEvent

ErrorDetails: TypeAlias = dp.PrivacyAccountant.CompositionErrorDetails


def check_relation(neighboring_relation: NeighboringRelation) -> NeighboringRelation:
    """Returns the relation, checked."""
    if not isinstance(neighboring_relation, NeighboringRelation):
        _validate.one_of(list(NeighboringRelation), neighboring_relation=neighboring_relation)
    return neighboring_relation


def refused(leaf: dp.DpEvent, relation: NeighboringRelation) -> ErrorDetails | None:
    """Why an event of this package, sampled or not, has no price under a relation; else None."""
    inner = leaf
    while isinstance(inner, dp.PoissonSampledDpEvent):
        inner = inner.event
    ours = isinstance(inner, MarginTest | ProposeTestReleaseDpEvent)
    if not ours or relation is not NeighboringRelation.REPLACE_ONE:
        return None
    return ErrorDetails(
        leaf,
        f"{type(inner).__name__} describes adding or removing a record. Compose it under "
        "ADD_OR_REMOVE_ONE: replacing a record is removing one and adding another.",
    )


def with_halved_noise(leaf: dp.DpEvent) -> dp.DpEvent:
    """The event that replaces a record by any other, where dp_accounting's Rényi accountant errs.

    A noise multiplier is relative to what one record can add. Replacing it moves the sum by twice
    that: so dp_accounting's privacy-loss accountant has it, while its Rényi accountant charges as
    for a removed record, a quarter of the divergence of a Gaussian.
    """
    match leaf:
        case dp.GaussianDpEvent() | dp.LaplaceDpEvent():
            return attrs.evolve(leaf, noise_multiplier=leaf.noise_multiplier / 2)
        case dp.SampledWithoutReplacementDpEvent():
            match additive_parts(leaf.event):
                case Parts(sigma=sigma, others=()):
                    return attrs.evolve(leaf, event=dp.GaussianDpEvent(sigma / 2))
    return leaf
