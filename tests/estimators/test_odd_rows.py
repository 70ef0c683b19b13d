"""Rows that are not as a model expects them: no error quotes them, or how many there are."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="estimators need scikit-learn")

from prudent.estimators import LinearRegression
from prudent.estimators.base import TooFewRecordsError
from prudent.release.noise import ReproducibleNoise
from tests.release.recording import Book


class Raising:
    """Whatever is asked of it is an error that quotes a record."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("secret 918273")


class Endless(list):
    """A row whose length is an error that quotes a record."""

    def __len__(self) -> int:
        raise RuntimeError("secret 918273")


def fitted(rows: Any, targets: Any) -> None:
    LinearRegression(epsilon=1.0, noise=ReproducibleNoise(0)).fit(rows, targets)


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


@pytest.mark.parametrize("odd", [None, "secret", 1j], ids=repr)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_odd_value_of_a_frame_is_one_row_less(odd: Any, place: int) -> None:
    pandas = pytest.importorskip("pandas")
    values = np.random.default_rng(0).normal(size=(3, 4000))
    columns = {f"x{at}": each.tolist() for at, each in enumerate(values)}
    columns[f"x{place}"][7] = odd
    frame = pandas.DataFrame(columns)
    features, target = frame[["x0", "x1"]], frame["x2"]
    for rows, targets in ((frame, "x2"), (features, target), (features, target.to_numpy())):
        model = LinearRegression(epsilon=2.0, noise=ReproducibleNoise(0)).fit(rows, targets)
        assert 3900 < model.n_records_ < 4100


def test_an_array_of_texts_costs_nothing() -> None:
    """One text makes all numbers of an array texts."""
    book = Book()
    with pytest.raises(ValueError, match="Expected X an array of numbers, got one of texts"):
        LinearRegression(epsilon=1.0, ledger=book).fit(
            np.array([[1.0, 2.0], ["a", 3.0]]), [1.0, 2.0]
        )
    assert not book.charges


def test_a_column_of_texts_is_named_as_a_reason_for_few_rows() -> None:
    """Whether a text is a number is private: all refusals say the same."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"name": ["a"] * 500, "x": [1.0] * 500, "y": [1.0] * 500})
    told = set()
    for rows in (frame, frame[["x", "y"]][:3]):
        with pytest.raises(TooFewRecordsError, match="Texts are left out by") as caught:
            fitted(rows, "y")
        told.add(str(caught.value).partition("fewer columns")[2])
    assert len(told) == 1
