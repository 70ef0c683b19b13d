"""One record changes what is released by at most its bound, whatever it is and what it stands by.

Noise is zero or the same in both releases, so the difference is that of exact sums.
"""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.differential.entries import ENTRIES, SLACK, Entry, Training

CASES = [
    pytest.param(entry, name, id=f"{entry}-{name}", marks=[pytest.mark.slow] * entry.slow)
    for entry in ENTRIES
    for name in entry.odd
]
PLACES = {0: 0, 1: 5, 2: -1}


def with_one(entry: Entry, record: Any, place: int) -> list[Any]:
    records = list(entry.plain)
    records[place] = record
    return records


def difference(entry: Entry, record: Any, place: int) -> float:
    """How far one record moves what is released: left out and, where that is the same, removed."""
    place %= len(entry.plain)
    records = with_one(entry, record, place)
    whole = entry.release(records)
    pairs = [(whole, entry.release(records, place))]
    if not entry.draws:
        pairs.append((whole, entry.release(records[:place] + records[place + 1 :])))
    return max(float((one - other).norm()) for one, other in pairs)


def allowed(entry: Entry) -> float:
    return entry.bound * (1 + SLACK)


@pytest.mark.parametrize(("entry", "name"), CASES)
def test_one_record_changes_nothing_but_its_own(entry: Entry, name: str) -> None:
    place = PLACES[list(entry.odd).index(name) % 3]
    assert difference(entry, entry.odd[name], place) <= allowed(entry)
