"""The same draws in every run of a test, whichever door randomness comes through.

For tests that judge what was drawn, where the code under test takes no seed: noise from the
operating system would now and then refute an honest claim. `pytest.mark.usefixtures("same_draws")`
asks for it. The doors themselves are tested with noise that nobody can repeat, in
`tests/release/test_noise.py`; a process that a test starts draws its own.
"""

import contextlib
import hashlib
import itertools
import random
import secrets
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from prudent.release.noise import ReproducibleNoise, SecureNoise


@contextlib.contextmanager
def same_draws(name: str) -> Iterator[None]:
    """Seeds all randomness of this process by a name; patches nothing that prices depend on.

    Names of tests, because a key or the name of a run may be used once in a process.
    """
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest())
    drawn, noise, count = random.Random(seed), ReproducibleNoise(seed), itertools.count(1)
    generator = np.random.default_rng

    def default_rng(given: Any = None) -> np.random.Generator:
        return generator([seed, next(count)] if given is None else given)

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(secrets, "_sysrand", drawn)
        patches.setattr(secrets, "randbits", drawn.getrandbits)
        patches.setattr(np.random, "default_rng", default_rng)
        patches.setattr(SecureNoise, "of_test", lambda _, test: noise.of_test(test))
        patches.setattr(SecureNoise, "of_value", lambda _, *given: noise.of_value(*given))
        yield
