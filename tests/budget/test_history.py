"""What a ledger says of its charges: what was asked, what came of it, and what still fits."""

import json
from pathlib import Path

import attrs
import dp_accounting as dp
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent.budget.allowance import row_after
from prudent.budget.ledger import (
    ChargeDetails,
    Ledger,
    LedgerError,
    TamperedLedgerError,
)
from prudent.release.ptr import ProposeTestReleaseMechanism
from tests.budget.test_verify import edited, overwrite, rehashed
from tests.raising import refused

MEDIAN = ChargeDetails("median", "salary", "propose-test-release", 500.0, ("a", "b"), "person", 0.1)
PURE = DiscreteLaplaceDpEvent(0.1, 1)


@pytest.fixture
def ledger(location: str) -> Ledger:
    with Ledger(location, epsilon=1.0, delta=1e-6, asker="Ada") as opened:
        yield opened


def test_details_and_outcomes_are_kept(ledger: Ledger, location: str) -> None:
    event = ProposeTestReleaseMechanism.calibrate(propose=500.0, epsilon=0.1, delta=1e-7).event
    first = ledger.charge(event, "median of salary", delta=1e-7, details=MEDIAN)
    second = ledger.charge(PURE, "count", delta=0, details={"statistic": "count"})
    ledger.charge(PURE)
    ledger.record_outcome(second, "refused")
    ledger.record_outcome(first, {"released": 1, "refused": 1})
    with Ledger.open(location) as again:
        one, two, three = again.history()
        assert (one.details, two.details.statistic, three.details) == (
            attrs.evolve(MEDIAN, asker="Ada"),
            "count",
            ChargeDetails(asker="Ada"),
        )
        words = [charge.outcome_text for charge in (one, two, three)]
        assert words == ["1 released, 1 refused", "refused", "unknown"]
        assert (two.epsilon, two.at_delta, one.at_delta) == (0.1, 0.0, 1e-7)
        assert 0.0999 < one.epsilon <= 0.1
        assert again.balance().charges == again.verify() == 3
        assert again.spent == pytest.approx(0.3, rel=1e-3)
        plain = json.loads(json.dumps(one.to_plain()))
        assert (plain["column"], plain["groups"], plain["unit"]) == ("salary", ["a", "b"], "person")


def test_outcomes_cost_nothing_and_are_noted_once(ledger: Ledger) -> None:
    charge = ledger.charge(PURE)
    before = ledger.balance()
    ledger.record_outcome(charge, "released")
    after = ledger.balance()
    assert attrs.evolve(after, digest="") == attrs.evolve(before, digest="")
    assert after.digest != before.digest
    noted = json.loads(ledger._store.rows("default")[-1].record)
    assert "time" not in noted, "how long a release takes may depend on the data"
    with pytest.raises(LedgerError, match="charge 1 is already noted"):
        ledger.record_outcome(charge, "refused")
    with pytest.raises(LedgerError, match="Charge 2 is not one of"):
        ledger.record_outcome(attrs.evolve(charge, sequence=2), "released")
    with refused("outcome"):
        ledger.record_outcome(charge, "lost")
    with refused("details"):
        ledger.charge(PURE, details={"statistics": "median"})


@pytest.mark.parametrize(
    ("row", "edit"),
    [
        (1, {"details": {}}),
        (2, {"outcome": {"refused": 1}}),
        (2, {"charge": 1, "outcome": {"released": 2}}),
    ],
)
def test_an_edit_is_noticed(ledger: Ledger, location: str, row: int, edit: dict) -> None:
    ledger.record_outcome(ledger.charge(PURE, details=MEDIAN), "released")
    ledger.charge(PURE)
    rows = ledger._store.rows("default")
    rows[row] = edited(rows[row], **edit)
    overwrite(ledger._store, "default", rows)
    with pytest.raises(TamperedLedgerError, match=f"Row {row} "):
        Ledger.open(location)


@pytest.mark.parametrize("number", [0, 2, 7, "1", None])
def test_an_outcome_belongs_to_a_charge_before_it(
    ledger: Ledger, location: str, number: object
) -> None:
    """An appended row of this kind, its hashes right, cannot pass for a charge."""
    ledger.charge(PURE)
    with ledger._store.exclusive("default"):
        last = ledger._store.rows("default")[-1]
        row = row_after(last, dataset="default", charge=number, outcome={"released": 1})
        ledger._store.append("default", row)
    with pytest.raises(TamperedLedgerError, match="the outcome of no charge"):
        Ledger.open(location)


def test_a_charge_cannot_be_passed_off_as_an_outcome(ledger: Ledger, location: str) -> None:
    ledger.charge(PURE)
    ledger.charge(PURE)
    rows = ledger._store.rows("default")
    forged = edited(rows[2], outcome={"released": 1}, charge=1)
    overwrite(ledger._store, "default", rehashed([*rows[:2], forged]))
    with Ledger.open(location) as again:
        assert again.balance().charges == 2
        assert again.spent == pytest.approx(0.2)


def test_what_is_offered_fits_and_one_more_does_not(ledger: Ledger, tmp_path: Path) -> None:
    ledger.charge(dp.GaussianDpEvent(8.0))
    offers = ledger.offers()
    assert len({offer.epsilon for offer in offers}) == 3
    for number, offer in enumerate(offers[:2]):
        with Ledger(tmp_path / f"{number}.db", epsilon=1.0, delta=1e-6) as other:
            other.charge(dp.GaussianDpEvent(8.0))
            event = DiscreteLaplaceDpEvent(offer.epsilon, 1)
            for _ in range(offer.count):
                other.charge(event)
            assert offer.at_least or not other.fits(event)


def test_what_rounding_leaves_of_a_budget_is_not_offered(ledger: Ledger) -> None:
    """Charges of a quarter leave 2e-16, which no accountant prices."""
    for _ in range(4):
        ledger.charge(DiscreteLaplaceDpEvent(0.25, 1))
    assert ledger.offers() == []
    assert str(ledger.balance().fits) == "nothing"
