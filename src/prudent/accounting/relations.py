"""Neighbouring relations: which two data sets a printed ε compares.

An (ε, δ) means nothing without the relation it holds for, so the relation is a value: plans,
ledgers and the command line carry one and print it beside every ε.

| adjacency | neighbours | what is public | unit price |
|---|---|---|---|
| add-remove | one data set has one record more | nothing about the number of records | 1 |
| zero-out | one record is replaced by one that contributes nothing | the number of records | 1 |
| replace-one | one record is replaced by any other | the number of records | 2 |
"""

import enum
from functools import partial

import attrs

from prudent import _validate


class Adjacency(enum.StrEnum):
    """How neighbouring data sets differ in one record."""

    ADD_REMOVE = "add-remove"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"


_SENTENCES = {
    Adjacency.ADD_REMOVE: "adding or removing {records}",
    Adjacency.ZERO_OUT: "blanking out {records} (the number of records is public)",
    Adjacency.REPLACE_ONE: "replacing {records} (the number of records is public)",
}


@attrs.frozen
class Relation:
    """The neighbouring relation of a guarantee.

    Attributes:
        adjacency: How one record may differ.
        records: How many records one person may have: 1 protects a record, more protect a person.
    """

    adjacency: Adjacency = attrs.field(default=Adjacency.ADD_REMOVE, converter=Adjacency)
    records: int = 1

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, partial(_validate.count, 1), "records")

    @property
    def distance(self) -> int:
        """How many added or removed records lead from a data set to its neighbour, at most."""
        return self.records * (2 if self.adjacency is Adjacency.REPLACE_ONE else 1)

    def __str__(self) -> str:
        records = "one record" if self.records == 1 else f"up to {self.records} records"
        return _SENTENCES[self.adjacency].format(records=records)


ADD_REMOVE = Relation()
ZERO_OUT = Relation(Adjacency.ZERO_OUT)
REPLACE_ONE = Relation(Adjacency.REPLACE_ONE)
