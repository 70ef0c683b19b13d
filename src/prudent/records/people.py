"""People: the records of a data set by whom they belong to, and what counts of a person in a step.

With a privacy unit a person is what a record is without one: she is drawn, her gradient is that of
all her records in the step, and it is clipped once. So what she adds must be a function of her own
records and of public facts alone, bit for bit:

| case | what happens |
|---|---|
| more records than slots | a keyed draw by their content, a new one in every step, chooses |
| fewer records than slots | the other slots repeat them with a share of zero |
| order of her records in the data set | no effect: slots are filled in the order of that draw |
| records with the same content | each counts, and which of them is chosen makes no difference |
| record that cannot be read or has another form | absent; a person without any other is absent |
| record whose id is None, NaN or no plain value | absent: it belongs to nobody |
| ids 1, 1.0 and True, or a text and its copy | one person, as everywhere numbers are compared |
| the same moment in two time zones | one person |
"""

import datetime
import hashlib
import uuid
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Self

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from prudent import _validate
from prudent._torch_private import pytree
from prudent._validate import ArgumentError
from prudent.records import Seeds, generators_kept
from prudent.records.arrays import column_values, exact_key, on_host
from prudent.records.containers import declared_form, digest
from prudent.records.reader import TRIES, Collate, RecordReader, row_of

_SLOTS = 8
_PLAIN = (
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
    *(uuid.UUID, bytes),
)


class PerUnit(_validate.Choice):
    """What the loss of a person is, given the losses of her records in a step."""

    MEAN = "mean"
    SUM = "sum"


@attrs.frozen(eq=False)
class Unit:
    """Who is protected, as the arguments of an entry say it."""

    ids: Any  # one id per record, or the name of the entry of each item that holds it
    slots: int  # the public number of records of a person that count in a step, at most
    per_unit: PerUnit  # what the loss of a person is

    @classmethod
    def given(cls, unit: Any, records_per_person: int | None, per_unit: str | None) -> Self | None:
        """The unit that the arguments of an entry name; None: every record is protected alone."""
        if unit is None:
            given = {"records_per_person": records_per_person, "per_unit": per_unit}
            for name, value in given.items():
                if value is not None:
                    raise ArgumentError(name, "None without a unit", got=value)
            return None
        slots = _SLOTS if records_per_person is None else records_per_person
        return cls(
            unit,
            _validate.count(1, records_per_person=slots),
            PerUnit.MEAN if per_unit is None else PerUnit(per_unit),
        )

    @property
    def column(self) -> str | None:
        """The name of the entry that holds the ids, which is no input of a model."""
        return self.ids if isinstance(self.ids, str) else None

    def of_held_out(self, items: Any, ids: Any) -> Self:
        """The unit of held-out records, if any: an entry of this name, or ids of their own."""
        if items is not None and ids is None and self.column is None:
            why = "the records for training have a unit"
            raise ArgumentError(
                "held_out_unit", "one id for each held-out record", got=None, why=why
            )
        return self if ids is None else attrs.evolve(self, ids=ids)

    def people(self, items: Any, records: int) -> "People":
        """The people of a data set of so many records."""
        ids = self.ids if self.column is None else _column(items, self.column, records)
        keys = _keys(ids)
        if len(keys) != records:
            shown = f"{len(keys)} for {records} records"
            raise ArgumentError("unit", "one id for each record", shown=shown)
        members: dict[Hashable, list[int]] = {}
        for record, key in enumerate(keys):
            if key is not None:
                members.setdefault(key, []).append(record)
        if not members:
            raise ArgumentError(
                "unit",
                "texts, numbers, dates or other plain values",
                shown="other values or none at all",
                why="a record whose id is none of these belongs to nobody and is absent",
            )
        ordered = sorted(members, key=lambda key: (type(key).__name__, key))
        return People([members[key] for key in ordered], self.slots, self.per_unit, ordered)

    def items(self, items: Any) -> Any:
        """The items of a data set without the entry that holds the ids."""
        return items if self.column is None else DropColumn(items, self.column)


def people_in(ids: Any, records: int) -> int:
    """The number of people to whom so many records belong."""
    return len(Unit(ids, 1, PerUnit.MEAN).people(None, records))


@attrs.frozen(eq=False)
class People:
    """The people of a data set, in an order that does not depend on that of the records."""

    members: Sequence[Sequence[int]]  # the numbers of the records of each person
    slots: int  # records of a person that count in a step, at most
    per_unit: PerUnit  # what the loss of a person is
    keys: Sequence[Hashable]  # who each of them is. Secret.

    def __len__(self) -> int:
        return len(self.members)

    def first(self, start: int = 0, step: int = 1) -> list[int]:
        """A record of each of the first people, so that no person has two among them."""
        return [self.members[person][0] for person in range(start, len(self), step)[:TRIES]]

    def apart_from(self, others: "People | None") -> list[Sequence[int]]:
        """The records of each person who is not among the others."""
        known = set() if others is None else set(others.keys)
        return [each for key, each in zip(self.keys, self.members, strict=True) if key not in known]

    def fingerprint(self, records: str) -> str:
        """A fingerprint of the people and of the fingerprint of their records. Secret."""
        listed = [list(each) for each in self.members]
        return digest([records, listed, self.slots, self.per_unit.value]).hex()


@attrs.frozen(eq=False)
class Units:
    """What a plan counts and batches are drawn of: every record of a data set, or every person."""

    items: Any  # the data set, without the entry that holds ids
    records: int  # number of records
    unit: Unit | None = None  # whose they are; None: every record is protected alone
    people: People | None = None  # the people, if there is a unit

    @classmethod
    def of(cls, data: Any, unit: Unit | None = None, records: int | None = None) -> Self:
        """The units of a data set, whose number of records may be known."""
        records = len(data) if records is None else records
        if unit is None:
            return cls(data, records)
        return cls(unit.items(data), records, unit, unit.people(data, records))

    def __len__(self) -> int:
        return self.records if self.people is None else len(self.people)

    @property
    def protected(self) -> str:
        """What a guarantee is about."""
        return "record" if self.unit is None else "person"

    @property
    def slots(self) -> int | None:
        """Rows of each person in a batch; None without people."""
        return None if self.unit is None else self.unit.slots

    @property
    def column(self) -> str | None:
        """The name of the entry of items that holds ids, if there is one."""
        return None if self.unit is None else self.unit.column

    def fingerprint(self, records: str) -> str:
        """A fingerprint of them, given that of the records. Secret."""
        return records if self.people is None else self.people.fingerprint(records)

    def record_reader(
        self, collate_fn: Collate | None, own: tuple[int, int] = (0, 1), **form: Any
    ) -> RecordReader:
        """Reads the records; `own` are the start and the step of those of this process."""
        people, (start, step) = self.people, own
        first = range(start, self.records, step) if people is None else people.first(start, step)
        if form.get("example") is not None:
            form["example"] = without(form["example"], self.column)
        elif (declared := declared_form(self.items)) is not None:
            if collate_fn not in (None, default_collate):
                with generators_kept():
                    declared = row_of(collate_fn([tuple(declared)]), 1)
            form = {"like": declared, **form}
        return RecordReader(self.items, collate_fn, first, **form)

    def reader(
        self, collate_fn: Collate | None, own: tuple[int, int] = (0, 1), **form: Any
    ) -> "RecordReader | PeopleReader":
        """Reads the units by their numbers, in the way of `record_reader`."""
        records = self.record_reader(collate_fn, own, **form)
        return records if self.people is None else PeopleReader(records, self.people)


class PeopleReader:
    """Reads the slots of people by their numbers, in the way of a `RecordReader`."""

    def __init__(self, reader: "RecordReader | TensorReader", people: People) -> None:
        self._reader, self._people = reader, people
        self._contents: dict[int, list[tuple[int, bytes]]] = {}

    def rows(
        self, ids: Sequence[int], valid: Sequence[bool], seeds: Seeds
    ) -> list[list[Any] | None]:
        """The rows of people in a step; None for padding and for people without any."""
        found: list[list[Any] | None] = []
        slots = self._people.slots
        with generators_kept():
            for person, real in zip(ids, valid, strict=True):
                known = self._known(person) if real else []
                ordered = sorted((seeds.order(content), record) for record, content in known)
                rows = [
                    self._reader.row(record, seeds.of(person * slots + slot))
                    for slot, (_, record) in enumerate(ordered[:slots])
                ]
                found.append([row for row in rows if row is not None] or None)
        return found

    def batch(self, found: Sequence[list[Any] | None]) -> Any:
        """The slots of all people, one after another, with the records on the first axis."""
        slots = range(self._people.slots)
        return self._reader.batch(
            [None if rows is None else rows[slot % len(rows)] for rows in found for slot in slots]
        )

    def shares(self, found: Sequence[list[Any] | None]) -> Tensor:
        """What the loss in each slot is multiplied by."""
        shares = torch.zeros(len(found), self._people.slots, dtype=torch.float64)
        for place, rows in enumerate(found):
            if rows is not None:
                mean = self._people.per_unit is PerUnit.MEAN
                shares[place, : len(rows)] = 1 / len(rows) if mean else 1.0
        return shares.flatten()

    def _known(self, person: int) -> list[tuple[int, bytes]]:
        """The readable records of a person, each with what no other of hers has.

        Records are read with one seed for all to find it, and once: what is drawn while a record is
        read must not depend on its place. One that is alone needs nothing.
        """
        members = self._people.members[person]
        if len(members) == 1:
            return [(members[0], b"")]
        if person not in self._contents:
            count: dict[bytes, int] = {}
            known = []
            for record in members:
                content = self._reader.content(record)
                if content is not None:
                    count[content] = count.get(content, 0) + 1
                    known.append((record, content + count[content].to_bytes(8, "little")))
            self._contents[person] = known
        return self._contents[person]


@attrs.frozen(eq=False)
class TensorReader:
    """Reads the records of a pair of tensors, on the host, in the way of a `RecordReader`.

    A row is the number of its record, so that a batch is read at once.
    """

    tensors: tuple[Any, Any]

    def row(self, number: int, seed: int) -> int:
        """The row of a record; nothing is drawn."""
        return number

    def content(self, number: int) -> bytes:
        """A digest of a record."""
        return digest([leaf[number] for leaf in pytree.tree_leaves(self.tensors)])

    def batch(self, rows: Sequence[int | None]) -> tuple[Any, Any]:
        """Inputs and targets; the first record stands in for None."""
        numbers = torch.tensor([row or 0 for row in rows])
        inputs, targets = pytree.tree_map(
            lambda leaf: leaf.index_select(0, numbers.to(leaf.device)), self.tensors
        )
        return inputs, targets


@attrs.frozen(eq=False)
class DropColumn:
    """The items of a data set of mappings without one of their entries."""

    items: Any
    name: str

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        return without(self.items[number], self.name)


def without(item: Any, name: str | None) -> Any:
    """An item without one of its entries, if it is a mapping that has it."""
    if name is None or not isinstance(item, Mapping):
        return item
    return {key: value for key, value in item.items() if key != name}


def _column(items: Any, name: str, records: int) -> list[Any]:
    """The entry of this name of every item; None for an item that has none."""
    if name in (getattr(items, "column_names", None) or ()):  # of Hugging Face, read at once
        return list(items[name])

    def entry(number: int) -> Any:
        try:
            return items[number][name]
        except Exception:  # its text may quote the record
            return None

    return [entry(number) for number in range(records)]


def _keys(ids: Any) -> list[Hashable | None]:
    """What each id is, exactly; None if it is no id."""
    ids = on_host(ids)
    if hasattr(ids, "to_numpy"):  # a column of a frame
        ids = column_values(ids)
    if isinstance(ids, str | bytes | Mapping) or not hasattr(ids, "__len__"):
        raise ArgumentError("unit", "one id for each record", shown=type(ids).__name__)
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "biuU" and ids.ndim == 1:
        different, places = np.unique(ids, return_inverse=True)
        known = [_key(each) for each in different]
        return [known[place] for place in places]
    return [_key(each) for each in ids]


def _key(given: Any) -> Hashable | None:
    if isinstance(given, np.datetime64 | np.timedelta64):
        given = given.item()
    if type(given) is Decimal:
        return Fraction(given) if given.is_finite() else None
    if type(given) in (datetime.datetime, datetime.time):
        given = _moment(given)
    if type(given) in _PLAIN:
        return hashlib.blake2b(repr((type(given).__name__, given)).encode()).hexdigest()
    return exact_key(given)


def _moment(given: Any) -> Any:
    """A time whose text is the same wherever it compares as equal; None if it has none."""
    if given.tzinfo is None:
        return given.replace(fold=0)
    try:  # a zone is code of its own
        return given.astimezone(datetime.UTC)
    except Exception:
        return None
