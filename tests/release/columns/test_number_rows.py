"""Rows of numbers from a table: conditions and public levels, as in every other release."""

import pytest

pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("pandas", reason="frames of pandas are read")

import pandas as pd

from prudent.release.columns.number_rows import NumberTable


def test_rows_are_filtered_by_a_text_and_categories_have_their_places() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "c": ["x", "y", "z", None]})
    table = NumberTable(frame, where="a < 4")
    column = table.rows({"place": table.place("c", ["y", "x"])}).column(0)
    assert column.order_statistics(1, 9).tolist() == [0.0, 1.0]
