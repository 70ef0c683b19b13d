"""The random stream of each record, for data sets and collators that draw random numbers.

A stream per batch would not do: the first record that is left out would change what is drawn for
all records after it. No secrecy is needed here. Given all streams, what a record becomes is a
function of that record alone.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import numpy as np
import torch


@attrs.frozen
class Seeds:
    """The seeds of one step: a function of the record's id.

    Attributes:
        secret: At most 64 bytes that follow from the key of the run and the step; never printed.
    """

    secret: bytes = attrs.field(repr=False)

    def of(self, record: int) -> int:
        """The seed of a record, of 63 bits."""
        name = record.to_bytes(8, "little", signed=True)
        digest = hashlib.blake2b(name, key=self.secret, digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1


PUBLIC = Seeds(b"public")
"""Seeds for reading records outside of a step, such as to find their form."""


def seed_generators(seed: int) -> None:
    """Seed the generators that data sets use: torch's on the host, `random`'s and numpy's."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs, too
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - for data sets that use it


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the states of these generators on exit."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002
