"""What `make quick` leaves out."""

from pathlib import Path

import pytest

from tests.quick import TESTS, is_quick


@pytest.mark.parametrize(
    ("source", "quick"),
    [
        ("import numpy\nfrom prudent.accounting import Run\n", True),
        ("from prudent import release\n", True),
        ("import torch\n", False),
        ("def test():\n    from prudent.training import Plan\n", False),
        ("import prudent\n\ndef test():\n    prudent.Plan(steps=1)\n", False),
        ("from prudent import Plan\n", False),
        ("import prudent\n\nprudent.median([1.0], epsilon=1.0)\n", True),
        ("from prudent.audit.training import one_run\n", False),
        ("from prudent.audit import lower_bounds\n", True),
        ("import subprocess\n", False),
        ("pytest.importorskip('transformers')\n", False),
        ("from tests.servers import Server\n", False),
        ("from tests.training.worlds import anything\n", False),
    ],
)
def test_a_file_is_judged_by_what_it_imports(source: str, quick: bool, tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(source)
    assert is_quick(path) == quick


def test_most_guarantees_of_tables_and_prices_are_tested_quickly() -> None:
    left = {
        folder: [is_quick(path) for path in (TESTS / folder).rglob("test_*.py")]
        for folder in ("accounting", "release")
    }
    assert all(sum(each) > len(each) / 2 for each in left.values()), left
