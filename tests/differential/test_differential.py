"""One record changes what is released by at most its bound, whatever it is and what it stands by.

Noise is zero or the same in both releases, so the difference is that of exact sums. By default each
entry meets the odd records that tell most of it, and one meets all; `make test-thorough` has a few
more of each, `make test-slow` every pair.
"""

from typing import Any

import pytest
from hypothesis import given, settings

from tests.differential import drawing
from tests.differential.drawing import Case
from tests.differential.entries import Entry
from tests.differential.frameworks import ENTRIES, installed

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
            if entry.name != WHOLE and name not in entry.telling:
                marks.append(pytest.mark.thorough)
            found.append(pytest.param(entry, name, id=f"{entry}-{name}", marks=marks))
    return found


@pytest.mark.parametrize(("entry", "name"), cases())
def test_one_record_changes_nothing_but_its_own(
    entry: Entry, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    place = 0 if name in entry.telling else PLACES[list(entry.odd).index(name) % 3]
    assert Case(entry, entry.odd[name], place).difference() <= entry.most
    assert "918273" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "entry", [pytest.param(e, id=str(e), marks=[pytest.mark.slow] * e.slow) for e in ENTRIES]
)
def test_a_fault_in_any_entry_is_noticed(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    entry.plant(monkeypatch)
    moved = [Case(entry, entry.odd[name], 0).difference() for name in entry.telling]
    assert max(moved) > entry.most


@pytest.mark.unhurried
@settings(max_examples=20)
@given(drawing.cases(installed()))
def test_any_record(case: Case) -> None:
    assert case.problem() is None


@pytest.mark.slow
@settings(max_examples=1000)
@given(drawing.cases(installed()))
def test_any_record_at_length(case: Case) -> None:
    assert case.problem() is None
