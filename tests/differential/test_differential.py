"""One record changes what is released by at most its bound, whatever it is and what it stands by.

Noise is zero or the same in both releases, so the difference is that of exact sums. By default each
entry meets a few odd records, and one meets all; `make test-slow` has every pair.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.differential.entries import SLACK, Entry, IgnoredLabels
from tests.differential.frameworks import ENTRIES

WHOLE = "fit, items"
PLACES = (0, 5, -1)

pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec:FutureWarning",  # Lightning's, with torch 2.13
)


def cases() -> list[Any]:
    found = []
    for number, entry in enumerate(ENTRIES):
        for place, name in enumerate(entry.odd):
            chosen = entry.name == WHOLE or name in entry.telling or (place - number) % 12 == 0
            marks = [pytest.mark.slow] if entry.slow or not chosen else []
            found.append(pytest.param(entry, name, id=f"{entry}-{name}", marks=marks))
    return found


def difference(entry: Entry, record: Any, place: int) -> float:
    """How far one record moves what is released: left out and, where that is the same, removed."""
    records = list(entry.plain)
    place %= len(records)
    records[place] = record
    whole = entry.release(records)
    found = [entry.release(records, place)]
    if not entry.draws:
        found.append(entry.release(records[:place] + records[place + 1 :]))
    return max(float((whole - other).norm()) for other in found)


@pytest.mark.parametrize(("entry", "name"), cases())
def test_one_record_changes_nothing_but_its_own(
    entry: Entry, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    place = 0 if name in entry.telling else PLACES[list(entry.odd).index(name) % 3]
    assert difference(entry, entry.odd[name], place) <= entry.bound * (1 + SLACK)
    assert "918273" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "entry", [pytest.param(e, id=str(e), marks=[pytest.mark.slow] * e.slow) for e in ENTRIES]
)
def test_a_fault_in_any_entry_is_noticed(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    entry.plant(monkeypatch)
    moved = [difference(entry, entry.odd[name], 0) for name in entry.telling]
    assert max(moved) > entry.bound * (1 + SLACK)


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    """Rows of any type, shape and memory order, as tensors, arrays or lists."""
    shape = draw(st.sampled_from([(4,), (4,), (4,), (3,), (1, 4), (4, 1), ()]))
    values = draw(
        st.lists(
            st.floats(width=32) | st.integers(-(2**40), 2**40),
            min_size=int(np.prod(shape)),
            max_size=int(np.prod(shape)),
        )
    )
    dtype = draw(st.sampled_from(DTYPES))
    with np.errstate(all="ignore"):
        found = torch.tensor(values, dtype=torch.float64).to(dtype).reshape(shape)
    how = draw(st.sampled_from(["tensor", "strided", "reversed", "list"]))
    if how == "tensor" or dtype is torch.bfloat16 or not shape:
        return found
    if how == "strided":
        return torch.stack([found, found], -1)[..., 0]
    return found.numpy()[::-1] if how == "reversed" else found.tolist()


LABELS = st.sampled_from([0, 1, 2, 3, -1, -100, 2**70, 0.5, 1.0, None, True, "1", [0]]) | st.builds(
    np.float16, st.integers(-2, 3)
)
DRAWN = [
    entry
    for entry in ENTRIES
    if entry.name.startswith(("fit, items", "make_private"))
    and not entry.slow
    and not isinstance(entry, IgnoredLabels)
]


@pytest.mark.unhurried
@settings(max_examples=20)
@given(
    entry=st.sampled_from([entry for entry in DRAWN if "dropout" not in entry.name]),
    record=st.tuples(tensors(), LABELS) | tensors() | LABELS,
    place=st.sampled_from(PLACES),
)
def test_any_record(entry: Entry, record: Any, place: int) -> None:
    assert difference(entry, record, place) <= entry.bound * (1 + SLACK)


@pytest.mark.slow
@settings(max_examples=1000)
@given(
    entry=st.sampled_from(DRAWN),
    record=st.tuples(tensors(), LABELS) | tensors() | LABELS,
    place=st.sampled_from(PLACES),
)
def test_any_record_at_length(entry: Entry, record: Any, place: int) -> None:
    assert difference(entry, record, place) <= entry.bound * (1 + SLACK)
