"""Numbers of the certified classifier: pages and picture say what one file holds.

`python -m benchmarks.certify benchmarks/certify.json` measures them, and with `--picture` draws.
"""

import json
import re
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOUND: dict[str, Any] = json.loads((ROOT / "benchmarks" / "certify.json").read_text("utf-8"))
RECORDS = ("0", "100", "500", "1000", "2000")


def down(value: float, places: str) -> str:
    """A share that is certified, rounded down as it is printed."""
    return f"{Decimal(repr(value)).quantize(Decimal(places), ROUND_FLOOR):,}"


def written(page: str) -> dict[str, list[str]]:
    """The rows of MNIST on a page, by the name that the file has for each."""
    pattern = r"^\| \*\*`(\w+)`,(?: no data,)? ε = ([\d.]+), δ = 0\*\* \|(.+)\|$"
    return {
        f"mnist {features} {epsilon}": [cell.strip() for cell in cells.split("|")]
        for features, epsilon, cells in re.findall(pattern, page, re.MULTILINE)
    }


def test_the_table_says_what_was_measured() -> None:
    rows = written((ROOT / "docs" / "certify.md").read_text("utf-8"))
    assert set(rows) == set(FOUND)
    for name, cells in rows.items():
        mean = FOUND[name]["mean"]
        wanted = [*(down(mean[k], "0.01") for k in RECORDS), down(mean["median"], "1")]
        assert cells == wanted, f"| {' | '.join(wanted)} |"


def test_readme_and_its_picture_say_what_was_measured() -> None:
    mean = FOUND["mnist letters 0.3"]["mean"]
    clean, attacked = down(mean["0"], "0.1"), down(mean["2000"], "0.1")
    page = (ROOT / "README.md").read_text("utf-8")
    assert f"ε = 0.3, δ = 0 it is {clean} %, and {attacked} % against any 2,000 records" in page
    # The letters of a picture are drawn; what they spell stands beside them.
    picture = (ROOT / "docs" / "images" / "certified.svg").read_text("utf-8")
    assert f"<!-- public letters, ε = 0.3: {clean}% without bad records -->" in picture


@pytest.mark.parametrize("name", FOUND)
def test_what_was_measured_agrees_with_itself(name: str) -> None:
    found = FOUND[name]
    assert len(found["draws"]) == 5
    for key, value in found["mean"].items():
        assert value == pytest.approx(sum(each[key] for each in found["draws"]) / 5)
    curve = found["curve"]
    assert curve == sorted(curve, reverse=True)
    for k in RECORDS:
        assert curve[int(k) // 50] == pytest.approx(found["mean"][k], abs=1e-4)
