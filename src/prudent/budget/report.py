"""A report on a budget for whoever answers for the data: HTML that prints, Markdown, or JSON.

    with Ledger.open("budget.db") as ledger:
        Path("report.html").write_text(BudgetReport.of(ledger).html())

All of it is public: it follows from the ledger, which holds no record and no answer.
"""

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import attrs
import dp_accounting as dp

from prudent._rounding import exact, nearest, rounded_down, rounded_up
from prudent.accounting import ApproximateDpEvent, describe
from prudent.accounting.attack_bounds import AttackBounds
from prudent.accounting.events import LARGEST_EPSILON
from prudent.budget.allowance import Charge, TamperedLedgerError
from prudent.budget.filters import Offer
from prudent.budget.ledger import Balance, Ledger
from prudent.receipts.pages import PageTable, Sections, html_page, markdown_page

PRIORS = (0.01, 0.1, 0.5)  # prior beliefs, before and after which an attacker's chances are given
_FEW = 1e-3  # relative difference of prices below which they are said to be equal


@attrs.frozen(slots=False)
class BudgetReport:
    """What was asked of one data set, at which price, what is left, and what it protects."""

    balance: Balance  # where the budget stands
    charges: Sequence[Charge]  # every charge, oldest first
    offers: Sequence[Offer]  # what still fits
    integrity: str  # what following the hashes and pricing every charge again has shown
    intact: bool  # whether that found nothing wrong

    @classmethod
    def of(cls, ledger: Ledger, digest: str | None = None) -> "BudgetReport":
        """The report on a ledger.

        Args:
            ledger: The ledger.
            digest: A digest of the ledger noted earlier, which shows whether rows were taken away.
        """
        try:
            count, intact = ledger.verify(digest), True
            since = "" if digest is None else " It continues from the digest that was given."
            found = (
                f"The hashes of all rows fit, and the price of {_many(count, 'charge')} as well. "
                f"A charge and its outcome have a row each.{since}"
            )
        except TamperedLedgerError as error:
            found, intact = str(error), False
        return cls(ledger.balance(), ledger.history(), ledger.offers(), found, intact)

    @cached_property
    def attacks(self) -> AttackBounds | None:
        """What an attacker can learn of one record from all that was charged; None for nothing.

        Where events may have been chosen after earlier answers, it is what the budget allows. For
        neighbours that differ by several records there are no such bounds.
        """
        if not self.charges or self.balance.relation.distance > 1:
            return None
        if self._chosen_after_answers:
            # The composition of such events is proved for the whole budget, and for no less.
            epsilon, delta = self.balance.epsilon, self.balance.delta
            if epsilon > LARGEST_EPSILON:
                return AttackBounds.of(dp.NonPrivateDpEvent())
            return AttackBounds.of(ApproximateDpEvent(epsilon, delta))
        return AttackBounds.of(dp.ComposedDpEvent([charge.event for charge in self.charges]))

    @property
    def _chosen_after_answers(self) -> bool:
        return len(self.charges) > 1

    def protection(self) -> str:
        """The neighbouring relation, in plain words."""
        relation = self.balance.relation
        one = "one record" if relation.records == 1 else f"up to {relation.records:,} records"
        return (
            f"Whether or not the data contain {one} of a person, what is released looks nearly the "
            f"same: the guarantee compares data sets that differ by {relation}. ε bounds by how "
            "much any answer can become more or less likely (a factor of e^ε), and δ bounds the "
            "probability of answers for which that fails."
        )

    def differences(self) -> list[str]:
        """Why numbers differ from those that were typed, one sentence for each reason."""
        sentences = []
        lower = [c for c in self.charges if c.epsilon < c.asked_epsilon * (1 - _FEW)]
        if lower:
            one = lower[0]
            sentences.append(
                f"Price below what was asked ({_many(len(lower), 'charge')}; row {one.sequence}: "
                f"asked ε = {rounded_up(one.asked_epsilon)}, price {rounded_up(one.epsilon)}): a "
                "release is calibrated so that its ε is at most the one asked for. The ledger "
                "charges the ε that the mechanism has, computed from its noise, at the δ beside it."
            )
        totals = itertools.accumulate(charge.epsilon for charge in self.charges)
        for charge, total in zip(self.charges, totals, strict=True):
            if charge.spent < total * (1 - _FEW):
                sentences.append(
                    f"Spent less than the prices add up to (row {charge.sequence}: "
                    f"ε = {rounded_up(charge.spent)} instead of {rounded_up(total)}): ε spent is "
                    f"that of all releases together at the δ of the budget, "
                    f"{exact(self.balance.delta)}. At a larger δ ε is smaller, and several "
                    "releases reach the sum of their ε only if all are unlucky at once."
                )
                break
        if self.balance.relation.distance > 1 and self.charges:
            sentences.append(
                "Prices are for one record, and ε spent is for all records that the budget "
                "protects together."
            )
        if any(charge.outcome_text == "unknown" for charge in self.charges):
            sentences.append(
                "A charge whose outcome is unknown was paid for, but its release did not report an "
                "answer: it is under way, or it failed. It counts as if it had been released."
            )
        return sentences

    def facts(self) -> list[tuple[str, str]]:
        """The state of the budget, as pairs of a name and words."""
        balance = self.balance
        return [
            ("Data set", balance.dataset),
            ("Data", balance.data or "not bound to a file or table"),
            ("Budget", f"ε = {exact(balance.epsilon)}, δ = {exact(balance.delta)}"),
            ("Spent", f"ε = {rounded_up(balance.spent)}"),
            ("Left", f"ε = {rounded_down(balance.remaining)}"),
            ("Still fits", Offer.sentence(list(self.offers))),
            ("Charges", str(balance.charges)),
            ("Digest", balance.digest),
        ]

    def chances(self) -> list[tuple[str, str]]:
        """How sure an attacker may become that one record is in the data, for some beliefs."""
        attacks = self.attacks
        if attacks is None:
            return []
        return [
            (_percent(prior), f"at most {_percent(attacks.precision(prior, _CLAIMED), up=True)}")
            for prior in PRIORS
        ]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "balance": self.balance.to_plain(),
            "protects": self.protection(),
            "charges": [charge.to_plain() for charge in self.charges],
            "offers": [attrs.asdict(one) for one in self.offers],
            "differences": self.differences(),
            "chances": [{"before": before, "after": after} for before, after in self.chances()],
            "integrity": {"intact": self.intact, "found": self.integrity},
        }

    def markdown(self) -> str:
        """The report as Markdown."""
        return markdown_page(f"{_TITLE} of {self.balance.dataset}", self._sections())

    def html(self) -> str:
        """The report as one page of HTML that loads nothing and prints well."""
        return html_page(f"{_TITLE} of {self.balance.dataset}", self._sections())

    def _sections(self) -> Sections:
        balance, chances = self.balance, self.chances()
        verdict = "The ledger is not as it was written. Release nothing; see Integrity below."
        if self.intact:
            verdict = (
                f"{_many(balance.charges, 'release')} charged, ε = {rounded_up(balance.spent)} of "
                f"{exact(balance.epsilon)} spent at δ = {exact(balance.delta)}. The ledger is "
                "intact."
            )
        asked: str | PageTable = "Nothing yet."
        learned: str | PageTable = "Nothing has been released yet."
        if self.charges:
            asked = PageTable(_HEADER, [_row(charge) for charge in self.charges], "charges")
            learned = (
                "The budget protects several records together, for which no such curve is computed."
            )
        if chances:
            learned = PageTable(("Sure before", "Sure after"), chances)
        after = "the whole budget" if self._chosen_after_answers else "what was asked"
        return {
            "": [verdict, PageTable(None, self.facts(), "facts")],
            "What is protected": [self.protection()],
            "What was asked": [asked, *([self.differences()] if self.differences() else [])],
            "What an attacker could learn": [_ATTACK.format(after), learned],
            "Integrity": [self.integrity],
        }


_TITLE = "Privacy report"
_HEADER = (
    *("Row", "When (UTC)", "Who", "What was asked", "Mechanism"),
    *("ε asked", "ε price", "δ", "Outcome", "ε spent"),
)
_CLAIMED = 0.01
_ATTACK = (
    "An attacker knows every other record, the code and all that is public, and sees every "
    "answer. They believe with some probability that a person's record is in the data, and claim "
    "so only where they are wrong about one absent person in a hundred. So often is a claim right "
    "after {}:"
)


def _row(charge: Charge) -> tuple[str, ...]:
    details = charge.details
    asked = " of ".join(filter(None, (details.statistic, details.column))) or charge.label
    if details.groups is not None:
        groups = details.groups
        asked += f", by group ({len(groups) if isinstance(groups, tuple) else groups})"
    if details.unit is not None:
        asked += f", per {details.unit}"
    return (
        str(charge.sequence),
        f"{charge.time:%Y-%m-%d %H:%M}",
        details.asker or "",
        asked,
        details.mechanism or describe(charge.event).replace("\n", "; "),
        rounded_up(charge.asked_epsilon),
        rounded_up(charge.epsilon),
        rounded_up(charge.at_delta),
        charge.outcome_text,
        rounded_up(charge.spent),
    )


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _percent(share: float, *, up: bool = False) -> str:
    return f"{rounded_up(100 * share, 3) if up else nearest(100 * share, 3)} %"
