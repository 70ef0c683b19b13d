"""Reading records one at a time, each by its own random stream."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from prudent import ArgumentError
from prudent.records import PUBLIC, Seeds
from prudent.records.reader import RecordReader
from prudent.training import Key, PoissonSampler


class Items:
    def __init__(self, make, count=20):
        self.make, self.count = make, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.make(index)

    def __getitems__(self, ids):
        raise AssertionError("records are read one at a time")


def pair(index):
    return torch.full((3,), float(index)), index


def shaken(index):
    shift = torch.rand(()) + random.random() + np.random.rand()  # noqa: NPY002
    return torch.full((3,), float(index)) + shift, index


def reader(make, collate_fn=None, **options):
    options = {"example": (torch.zeros(3), 0)} | options
    return RecordReader(Items(make), collate_fn, range(20), **options)


def rows(made, ids, seeds=PUBLIC):
    return [row[0] for row in made.rows(ids, [True] * len(ids), seeds)]


@pytest.mark.parametrize(
    "collate_fn", [None, default_collate, lambda items: default_collate(items)]
)
def test_random_numbers_follow_the_record_not_its_place(collate_fn):
    made = reader(shaken, collate_fn)
    whole = rows(made, [3, 4, 5])
    assert torch.equal(torch.stack(rows(made, [5, 3])), torch.stack([whole[2], whole[0]]))
    assert not torch.equal(whole[0] - 3, whole[1] - 4)
    other = rows(made, [3], Seeds(b"another step"))
    assert not torch.equal(whole[0], other[0])


def test_seeds_follow_from_key_step_and_record_in_any_number_of_processes():
    sampler = PoissonSampler(20, 0.5, key=Key.from_seed(0))
    assert sampler.draw(3).seeds == sampler.draw(3).seeds != sampler.draw(4).seeds
    other = PoissonSampler(20, 0.5, key=Key.from_seed(1))
    assert sampler.draw(3).seeds != other.draw(3).seeds
    found = {sampler.draw(step).seeds.of(record) for step in range(9) for record in range(99)}
    assert len(found) == 9 * 99
    assert "secret" not in repr(sampler.draw(3).seeds)


def running_on():
    own = torch.Generator().manual_seed(0)
    return lambda index: (torch.rand(3, generator=own), index)


def counting():
    seen = []

    def collate(items):
        seen.append(1)
        return default_collate([(x + len(seen), y) for x, y in items])

    return collate


@pytest.mark.parametrize(
    ("make", "collate_fn"), [(running_on(), None), (pair, counting())], ids=["data", "collator"]
)
def test_what_runs_on_from_record_to_record_is_refused(make, collate_fn):
    with pytest.raises(ArgumentError, match="stay the same when they are read again"):
        reader(make, collate_fn)


def test_a_generator_seeded_by_torchs_is_not():
    def seeded(index):
        own = np.random.default_rng(torch.initial_seed())
        return torch.from_numpy(own.random(3)).float(), index

    assert len(rows(reader(seeded), [1, 2])) == 2


def test_one_unsteady_record_is_its_own_affair():
    own = torch.Generator().manual_seed(0)
    made = reader(lambda index: (torch.rand(3, generator=own), 0) if index == 2 else pair(index))
    assert torch.equal(rows(made, [4])[0], pair(4)[0])


def test_the_collator_gets_one_record_and_the_example():
    seen = []

    def noted(items):
        seen.append(len(items))
        return default_collate(items)

    made = reader(pair, noted)
    assert torch.equal(rows(made, [7])[0], pair(7)[0])
    assert set(seen) == {2}
    seen.clear()
    rows(reader(pair, noted, example=None, like=pair(0)), [1, 2])
    assert set(seen) == {1}


def test_the_example_sets_the_form():
    made = reader(pair, example=(torch.zeros(3, dtype=torch.float64), 0.5))
    assert made.form.row(pair(1))[0].dtype == torch.float64


def mixed(index):
    """Six of the first eight have one shape; without the first of them, five."""
    return (torch.zeros(3 if 2 <= index < 8 else 4), 0)


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_the_declared_form_alone_decides(first):
    def without_some(index):
        return mixed(index + first)

    found = reader(without_some).rows(list(range(8)), [True] * 8, PUBLIC)
    assert [row is None for row in found] == [not 2 <= n + first < 8 for n in range(8)]
    with pytest.raises(ArgumentError, match=r"Expected example a public item.*torch.zeros\(3, 32"):
        reader(without_some, example=None)


def test_records_of_which_none_has_the_form_are_absent():
    def broken(index):
        raise ValueError("secret 918273")

    assert reader(broken).rows(list(range(20)), [True] * 20, PUBLIC) == [None] * 20
