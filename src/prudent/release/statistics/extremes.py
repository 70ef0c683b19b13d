"""Minimum and maximum: quantiles as extreme as their rank errors allow."""

import math
from fractions import Fraction

import attrs
import dp_accounting as dp
from typing_extensions import override

from prudent import _validate
from prudent.release.columns.column import Column
from prudent.release.noise import Noise
from prudent.release.outcome import Released
from prudent.release.ptr import margins
from prudent.release.request import (
    Priced,
    Request,
    Statistic,
)
from prudent.release.statistics.quantile_statistics import Quantile
from prudent.release.sums.additive import AdditiveMechanism, shares_of

COUNT_SHARE = 0.1
"""The fraction of ε for the count that tells how extreme a quantile may be."""

_EXTREME = Fraction(999_999, 10**6)  # a probability has six decimals


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
