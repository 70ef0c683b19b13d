"""Pages: what stands on them is what the results say, to the last digit."""

import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from prudent_lab.paper.jobs import published
from prudent_lab.paper.report import page
from prudent_lab.paper.report.page import as_html, as_markdown, passing_table
from prudent_lab.paper.report.tables import Table
from prudent_lab.paper.results import read, shipped
from tests.lab.paper.report.conftest import cells, row
from tests.lab.paper.report.test_summary import everywhere

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs" / "reproduction.md"
BY = "prudent paper report"
OVERVIEW = "prudent paper report --overview"


class Page(HTMLParser):
    """The cells of every table, row by row, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.words: list[str] = []
        self.outside: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        self.outside += [v for k, v in attributes if k.endswith(("src", "href")) and v[0] != "#"]
        if tag not in ("meta", "line"):
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" in self._open or "svg" in self._open:
            return
        self.words.append(data)
        if self._open and self._open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def without_curves(results, command):
    return as_html(results, command, curves=False)


@pytest.mark.unhurried
def test_the_page_in_the_docs_is_the_one_the_results_give():
    """Fails when a number is typed by hand, and when results change and the page does not."""
    page = as_markdown(read(shipped()), OVERVIEW, whole=False)
    assert PAGE.read_text("utf-8") == page, f"Make it anew: {OVERVIEW} {PAGE}"


@pytest.mark.parametrize("render", [without_curves, as_markdown])
def test_no_accuracy_stands_on_a_page_without_results(results, render):
    text = render(results([]), BY)
    assert numbers_on(text) == set()


@pytest.mark.parametrize("render", [without_curves, as_markdown])
def test_every_number_of_the_paper_stands_on_a_page(results, render):
    every = everywhere(0.0, ptr=0.0)
    rows = every + [r | {"column": "dpsgd"} for r in every if r["dataset"] == "emnist"]
    printed = {round(cell.accuracy, 2) for cell in published()}
    assert printed <= numbers_on(render(results(rows), BY))


def numbers_on(text):
    """The numbers with two decimals above the settings."""
    text = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    text = text[: text.rindex("What was chosen")]
    return {float(n.replace("−", "-")) for n in re.findall(r"[+−]?\d+\.\d\d(?!\d)", text)}


def test_what_was_not_run_is_one_line_and_no_table(results):
    page = as_markdown(results(cells({"ptr": [91.0]})), BY)
    parts = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], map(str.strip, parts[2::2]), strict=True))
    numbers = {title: text for title, text in sections.items() if title.startswith("Table")}
    assert [text.count("|---") > 0 for text in numbers.values()] == [True, False, False, False]
    first, *others = numbers.values()
    assert first.splitlines()[-1] == (
        "Not run: CIFAR10; emnist-az, a substitute for EMNIST Letters (`prudent paper table 1 "
        "--run`)."
    )
    assert all(len(text.splitlines()) == 1 for text in others)
    for title in ("Bad records: what survived", "Bad gradients: what survived"):
        assert sections[title] == "Attacks: not run (`prudent paper table frontier --run`)."
    rows = [line for line in first.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows] == ["| corruption", "| clean"]
    assert "Not run: random labels 10%; random labels 20%; feature noise 10%" in first


def test_the_tables_hold_every_cell_as_the_rows_give_it(results):
    """Made from the rows here, by other means than there."""
    rows = [
        *cells({"ptr": [91.0, 92.0], "trimmed": [88.5], "ours": [96.5, 96.7]}),
        *cells({"ptr": [90.0]}, accountant="rdp"),
    ]
    page = Page(as_html(results(rows), BY, curves=False))
    first = next(n for n, row in enumerate(page.rows) if row[2:3] == ["87.53"])
    assert page.rows[first - 2] == ["corruption", "ε", "TSGD+Gaussian", "TSGD+PTR", "tuned"]
    assert page.rows[first - 1] == ["paper", "RDP", "PLD", "paper", "RDP", "PLD"]
    assert page.rows[first] == [
        "clean", "3", "87.53", "no step within ε", "88.50",
        "91.43", "90.00", "91.50 ± 0.71", "96.60 ± 0.14",
    ]  # fmt: skip
    text = " ".join(page.words)
    for difference in ("+0.97", "−1.43", "+0.07, 2 seeds"):
        assert difference in text
    assert "Seeds: 1, 2 in the tuned setting" in text
    assert "Not run: DP-SGD, tuned." in text


def test_columns_that_share_a_word_share_a_heading():
    header = ("data set", "PTR", "PTR, tuned", "off by, RDP", "off by, PLD", "plain")
    html = page._template("page.html.j2").module.table(Table(header, [map(str, range(6))]))
    upper, lower, _ = Page(html).rows
    assert upper == ["data set", "PTR", "PTR, tuned", "off by", "plain"]
    assert lower == ["RDP", "PLD"]
    assert html.count('colspan="2"') == 1
    assert html.count('rowspan="2"') == 4
    alone = page._template("page.html.j2").module.table(Table(("a", "b, c"), []))
    assert "span" not in alone


def test_many_exceptions_are_told_by_their_range(results):
    rows = [line for line in everywhere(0.5, ptr=0.0) if line["dataset"] == "mnist"]
    for line in rows:
        line["accuracy"] -= 1.0 if line["epsilon"] == 5.0 else 0.0
    page = as_markdown(results(rows), BY)
    (told,) = (line for line in page.splitlines() if "below the paper's, by PLD" in line)
    assert told == (
        "- TSGD+PTR below the paper's, by PLD (7): MNIST: 7 of 14 cells, −0.50 to −0.50."
    )


def test_exceptions_are_told_with_their_differences(results):
    rows = everywhere(0.5, ptr=0.0)
    for line in rows:
        line["accuracy"] -= 1.0 if line["dataset"] == "cifar10" else 0.0
        if (line["dataset"], line["corrupt"]) == ("emnist", "sign-flip:0.2"):
            line["accuracy"] -= 2.0 * line["epsilon"]
    page = as_markdown(results(rows), BY)
    (told,) = (line for line in page.splitlines() if "below the paper's, by PLD" in line)
    assert told == (
        "- TSGD+PTR below the paper's, by PLD (16): CIFAR10: every cell, −0.50 to −0.50; "
        "emnist-az: sign flip 20% (−3.50 at 2, −4.50 at 2.5)."
    )


def test_what_the_paper_prints_in_two_tables_is_the_same_in_both():
    """So Table 4 need not repeat the lines of Table 1."""
    found: dict[tuple[object, ...], set[float]] = {}
    for cell in published():
        key = (cell.dataset, cell.corrupt, cell.epsilon, cell.method)
        found.setdefault(key, set()).add(cell.accuracy)
    assert all(len(values) == 1 for values in found.values())
    tables = [
        {(c.corrupt, c.epsilon) for c in published() if (c.table, c.dataset) == (t, "emnist")}
        for t in (1, 4)
    ]
    assert tables[0] == tables[1]


@pytest.mark.unhurried
def test_the_page_opens_with_what_holds_and_calls_what_is_measured_no_guarantee():
    page = PAGE.read_text("utf-8")
    first, second, *_ = page.split("\n## ")[1:]
    assert first.startswith("Which claims of the paper hold")
    assert second.startswith("Bad records: proved and measured")
    proved, measured = second.index("(certify.md#training-runs)"), second.index("no guarantee")
    assert proved < measured < second.index("| Bad")
    alone = Page(as_html(read(shipped()), BY, curves=False))
    assert "certificates of training runs" in " ".join(alone.words)
    assert alone.outside == []


def test_the_summary_comes_before_the_tables_and_counts(results):
    rows = everywhere(0.5, ptr=0.0, trimmed=-1.0)
    page = Page(as_html(results(rows), BY, curves=False))
    text = " ".join(page.words)
    assert text.count("78 of 78") == 6  # twice among the claims, and by two accountants
    assert text.index("78 of 78") < text.index("14 of 14") < text.index("Table 1: MNIST")
    assert "emnist-az: A substitute" in text
    assert "VGG16: A substitute for VGG11" in text


@pytest.mark.thorough
def test_the_page_needs_nothing_else_and_is_the_same_again(results):
    rows = [
        *cells({"ptr": [91.0, 92.0], "trimmed": [88.5]}),
        *cells({"ptr": [90.0, 90.5]}, epsilon=2.0, accountant="pld"),
        *cells({"ours": [93.0]}),
    ]
    first, second = (as_html(results(rows), BY) for _ in range(2))
    assert first == second
    assert Page(first).outside == []
    assert "<script" not in first
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", first)
    names = re.findall(r'\bid="([^"]+)"', first)
    assert len(names) == len(set(names))
    for used in re.findall(r'(?:url\(#|href="#)([^")]+)', first):
        assert used in names


def test_small_results_say_so_in_the_title(write):
    found = read(write(cells({"ptr": [91.0]}), "results.small.csv"))
    for render in (without_curves, as_markdown):
        text = render(found, BY)
        assert re.search(r"reproduced, at small size(</h1>)?\n", text)
        assert text.count("not with the paper") == 2  # above all, and under the table
        assert "of 78" not in text
        assert "+0.43" not in text  # no difference from the paper's 91.43
        assert "−0.43" not in text


def test_a_name_is_escaped(results):
    found = results(cells({"ours-<b>|x": [93.0]}))
    assert "ours-<b>" not in without_curves(found, BY)
    assert "ours-<b>|x" not in as_markdown(found, BY).split("## What was run")[1]


def test_a_tag_in_the_prose_is_text():
    assert "<b>" not in page._converter().convert("a <b>name</b>\n\n<b>block</b>")


def test_tests_are_counted_over_whole_runs(results):
    """The share of a row is of the steps since the row before: 50 of 100, then 40 of 200."""
    rows = [
        row(steps=100, pass_rate=0.5, epsilon=1.0),
        row(steps=300, pass_rate=0.2, trim=128),
        row(steps=300, pass_rate=0.0, accountant="rdp", trim=128),
        row(seed=1, steps=300, pass_rate=0.5, trim=0),
        row(column="trimmed", steps=300, pass_rate=1.0),
    ]
    grid = passing_table(results(rows))
    (line,) = grid.rows
    assert grid.header == ("corruption", "MNIST")
    assert [cell.text for cell in line] == ["clean", "40%, 25%"]


def test_no_accuracy_is_typed_into_the_text():
    """Numbers come from results or held_out.csv."""
    text = resources.files("prudent_lab.paper.report").joinpath("page.md.j2").read_text("utf-8")
    assert not re.search(r"\d\d\.\d", text)
