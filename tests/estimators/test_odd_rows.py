"""Rows that are not as a model expects them: no error quotes them, or how many there are."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="estimators need scikit-learn")

from prudent.estimators import LinearRegression
from prudent.estimators.base import TooFewRecordsError
from prudent.release.noise import ReproducibleNoise


class Raising:
    """Whatever is asked of it is an error that quotes a record."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("secret 918273")


class Endless(list):
    """A row whose length is an error that quotes a record."""

    def __len__(self) -> int:
        raise RuntimeError("secret 918273")


def fitted(rows: Any, targets: Any) -> None:
    LinearRegression(1.0, noise=ReproducibleNoise(0)).fit(rows, targets)


ODD = {
    "scalar array": np.array(5.0),
    "raising": Raising(),
    "without length": Endless([1.0, 2.0]),
    "lists": [[1, 2], [3, 4]],
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_row_or_target_of_a_list_is_absent(name: str) -> None:
    usual, odd = [[1.0, 2.0]] * 5, ODD[name]
    for rows, targets in (([*usual, odd], [1.0] * 6), ([*usual, [1.0, 2.0]], [*[1.0] * 5, odd])):
        with pytest.raises(TooFewRecordsError):
            fitted(rows, targets)


@pytest.mark.parametrize(
    ("rows", "targets"),
    [
        (np.ones((77, 2)), np.ones((77, 2))),
        (np.ones((77, 2)), np.full(77, 77 + 1j)),
        (np.ones((77, 0)), np.ones(77)),
    ],
)
def test_errors_quote_neither_records_nor_their_number(rows: Any, targets: Any) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        fitted(rows, targets)
    assert "77" not in str(caught.value)
