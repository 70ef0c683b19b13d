"""Private groups of sets: a unit of very many values is no reason to keep its group."""

import pytest

pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("pandas", reason="frames of pandas are read")

import pandas as pd

from prudent.release.columns.opening import open_private_groups


@pytest.mark.parametrize("most", [1, 3])
def test_a_unit_adds_to_the_size_of_its_group_what_is_counted_of_it(most: int) -> None:
    rows = [("usual", person, value) for person in range(20) for value in range(2)]
    alone = [("secret", 99, value) for value in range(1000)]
    frame = pd.DataFrame([*rows, *alone], columns=["group", "person", "value"])
    opened = open_private_groups(
        frame, "value", by="group", unit="person", per_unit=most, kind="sets"
    )
    assert opened.contribution.records == most
    assert opened.counts() == {"usual": 20 * min(most, 2), "secret": most}
