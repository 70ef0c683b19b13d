"""The one module through which records enter: training, federated rounds, tuning, certificates.

A record's contribution must be a function of that record and of public facts alone, bit for bit,
whatever stands beside it. So every entry reads records by the same three rules:

1. The form of a record (structure, number types, shapes) is declared, or is that of most of the
   first records, so that no single record decides it.
2. Each record is converted to that form alone. One that cannot be read or does not fit counts as
   absent: it has weight zero, as padding has.
3. What is drawn at random while a record is read comes from a stream of its own, which follows from
   the key of the run, the step and the record's id, never from its place in a batch.

Here are the random streams, for data sets and collators that draw random numbers. With a stream per
batch a record that is left out would change what is drawn for all records after it.
"""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import numpy as np


@attrs.frozen
class Seeds:
    """The seeds of one step: a function of the record's id."""

    # At most 64 bytes that follow from the key of the run and the step; never printed.
    secret: bytes = attrs.field(repr=False)

    def of(self, record: int) -> int:
        """The seed of a record, of 63 bits."""
        name = record.to_bytes(8, "little", signed=True)
        digest = hashlib.blake2b(name, key=self.secret, digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def order(self, content: bytes) -> bytes:
        """Puts contents into a random order: the place of one of them, the same wherever it is."""
        return hashlib.blake2b(content, key=self.secret, digest_size=16).digest()


PUBLIC = Seeds(b"public")  # seeds for reading records outside of a step, such as to find their form


def seed_generators(seed: int) -> None:
    """Seed the generators that data sets use: `random`'s, numpy's, and torch's on the host."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - for data sets that use it
    if (torch := _torch()) is not None:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs, too


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the states of these generators on exit."""
    torch = _torch()
    drawn = None if torch is None else torch.get_rng_state()
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        if torch is not None:
            torch.set_rng_state(drawn)
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


def _torch() -> Any:
    """Torch, if anything has imported it: what has not been imported has drawn nothing."""
    return sys.modules.get("torch")
