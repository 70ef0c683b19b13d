"""Which records are bad: a fixed set of record ids drawn from the seed."""

import math
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from prudent import _validate

# Streams keep the choice of records apart from the values that replace them.
_RECORDS = 0
VALUES = 1


def seeded_generator(seed: int, stream: int) -> torch.Generator:
    """A host generator of its own for every (seed, stream)."""
    seed = _validate.count(seed=seed)
    state = np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


def valid_ratio(ratio: float) -> float:
    """Up to one half: beyond it the bad records are the majority and nothing can tell."""
    return _validate.between(0, 0.5, ratio=ratio)


def corrupted_records(records: int, ratio: float, seed: int) -> Tensor:
    """The ids of the bad records, ascending, on the host.

    Exactly ⌊ratio·records⌋ of them, with `ratio` read as the decimal it is written as (0.29 of 100
    is 29, though the product of the two floats is below it). For one seed the sets are nested: the
    records that are bad at ratio 0.1 are also bad at 0.2, so ratios compare like with like.

    Args:
        records: how many records the training set has; ids are 0 to records − 1.
        ratio: the share of bad records, in [0, 0.5].
        seed: the seed of the choice.
    """
    records = _validate.count(records=records)
    bad = math.floor(Fraction(repr(valid_ratio(ratio))) * records)
    order = torch.randperm(records, generator=seeded_generator(seed, _RECORDS))
    return order[:bad].sort().values


def corrupted_mask(
    records: int, ratio: float, seed: int, device: torch.device | str | None = None
) -> Tensor:
    """The same set as a table of booleans, one a record.

    Kept on the training device, it turns the record ids of a batch into the `mask` a gradient
    corruption takes, by one gather and without asking the device anything: `table[ids]`.
    """
    mask = torch.zeros(records, dtype=torch.bool)
    mask[corrupted_records(records, ratio, seed)] = True
    return mask.to(device)
