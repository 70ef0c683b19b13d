"""The choice of bad records: a fixed set of record ids determined by the seed."""

import math
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from prudent import _validate

# Separate streams make the choice of records independent of the values that replace them.
_RECORDS = 0
VALUES = 1

_MOST_RECORDS = 10**8  # whose order is drawn in memory


def seeded_generator(seed: int, stream: int) -> torch.Generator:
    """A separate host generator for every (seed, stream)."""
    seed = _validate.count(seed=seed)
    state = np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


def valid_ratio(ratio: float) -> float:
    """The ratio; raises an error if it is above one half.

    Beyond that bad records are the majority and cannot be told from honest ones.
    """
    return _validate.between(0, 0.5, ratio=ratio)


def corrupted_records(records: int, ratio: float, seed: int) -> Tensor:
    """The ids of the bad records, ascending, on the host.

    Exactly ⌊ratio·records⌋ of them, with `ratio` interpreted as the decimal number that it prints
    as (0.29 of 100 is 29, although the floating-point product is below it). For one seed the sets
    are nested: the records that are bad at ratio 0.1 are also bad at 0.2, so results at different
    ratios are comparable.

    Args:
        records: number of records in the training set; ids are 0 to records − 1.
        ratio: the share of bad records, in [0, 0.5].
        seed: the seed of the choice.
    """
    records = _validate.count(0, _MOST_RECORDS, records=records)
    bad = math.floor(Fraction(repr(valid_ratio(ratio))) * records)
    order = torch.randperm(records, generator=seeded_generator(seed, _RECORDS))
    return order[:bad].sort().values


def corrupted_mask(
    records: int, ratio: float, seed: int, device: torch.device | str | None = None
) -> Tensor:
    """The same set as a boolean vector with one entry per record.

    On the training device, `table[ids]` gives the `mask` of a batch for a gradient corruption with
    one gather and without synchronising with the host.
    """
    bad = corrupted_records(records, ratio, seed)
    mask = torch.zeros(_validate.count(records=records), dtype=torch.bool)
    mask[bad] = True
    return mask if device is None else mask.to(_validate.device(device=device))
