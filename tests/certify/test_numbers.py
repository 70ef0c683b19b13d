"""Certified accuracies that are printed twice: pages and picture have those of one file."""

import json
from pathlib import Path
from typing import Any

import pytest

from prudent_lab.certifying import percent

ROOT = Path(__file__).parents[2]
MEASURED: dict[str, Any] = json.loads(
    (ROOT / "packages/lab/src/prudent_lab/explore/certified.json").read_text("utf-8")
)
NAMES = {"letters": "`letters`", "glyphs": "`glyphs`, no data"}


def cells(row: dict[str, Any]) -> str:
    """The end of a line of a table: percentages rounded down, and the median radius."""
    return " | ".join([*map(percent, row["accuracy"]), f"{int(row['median_radius']):,}"]) + " |"


def deviations(row: dict[str, Any]) -> str:
    return ", ".join(f"{100 * value:.2f}" for value in row["deviation"])


@pytest.mark.parametrize("row", MEASURED["curves"], ids=lambda row: row["name"])
def test_a_classifier_has_the_same_numbers_on_its_page(row: dict[str, Any]) -> None:
    page = (ROOT / "docs/certify.md").read_text("utf-8")
    name = f"{NAMES[row['features']]}, ε = {row['epsilon']:g}, δ = 0"
    assert f"| **{name}** | {cells(row)}\n" in page
    assert f"| {name} | {deviations(row)} |" in page


@pytest.mark.parametrize("row", MEASURED["others"], ids=lambda row: row["name"])
def test_another_rule_has_the_same_numbers_on_the_page(row: dict[str, Any]) -> None:
    assert f"| {row['name']} | {cells(row)}\n" in (ROOT / "docs/certify.md").read_text("utf-8")


@pytest.mark.parametrize("row", MEASURED["curves"], ids=lambda row: row["name"])
def test_what_was_measured_agrees_with_itself(row: dict[str, Any]) -> None:
    curve = [value for _, value in row["curve"]]
    assert curve == sorted(curve, reverse=True)
    assert curve[0] == row["accuracy"][0]
    for mean, least, deviation in zip(row["accuracy"], row["least"], row["deviation"], strict=True):
        assert least <= mean <= least + 4 * deviation


def test_readme_and_picture_have_the_same_numbers() -> None:
    best = MEASURED["curves"][0]
    assert (best["features"], best["epsilon"]) == ("letters", 0.3)
    clean, against = percent(best["accuracy"][0], 1), percent(best["accuracy"][-1], 1)
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"ε = 0.3, δ = 0 it is {clean} %, and {against} % against any 2,000 records" in readme
    drawn = (ROOT / "docs/images/certified.svg").read_text("utf-8")
    for row in MEASURED["curves"]:
        if (row["features"], row["epsilon"]) in {("letters", 0.3), ("glyphs", 1.0)}:
            assert f"{percent(row['accuracy'][0], 1)}% without bad records" in drawn
