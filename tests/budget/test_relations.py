"""Which data sets a budget compares: fixed when a ledger is made, and kept for groups."""

import math

import dp_accounting as dp
import pytest

from prudent.accounting.relations import REPLACE_ONE, ZERO_OUT, Relation
from prudent.budget.ledger import Ledger, LedgerError, OverBudgetError


def test_a_relation_is_kept_and_shown(location: str) -> None:
    with Ledger(location, epsilon=1.0, delta=1e-6, relation=REPLACE_ONE) as ledger:
        balance = ledger.balance()
        assert balance.relation == ledger.relation == REPLACE_ONE
        assert balance.epsilon_per_record == 0.5
        assert balance.delta_per_record == pytest.approx(1e-6 / (1 + math.exp(0.5)), rel=1e-9)
        assert balance.to_plain()["relation"] == {"adjacency": "replace-one", "records": 1}
        assert "replacing one record" in repr(ledger)
    with Ledger.open(location) as again:
        assert again.relation == REPLACE_ONE
    with pytest.raises(LedgerError, match="replacing one record"):
        Ledger(location, epsilon=1.0, delta=1e-6, relation=ZERO_OUT)


def test_a_group_is_charged_as_a_group(location: str) -> None:
    """Ten records at ε = 1 leave each of them 0.1: of two releases of 0.06 one is refused."""
    with Ledger(location, epsilon=1.0, delta=1e-6, relation=Relation(records=10)) as ledger:
        ledger.charge(dp.LaplaceDpEvent(1 / 0.06))
        assert ledger.spent == pytest.approx(0.6, rel=1e-3)
        assert ledger.remaining == pytest.approx(0.4, rel=1e-2)
        with pytest.raises(OverBudgetError, match="priced for one record") as caught:
            ledger.charge(dp.LaplaceDpEvent(1 / 0.06))
        assert caught.value.asked == pytest.approx(0.06, rel=1e-3)
        assert "for one record, whose share is ε = 0.1 at δ" in str(caught.value)
        assert caught.value.fits.epsilon == pytest.approx(0.04, rel=1e-2)
        assert ledger.verify() == 1
