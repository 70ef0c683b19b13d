"""Certificates of robustness: what a private release proves about data with some bad records.

A private run cannot depend much on few records. So if the expected accuracy of its models is known
for one data set, it is bounded from below for every data set that differs in k records, whatever
these records are.

**From a profile to a bound.** Let P be the distribution of the output on the data at hand, Q that
on the changed data, and g any function of the output with values in [0, 1]: the accuracy of a model
on a fixed test set, or 1 if it labels one input correctly and 0 otherwise (its expectation is the
*vote share*). Then E_Q g is at least what `TradeOff` says of u = E_P g.

*Proof.* E_P g is the integral of P(g > t) over t from 0 to 1, and P(g > t) ≤ e^ε Q(g > t) + δ(ε)
for every t. Integrating, u ≤ e^ε E_Q g + δ(ε), which is the first bound. The same for 1 - g with P
and Q exchanged is 1 - E_Q g ≤ e^ε (1 - u) + δ'(ε), the second. ∎

The best bound is used, over a fine selection of the losses of a discrete privacy-loss distribution.
Over all losses it is the Neyman-Pearson bound: nothing better follows from that distribution. It
dominates the mechanism at every ε, so nothing is extrapolated.

**Which direction is which.** If records are added, P is the distribution without them and Q the
distribution with them; if records are removed, it is the other way round. A certificate is the
lesser of both bounds.

**Several records.** Two ways to a bound for k records:

* *Exact for k records*: the dominating pairs of `group_privacy` are composed. For Poisson-sampled
  Gaussian noise the worst records attain them: k records whose gradients all point one way. Fewer
  records are covered, because a record may contribute nothing; some added and some removed are
  covered by replace-one.
* *Group privacy*: a chain of data sets leads from the data to the changed data, each one record
  from the next. A lower bound at one link is the starting point of the next, because both bounds
  above increase with u. So k records cost k applications of the bound for one record, whose
  distributions are those of the accountant. Here any mix of additions and removals is covered. This
  is used for Propose-Test-Release, of which no exact pair for k records is known.
"""

import enum
import math
from collections.abc import Callable
from functools import cached_property

import attrs
import dp_accounting as dp
import numpy as np

from prudent import _validate
from prudent._rounding import exact, rounded_down, rounded_up
from prudent.accounting.group_privacy import event_at_distance, has_exact_pairs
from prudent.accounting.losses.loss_tables import LossTable, Profile, TradeOff
from prudent.accounting.pld_accountant import PldAccountant
from prudent.accounting.relations import ADD_REMOVE, Adjacency, Relation, check_relation

MOST_RECORDS = 100_000  # largest number of bad records that is considered
_INTERVAL = 1e-2  # a coarse grid: it lowers a bound by about 1e-5
_ROUGH_INTERVAL = 1.0  # for a number from which a search starts
_MOST_POINTS = 2**15  # values of ε at which a bound is evaluated
_LARGEST_EXPONENT = 600.0  # beyond it nothing is left of any accuracy
_ROUNDING = 1e-14  # covers the rounding errors of one application of the bound, which are below 16u


class CertificateMethod(enum.StrEnum):
    """How a certificate for several records is derived."""

    EXACT = "exact for k records"
    GROUP = "group privacy"


_CHANGES = {
    Adjacency.ADD_REMOVE: "{number} record{s} added (or {number} removed)",
    Adjacency.ZERO_OUT: "{number} record{s} zeroed out (or {number} empty one{s} filled in)",
    Adjacency.REPLACE_ONE: "{number} record{s} replaced by any other{s}",
}


@attrs.frozen(kw_only=True)
class AccuracyCertificate:
    """A proved lower bound on the expected accuracy of a private run on changed data.

    Attributes:
        records: The largest number of bad records.
        accuracy: The accuracy that the certificate starts from: expected, or averaged over `runs`.
        expected: The expected accuracy on the unchanged data: `accuracy` itself, or its lower
            confidence bound.
        at_least: The lower bound on the expected accuracy on the changed data.
        relation: How each bad record may differ.
        method: How the bound was derived.
        runs: The number of independent runs that `accuracy` is the average of; None if it was given
            as the expected accuracy.
        confidence: The probability with which `expected` holds; None without `runs`.
    """

    records: int
    accuracy: float
    expected: float
    at_least: float
    relation: Relation
    method: CertificateMethod
    runs: int | None = None
    confidence: float | None = None

    @property
    def sentence(self) -> str:
        """The certificate in words, with its condition."""
        condition = f"If the expected accuracy is {rounded_up(self.expected, 6)}, then"
        if self.runs is not None:
            condition = (
                f"By {self.runs:,} independent run{'s' * (self.runs > 1)} of average accuracy "
                f"{rounded_up(self.accuracy, 6)}, the expected accuracy is at least "
                f"{rounded_down(self.expected)} (confidence {exact(self.confidence)});"
            )
        if self.at_least <= 0:
            return f"{condition} with {self._changes} nothing is proved."
        bound = rounded_down(self.at_least)
        return f"{condition} with {self._changes} it is at least {bound} ({self.method})."

    @property
    def _changes(self) -> str:
        if self.records == 0:
            return "no bad record"
        number = "one" if self.records == 1 else f"up to {self.records:,}"
        words = _CHANGES[self.relation.adjacency]
        return words.format(number=number, s="s" * (self.records > 1))

    def __str__(self) -> str:
        return self.sentence


@attrs.frozen(slots=False)
class ChangedData:
    """Lower bounds on expectations after a change of the data, from distributions of the loss."""

    removing: LossTable  # losses of the output with the records against that without
    adding: LossTable  # and the other way round

    @classmethod
    def of(cls, event: dp.DpEvent, interval: float = _INTERVAL) -> "ChangedData":
        """The bounds of an event for one added or removed record."""
        accountant = PldAccountant(value_discretization_interval=interval)
        return cls(*accountant.compose(event).distributions())

    def after(self, value: float) -> float:
        """The least expectation after the change, of a function in [0, 1] with this one before."""
        return self._after(value, lambda way, at: float(way.least(at)))

    def _after(self, value: float, least: Callable[[TradeOff, float], float]) -> float:
        one, other = self._ways
        if one.forward[1][0] == one.backward[1][0] == 0:  # both distributions are the same
            return value
        return min(value, max(0.0, min(least(one, value), least(other, value)) - _ROUNDING))

    def after_many(self, value: float, changes: int, floor: float = -1.0) -> tuple[float, int]:
        """Apply `after` until `changes` or until the bound is at most `floor`.

        Returns:
            The last bound above the floor, and the number of changes it holds for.
        """
        for done in range(changes):
            fallen = self._after(value, TradeOff.searched_once)
            if fallen <= floor:
                return value, done
            if fallen == value:  # nothing is left to lose
                break
            value = fallen
        return value, changes

    @cached_property
    def added(self) -> TradeOff:
        """The trade-off of the output without the records and that with them."""
        return TradeOff(_profile_of(self.adding), _profile_of(self.removing))

    @cached_property
    def _ways(self) -> tuple[TradeOff, TradeOff]:
        return self.added, self.added.reversed


def _profile_of(table: LossTable) -> Profile:
    losses = table.losses[(table.losses > 0) & (table.losses < _LARGEST_EXPONENT)]
    losses = np.append(0.0, losses[:: 1 + len(losses) // _MOST_POINTS])
    return losses, np.minimum(1.0, table.profile(losses))


@attrs.frozen(slots=False)
class Certifier:
    """Certificates of one run, for any number of bad records.

    Attributes:
        event: The privacy event of the run.
        relation: How a bad record may differ. Only its adjacency counts: the number of bad records
            is an argument of the methods.
    """

    event: dp.DpEvent
    relation: Relation = attrs.field(default=ADD_REMOVE, validator=_validate.by(check_relation))
    _known: dict[int, ChangedData] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    @property
    def method(self) -> CertificateMethod:
        """How certificates for several records are derived."""
        return CertificateMethod.EXACT if has_exact_pairs(self.event) else CertificateMethod.GROUP

    def certificate(
        self,
        *,
        accuracy: float,
        records: int,
        runs: int | None = None,
        confidence: float = 0.95,
    ) -> AccuracyCertificate:
        """Return a lower bound on the expected accuracy of the run if some records are bad.

        Args:
            accuracy: The expectation, over the randomness of the run, of the accuracy, of a vote
                share or of any other function of the output in [0, 1]; with `runs`, an average that
                estimates it.
            records: The largest number of bad records.
            runs: The number of independent runs on the same data that `accuracy` is the average of.
                None: `accuracy` is the expectation itself.
            confidence: With `runs`, the probability with which the expectation is as large as
                assumed.

        Guarantee:
            On all data that differ from those of the run in at most `records` records, as
            `relation` says, the expected accuracy is at least `at_least`. Proof: see the module.
            With `runs` this holds with probability `confidence` over the runs.
        """
        accuracy = _validate.between(0, 1, accuracy=accuracy)
        records = _validate.count(0, MOST_RECORDS, records=records)
        expected = accuracy
        if runs is not None:
            expected = mean_at_least(accuracy, runs=runs, confidence=confidence)
        return AccuracyCertificate(
            records=records,
            accuracy=accuracy,
            expected=expected,
            at_least=self._bound(expected, records),
            relation=Relation(self.relation.adjacency),
            method=self.method,
            runs=runs,
            confidence=None if runs is None else confidence,
        )

    def withstands(self, *, accuracy: float, above: float = 0.5) -> int:
        """Return the largest number of bad records that leave an expected accuracy above a level.

        With the vote share of one input as `accuracy` and `above=0.5`, a majority vote over many
        runs keeps its label for that many bad records.

        Args:
            accuracy: The expected accuracy or vote share on the data of the run.
            above: The level, below `accuracy`.

        Guarantee:
            A certificate for the number returned has `at_least` > `above`. At most `MOST_RECORDS`.
        """
        accuracy = _validate.between(0, 1, accuracy=accuracy)
        above = _validate.between(0, accuracy, ends="[)", above=above)
        links = self._at(1).distance
        held = self._single.after_many(accuracy, links * MOST_RECORDS, above)[1] // links
        if self.method is CertificateMethod.GROUP or held == MOST_RECORDS:
            return held

        # Start from the chain's answer. Bounds fall smoothly with the number of records,
        # so chords lead next to the last one that holds; an end that stays counts half (Illinois).
        low, room, high, lack, guess = 0, accuracy - above, MOST_RECORDS + 1, math.nan, max(1, held)
        while high - low > 1:
            excess = self._bound(accuracy, guess) - above
            if excess > 0:
                lack = lack / 2 if low else lack
                low, room = guess, excess
            else:
                room = room / 2 if high <= MOST_RECORDS else room
                high, lack = guess, excess
            lost = accuracy - above - room  # by the first `low` records
            onwards = room / (room - lack) * (high - low)
            if math.isnan(lack):
                onwards = 1.1 * room / lost * low if lost > 0 else low
            guess = min(max(low + round(onwards), low + 1), high - 1)
        return low

    def _bound(self, expected: float, records: int) -> float:
        if records == 0:
            return expected
        if self.method is CertificateMethod.GROUP:
            return self._single.after_many(expected, self._at(records).distance)[0]
        if records not in self._known:
            apart = event_at_distance(self.event, self._at(records))
            assert apart is not None
            self._known[records] = ChangedData.of(apart)
        return self._known[records].after(expected)

    def _at(self, records: int) -> Relation:
        return Relation(self.relation.adjacency, records)

    @cached_property
    def _single(self) -> ChangedData:
        rough = self.method is CertificateMethod.EXACT
        return ChangedData.of(self.event, _ROUGH_INTERVAL if rough else _INTERVAL)


def mean_at_least(mean: float, *, runs: int, confidence: float = 0.95) -> float:
    """Return a lower confidence bound on the expectation of values in [0, 1], from their average.

    Args:
        mean: The average of the values.
        runs: How many there are; they must be independent and have the same distribution.
        confidence: The probability, below 1, with which the bound holds.

    Guarantee:
        If the expectation is μ ≤ x, an average of at least x has probability at most
        e^(-runs KL(x, μ)), where KL is the divergence of coins with these biases (Hoeffding 1963,
        Theorem 1). The bound returned is a μ, rounded down, at which this is 1 - confidence. One
        run proves little: an accuracy of 1 proves an expectation of 0.05 at confidence 0.95.
    """
    x = _validate.between(0, 1, mean=mean)
    _validate.count(1, runs=runs)
    room = -math.log1p(-_validate.between(0, 1, ends="()", confidence=confidence)) / runs

    def divergence(mean: float) -> float:
        if mean <= 0:
            return math.inf
        tails = 0.0 if x == 1 else (1 - x) * math.log((1 - x) / (1 - mean))
        return x * math.log(x / mean) + tails if x > 0 else tails

    low, high = 0.0, x
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if divergence(middle) > room else (low, middle)
    return low * (1 - 1e-12)
