"""Counts of the records of each class in public cells, and how many records an answer withstands.

One record adds one to a cell in each of T tables, in the row of its class, and one to the number of
records of this class. So the tables together change by T, in the sum of absolute values, and the
numbers of records by 1, when one record is added or removed.

Let N be a table of counts: N[c, l] is the number of records of class c in cell l, in each of T
tables, and n[c] the number of records of class c; both with whatever noise. A query x weighs each
cell by w(l) in [0, 1], which depends on x and public facts alone. The similarity of x and a record
is the mean weight of its T cells, and the score of class c is

    Σ over cells l of w(l) N[c, l] / T − n[c]/2,

the sum over the records of the class of their similarity − 1/2, and noise. The class with the
largest score is predicted, the first of them if there are several.

Theorem. Let m be the largest of |similarity − 1/2| over all records there can be; m <= 1/2. The
prediction a at x withstands r inserted or removed records, with the same noise, if for each other
class b the gap between the scores of a and b is more than r m, or is r m and a comes before b.

Proof. A record inserted into class c, or removed from it, moves the score of c by
±(similarity − 1/2), at most m in size, and no other score. So r records, n_c of them in class c,
change the gap between a and b by at most n_a m + n_b m <= r m. ∎

The radius is the largest such r. It is sharp: with one table some cell has |w − 1/2| = m, and r + 1
copies of a record in that cell, named as a (if w < 1/2) or as the nearest other class, change the
prediction. A changed record is one removed and one inserted, and counts twice.

Without the half a record could move a score by 1, only upwards; with it a record unlike the query
counts against its class, and radii double. No rule withstands more records than two classes have:
whoever can remove one class and insert it under the name of another can exchange their names.

All numbers here are whole: weights in steps of 1/STEPS, scores in units of 1/(2 · STEPS · T).

**Landmarks** are a public partition of the records: each is in the cell of the landmark nearest to
it.

A query gives a landmark the weight 0 if the cosine of their codes is at most `low`, 1 from `high`
on, and linearly between. So records in cells near the query count for their class, and records far
from it count against theirs. Where landmarks lie in crowds, a cosine is worth less there than among
few: see `Crowding`.

**Codes.** A code is a direction, a row of whole numbers of Euclidean length at most SCALE. Inner
products of two codes, and all partial sums of them, are whole numbers of at most SCALE² < 2²⁴
(Cauchy and Schwarz, for any part of the entries), which float32 holds exactly. So products computed
by any library, in chunks of any size, in any memory order and with any number of threads have the
same bits: which landmark a record is nearest to depends on this record alone.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import attrs
import dp_accounting as dp
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.budget import LedgerLike
from prudent.receipts.making import ReceiptTarget
from prudent.records.arrays import NONE
from prudent.release.charging import ChargedRelease, Preview, charge
from prudent.release.noise import AdditiveMechanism, Noise, shares_of, source_of

STEPS = 1 << 12  # the weight 1, in steps
UNTOUCHABLE = int(np.iinfo(np.int64).max)  # the radius of a prediction that no record can move
Whole = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]
"""Weights of cells, one row per query: whole numbers from 0 to STEPS."""

TOTALS_SHARE = 0.1
"""Fraction of ε for the numbers of records of the classes; the rest is for the cells.

A class total is in every score of its class, and as a sum of noisy cells it would have their noise
many times over.
"""


@attrs.frozen(eq=False)
class Counts:
    """Counts of the records of each class; exact ones are NOT PRIVATE, released ones are."""

    cells: Whole  # counts, (classes, cells of all tables)
    totals: Whole  # records of each class
    sizes: tuple[int, ...]  # how many cells each table has; a record is in one cell of each
    # Digest of the public partition and classes, which tables must share to be added.
    partition: str
    epsilon: float | None = None  # ε of the release; None for exact counts

    def __attrs_post_init__(self) -> None:
        if self.cells.shape != (len(self.totals), sum(self.sizes)):
            allowed = "of each class in each cell of the partition"
            raise ArgumentError("counts", allowed, shown="other shapes")

    @property
    def tables(self) -> int:
        """How many cells a record is in."""
        return len(self.sizes)

    @classmethod
    def empty(cls, classes: int, sizes: tuple[int, ...], partition: str) -> "Counts":
        """Counts of no records."""
        zeros = np.zeros((classes, sum(sizes)), np.int64)
        return cls(zeros, np.zeros(classes, np.int64), sizes, partition)

    def insert(self, places: Whole, classes: Whole) -> None:
        """Add records to exact counts: each adds one to a cell of each table, or is absent.

        Price and theorem rest on this, so it is checked here, whatever made the numbers.
        """
        if places.shape != (len(classes), self.tables):
            raise ValueError
        ends = np.cumsum(self.sizes)
        kept = ((places >= ends - self.sizes) & (places < ends)).all(axis=1)
        kept &= (classes != NONE) & (classes < len(self.totals))
        names = classes[kept]
        for column in places[kept].T:
            np.add.at(self.cells, (names, column), 1)
        np.add.at(self.totals, names, 1)

    def __add__(self, other: "Counts") -> "Counts":
        """Counts of the records of both, which must be different records.

        Exact tables add up to an exact table, which is what secure aggregation computes of the
        tables of clients. Released ones add up to a released one: each record is in one of them, so
        the sum is as private as the less private of them.
        """
        if self.partition != other.partition:
            raise ArgumentError("other", "counts on the same partition", shown="another one")
        if (self.epsilon is None) != (other.epsilon is None):
            raise ArgumentError("other", "exact counts, or released ones, like these", shown="not")
        epsilon = None if self.epsilon is None else max(self.epsilon, other.epsilon or 0.0)
        cells, totals = self.cells + other.cells, self.totals + other.totals
        return attrs.evolve(self, cells=cells, totals=totals, epsilon=epsilon)

    def released(self, pricing: "Pricing", noise: Noise | None) -> "Counts":
        """Exact counts with noise."""
        source = source_of(noise)
        cells = pricing.cells.noisy(self.cells.ravel().tolist(), self.tables, source)
        totals = pricing.totals.noisy(self.totals.tolist(), 1, source)
        shaped = np.array(cells, np.int64).reshape(self.cells.shape)
        whole = np.array(totals, np.int64)
        return attrs.evolve(self, cells=shaped, totals=whole, epsilon=pricing.epsilon)

    def note(self, paid: ChargedRelease, labels: Sequence[Any]) -> None:
        """Note that these counts were released, and write their receipt."""
        table = {"classes": list(labels), "tables": self.tables, "partition": self.partition}
        released = table | {"cells": self.cells, "totals": self.totals}
        paid.note([self], released, features=self.partition)


@attrs.frozen
class Pricing:
    """How ε is divided between cells and class totals.

    Guarantee:
        Discrete Laplace noise on the cells, calibrated to a change of T, is ε_cells-DP, and on the
        totals, calibrated to a change of 1, ε_totals-DP; together they are ε-DP, with δ = 0.
    """

    epsilon: float  # ε of the release
    share: float = TOTALS_SHARE  # fraction of it for the class totals

    @property
    def parts(self) -> tuple[float, ...]:
        """ε of the class totals, and of the cells."""
        return tuple(shares_of(self.epsilon, self.share))

    @property
    def cells(self) -> AdditiveMechanism:
        """The noise of the cells."""
        return AdditiveMechanism.calibrate(self.parts[1])

    @property
    def totals(self) -> AdditiveMechanism:
        """The noise of the class totals."""
        return AdditiveMechanism.calibrate(self.parts[0])

    @property
    def event(self) -> dp.DpEvent:
        """What a release costs, for any accountant of this package."""
        return dp.ComposedDpEvent([self.cells.event, self.totals.event])

    def preview(self, name: str) -> Preview:
        """What is known of a release before any record is read."""
        return Preview(
            statistic=f"counts at {name}",
            mechanism="laplace",
            epsilon=self.epsilon,
            delta=0.0,
            event=self.event,
        )

    def charge(
        self,
        ledger: LedgerLike | None,
        name: str,
        data: Any = None,
        *,
        receipt: ReceiptTarget | None = None,
    ) -> ChargedRelease:
        """Charge a ledger, before any record is read; see `charging.charge`."""
        return charge(ledger, self.preview(name), data, receipt=receipt, kind="classifier")


def scores_of(weights: Weights, cells: Whole, totals: Whole, tables: int) -> Whole:
    """The score of each class at each query, exactly.

    Weights have one row per query, counts one per class.
    """
    half = STEPS * tables * totals
    largest = 2 * STEPS * int(np.abs(cells).sum(axis=1).max(initial=0))
    if largest < 1 << 53:  # then float64 is exact, and many times faster
        found = (weights.astype(np.float64) @ cells.T.astype(np.float64)).astype(np.int64)
    else:
        found = weights.astype(np.int64) @ cells.T
    return 2 * found - half


def moves_of(weights: Weights, sizes: Sequence[int]) -> Whole:
    """The most that one record can move a score at each query: m of the theorem."""
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    most = np.maximum.reduceat(weights, starts, axis=1).astype(np.int64).sum(axis=1)
    least = np.minimum.reduceat(weights, starts, axis=1).astype(np.int64).sum(axis=1)
    middle = STEPS * len(sizes)
    found: Whole = np.maximum(2 * most - middle, middle - 2 * least)
    return found


def decided(scores: Whole, moves: Whole) -> tuple[Whole, Whole]:
    """The number of the winning class at each query, and its radius."""
    rows, winners = np.arange(len(scores)), scores.argmax(axis=1)
    gaps = scores[rows, winners][:, None] - scores
    # A class that comes later must get ahead, one that comes earlier need only draw level.
    earlier = np.arange(scores.shape[1]) < winners[:, None]
    reach = (gaps - earlier) // np.maximum(moves, 1)[:, None]
    reach[rows, winners] = UNTOUCHABLE
    reach[moves == 0] = UNTOUCHABLE
    return winners, reach.min(axis=1)


SCALE = 4095  # the greatest length of a code; its square is below 2²⁴
NEAREST = 50  # how many landmarks the crowding of a place is measured by
Codes = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

_SAMPLE = 1000
_FINE = 1 << 20
_ROOM = 1.0 - 2.0**-30  # more than the rounding errors of a length


def whole(rows: npt.NDArray[np.float64]) -> Codes:
    """The direction of each row, rounded towards zero to a code.

    Every step is a function of one row alone: the largest entry, a division of each entry by it,
    and a sum of squares of whole numbers, which is exact. A row of zeros stays zero.
    """
    peaks = np.abs(rows).max(axis=1, initial=0.0)[:, None]
    # Halved first: neither a huge entry nor a tiny peak leaves the range of float64.
    fine = np.rint(rows / 2 / np.where(peaks > 0, peaks, 1.0) * (2 * _FINE)).astype(np.int64)
    lengths = np.sqrt(_squares(fine).astype(np.float64))[:, None]
    found = np.trunc(fine * (SCALE * _ROOM / np.maximum(lengths, 1.0))).astype(np.int64)
    found[_squares(found) > SCALE * SCALE] = 0  # never happens; exactness rests on it
    return np.ascontiguousarray(found, dtype=np.float32)


def _squares(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = np.square(rows).sum(axis=1)
    return found


def nearest(
    codes: Codes, landmarks: Codes, less: Codes | None = None, rows: int = 1024
) -> npt.NDArray[np.int64]:
    """The number of the landmark with the largest product with each code; the first, if several.

    `less` is taken off the products of each landmark.
    """
    parts = [
        (each if less is None else each - less).argmax(axis=1)
        for each in products(codes, landmarks, rows)
    ]
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


def products(codes: Codes, landmarks: Codes, rows: int = 1024) -> Iterator[Codes]:
    """Inner products of codes and landmarks, exact, for so many codes at a time."""
    for start in range(0, len(codes), rows):
        yield codes[start : start + rows] @ landmarks.T


class Features(Protocol):
    """A public map from records to codes. Nothing in it comes from the records of a release.

    Attributes:
        name: A name for messages and saved files.
        digest: Changes whenever the map does; saved files are checked against it.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def digest(self) -> str: ...  # noqa: D102

    def codes(self, records: Any, /) -> tuple[Codes, Flags]:
        """Codes of records, one per row, and which of the records could be read.

        Row i, bit for bit, is a function of record i alone.
        """
        ...


class Partition(Protocol):
    """Public cells for records, in one or more tables, and the weights that a query gives them.

    Attributes:
        name: A name for messages and saved files.
        digest: Changes whenever cells or weights do.
        sizes: How many cells each table has.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def digest(self) -> str: ...  # noqa: D102

    @property
    def sizes(self) -> tuple[int, ...]: ...  # noqa: D102

    def cells(self, records: Any, /) -> Whole:
        """The cell of each record in each table, (records, tables), numbered through all tables.

        A row is a function of its record alone; it is `NONE` for a record that cannot be read.
        """
        ...

    def weights(self, queries: Any, /) -> Weights:
        """The weight of each cell at each query, from 0 to `STEPS`; 0 if it cannot be read."""
        ...


@attrs.frozen(eq=False)
class Crowding:
    """How crowded the places of landmarks and queries are, and how much of that is taken off.

    The crowding of a place is its mean product with the `NEAREST` landmarks nearest to it. It is
    public, like the landmarks.
    """

    products: Codes  # the crowding of each landmark among the others, in whole numbers
    records: float  # the part of it that is taken off before a record chooses its nearest landmark
    landmarks: float  # the part of it that is taken off the product of a query and a landmark
    queries: float  # the part of the crowding of the query that is taken off as well

    @classmethod
    def of(cls, codes: Codes, records: float, landmarks: float, queries: float) -> "Crowding":
        """That of landmarks."""
        means = [
            _nearest_mean(part, 1 + NEAREST, skip=1) for part in products(codes, codes, _SAMPLE)
        ]
        return cls(np.rint(np.concatenate(means)).astype(np.float32), records, landmarks, queries)

    @property
    def digest(self) -> str:
        """Of all of it."""
        rest = repr((self.records, self.landmarks, self.queries))
        return hashlib.sha256(rest.encode() + self.products.tobytes()).hexdigest()

    def of_records(self) -> Codes:
        """What is taken off the products of a record with each landmark, in whole numbers."""
        found: Codes = np.rint(np.float32(self.records) * self.products)
        return found

    def take_off(self, found: Codes) -> None:
        """Take crowding off the products of queries with the landmarks."""
        crowds = _nearest_mean(found, NEAREST)
        found -= np.rint(self.queries * crowds).astype(np.float32)[:, None]
        found -= np.rint(np.float32(self.landmarks) * self.products)


def _nearest_mean(found: Codes, count: int, skip: int = 0) -> npt.NDArray[np.float64]:
    """The mean of the largest products of each row, the first `skip` left out.

    Sums of whole numbers in double precision are exact, in any order.
    """
    count = min(count, found.shape[1])
    largest = np.partition(found, found.shape[1] - count, axis=1)[:, -count:].astype(np.float64)
    total = largest.sum(axis=1) - (largest.max(axis=1) if skip else 0.0)
    mean: npt.NDArray[np.float64] = total / max(1, count - skip)
    return mean


def _checked_ramp(ramp: Any) -> tuple[float, float]:
    ends = [_validate.between(-1, 1, ramp=each) for each in _validate.values(ramp=ramp)]
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise ArgumentError("ramp", "two cosines in rising order", got=ramp)
    return ends[0], ends[1]


@attrs.frozen(eq=False)
class Landmarks:
    """A partition by landmarks."""

    features: Features  # from records to codes
    codes: Codes  # of the landmarks
    # Cosines, less crowding, up to which a landmark has no weight, and from which on it has all.
    ramp: tuple[float, float] = attrs.field(default=(0.1, 0.35), converter=_checked_ramp)
    crowding: Crowding | None = None  # of the landmarks; None: cosines count as they are

    def __attrs_post_init__(self) -> None:
        if self.codes.ndim != 2 or not len(self.codes):
            raise ArgumentError("landmarks", "rows of numbers, one or more", shown="not")

    @property
    def name(self) -> str:
        """That of the features."""
        return self.features.name

    @property
    def digest(self) -> str:
        """Of the features, the landmarks and the ramp."""
        crowding = self.crowding.digest if self.crowding else ""
        rest = repr((self.features.digest, self.ramp, crowding, self.codes.shape))
        return hashlib.sha256(rest.encode() + self.codes.tobytes()).hexdigest()

    @property
    def sizes(self) -> tuple[int, ...]:
        """One table of all landmarks."""
        return (len(self.codes),)

    def cells(self, records: Any) -> Whole:
        """The nearest landmark; products are exact, the first wins a tie."""
        codes, present = self.features.codes(records)
        less = self.crowding.of_records() if self.crowding else None
        return np.where(present, nearest(codes, self.codes, less), NONE)[:, None]

    def weights(self, queries: Any) -> Weights:
        """The ramp of the cosines."""
        codes, present = self.features.codes(queries)
        low, high = (np.float32(SCALE * SCALE * cosine) for cosine in self.ramp)
        found = codes @ self.codes.T
        if self.crowding:
            self.crowding.take_off(found)
        found -= low
        found *= STEPS / (high - low)
        np.floor(np.clip(found, 0, STEPS, out=found), out=found)
        found[~present] = 0
        return found


def public_ramp(codes: Codes, classes: int) -> tuple[float, float]:
    """A ramp by the landmarks alone: as many of them have weight as are of one class of several.

    Of the cosines between landmarks, which are public, a fraction 1/classes is between alike ones
    if classes are of one size. The ramp rises around that quantile.
    """
    rows = codes[:: max(1, len(codes) // _SAMPLE)]
    others = ~np.eye(len(rows), dtype=bool)
    cosines = np.sort((rows @ rows.T)[others]) / np.float32(SCALE * SCALE)
    if not len(cosines):
        return 0.0, 0.5
    low, high = (
        float(cosines[min(len(cosines) - 1, int(share * len(cosines)))])
        for share in (1 - 1.5 / max(classes, 2), 1 - 0.5 / max(classes, 2))
    )
    low = max(-1.0, min(low, 0.9))
    return low, min(1.0, max(high, low + 0.05))


def random_directions(count: int, width: int) -> npt.NDArray[np.float64]:
    """Landmarks where nothing public is known: random signs, the same in every version of numpy."""
    drawn = np.random.RandomState(7).randint(0, 2, (count, width), dtype=np.uint8)
    return 2 * drawn.astype(np.float64) - 1
