"""Minimum and maximum: quantiles as extreme as their rank errors allow."""

import math
from fractions import Fraction
from typing import Any

import attrs
import dp_accounting as dp
from typing_extensions import override

from prudent import _validate
from prudent.budget import LedgerLike
from prudent.receipts.making import ReceiptTarget
from prudent.release.columns.column import Column, PerUnit
from prudent.release.noise import Noise
from prudent.release.outcome import Released
from prudent.release.ptr import margins
from prudent.release.request import (
    By,
    Condition,
    GroupNames,
    Priced,
    Request,
    Statistic,
    answers,
    like,
    release,
)
from prudent.release.statistics.quantiles import Quantile
from prudent.release.sums.additive import AdditiveMechanism, shares_of

COUNT_SHARE = 0.1
"""The fraction of ε for the count that tells how extreme a quantile may be."""

_EXTREME = Fraction(999_999, 10**6)  # a probability has six decimals


@answers
def maximum(
    data: Any = None,
    column: str | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    bounds: tuple[Any, Any] | None = None,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    by: By | None = None,
    groups: GroupNames | None = None,
    where: Condition | None = None,
    read_as: str | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: LedgerLike | None = None,
    receipt: ReceiptTarget | None = None,
    noise: Noise | None = None,
    dry_run: bool = False,
) -> Released:
    """Release a value that few records lie above: an extreme quantile.

    The largest value is that of one record, so no private answer can be near it on all data. This
    is the quantile beyond which about as many records lie as the rank of a private answer is off
    by; the notes of the answer say which one that is. A noisy count, for a tenth of ε, tells it.

    The arguments are those of `median`.
    """
    return release(Extreme(lowest=False), Request.of(locals()))  # type: ignore[no-any-return]


@like(maximum)
def minimum(request: Request) -> Released:
    """Release a value that few records lie below: an extreme quantile; see `maximum`."""
    return release(Extreme(lowest=True), request)  # type: ignore[no-any-return]


@attrs.frozen
class Extreme(Statistic):
    """A quantile as extreme as its rank error allows."""

    lowest: bool

    @override
    def price(self, request: Request, records: Column) -> Priced:
        count, rest = shares_of(_validate.positive(epsilon=request.epsilon), COUNT_SHARE)
        mechanism = AdditiveMechanism.calibrate(count)
        quantile = self._at(_EXTREME).price(attrs.evolve(request, epsilon=rest), records)
        event = dp.ComposedDpEvent([mechanism.event, quantile.preview.event])
        public = attrs.evolve(
            quantile.preview,
            statistic="minimum" if self.lowest else "maximum",
            epsilon=request.epsilon,
            event=event,
        )
        return Priced(preview=public, mechanism=(mechanism, quantile))

    def _at(self, p: Fraction) -> Quantile:
        return Quantile(1 - p if self.lowest else p)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Released:
        mechanism, quantile = priced.mechanism
        (counted,) = mechanism.noisy([records.count()], records.contribution.records, noise)
        depth = quantile.preview.rank_error or 1
        share = 1 - Fraction(depth, max(1, counted))
        p = max(Fraction(1, 2), min(_EXTREME, Fraction(math.floor(share * 10**6), 10**6)))
        chosen = self._at(p)
        choosing = quantile.mechanism
        placed = attrs.evolve(choosing, chosen=attrs.evolve(choosing.chosen, p=chosen.p))
        found = chosen.answer(attrs.evolve(quantile, mechanism=placed), records, noise)
        assert isinstance(found, Released)
        side = "below" if self.lowest else "above"
        beyond = math.ceil(float(1 - p) * max(1, counted))
        note = (
            f"This is the {margins.title(chosen.p)}: about {beyond:,} records lie {side} it. The "
            f"{priced.preview.statistic} itself is the value of one record, so it is private."
        )
        return attrs.evolve(found, notes=(*found.notes, note))
