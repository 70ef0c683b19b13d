"""Fingerprints: the same in another process, another for whatever computes something else."""

import functools
import os
import subprocess
import sys
import threading
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from prudent._fingerprint import fingerprint

SCALE = 2.0


def scaled(outputs, targets):
    """A loss that names a global and a package."""
    return SCALE * functional.cross_entropy(outputs, targets, reduction="none")


def closing(weight):
    return lambda outputs, targets: weight * functional.mse_loss(outputs, targets)


@attrs.frozen
class Weighted:
    weight: float = 1.0

    def __call__(self, outputs, targets):
        return self.weight * scaled(outputs, targets)


class Doubled(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


class Tripled(nn.Linear):
    def forward(self, inputs):
        return 3 * super().forward(inputs)


class Files(Dataset):
    """Reads elsewhere what nobody can know without reading it."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return torch.zeros(1), 0


KNOWN = {
    "function": scaled,
    "object": Weighted(2.0),
    "closure": closing(3.0),
    "partial": functools.partial(scaled, targets=torch.arange(3)),
    "module": nn.Sequential(Doubled(3, 2), nn.Dropout(0.5), nn.CrossEntropyLoss(reduction="none")),
    "builtin": torch.nn.functional.relu,
    "optimizer": torch.optim.Adam,
    "array": np.arange(6.0).reshape(2, 3),
    "texts": {"a": ["b", {"c", "d"}, frozenset({"e", "f"})], "g": (None, 1.5, True)},
}


@pytest.mark.unhurried
def test_another_process_finds_the_same():
    """Addresses and the order of sets differ there."""
    root = Path(__file__).parents[1]
    code = (
        "import torch; torch.manual_seed(1); from tests import test_fingerprint as own\n"
        "for value in own.KNOWN.values(): print(own.found(value))"
    )
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    lines = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert lines == [found(value) for value in KNOWN.values()]
    assert len(set(lines)) == len(KNOWN)


def found(value):
    known = fingerprint(value, restored=value if isinstance(value, nn.Module) else None)
    assert known
    return known


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (closing(1.0), closing(2.0)),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x, y=1: x + y, lambda x, y=2: x + y),
        (Weighted(1.0), Weighted(2.0)),
        (functools.partial(scaled, targets=0), functools.partial(scaled, targets=1)),
        (nn.CrossEntropyLoss(torch.ones(3)), nn.CrossEntropyLoss(torch.arange(3.0))),
        (functional.mse_loss, functional.l1_loss),
        (torch.optim.SGD, torch.optim.Adam),
        ([1, 2], (1, 2)),
        ([1.0], [1]),
        (torch.zeros(3), torch.zeros(3, 1)),
        (np.zeros(3), np.zeros(3, dtype=np.float32)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
    ],
)
def test_what_computes_something_else_has_another(one, other):
    assert fingerprint(one)
    assert fingerprint(other)
    assert fingerprint(one) != fingerprint(other)


def test_a_global_that_a_function_names_counts(monkeypatch):
    before = fingerprint(Weighted())
    assert before == fingerprint(Weighted())
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert fingerprint(Weighted()) != before


def test_a_model_is_known_by_what_no_checkpoint_restores():
    def structure(model):
        return fingerprint(model, restored=model)

    one = Doubled(3, 2)
    assert structure(one) == structure(Doubled(3, 2))
    assert structure(one) != structure(Doubled(3, 3))
    assert structure(one) != structure(Tripled(3, 2))
    assert structure(one) != structure(Doubled(3, 2).requires_grad_(False))
    assert structure(nn.Dropout(0.1)) != structure(nn.Dropout(0.2))
    assert structure(nn.Dropout(0.1)) != structure(nn.Dropout(0.1).eval())
    one.register_buffer("fixed", torch.zeros(2), persistent=False)
    other = Doubled(3, 2)
    other.register_buffer("fixed", torch.ones(2), persistent=False)
    assert structure(one) != structure(other)
    # A loss that uses the model is known by the same.
    weights = closing(one)
    known = fingerprint(weights, restored=one)
    with torch.no_grad():
        one.weight.add_(1)
    assert known == fingerprint(weights, restored=one)
    assert known != fingerprint(weights)


@pytest.mark.parametrize(
    "value", [threading.Lock(), (one for one in ()), Files(), closing(Files())]
)
def test_what_cannot_be_known_has_none(value):
    assert fingerprint(value) == ""
