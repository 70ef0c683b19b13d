"""Statistics released by Propose-Test-Release, for one proposal or more.

Always tested are the mode, and means and sums without the extremes.

The two-sided trimmed mean, and its margin:

| data | value | margin |
|---|---|---|
| m <= 2F records | the public default | distance to data that leave it (Errata 7) |
| no bounds | as usual | at most the distance to data that keep a record at an end |
| F = 0 | the mean | 0 wherever an end is further than τ away |
| ties | any of the tied records: the sum is the same | counted one by one |
| τ at least the largest change by one record | as usual | cap |
"""

import abc
import math
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt
from typing_extensions import override

from prudent import _validate
from prudent.release import margins
from prudent.release.certificates import MARGIN_CAP, distance_by_margin
from prudent.release.charging import Preview
from prudent.release.columns.column import Column, Kind, in_order
from prudent.release.columns.scales import NUMBER, Scale
from prudent.release.lattice import FloatArray, IntArray, Lattice, check_bounds
from prudent.release.margins import RobustValue, Window
from prudent.release.noise import Noise
from prudent.release.outcome import Outcome, Refused, ScaledSpread
from prudent.release.ptr import ProposeTestReleaseMechanism as Mechanism
from prudent.release.request import Priced, Request, Statistic, check_single

_DOUBTFUL = 1e-13  # relative error bound, many times that of a dozen roundings of doubles
_EXACT = 2.0**52  # sums of integers up to this size are exact in doubles
_FIRST_BITS = 5  # the search starts from at most 2**5 times 2**5 squares
_AT_ONCE = 2**14  # squares processed at once; bounds the memory of the search besides the windows


class _Bound(NamedTuple):
    """The terms of upper bounds on the excess, one for each square of (a, b).

    For a square of one point the bound is the excess itself.
    """

    entering: IntArray  # the largest X, relative to the origin
    length: IntArray  # length of the longest run of kept records; below 1: none can be kept
    below: IntArray  # where that run begins in the running sums of the lower window
    above: IntArray  # where it ends in the running sums of the upper window
    kept: IntArray  # the least k


class Rise:
    """The least number of changes after which one record can raise a trimmed mean by more than τ.

    For lowering the mean, apply it to the negated data. Time and memory are nearly linear in the
    cap.

    The effect of one record on a trimmed mean is largest after three kinds of change (Errata 7):
    `a` records added at the lower end, `b` added at the upper end, and `d` removed just below X,
    the record that is about to enter the kept records. Then X has rank j = m - F + b + 1 (one less
    if it is about to leave), the k kept records have the ranks F - a + 1 .. j - 1 - d of the padded
    data, and the mean rises by more than τ where

        excess = sum of (X - x) over the kept - τ k (k + 1) > 0.

    The margin is the least a + b + d for which this holds. Two facts keep the search small.

    * Removing one more kept record never makes a positive excess negative, as long as one is left:
      the removed record is the nearest to X, so the mean of X - x does not fall, while k does. So
      with at most r changes only d = r - a - b needs to be checked (less, where that would leave no
      record), and bisection finds the least r that suffices.
    * Over a square of pairs (a, b), the sum is at most that of the largest X over the longest run
      of kept records, since no term is negative, and k is at least its minimum. A square whose
      bound is not positive is discarded; any other is divided into four.
    """

    def __init__(
        self, low: Window, high: Window, total: int, count: int, trim: int, default: int
    ) -> None:
        """Store the ranks within the cap of `trim` and of `count - trim`.

        `total` is the sum of the kept records, and `default` the mean of none, in steps.
        """
        # Only differences matter, and values close to the origin are exact in doubles.
        origin = int(high.at(count - trim))
        low, high = (Window(each.first, each.values - origin) for each in (low, high))
        self._low, self._high, self._count, self._trim = low, high, count, trim
        self._default = default - origin
        self._total = total - origin * (count - 2 * trim)
        self._below = _running_sum(low, trim)
        self._above = _running_sum(high, count - trim)
        self._below_rounded: FloatArray = self._below.astype(np.float64)
        self._above_rounded: FloatArray = self._above.astype(np.float64)

    def margin(self, propose: int, cap: int) -> int:
        """The least number of changes after which the mean can rise by more than τ, or the cap."""
        start, end = 0, self._to_none(propose, cap)
        while start < end:
            changes = (start + end) // 2
            if any(self._rises(changes, leaves, propose) for leaves in (0, 1)):
                end = changes
            else:
                start = changes + 1
        return start

    def _to_none(self, propose: int, cap: int) -> int:
        """The least number of changes that leave no kept record, with X more than τ above default.

        This takes d = m - 2F + a + b removals, one less if X is about to leave. For a given a + b,
        X is largest when all of it is b.
        """
        added = np.arange(cap)
        least = cap
        for leaves in (0, 1):
            changes = self._count - 2 * self._trim - leaves + 2 * added
            entering = self._high.at(self._count - self._trim + 1 - leaves + added)
            found = (changes >= added) & (entering - self._default > propose)
            least = min(least, int(np.min(changes[found], initial=cap)))
        return least

    def _rises(self, changes: int, leaves: int, propose: int) -> bool:
        """Whether the excess is positive for some a and b, with all remaining changes removals."""
        side = 1 << max(0, changes.bit_length() - _FIRST_BITS)
        least_a, least_b = np.indices((changes // side + 1,) * 2).reshape(2, -1) * side
        squares = [(least_a, least_b, side)]
        while squares:
            least_a, least_b, side = squares.pop()
            possible = least_a + least_b <= changes
            least_a, least_b = least_a[possible], least_b[possible]
            if self._any_positive(self._terms(least_a, least_b, 1, changes, leaves), propose):
                return True
            if side == 1:
                continue
            bound = self._terms(least_a, least_b, side, changes, leaves)
            open_still = self._signs(bound, propose) >= 0
            least_a, least_b, side = least_a[open_still], least_b[open_still], side // 2
            least_a = np.concatenate([least_a, least_a, least_a + side, least_a + side])
            least_b = np.concatenate([least_b, least_b + side, least_b, least_b + side])
            for start in range(0, len(least_a), _AT_ONCE):
                piece = slice(start, start + _AT_ONCE)
                squares.append((least_a[piece], least_b[piece], side))
        return False

    def _terms(
        self, least_a: IntArray, least_b: IntArray, side: int, changes: int, leaves: int
    ) -> _Bound:
        """The terms of the bound for squares of this side."""
        most_a = np.minimum(least_a + side - 1, changes - least_b)
        most_b = np.minimum(least_b + side - 1, changes - least_a)
        rank = self._count - self._trim + 1 - leaves + most_b
        unused = self._count - 2 * self._trim - leaves - changes
        kept = np.maximum(1, unused + 2 * (least_a + least_b))
        first = self._trim - most_a + 1
        last = np.maximum(self._trim + unused + most_a + 2 * most_b, self._trim - least_a + 1)
        last = np.minimum(last, rank - 1)
        return _Bound(
            entering=self._high.at(rank),
            length=last - first + 1,
            below=first - self._low.first,
            above=last - self._high.first + 1,
            kept=kept,
        )

    def _signs(self, terms: _Bound, propose: int) -> IntArray:
        """1 where the bound is positive, -1 where it is not, 0 where doubles cannot decide.

        Doubles decide wherever all terms are so small that no sum is rounded.
        """
        parts = [
            terms.entering * terms.length.astype(np.float64),
            self._below_rounded[terms.below],
            -self._above_rounded[terms.above],
            np.full(len(terms.kept), -float(self._total)),
            -float(propose) * terms.kept * (terms.kept + 1.0),
        ]
        bound = np.sum(parts, axis=0)
        size = np.sum(np.abs(parts), axis=0)
        doubt = np.where(size < _EXACT, 0.0, _DOUBTFUL * size)
        not_positive = (bound < -doubt) | ((bound <= 0) & (size < _EXACT)) | (terms.length < 1)
        return np.where(not_positive, -1, np.where(bound > doubt, 1, 0))

    def _any_positive(self, terms: _Bound, propose: int) -> bool:
        """Whether any excess is positive, computed in doubles or, where needed, in integers."""
        signs = self._signs(terms, propose)
        return bool(np.any(signs > 0)) or any(
            int(terms.entering[i]) * int(terms.length[i])
            - (self._total + self._above[terms.above[i]] - self._below[terms.below[i]])
            > propose * int(terms.kept[i]) * (int(terms.kept[i]) + 1)
            for i in np.nonzero(signs == 0)[0]
        )


def _running_sum(window: Window, origin: int) -> npt.NDArray[np.object_]:
    """Running sums: entry i is the sum over ranks origin + 1 .. window.first + i - 1.

    Left of the origin it is minus the sum over the ranks between.
    """
    sums = np.concatenate([[0], np.cumsum(window.values.astype(object))])
    return np.asarray(sums - sums[origin + 1 - window.first])


def trimmed_mean(
    column: Column, lattice: Lattice, trim: int, *, default: int, propose: int, cap: int
) -> RobustValue:
    """Return the mean without the `trim` least and `trim` largest records, and its exact margin.

    The mean is rounded to the nearest step at the end. Two means within τ whole steps of each other
    stay within τ steps when rounded, so the margin of the unrounded mean is valid.
    """
    count = column.count()
    low = Window.of(column, lattice, trim - cap, trim + cap + 3)
    # One rank more than needed, so that the windows are never the same: a column that remembers a
    # window would otherwise ask its engine once or twice, depending on the number of records.
    high = Window.of(column, lattice, count - trim - cap - 3, count - trim + cap + 1)
    total = _padded_sum(column, lattice, count, trim + 1, count - trim)
    up = Rise(low, high, total, count, trim, default)
    # Lowering the mean is the same as raising the mean of the negated data.
    down = Rise(_mirrored(high, count), _mirrored(low, count), -total, count, trim, -default)
    margin = min(up.margin(propose, cap), down.margin(propose, cap))
    if not lattice.bounded:
        margin = min(margin, _to_an_end(low, high, lattice, count, trim))
    kept = count - 2 * trim
    value = (2 * total + kept) // (2 * kept) if kept > 0 else default
    return RobustValue((value,), margin, propose)


def _to_an_end(low: Window, high: Window, lattice: Lattice, count: int, trim: int) -> int:
    """The number of added records at an end of the lattice until one of them is not trimmed.

    A record at an end is kept if more than F records lie there, and one record changes their number
    by at most 1. So this number is itself a safe margin, and the smaller of two safe margins is
    safe.
    """
    at_low = low.first + int(np.searchsorted(low.values, lattice.low, side="right")) - 1
    first_at_high = high.first + int(np.searchsorted(high.values, lattice.high, side="left"))
    at_high = count + 1 - first_at_high
    return max(0, trim + 1 - max(at_low, at_high))


def _mirrored(window: Window, count: int) -> Window:
    last = window.first + len(window.values) - 1
    return Window(count + 1 - last, -window.values[::-1])


def _padded_sum(column: Column, lattice: Lattice, count: int, first: int, last: int) -> int:
    """The sum over ranks first..last, with an end of the lattice at ranks that no record has.

    With last < first - 1 it is minus the sum over the ranks between, so that sums over adjacent
    ranges add up.
    """
    if last < first - 1:
        return -_padded_sum(column, lattice, count, last + 1, first - 1)
    below = max(0, min(last, 0) - first + 1)
    above = max(0, last - max(first, count + 1) + 1)
    inside = column.sum_between(max(first, 1), min(last, count), lattice)
    return below * lattice.low + inside + above * lattice.high


class Tested(Statistic):
    """A statistic that is tested before it is trusted."""

    advice: ClassVar[str]  # what would help after a refusal
    # Whether the statistic is a difference of values, such as a range.
    difference: ClassVar[bool] = False

    @abc.abstractmethod
    def measure(self, records: Column, mechanism: Mechanism, propose: int, cap: int) -> RobustValue:
        """The value and its margin for a sensitivity in steps of the lattice, up to a cap."""

    def priced(
        self, name: str, mechanism: Mechanism, request: Request, records: Column, *notes: str
    ) -> Priced:
        """The price of a release by a calibrated mechanism."""
        check_single(records, "a release that is tested first", "propose")
        noisy = mechanism.propose > 0
        spread = mechanism.spread(mechanism.robust_noise_multiplier * mechanism.steps)
        preview = Preview(
            statistic=name,
            mechanism="propose-test-release",
            epsilon=request.epsilon,
            delta=request.required_delta,
            event=mechanism.event,
            proposal=mechanism.propose or None,
            noise_scale=spread.deviation if noisy else None,
            half_width=spread.half_width(0.95) if noisy else None,
            threshold=mechanism.threshold,
            notes=notes,
        )
        return Priced(preview=preview, mechanism=mechanism)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Outcome:
        mechanism: Mechanism = priced.mechanism

        def measured(records: Column) -> RobustValue:
            return self.measure(records, mechanism, mechanism.steps, mechanism.cap)

        outcome, scale = mechanism.release(records, measured, noise=noise), records.scale
        if isinstance(outcome, Refused):  # what would help depends on no record
            advice = f"{self.advice} Asking again, even for the same, costs again."
            return attrs.evolve(outcome, reason=f"{outcome.reason} {advice}")
        number = margins.read(outcome.value)
        if scale.plain or outcome.spread is None:
            return attrs.evolve(outcome, value=number)
        return attrs.evolve(
            outcome,
            value=scale.difference(number) if self.difference else scale.value(number),
            spread=ScaledSpread(number, outcome.spread, scale, self.difference),
        )

    @override
    def distance(self, priced: Priced, records: Column, value: Any) -> tuple[int, Any, Any]:
        """See `Statistic`; by margins, for any statistic that is a number."""
        scale, lattice, length = records.scale, priced.mechanism.lattice, priced.tolerance
        number = scale.length(value) if self.difference else scale.number(value)
        distance = distance_by_margin(
            lambda propose: self.measure(records, priced.mechanism, propose, MARGIN_CAP),
            int(lattice.steps(number)),
            math.floor(math.ldexp(length, -lattice.exponent)),
            MARGIN_CAP,
        )
        show = scale.difference if self.difference else scale.value
        return distance, show(number - length), show(number + length)


def calibrate(
    request: Request, *, scale: Scale = NUMBER, fallback_sensitivity: float | None = None
) -> Mechanism:
    """Calibrate the mechanism to a request, in the unit of a scale; for a category without one."""
    return Mechanism.calibrate(
        propose=0.0 if request.propose is None else proposal(request.propose, scale),
        epsilon=request.epsilon,
        delta=request.required_delta,
        bounds=scale.given_bounds(request.bounds),
        fallback_sensitivity=fallback_sensitivity,
        fallback=request.fallback,
        distribution=request.distribution,
    )


def proposal(propose: Any, scale: Scale) -> float:
    """The proposal as a number of units of the scale."""
    return _validate.positive(propose=scale.given_length("propose", propose))


@attrs.frozen
class Mode(Tested):
    """The most frequent category, of a public list or of any."""

    categories: Sequence[Hashable] | None

    advice = (
        "Spend a larger ε, merge categories that mean the same, or release the count of each "
        "category instead: two of them may be equally frequent."
    )

    @override
    def kind(self, request: Request) -> Kind:
        return "categories"

    @override
    def measure(self, records: Column, mechanism: Mechanism, propose: int, cap: int) -> RobustValue:
        return margins.category_mode(records, self.categories, cap=cap)

    @override
    def price(self, request: Request, records: Column) -> Priced:
        if self.categories is not None:
            _check_categories(self.categories, records)
        return self.priced("mode", calibrate(request), request, records)

    @override
    def distance(self, priced: Priced, records: Column, value: Any) -> tuple[int, Any, Any]:
        """The changes until another category is the mode: one more than the margin."""
        measured = margins.category_mode(records, self.categories, cap=MARGIN_CAP)
        top = margins.read(measured.value[0])
        return (measured.margin + 1 if top == value else 0), value, value


def _check_categories(categories: Sequence[Hashable], records: Column) -> None:
    """Reject, before anything is charged, categories that the column's type cannot hold."""
    try:
        ordered = sorted(set(map(in_order, categories)))
    except TypeError:
        ordered = []
    if isinstance(categories, str) or not ordered:
        raise _validate.ArgumentError(
            "categories", "a list of one or more texts, numbers or dates", got=categories
        )
    if hasattr(records, "listed"):
        records.listed(categories)


MOST_TRIMMED = 2**48  # records; larger than any table, and small enough that ranks fit 64 bits


@attrs.frozen
class TrimmedMean(Tested):
    """The mean without the extremes; see `trimmed_mean`."""

    trim: int
    default: Any

    advice = (
        "Trim more records at each end, propose more, or release the mean, which needs no proposal "
        "and never refuses."
    )

    @override
    def price(self, request: Request, records: Column) -> Priced:
        scale = records.scale
        bounds = scale.given_bounds(request.bounds)
        lattice = Lattice.for_proposal(proposal(request.propose, scale), bounds)
        of_none = self._of_none(lattice, bounds, scale)
        # Computed in steps, because a difference of doubles may be rounded down.
        sensitivity = lattice.value(max(lattice.high - of_none, of_none - lattice.low))
        mechanism = calibrate(
            request, scale=scale, fallback_sensitivity=None if bounds is None else sensitivity
        )
        needed, most = mechanism.threshold, self.trim + 1
        decided = (
            []
            if mechanism.lattice.bounded or most > needed
            else [
                f"It will almost surely be refused: without bounds the margin is at most {most:,} "
                f"records. Trim more than {needed:,}."
            ]
        )
        return self.priced("trimmed mean", mechanism, request, records, *decided)

    @override
    def measure(self, records: Column, mechanism: Mechanism, propose: int, cap: int) -> RobustValue:
        lattice = mechanism.lattice
        of_none = self._of_none(lattice, mechanism.bounds, records.scale)
        return trimmed_mean(records, lattice, self.trim, default=of_none, propose=propose, cap=cap)

    def _of_none(self, lattice: Lattice, bounds: tuple[float, float] | None, scale: Scale) -> int:
        """The value when trimming leaves no record, in steps."""
        low, high = (-lattice.reach, lattice.reach) if bounds is None else check_bounds(bounds)
        middle = (low + high) / 2
        if self.default is not None:
            middle = _validate.between(low, high, default=scale.number(self.default))
        return int(lattice.steps(middle))
