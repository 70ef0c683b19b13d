"""Every public callable with right arguments of which some are replaced by hostile ones.

The callables and their arguments are those of `surface`; no function is listed here.
"""

import decimal
import fractions
import functools
import io
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import dp_accounting as dp
import hypothesis.strategies as st
import numpy as np
import torch
from torch import nn

from tests.fuzz import surface
from tests.fuzz.judging import FindingError, judge
from tests.tiers import CHARACTERS


@attrs.frozen
class Call:
    """A public callable, with some of its arguments replaced in each input."""

    entry: surface.Entry

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def weight(self) -> float:
        """Relative number of inputs; costly calls get fewer."""
        return 0.05 if self.entry.costly else 0.5

    def strategy(self) -> st.SearchStrategy[dict[str, Any]]:
        """The arguments that are replaced, by name, with what takes their place."""
        names = sorted(self.entry.parameters)
        return st.dictionaries(
            st.sampled_from(names), VALUES, min_size=1, max_size=min(3, len(names))
        )

    def judge(self, replaced: Mapping[str, Any]) -> BaseException | None:
        """Call the entry with some arguments replaced; see `judging`."""
        return judge(self.name, replaced, lambda: self.run(replaced))

    def run(self, replaced: Mapping[str, Any]) -> Any:
        """Call the entry; arguments that it refuses after a charge are a finding."""
        function, right = self.entry.make()
        given = right | dict(replaced)
        try:
            answer = function(**given)
        except Exception as error:
            ledger = given.get("ledger")
            same = all(given[each] is right[each] for each in surface.RECORDS if each in given)
            chosen = type(error).__name__ == "TooFewRecordsError"
            if same and not chosen and isinstance(ledger, surface.Charges) and ledger.made:
                told = "".join(traceback.format_exception(error)[-12:])
                raise FindingError("after a charge", repr(given), told) from error
            raise
        if self.name.rpartition(".")[2] in PRICES and not np.all(np.asarray(answer) >= 0):
            raise FindingError("a price", repr(given), f"got {answer!r}")
        return answer


PRICES = ("epsilon", "epsilon_after", "epsilon_of", "get_epsilon", "get_delta")
"""What is never negative, and never NaN."""


class Awkward:
    """An object that answers nothing about itself."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __repr__(self) -> str:
        return "Awkward()"


class Lying:
    """An object that claims to be a number, a sequence and an array, and is none."""

    def __float__(self) -> float:
        raise TypeError("no number")

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        raise IndexError(index)

    def __repr__(self) -> str:
        return "Lying()"


def _generator() -> Any:
    yield 1.0


PLAIN: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**53 + 1, 2**63, 2**64, 10**400, -(10**400)),
    *(0.0, -0.0, 0.5, 1.0, 1.5, -1.0, 1e-9, 5e-324, 1e-300, 1e300, 1.7e308, 1e16, 1 - 1e-16),
    *(float("nan"), float("inf"), float("-inf"), 1j, decimal.Decimal("0.1")),
    *(decimal.Decimal("NaN"), decimal.Decimal("1e9999"), fractions.Fraction(1, 3)),
    *("", "a", "1", "0.5", "nan", "private", "none", "x\x00y", "\ud800", "\x1b[2J", "../..", "é"),
    *("a" * 5000, "'; DROP TABLE t; --", '"', "laplace", "pld", "cuda:99", "meta", "mean"),
    *(b"", b"\xff\x00", (), (1,), (1, 2), (2, 1), (float("nan"), 1.0), [], [None], ["a", 1]),
    *({}, {"a": 1}, {1: "b"}, frozenset({1}), range(3), int, float, len, object(), ...),
    *(Path("nowhere.csv"), Path("/"), np.float32(0.5), np.int64(3), np.float64("nan")),
    *(Awkward(), Lying(), dp.GaussianDpEvent(1.0), dp.NoOpDpEvent(), dp.NonPrivateDpEvent()),
)

MADE: tuple[Callable[[], Any], ...] = (
    _generator,
    io.BytesIO,
    lambda: [[1.0, 2.0], [3.0]],
    lambda: np.zeros(0),
    lambda: np.zeros((2, 2)),
    lambda: np.array(0.5),
    lambda: np.array(["a", None], object),
    lambda: np.array([1 + 1j]),
    lambda: np.array(["NaT"], "datetime64[s]"),
    lambda: np.array([np.nan, np.inf, -np.inf, 1e308]),
    lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
    lambda: torch.zeros(0),
    lambda: torch.zeros(2, 3),
    lambda: torch.tensor(0.5),
    lambda: torch.tensor([float("nan")]),
    lambda: torch.zeros(3, device="meta"),
    lambda: nn.Linear(2, 2),
)
"""Made anew each time, because whoever gets one may change it."""

VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(PLAIN),
    st.sampled_from(MADE).map(lambda make: make()),
    st.floats(),
    st.floats(0, 1),
    st.integers(),
    st.integers(0, 100),
    st.text(CHARACTERS, max_size=12),
    st.lists(st.floats(), max_size=4),
    st.tuples(st.floats(), st.floats()),
    st.lists(st.one_of(st.integers(), st.text(CHARACTERS, max_size=3), st.none()), max_size=3),
)


@functools.cache
def calls() -> tuple[Call, ...]:
    """All calls; every public package is imported here, not before."""
    return tuple(map(Call, surface.entries()))


def named(name: str) -> Call:
    """The call of this name."""
    return next(each for each in calls() if each.name == name)
