"""Neighbouring relations: which two data sets a printed ε compares.

An (ε, δ) means nothing without the relation it holds for, so the relation is a value: plans,
ledgers and the command line carry one and print it beside every ε.

| adjacency | neighbours | what is public | distance |
|---|---|---|---|
| add-remove | one data set has one record more | nothing about the number of records | 1 |
| zero-out | one record is replaced by one that contributes nothing | the number of records | 1 |
| replace-one | one record is replaced by any other | the number of records | 2 |

The distance is how many added or removed records lead from one data set to the other. Accountants
price a distance of 1; `group_privacy` prices any other.

Zero-out has the price of add-remove. A blanked record contributes nothing: no summand, no place in
the order of norms, no part in a margin. So the output has the law it has when the record is absent
and every public number (sampling rate, expected batch, trim) is kept. The two relations compare the
same pairs of laws; they differ in whether these numbers may be computed from the number of records.
"""

import enum
import math
from functools import partial
from typing import Any

import attrs

from prudent import _validate


class Adjacency(enum.StrEnum):
    """How neighbouring data sets differ in one record."""

    ADD_REMOVE = "add-remove"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    @classmethod
    def _missing_(cls, value: object) -> None:
        allowed = ", ".join(repr(member.value) for member in cls)
        raise _validate.ArgumentError("adjacency", f"one of {allowed}", got=value)


_SENTENCES = {
    Adjacency.ADD_REMOVE: "adding or removing {some}",
    Adjacency.ZERO_OUT: "blanking out {some} (the number of {unit}s is public)",
    Adjacency.REPLACE_ONE: "replacing {some} (the number of {unit}s is public)",
}


@attrs.frozen
class Relation:
    """The neighbouring relation of a guarantee.

    Attributes:
        adjacency: How one record may differ.
        records: How many records one person may have: 1 protects a record, more protect a person.
            Nothing limits the records of a person but whoever collects them: a person with more is
            protected less.
    """

    adjacency: Adjacency = attrs.field(default=Adjacency.ADD_REMOVE, converter=Adjacency)
    records: int = 1

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, partial(_validate.count, 1), "records")

    @property
    def distance(self) -> int:
        """How many added or removed records lead from a data set to its neighbour, at most."""
        return self.records * (2 if self.adjacency is Adjacency.REPLACE_ONE else 1)

    @property
    def size_is_public(self) -> bool:
        """Whether the guarantee treats the number of records as known to everybody."""
        return self.adjacency is not Adjacency.ADD_REMOVE

    def per_record(self, epsilon: float, delta: float) -> tuple[float, float]:
        """The (ε₁, δ₁) of one added or removed record that makes (`epsilon`, `delta`) of this.

        ε₁ = ε/k and δ₁ = δ (e^ε₁ - 1)/(e^ε - 1) at distance k, rounded down.

        Guarantee:
            What is (ε₁, δ₁)-DP for adding or removing one record, is (ε, δ)-DP for this relation.
            Proof: along the chain S₀, …, S_k of data sets, each one record from the next,
            P₀(A) ≤ e^ε₁ P₁(A) + δ₁ ≤ … ≤ e^kε₁ P_k(A) + δ₁ (1 + e^ε₁ + … + e^(k-1)ε₁), and the sum
            is (e^ε - 1)/(e^ε₁ - 1). It holds for ε₁ or less in place of ε₁, too: a ledger that has
            spent ε' ≤ ε₁ at δ₁ has spent kε' at δ.
        """
        _validate.non_negative(epsilon=epsilon)
        _validate.between(0, 1, delta=delta)
        k = self.distance
        if k == 1:
            return epsilon, delta
        share = 1 / k
        if epsilon > 0:  # (e^ε₁ - 1)/(e^ε - 1), without overflow
            fall = math.exp(epsilon / k - epsilon)
            share = fall * math.expm1(-epsilon / k) / math.expm1(-epsilon)
        down = 1 - 1e-13  # more than an exponential of some hundreds is rounded by
        return epsilon / k * down, math.nextafter(delta * share * down, 0.0)

    def sentence(self, unit: str = "record") -> str:
        """What an ε is for, in words: "adding or removing one record"."""
        some = f"one {unit}" if self.records == 1 else f"up to {self.records:,} {unit}s"
        return _SENTENCES[self.adjacency].format(some=some, unit=unit)

    def __str__(self) -> str:
        return self.sentence()


def check_relation(**argument: Any) -> Relation:
    """A relation, and nothing else."""
    ((name, value),) = argument.items()
    if not isinstance(value, Relation):
        raise _validate.ArgumentError(
            name,
            "a Relation",
            got=value,
            hint="Give one of prudent.ADD_REMOVE, ZERO_OUT, REPLACE_ONE, or "
            "Relation('zero-out', records=3) for 3 records of a person.",
        )
    return value


ADD_REMOVE = Relation()
ZERO_OUT = Relation(Adjacency.ZERO_OUT)
REPLACE_ONE = Relation(Adjacency.REPLACE_ONE)
