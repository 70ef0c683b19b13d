"""The page in a real browser: what is drawn, with the keyboard, in the dark, on a phone."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prudent_lab import explore as page
from tests.browsing import needs_chromium

playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")

pytestmark = needs_chromium


@contextlib.contextmanager
def opened(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """A page without errors, on a machine without a network."""
    context = browser.new_context(**options)
    found = context.new_page()
    wrong: list[str] = []
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    asked: list[str] = []
    found.on("request", lambda request: asked.append(request.url))
    found.goto(address)
    yield found
    context.close()
    assert not wrong
    assert all(url.startswith((address, "data:")) for url in asked)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page.page(), encoding="utf-8")
    return path.as_uri()


def text_of(figure: Any) -> str:
    return str(figure.locator("svg[role=img]").get_attribute("aria-label"))


def test_an_exported_page_shows_the_numbers_of_the_accountant(browser: Any, exported: str) -> None:
    with opened(browser, exported) as shown:
        spent = page.stored()["answers"]["spent"]["256|1.1|0.5|gaussian|4"]
        shown.locator("#figure-spent summary").click()
        cells = shown.locator("#figure-spent tr").last.locator("td").all_text_contents()
        assert cells[0] == "10,000"
        assert float(cells[1]) == pytest.approx(spent["tested"][-1], rel=2e-3)
        assert float(cells[2]) == pytest.approx(spent["plain"][-1], rel=2e-3)
        for name in ("left", "noise", "passing"):
            assert shown.locator(f"#figure-{name} svg[role=img]").count() == 1


def test_a_slider_moves_with_the_keyboard_and_the_page_follows(browser: Any, exported: str) -> None:
    with opened(browser, exported) as shown:
        before = text_of(shown.locator("#figure-spent"))
        slider = shown.get_by_label("Noise σ")
        slider.focus()
        slider.press("ArrowRight")
        playwright.expect(shown.locator("#figure-spent svg[role=img]")).not_to_have_attribute(
            "aria-label", before
        )
        expected = page.stored()["answers"]["spent"]["256|1.5|0.5|gaussian|4"]["tested"][-1]
        assert f"with the test: {float(f'{expected:.3g}'):g} at" in text_of(
            shown.locator("#figure-spent")
        )
        assert "1.5" in str(slider.get_attribute("aria-valuetext"))


def test_tabs_are_reached_with_arrows(browser: Any, exported: str) -> None:
    with opened(browser, exported) as shown:
        shown.get_by_role("tab", name="Training").focus()
        shown.keyboard.press("ArrowRight")
        playwright.expect(shown.get_by_role("tab", name="Tables")).to_be_focused()
        assert "exponential" in text_of(shown.locator("#figure-tables"))
        shown.keyboard.press("ArrowRight")
        assert "public letters" in text_of(shown.locator("#figure-measured"))
        assert "at least" in text_of(shown.locator("#figure-withstood"))


def test_every_control_has_a_name(browser: Any, exported: str) -> None:
    with opened(browser, exported) as shown:
        for control in shown.locator("input, select, button").all():
            control_id = control.get_attribute("id")
            labelled = shown.locator(f"label[for='{control_id}']").count()
            assert labelled or control.text_content(), control_id


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_schemes(browser: Any, exported: str, scheme: str) -> None:
    with opened(browser, exported, color_scheme=scheme) as shown:
        for selector in ("h1", "#origin", "figcaption", ".setting small"):
            assert contrast(shown, selector) >= 4.5, selector
        assert shown.evaluate("document.documentElement.dataset.theme") == scheme


def contrast(shown: Any, selector: str) -> float:
    """The contrast of a text with its ground, as WCAG 2 defines it."""
    front, back = shown.locator(selector).first.evaluate(
        """(node) => {
          let ground = node;
          const back = () => getComputedStyle(ground).backgroundColor;
          while (back() === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
          return [getComputedStyle(node).color, back()];
        }"""
    )
    light, dark = sorted((luminance(front), luminance(back)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(each) / 255 for each in colour.removeprefix("rgb(").rstrip(")").split(",")[:3]]
    linear = [
        each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_nothing_is_cut_off_on_a_phone(browser: Any, exported: str) -> None:
    with opened(browser, exported, viewport={"width": 360, "height": 740}) as shown:
        for tab in ("Training", "Tables", "Certificates"):
            shown.get_by_role("tab", name=tab).click()
            assert shown.evaluate("document.documentElement.scrollWidth") <= 360
