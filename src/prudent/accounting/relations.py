"""Neighbouring relations: which two data sets a printed ε compares.

An (ε, δ) is meaningful only together with the neighbouring relation it holds for. The relation is
therefore a value, which plans, ledgers and the command line store and print beside every ε.

| adjacency | neighbours | what is public | distance |
|---|---|---|---|
| add-remove | one data set has one record more | nothing about the number of records | 1 |
| zero-out | one record is replaced by one that contributes nothing | the number of records | 1 |
| replace-one | one record is replaced by any other | the number of records | 2 |

The distance is the number of added or removed records that lead from one data set to the other.
Accountants compute ε at distance 1; `group_privacy` extends it to any other distance.

Zero-out has the same ε as add-remove. A record that is zeroed out contributes no summand, has no
rank in the order of norms and does not affect a margin: the output has the same distribution as if
it were absent and every public number (sampling rate, expected batch size, trim) unchanged. So the
two differ only in whether these public numbers may be computed from the number of records.
"""

import enum
import math
from fractions import Fraction
from typing import Any

import attrs

from prudent import _validate


class Adjacency(_validate.Choice, enum.StrEnum):
    """How neighbouring data sets differ in one record."""

    ADD_REMOVE = "add-remove"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"


_SENTENCES = {
    Adjacency.ADD_REMOVE: "adding or removing {some}",
    Adjacency.ZERO_OUT: "zeroing out {some} (the number of {unit}s is public)",
    Adjacency.REPLACE_ONE: "replacing {some} (the number of {unit}s is public)",
}


@attrs.frozen
class Relation:
    """The neighbouring relation of a guarantee.

    Attributes:
        adjacency: How one record may differ.
        records: The number of records of a privacy unit, at most. 1 protects single records. This
            limit is not enforced here, but must be ensured when the data are collected: a unit with
            more records gets a weaker guarantee.
    """

    adjacency: Adjacency = attrs.field(default=Adjacency.ADD_REMOVE, converter=Adjacency)
    records: int = attrs.field(default=1, validator=_validate.kept(_validate.count, 1))

    @property
    def distance(self) -> int:
        """The largest number of added or removed records between two neighbouring data sets."""
        return self.records * (2 if self.adjacency is Adjacency.REPLACE_ONE else 1)

    @property
    def size_is_public(self) -> bool:
        """Whether the guarantee treats the number of records as public."""
        return self.adjacency is not Adjacency.ADD_REMOVE

    def per_record(self, epsilon: float, delta: float) -> tuple[float, float]:
        """The (ε₁, δ₁) per added or removed record that implies (`epsilon`, `delta`) here.

        At distance k, ε₁ = ε/k and δ₁ = δ (e^ε₁ - 1)/(e^ε - 1), both rounded down.

        Guarantee:
            A mechanism that is (ε₁, δ₁)-DP for adding or removing one record is (ε, δ)-DP for this
            relation. Proof: along a chain S₀, …, S_k of data sets, each one record from the next,
            P₀(A) ≤ e^ε₁ P₁(A) + δ₁ ≤ … ≤ e^kε₁ P_k(A) + δ₁ (1 + e^ε₁ + … + e^(k-1)ε₁), and the sum
            in parentheses is (e^ε - 1)/(e^ε₁ - 1). The same holds with any smaller number in place
            of ε₁: a ledger that has spent ε' ≤ ε₁ at δ₁ has spent kε' at δ.
        """
        _validate.non_negative(epsilon=epsilon)
        _validate.between(0, 1, delta=delta)
        k = self.distance
        if k == 1:
            return epsilon, delta
        one = epsilon / k
        # As the numbers are written: ten times 0.1 is 1, which no sum of doubles is.
        while Fraction(repr(one)) * k > Fraction(repr(epsilon)):
            one = math.nextafter(one, 0.0)
        share = 1 / k
        if epsilon > 0:  # (e^ε₁ - 1)/(e^ε - 1), without overflow
            fall = math.exp(epsilon / k - epsilon)
            share = fall * math.expm1(-epsilon / k) / math.expm1(-epsilon)
        down = 1 - 1e-13  # covers the rounding errors of exp at arguments of a few hundred
        return one, math.nextafter(delta * share * down, 0.0)

    def sentence(self, unit: str = "record") -> str:
        """The relation in words, such as "adding or removing one record"."""
        some = f"one {unit}" if self.records == 1 else f"up to {self.records:,} {unit}s"
        return _SENTENCES[self.adjacency].format(some=some, unit=unit)

    def __str__(self) -> str:
        return self.sentence()


def check_relation(**argument: Any) -> Relation:
    """Return the argument if it is a `Relation`; raise ValueError otherwise."""
    ((name, value),) = argument.items()
    if not isinstance(value, Relation):
        hint = "Use ADD_REMOVE, ZERO_OUT or REPLACE_ONE, or Relation('zero-out', records=3)."
        raise _validate.ArgumentError(name, "a Relation", got=value, hint=hint)
    return value


ADD_REMOVE = Relation()
"""One record is added or removed; the number of records is secret."""

ZERO_OUT = Relation(Adjacency.ZERO_OUT)
"""One record is replaced by one that contributes nothing; the number of records is public."""

REPLACE_ONE = Relation(Adjacency.REPLACE_ONE)
"""One record is replaced by another; the number of records is public."""
