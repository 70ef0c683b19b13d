"""Fingerprints of records: equal for equal records, of any container."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from prudent.records.containers import digest, fingerprint

X = torch.arange(12.0).reshape(4, 3)
Y = torch.tensor([0, 1, 0, 1])


class Items(Dataset):
    def __init__(self, make=lambda index: (X[index], int(Y[index])), count=4):
        self.make, self.count = make, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.make(index)


def changed():
    other = X.clone()
    other[2, 1] += 1
    return other


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: (X, Y), lambda: (changed(), Y)),
        (lambda: TensorDataset(X, Y), lambda: TensorDataset(X, 1 - Y)),
        (lambda: [(x, int(y)) for x, y in zip(X, Y, strict=True)], lambda: [(x, 0) for x in X]),
        (lambda: Items(), lambda: Items(lambda index: (changed()[index], int(Y[index])))),
        (lambda: Items(), lambda: Items(count=3)),
        (lambda: Items(), lambda: Items(lambda index: (X[3 - index], int(Y[index])))),
        (lambda: Subset(Items(), [0, 1]), lambda: Subset(Items(), [1, 0])),
        (lambda: Subset(TensorDataset(X, Y), [0, 1]), lambda: Subset(TensorDataset(X, Y), [1, 0])),
        (lambda: Subset([(X, Y), (Y, X)], [0]), lambda: Subset([(X, Y), (Y, X)], [1])),
        (lambda: [{"a": "b"}], lambda: [{"a": "c"}]),
        (lambda: [None, 1], lambda: [1, None]),
        (lambda: [(1, (2, 3))], lambda: [((1, 2), 3)]),
        (lambda: [np.float32(1)], lambda: [np.float64(1)]),
        (lambda: [{1, 2}], lambda: [{1, 3}]),
        (lambda: [True], lambda: [1]),
    ],
)
def test_it_tells_records_apart(make, other):
    assert fingerprint(make()) == fingerprint(make())
    assert fingerprint(make()) != fingerprint(other())
    assert len(fingerprint(make())) == 32


def test_a_declared_one_is_used_and_nothing_is_read():
    data = Items(lambda index: 1 / 0)
    data.fingerprint = "a"
    twin = Items(lambda index: 1 / 0)
    twin._fingerprint = "b"
    assert fingerprint(data) == fingerprint(data) != fingerprint(twin)
    assert fingerprint(Subset(data, [1])) != fingerprint(Subset(data, [2]))


def test_an_item_that_cannot_be_read_is_part_of_it():
    def broken(index):
        if index == 2:
            raise ValueError("secret")
        return X[index], int(Y[index])

    assert fingerprint(Items(broken)) == fingerprint(Items(broken)) != fingerprint(Items())


def test_random_reading_is_seeded_and_leaves_the_generators_alone():
    before = torch.get_rng_state(), random.getstate()
    data = Items(lambda index: torch.randn(2) + random.random() + np.random.rand())  # noqa: NPY002
    assert fingerprint(data) == fingerprint(data)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


def test_a_digest_does_not_depend_on_memory_order_but_on_types():
    assert digest(X) == digest(X.T.contiguous().T)
    assert digest(X) != digest(X.double())
    assert digest(torch.tensor([torch.nan])) == digest(torch.tensor([torch.nan]))
    assert digest(np.asfortranarray(X.numpy())) == digest(X.numpy())
