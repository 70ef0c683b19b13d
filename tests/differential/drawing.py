"""Odd records drawn at random, what stands beside them, and how far one moves what is released."""

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch
from hypothesis import strategies as st

from tests.differential.odd import SECRET

if TYPE_CHECKING:
    from tests.differential.entries import Entry

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "complex64": torch.complex64,
}
ORDERS = ("rows", "columns", "strided")
_BESIDE = range(9, 24)  # the first eight, or nine where one is removed, decide about the form

SINGLES = st.floats(width=32)
WHOLE = st.integers(-(2**62), 2**62)


def rows(length: int = 4) -> st.SearchStrategy[torch.Tensor]:
    """Rows of single precision."""
    return st.lists(SINGLES, min_size=length, max_size=length).map(torch.tensor)


def arrays(length: int) -> st.SearchStrategy[Any]:
    """Arrays of double precision."""
    return st.lists(st.floats(), min_size=length, max_size=length).map(np.array)


@st.composite
def tensors(draw: st.DrawFn, length: int = 4) -> Any:
    """Rows of any type, shape and memory order, as tensors, arrays or lists."""
    usual = (length,)
    shape = draw(
        st.sampled_from([usual, usual, usual, (length - 1,), (1, length), (length, 1), ()])
    )
    size = int(np.prod(shape))
    values = draw(st.lists(SINGLES | st.integers(-(2**40), 2**40), min_size=size, max_size=size))
    dtype = draw(st.sampled_from(list(DTYPES.values())))
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


def items(length: int = 4) -> st.SearchStrategy[Any]:
    """Items of a data set, of any kind."""
    return st.tuples(tensors(length), LABELS) | tensors(length) | LABELS


def ordered(values: torch.Tensor, order: str) -> torch.Tensor:
    """The same values in another memory order."""
    if order == "columns":
        return values.T.contiguous().T
    if order == "strided":
        return torch.stack([values, values], -1)[..., 0]
    return values


@attrs.frozen
class Case:
    """A record, and what it stands beside.

    Attributes:
        entry: The entry, with the container of its records.
        record: The record that is left out and removed.
        place: Where it stands.
        beside: Other odd records, by their places.
    """

    entry: "Entry"
    record: Any
    place: int
    beside: Mapping[int, Any] = {}

    def __repr__(self) -> str:
        kind = f"{self.entry} ({self.entry.container})"
        return f"{kind}: {_shown(self.record)} at {self.place} beside {_shown(dict(self.beside))}"

    def records(self) -> list[Any]:
        """All records."""
        found = list(self.entry.plain)
        for place, record in {**self.beside, self.place: self.record}.items():
            found[place] = record
        return found

    def difference(self) -> float:
        """How far the record moves what is released.

        It is left out and, where that must be the same, removed.
        """
        entry, records = self.entry, self.records()
        place = self.place % len(records)
        whole = entry.release(records)
        found = [entry.release(records, place)]
        if not entry.draws:
            found.append(entry.release(records[:place] + records[place + 1 :]))
        return max(float((whole - other).norm()) for other in found)

    def problem(self) -> str | None:
        """What is wrong, if anything: too large a difference, or a record that is quoted."""
        told = io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            moved = self.difference()
        if not moved <= self.entry.most:
            return f"one record moves what is released by {moved}, more than {self.entry.most}"
        return "a record is quoted" if SECRET in told.getvalue() else None


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # some odd records refuse even that
        return f"<{type(value).__name__}>"


@st.composite
def cases(draw: st.DrawFn, entries: Sequence["Entry"]) -> Case:
    """An entry, a container of its records, an odd record and up to three beside it."""
    entry = draw(st.sampled_from(entries))

    def record() -> Any:
        # Those of the list by name: hypothesis looks at what it draws, and some refuse that.
        name = draw(st.none() | st.sampled_from(sorted(entry.odd)))
        return draw(entry.drawn()) if name is None else entry.odd[name]

    count = 0 if entry.alone else draw(st.integers(0, 3))
    places = draw(st.lists(st.sampled_from(_BESIDE), min_size=count, max_size=count))
    return Case(
        entry=entry.arranged(draw(st.sampled_from(entry.containers))),
        record=record(),
        place=draw(st.integers(0, len(entry.plain) - 1)),
        beside={place: record() for place in places},
    )
