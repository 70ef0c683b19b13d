"""The report on a budget: complete, true as printed, and safe whatever a label says."""

import getpass
import html.parser
import json
from pathlib import Path
from typing import Any

import dp_accounting as dp
import pytest

from prudent.accounting.attack_bounds import AttackBounds
from prudent.accounting.events import ApproximateDpEvent, ExponentialMechanismDpEvent
from prudent.accounting.relations import Relation
from prudent.budget.ledger import Ledger
from prudent.budget.report import BudgetReport

HOSTILE = (
    "<script>alert('|')</script> *salary* | \n\r| 1 | forged |\x85\u2028~~\x1b[2J\u202e [x](y)"
)


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with Ledger(tmp_path / "b.db", epsilon=1.0, delta=1e-6, asker="Ada") as opened:
        yield opened


def spend(ledger: Ledger, label: str = "median of salary", **details: Any) -> None:
    charge = ledger.charge(
        dp.ComposedDpEvent([ExponentialMechanismDpEvent(0.1)] * 2),
        label,
        details={"statistic": "median", "epsilon": 0.25, **details},
    )
    ledger.record_outcome(charge, "released")


class Tags(html.parser.HTMLParser):
    """All tags of a page, and all addresses in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str | None] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]


@pytest.mark.unhurried
def test_it_tells_who_asked_what_at_which_price_and_why_it_differs(ledger: Ledger) -> None:
    spend(ledger, column="salary")
    spend(ledger, asker="Grace")
    found = BudgetReport.of(ledger)
    lines = [line.split(" | ") for line in found.markdown().splitlines() if line.count("|") == 11]
    header, _, *rows = ([cell.strip("| ") for cell in line] for line in lines)
    first, second = (dict(zip(header, row, strict=True)) for row in rows)
    assert (first["Who"], second["Who"]) == ("Ada", "Grace")
    assert first["What was asked"] == "median of salary"
    assert (first["ε asked"], first["ε price"], first["Outcome"]) == ("0.25", "0.2", "released")
    below, less = found.differences()
    assert "asked ε = 0.25, price 0.2" in below
    assert f"ε = {first['ε spent']} instead of 0.2" in less
    assert float(first["ε spent"]) < 0.2
    for page in (found.html(), found.markdown(), json.dumps(found.plain(), ensure_ascii=False)):
        for words in ("Ada", "Grace", "0.25", "adding or removing one record", "of 2 charges"):
            assert words in page
        assert found.balance.digest in page


def test_the_name_of_the_user_is_noted_unless_one_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRUDENT_ASKER", raising=False)
    monkeypatch.setattr(getpass, "getuser", lambda: "someone")
    with Ledger(tmp_path / "b.db", epsilon=1.0, delta=1e-6) as ledger:
        spend(ledger)
    monkeypatch.setenv("PRUDENT_ASKER", "Emmy")
    with Ledger(tmp_path / "b.db") as ledger:
        spend(ledger)
        assert [charge.details.asker for charge in ledger.history()] == ["someone", "Emmy"]


@pytest.mark.unhurried
def test_what_others_wrote_is_shown_as_it_is(ledger: Ledger) -> None:
    spend(ledger, HOSTILE, statistic=None, asker=HOSTILE)
    found = BudgetReport.of(ledger)
    page = Tags(found.html())
    assert "script" not in page.tags
    assert page.addresses == []  # nothing is loaded
    text = found.markdown()
    for shown in (text, found.html()):
        assert all(each.isprintable() or each == "\n" for each in shown)
    table = [line for line in text.splitlines() if "alert" in line]
    assert len(table) == 1
    assert table[0].count("|") - table[0].count("\\|") == 11
    assert "\\*salary\\*" in table[0]


def test_what_was_chosen_after_answers_is_bounded_by_the_budget(ledger: Ledger) -> None:
    spend(ledger)
    assert "after what was asked:" in BudgetReport.of(ledger).markdown()
    spend(ledger)
    report = BudgetReport.of(ledger)
    assert "after the whole budget:" in report.markdown()
    whole = AttackBounds.of(ApproximateDpEvent(1.0, 1e-6))
    assert report.attacks is not None
    assert report.attacks.precision(0.5, 0.01) >= whole.precision(0.5, 0.01)


def test_an_attacker_learns_no_more_than_the_curve(ledger: Ledger) -> None:
    assert BudgetReport.of(ledger).chances() == []
    spend(ledger)
    for before, after in BudgetReport.of(ledger).chances():
        prior, bound = (
            float(text.removeprefix("at most ").split()[0]) / 100 for text in (before, after)
        )
        odds = prior / (1 - prior) * 1.2214028  # e^0.2
        assert prior < bound <= odds / (1 + odds) * 1.01


def test_missing_rows_are_told(ledger: Ledger, tmp_path: Path) -> None:
    spend(ledger)
    earlier = ledger.balance().digest
    spend(ledger)
    assert BudgetReport.of(ledger, earlier).intact
    found = BudgetReport.of(ledger, "0" * 64)
    assert not found.intact
    for page in (found.html(), found.markdown()):
        assert "not as it was written" in page


def test_a_budget_for_several_records_says_so(tmp_path: Path) -> None:
    relation = Relation("add-remove", records=3)
    with Ledger(tmp_path / "b.db", epsilon=3.0, delta=1e-6, relation=relation) as ledger:
        spend(ledger)
        found = BudgetReport.of(ledger)
    assert "up to 3 records" in found.protection()
    assert any("Prices are for one record" in each for each in found.differences())
    assert "several records together" in found.html()


def test_a_budget_beyond_all_prices_has_a_report(tmp_path: Path) -> None:
    with Ledger(tmp_path / "large.db", epsilon=600.0, delta=1e-6) as ledger:
        spend(ledger)
        spend(ledger)
        assert dict(BudgetReport.of(ledger).chances())["50 %"] == "at most 99.1 %"


@pytest.mark.unhurried
def test_more_offers_than_are_counted_are_said_to_be_more(tmp_path: Path) -> None:
    with Ledger(tmp_path / "many.db", epsilon=1e-3, delta=0.1) as ledger:
        report = BudgetReport.of(ledger)
    told = "at least 1024 releases at ε = 0.001, or at least 1024 at ε = 0.0002, or at least 1024"
    assert dict(report.facts())["Still fits"].startswith(told)
    offered = {"count": 1024, "epsilon": 1e-3, "at_least": True}
    assert report.plain()["offers"][0] == offered
