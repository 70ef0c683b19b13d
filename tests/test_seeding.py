"""`same_draws` reaches every door: what is drawn twice is the same, and differs within a run."""

import random
import secrets
from typing import Any

import numpy as np
import pytest

from prudent.accounting import DiscreteLaplaceTest
from prudent.release.noise import Distribution, SecureNoise
from tests.seeding import same_draws

DOORS: dict[str, Any] = {
    "default_rng": lambda: np.random.default_rng().integers(2**62),
    "global": lambda: (random.random(), np.random.random()),  # noqa: NPY002
    "integer": lambda: SecureNoise().integer(2**62),
    "secrets": lambda: (secrets.token_bytes(8), secrets.randbits(60)),
    "test": lambda: SecureNoise().of_test(DiscreteLaplaceTest(1e9)),
    "value": lambda: SecureNoise().of_value(Distribution.LAPLACE, 1e9, 2),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_is_seeded(door: str) -> None:
    with same_draws("one"):
        first = [DOORS[door]() for _ in range(2)]
    with same_draws("one"):
        again = [DOORS[door]() for _ in range(2)]
    with same_draws("other"):
        other = [DOORS[door]() for _ in range(2)]
    assert first == again
    assert first != other
    assert first[0] != first[1]
    assert DOORS[door]() not in first
