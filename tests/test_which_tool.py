"""The page that compares tools says what benchmarks/which_tool.py found."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "which-tool.md").read_text(encoding="utf-8")
FOUND = json.loads((ROOT / "benchmarks" / "which_tool.json").read_text(encoding="utf-8"))


def numbers(answer: object) -> list[float]:
    """The numbers anywhere in an answer."""
    if isinstance(answer, dict):
        return [number for part in answer.values() for number in numbers(part)]
    return [float(answer)] if isinstance(answer, int | float) else []


def test_every_tool_is_named_with_the_version_that_was_run() -> None:
    for tool, found in FOUND.items():
        if tool != "prudent":
            assert re.search(rf"\b{re.escape(found['version'])}\b", PAGE), tool


def test_every_check_that_the_page_names_was_run() -> None:
    named = set(re.findall(r"\[run: ([^\]]+)\]", PAGE)) - {"…"}  # the legend
    assert named
    assert named <= {question for found in FOUND.values() for question in found["answers"]}


def test_the_numbers_of_the_page_are_those_that_were_found() -> None:
    shown = {float(text) for text in re.findall(r"(?<![\w.])-?\d+\.\d+", PAGE.replace("−", "-"))}
    for question, digits in (("epsilon", 3), ("median error", 3), ("low bits", 2)):
        for tool, found in FOUND.items():
            for number in numbers(found["answers"].get(question, {})):
                assert round(number, digits) in shown, (tool, question, number)
