"""The built site in a real browser: what fits, what is found, and what is asked of elsewhere.

`make docs` builds it; `make check-site` runs these tests.
"""

import contextlib
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.browsing import needs_chromium

playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
mike = pytest.importorskip("mike", reason="needs the extra `docs`")

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "site"
pytestmark = [
    pytest.mark.site,
    needs_chromium,
]

# Paragraphs are left out: the padding of code in a line may stick out by a pixel.
TOO_WIDE = """() => {
  const wide = (element) => element.clientWidth && element.scrollWidth > element.clientWidth + 1;
  const found = wide(document.documentElement) ? ["the page"] : [];
  const boxes = "pre, pre > code, h1, h2, h3, h4, h5, h6, table, .md-typeset__scrollwrap, figure";
  const allowed = innerWidth < 600 ? "table, .md-typeset__scrollwrap" : "none";  // in its own box
  for (const box of (document.querySelector(".md-content") ?? document).querySelectorAll(boxes))
    if (wide(box) && !box.matches(allowed))
      found.push(`${box.tagName.toLowerCase()}: ${box.innerText.trim().slice(0, 60)}`);
  return found;
}"""


BROKEN_NAMES = r"""() => [...document.querySelectorAll(".md-content td code")]
  .filter((name) => /^[\w.]+$/.test(name.innerText) && name.getClientRects().length > 1)
  .map((name) => name.innerText)"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Writes no line per request."""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, served on this machine."""
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=os.fspath(folder))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    assert (SITE / "index.html").exists(), "There is no site yet: run `make docs`."
    with served(SITE) as address:
        yield address


def pages() -> list[str]:
    found = (path.parent.relative_to(SITE).as_posix() for path in SITE.rglob("index.html"))
    return sorted("" if page == "." else f"{page}/" for page in found)


def too_wide(page: Any) -> dict[int, list[str]]:
    """What sticks out of its box on a small laptop and on a phone, by the width of the screen."""
    found = {}
    for width, height in ((1280, 900), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        found[width] = page.evaluate(TOO_WIDE)
    return {width: boxes for width, boxes in found.items() if boxes}


def test_every_page_fits_and_asks_nothing_of_elsewhere(browser: Any, site: str) -> None:
    page = browser.new_page()
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(request.url))
    found, broken = {}, {}
    for name in pages():
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(site + name)
        broken[name] = page.evaluate(BROKEN_NAMES)
        found[name] = too_wide(page)
    page.close()
    assert len(found) > 30
    assert {name: names for name, names in broken.items() if names} == {}
    assert {name: wide for name, wide in found.items() if wide} == {}
    assert {url for url in asked if not url.startswith((site, "data:", "blob:"))} == set()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<pre><code>short</code></pre>", {}),
        (f"<pre style='overflow: auto'><code>{'x' * 400}</code></pre>", {1280, 390}),
        (f"<table style='display: block; overflow: auto'><td>{'x' * 100}</table>", {}),
        (f"<table style='display: block; overflow: auto'><td>{'x' * 400}</table>", {1280}),
        (f"<table><td>{'x' * 100}</table>", {390}),  # not in a box of its own
        ("<div style='width: 800px'>one</div>", {390}),
    ],
)
def test_what_does_not_fit_is_seen(browser: Any, body: str, expected: dict[int, list[str]]) -> None:
    page = browser.new_page()
    page.set_content(f"<main class='md-content'>{body}</main>")
    assert set(too_wide(page)) == set(expected)
    page.close()


@pytest.mark.parametrize(
    ("words", "page", "heading"),
    [
        ("median", "tables/", "Private numbers of a table"),
        ("ledger", "budget/", None),
        ("Opacus", "opacus/", None),
    ],
)
def test_the_search_opens_the_right_page(
    browser: Any, site: str, words: str, page: str, heading: str | None
) -> None:
    shown = browser.new_page(viewport={"width": 1280, "height": 900})
    shown.goto(site)
    shown.get_by_role("textbox", name="Search").fill(words)
    results = shown.locator(".md-search-result__link")
    playwright.expect(results.first).to_be_visible(timeout=30_000)
    found = [str(results.nth(place).get_attribute("href")) for place in range(results.count())]
    ranks = [place for place, url in enumerate(found) if url.startswith((page, f"{site}{page}"))]
    assert ranks, f"{page} is not among {found}"
    results.nth(ranks[0]).click()
    shown.wait_for_url(f"{site}{page}**")
    if heading:
        playwright.expect(shown.locator("h1")).to_contain_text(heading)
    shown.close()


SESSION = """
$ prudent sample salaries
$ prudent epsilon --steps 5000 \\
    --delta 1e-5
1.455
$ ls
salaries.parquet
"""


@pytest.mark.parametrize(
    ("shown", "copied"),
    [
        (
            SESSION,
            [
                "prudent sample salaries",
                "prudent epsilon --steps 5000 \\",
                "    --delta 1e-5",
                "ls",
            ],
        ),
        ("make demo  # all\nmake test\n", ["make demo  # all", "make test"]),
    ],
)
def test_copy_takes_what_is_typed(
    browser: Any, tmp_path: Path, shown: str, copied: list[str]
) -> None:
    """With the theme, its settings and our style, on a page of one block."""
    (tmp_path / "docs").mkdir()
    for folder in ("stylesheets", "theme"):
        (tmp_path / "docs" / folder).symlink_to(ROOT / "docs" / folder)
    (tmp_path / "docs" / "index.md").write_text(f"# A page\n\n```console\n{shown.strip()}\n```\n")
    settings = "docs_dir: docs\nsite_dir: site\nnav: [index.md]\nhooks: []\nplugins: [search]\n"
    (tmp_path / "mkdocs.yml").write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\n{settings}")
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--quiet"]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(mkdocs, cwd=tmp_path, check=True, timeout=300, env=quiet)
    with served(tmp_path / "site") as address:
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.goto(address)
        page.locator(".highlight").hover()
        page.locator(".highlight [data-clipboard-target]").click()
        playwright.expect(page.get_by_text("Copied to clipboard")).to_be_visible()
        text = page.evaluate("navigator.clipboard.readText()")
        context.close()
    assert [line for line in text.splitlines() if line] == copied


def test_two_versions_are_published_side_by_side(browser: Any, tmp_path: Path) -> None:
    """The commands of `make publish-docs`, with the site's settings and one page."""
    clone, kept = tmp_path / "clone", tmp_path / "kept"
    (clone / "docs").mkdir(parents=True)
    (clone / "docs" / "index.md").write_text("# One page\n")
    (clone / "docs" / "theme").symlink_to(ROOT / "docs" / "theme")
    settings = (
        f"INHERIT: {ROOT / 'mkdocs.yml'}\n"
        "docs_dir: docs\nnav: [index.md]\nextra_css: []\nhooks: []\n"
    )
    (clone / "mkdocs.yml").write_text(settings)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "NO_MKDOCS_2_WARNING": "1"}

    def run(*command: str) -> None:
        subprocess.run(command, cwd=clone, check=True, env=environment, timeout=300)

    run("git", "init", "--quiet", "--initial-branch=main")
    run("git", "config", "user.name", "prudent")
    run("git", "config", "user.email", "prudent@example.org")
    run("git", "add", "--all")
    run("git", "commit", "--quiet", "--message", "One page")
    run("mike", "deploy", "--update-aliases", "0.1.0", "latest")
    run("mike", "deploy", "--update-aliases", "0.2.0", "latest")
    run("mike", "deploy", "dev")
    run("mike", "set-default", "latest")
    run("git", "worktree", "add", "--quiet", os.fspath(kept), "gh-pages")

    versions = json.loads((kept / "versions.json").read_text())
    assert {entry["version"]: entry["aliases"] for entry in versions} == {
        "dev": [],
        "0.2.0": ["latest"],
        "0.1.0": [],
    }
    with served(kept) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address)
        page.wait_for_url(f"{address}latest/")
        offered = page.locator(".md-version__link")
        playwright.expect(offered).to_have_text(["dev", "0.2.0", "0.1.0"])
        offered.last.focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"{address}0.1.0/")
        playwright.expect(page.locator("h1")).to_contain_text("One page")
        page.close()
