"""Who a record belongs to, and which records of a person count in a step."""

import datetime
import math
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
import torch

from prudent import ArgumentError
from prudent.records import Seeds
from prudent.records.people import PeopleReader, Unit, without
from prudent.records.reader import RecordReader
from tests.records.test_labels import COLUMNS

SEEDS = Seeds(b"a step")


def people(ids, slots=3, items=None, per_unit=None):
    return Unit.given(ids, slots, per_unit).people(items, len(items) if items else len(ids))


class Broken:
    """An id that fails whatever it is asked."""

    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("secret")


class Zone(datetime.tzinfo):
    """A time zone whose text is another for each object; it may fail."""

    def __init__(self, hours=None):
        self.hours = hours

    def utcoffset(self, moment):
        if self.hours is None:
            raise RuntimeError("secret")
        return datetime.timedelta(hours=self.hours)

    def dst(self, moment):
        return datetime.timedelta(0)


def at(hour, **given):
    return datetime.datetime(2020, 1, 1, hour, **given)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["b", "a", "b"], [[1], [0, 2]]),
        ([2, 1, 2.0, True, Decimal(2), Fraction(1).numerator], [[1, 3, 5], [0, 2, 4]]),
        (np.array([7, 3, 7]), [[1], [0, 2]]),
        (torch.tensor([7, 3, 7]), [[1], [0, 2]]),
        ([None, "a", math.nan, float("nan"), [1], {}, Broken(), "a"], [[1, 7]]),
        (np.array([np.nan, 1.0, 1.0]), [[1, 2]]),
        ([at(3, tzinfo=Zone(1)), at(3, tzinfo=Zone(1)), at(2, tzinfo=datetime.UTC)], [[0, 1, 2]]),
        ([at(3, tzinfo=Zone()), at(2), at(2, fold=1), datetime.time(2, tzinfo=Zone())], [[1, 2]]),
        ([1, "1", b"1"], None),
        ([datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)] * 2, None),
    ],
)
def test_ids(ids, expected):
    found = [list(each) for each in people(ids).members]
    if expected is None:  # so many different people as there are different ids
        assert sorted(map(len, found)) == sorted(Counter(map(repr, ids)).values())
    else:
        assert found == expected


@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_id_merges_no_others(column):
    """In an array all ids would become floats beside it, and nearby ids the same float."""
    large = [2**53, 2**53 + 1, 2**53]
    for ids in (large, [*large, None]):
        assert people(column(ids)).members == [[0, 2], [1]]


@pytest.mark.parametrize("unit", ["D", "us", "ns"])
def test_dates_and_moments_of_any_container_are_ids(unit):
    days = np.array(["2020-01-02", "2020-01-01", "2020-01-02", "NaT"], dtype=f"datetime64[{unit}]")
    for ids in (days, pl.Series(days), days - np.datetime64("2019-01-01")):
        assert sorted(people(ids).members) == [[0, 2], [1]]


def test_ids_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match="one id for each record"):
        Unit.given(["a"], None, None).people([1, 2], 2)
    with pytest.raises(ArgumentError, match="plain values"):
        people([None, math.nan])
    with pytest.raises(ArgumentError, match="one id for each record"):
        people({"a": 1})
    with pytest.raises(ArgumentError, match="records_per_person"):
        Unit.given(None, 3, None)
    with pytest.raises(ArgumentError, match="per_unit"):
        Unit.given("user", None, "median")
    with pytest.raises(ArgumentError, match="records_per_person"):
        Unit.given("user", 0, None)


def reader(values, ids, slots=3, per_unit=None):
    items = [(torch.tensor([float(value)]), 0) for value in values]
    found = people(ids, slots, per_unit=per_unit)
    return PeopleReader(RecordReader(items, None, found.first(), example=items[0]), found)


def slots(made, person=0, seeds=SEEDS):
    rows = made.rows([person], [True], seeds)
    values, _ = made.batch(rows)
    return list(zip(values[:, 0].tolist(), made.shares(rows).tolist(), strict=True))


def test_slots_of_a_person_with_few_records_repeat_them_with_no_share():
    filled = slots(reader([5, 6], ["a", "a"]))
    assert [share for _, share in filled] == [0.5, 0.5, 0.0]
    assert sorted(value for value, share in filled if share) == [5, 6]
    assert filled[2][0] == filled[0][0]
    summed = slots(reader([5, 6], ["a", "a"], per_unit="sum"))
    assert [share for _, share in summed] == [1.0, 1.0, 0.0]


def test_choice_is_a_function_of_content_and_step_alone():
    values = [3, 1, 4, 1, 5, 9, 2, 6]
    choice = slots(reader(values, ["a"] * 8))
    moved = reader([7, *values[::-1], 8], ["0", *"a" * 8, "z"])
    assert slots(moved, person=1) == choice
    steps = {tuple(slots(reader(values, ["a"] * 8), seeds=Seeds(bytes([i])))) for i in range(40)}
    assert len(steps) > 20  # other records in other steps: fewer has probability below 1e-30


def test_every_copy_of_a_record_counts():
    """Of nine copies and one other record, all three slots hold copies in 7 of 10 steps."""
    made = reader([1] * 9 + [2], ["a"] * 10)
    whole = sum(
        all(value == 1 for value, _ in slots(made, seeds=Seeds(i.to_bytes(2, "little"))))
        for i in range(500)
    )
    assert 300 < whole < 400  # the draws are fixed; for others: beyond 4.8 deviations


def test_records_that_cannot_be_read_are_absent():
    items = [(torch.zeros(1), 0), 1 / 3, (torch.ones(1), 0), (torch.ones(2), 0), "odd"]
    found = people(["a", "a", "a", "b", "b"])
    made = PeopleReader(RecordReader(items, None, [0, 2], example=items[0]), found)
    rows = made.rows([0, 1], [True, True], SEEDS)
    assert rows[1] is None
    assert made.shares(rows).tolist() == [0.5, 0.5, 0, 0, 0, 0]


def test_the_entry_with_the_ids_is_no_input():
    items = [{"user": "a", "x": 1.0, "labels": 0}, {"x": 2.0, "labels": 1}, {"user": "b"}]
    unit = Unit.given("user", None, None)
    assert [list(each) for each in unit.people(items, 3).members] == [[0], [2]]
    assert unit.items(items)[0] == {"x": 1.0, "labels": 0}
    assert without("a text", "user") == "a text"
