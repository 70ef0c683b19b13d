"""The report in a real browser: nothing is cut off, and lines have a readable length."""

from pathlib import Path
from typing import Any

import pytest

from prudent_lab.paper.report.page import as_html
from prudent_lab.paper.results import read, shipped
from tests.browsing import needs_chromium

playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")

pytestmark = needs_chromium

CUT_OFF = """() => [...document.querySelectorAll('body *')]
    .filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== 'visible')
    .map(e => e.previousElementSibling?.textContent.slice(0, 60))"""
PAGE_WIDTHS = "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
LINE_LENGTHS = """() => [...document.querySelectorAll('main p:not(.note)')].map(e => {
    const lines = Math.round(e.clientHeight / parseFloat(getComputedStyle(e).lineHeight));
    return [e.textContent.length, lines]; }).filter(([length]) => length > 200)"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    page = as_html(read(shipped()), "prudent paper report", curves=False)
    path.write_text(page, encoding="utf-8")
    return path.as_uri()


def test_nothing_is_cut_off_on_a_laptop(browser: Any, address: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    inside, outside = page.evaluate(PAGE_WIDTHS)
    assert inside <= outside
    assert page.evaluate(CUT_OFF) == []
    lengths = page.evaluate(LINE_LENGTHS)
    assert lengths
    assert all(55 <= length / lines <= 85 for length, lines in lengths)
    page.close()


def test_a_phone_scrolls_tables_and_never_the_page(browser: Any, address: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800}, is_mobile=True)
    page.goto(address)
    inside, outside = page.evaluate(PAGE_WIDTHS)
    assert inside <= outside == 390
    page.close()
