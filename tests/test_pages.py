"""The pages as the site renders them: every row of a table is in the table."""

import re
from pathlib import Path
from typing import Any

import pytest

markdown = pytest.importorskip("markdown", reason="needs the extra `lab`")
yaml = pytest.importorskip("yaml", reason="needs the extra `dev`")

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "packages/*/*.md")
    for path in sorted(ROOT.glob(pattern))
]


def settings() -> list[Any]:
    """The Markdown extensions of the site, as mkdocs.yml names them."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    found = re.search(r"^markdown_extensions:\n(?:[ \t]+.*\n)+", text, re.MULTILINE)
    assert found
    return list(yaml.safe_load(found[0])["markdown_extensions"])


def rendered(text: str) -> str:
    given = [each if isinstance(each, dict) else {each: {}} for each in settings()]
    options = {name: values for each in given for name, values in each.items()}
    return str(markdown.markdown(text, extensions=[*options], extension_configs=options))


def broken_tables(text: str) -> list[str]:
    """The rows of tables that a page shows as text, and the tables without a row."""
    html = re.sub(r"<(pre|code)\b.*?</\1>", "", rendered(text), flags=re.DOTALL)
    empty = re.findall(r"<tbody>\s*<tr>\s*(?:<td[^>]*></td>\s*)+</tr>\s*</tbody>", html)
    bare = re.sub(r"<table\b.*?</table>", "", html, flags=re.DOTALL)
    rows = re.findall(r"^(?:<[^>]+>)*\|.*$", bare, re.MULTILINE)
    return rows + empty


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("| a | b |\n|---|---|\n| 1 | 2 |\n", 0),
        ("words\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n| 3 | 4 |\n", 1),
        ("| a | b |\n|---|---|\n\n| 1 | 2 |\n", 2),
        ("words\n| a | b |\n|---|---|\n| 1 | 2 |\n", 3),
        ("```console\n| a | b |\n```\n", 0),
        ("`x`\n\n- | a |\n", 1),
    ],
)
def test_a_row_outside_a_table_is_seen(text: str, broken: int) -> None:
    assert len(broken_tables(text)) == broken


@pytest.mark.unhurried
def test_every_row_of_a_table_is_in_the_table() -> None:
    assert len(PAGES) > 30
    found = {
        path.relative_to(ROOT).as_posix(): broken_tables(path.read_text(encoding="utf-8"))
        for path in PAGES
    }
    assert {name: rows for name, rows in found.items() if rows} == {}


def test_a_version_that_a_page_tells_to_install_is_the_pinned_one() -> None:
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    told = {
        name: found
        for name in ("README.md", "docs/index.md")
        if (found := re.findall(r"`([\w-]+)==([\w.]+)`", (ROOT / name).read_text("utf-8")))
    }
    assert "README.md" in told  # how to take a build of PyTorch without CUDA
    for name, version in (each for found in told.values() for each in found):
        assert pins[name] == version


MEASURED = {
    "a small network reaches {} %": ("benchmarks/README.md", r"TSGD\+PTR, ours: [^|]*\| 3"),
    "the paper's own setting {} %": ("benchmarks/README.md", r"TSGD\+PTR, paper \| 3"),
    "DP-SGD\n{} %": ("benchmarks/README.md", r"DP-SGD \| 3 \| 2,344"),
    "made from no data: {} %": ("docs/recipes.md", "`glyphs-linear`"),
    "another one reaches {} %": ("docs/recipes.md", "`scattering-glyphs`"),
    "(docs/recipes.md#cifar10) {} % at ε = 1": ("docs/recipes.md", "`random-images-1` \\| 1 "),
}
"""Sentences of the first page, and the rows that hold their numbers."""


@pytest.mark.parametrize("sentence", MEASURED)
def test_the_first_page_has_the_numbers_of_the_tables(sentence: str) -> None:
    page, row = MEASURED[sentence]
    text = (ROOT / page).read_text("utf-8")
    (mean,) = re.findall(rf"^\| {row}.*?([\d.]+) ± ", text, re.MULTILINE)
    assert sentence.format(f"{float(mean):.1f}") in (ROOT / "README.md").read_text("utf-8")


def test_make_test_takes_as_long_on_every_page() -> None:
    told = [
        re.findall(r"make test\b(?!-)[^\n]* (\w+) minutes on two cores", path.read_text("utf-8"))
        for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md")
    ]
    assert told[0] == told[1]
    assert len(told[0]) == 1
