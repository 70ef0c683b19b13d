"""The public lattice that records are rounded to and released values lie on.

Every record is rounded to the nearest multiple of a public power of two before anything is
computed. Values, margins and sensitivities are therefore whole numbers of steps. No later
computation rounds, and the low-order bits of a released value reveal nothing.

Exact sums of whole steps, and of their squares, are here as well, and the limbs that engines add
instead. An engine multiplies 64-bit integers, and some fail when a sum of them overflows. So each
step is split into limbs of as many bits as the engine can add (`columns.dialects.limb_bits`). The
number of limbs follows from public ends alone.
"""

import math

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._rounding import rounded_up
from prudent._validate import ArgumentError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

FARTHEST = 2**52
"""Largest distance of a value from zero, in steps: integers up to it are exact in a double."""

PLAUSIBLE = 2.0**20
"""Least distance from zero that a lattice must reach when no bounds on the data are given."""

_FINENESS = 6  # a proposal is at least 2**6 steps, so rounding it up costs at most 1.6 %
LEAST_PROPOSAL = math.ldexp(PLAUSIBLE, _FINENESS) / FARTHEST  # whose lattice reaches `PLAUSIBLE`
_SMALLEST_EXPONENT, _LARGEST_EXPONENT = -960, 960  # both ends of a lattice are finite doubles


@attrs.frozen
class Lattice:
    """The multiples of 2**exponent between two ends.

    A record is clipped to the ends and then rounded to the nearest multiple. This is a monotone map
    of each record alone: it keeps the order of records, and adding or removing one record remains
    adding or removing one record. Infinite values are moved to the ends.

    Attributes:
        exponent: The spacing is 2**exponent.
        low: The least value, in steps. The default means that no bound is known.
        high: The largest value, in steps. The default means that no bound is known.
    """

    exponent: int
    low: int = -FARTHEST
    high: int = FARTHEST

    def __attrs_post_init__(self) -> None:
        _validate.between(_SMALLEST_EXPONENT, _LARGEST_EXPONENT, exponent=self.exponent)
        for name in ("exponent", "low", "high"):
            number = _validate.real(**{name: getattr(self, name)})
            if math.isinf(number) or number != math.floor(number):
                raise _validate.ArgumentError(name, "a whole number", got=number)
        _validate.fields(self, lambda **field: int(*field.values()), "exponent", "low", "high")
        if not -FARTHEST <= self.low < self.high <= FARTHEST:
            raise ValueError(
                f"Expected -2**52 <= low < high <= 2**52, got low={self.low}, high={self.high}."
            )

    @classmethod
    def for_unit(cls, unit: float, bounds: tuple[float, float] | None = None) -> "Lattice":
        """Return the lattice whose spacing is the largest power of two not above `unit`.

        Args:
            unit: The largest spacing allowed, in the unit of the data: 1 for integers or time
                stamps in microseconds, 0.01 for money.
            bounds: Public bounds on the data; None if there are none. The ends are then 2**52
                steps from zero; with a unit of 1 that covers every time stamp in microseconds
                until the year 2112.
        """
        unit = _validate.positive(unit=unit)
        exponent = math.frexp(unit)[1] - 1
        if not _SMALLEST_EXPONENT <= exponent <= _LARGEST_EXPONENT:
            raise _validate.ArgumentError(
                "unit", "between 1e-288 and 1e289", got=unit, hint="Change the unit of the data."
            )
        free = cls(exponent)
        return free if bounds is None else free._within(*check_bounds(bounds))

    @classmethod
    def for_proposal(cls, propose: float, bounds: tuple[float, float] | None = None) -> "Lattice":
        """Return the lattice on which a proposal spans 64 to 128 steps.

        Without bounds it reaches at least 2**45 proposals from zero: with a proposal of 50, far
        enough for time stamps in microseconds. Values beyond are moved to the ends, so a lattice
        that ends before `PLAUSIBLE` is rejected.

        Args:
            propose: The proposed sensitivity τ, in the unit of the data.
            bounds: Public bounds on the data; None if there are none.
        """
        propose = _validate.positive(propose=propose)
        if not 1e-285 < propose < 1e290:
            raise _validate.ArgumentError(
                "propose",
                "between 1e-285 and 1e290",
                got=propose,
                hint="Change the unit of the data.",
            )
        lattice = cls.for_unit(math.ldexp(propose, -_FINENESS), bounds)
        if bounds is None and lattice.reach < PLAUSIBLE:
            raise _validate.ArgumentError(
                "propose",
                f"at least {rounded_up(LEAST_PROPOSAL, 2)} without bounds",
                got=propose,
                why="values are released on a lattice of 2**53 points, which would end at "
                f"±{lattice.reach:g}",
                hint="Propose more, or give public bounds.",
            )
        return lattice

    def _within(self, low: float, high: float) -> "Lattice":
        """Return this lattice restricted to bounds."""
        if max(abs(low), abs(high)) > self.reach:
            raise _validate.ArgumentError(
                "bounds",
                f"within {self.reach:g} of zero, where a lattice of spacing {self.spacing:g} ends",
                got=(low, high),
                hint="Propose more, or give bounds nearer to zero.",
            )
        first, last = (int(end) for end in self.steps([low, high]))
        if first == last:
            raise _validate.ArgumentError(
                "bounds",
                f"further apart than the lattice's spacing of {self.spacing:g}",
                got=(low, high),
                hint="Propose less, or change the unit of the data.",
            )
        return attrs.evolve(self, low=first, high=last)

    @property
    def spacing(self) -> float:
        """The distance between neighbouring points."""
        return math.ldexp(1.0, self.exponent)

    @property
    def reach(self) -> float:
        """The largest distance from zero at this spacing, in the unit of the data."""
        return self.value(FARTHEST)

    @property
    def bounded(self) -> bool:
        """Whether the ends are bounds on the data rather than limits of the lattice itself.

        Without bounds, a value at an end stands for values that the lattice cannot represent.
        Margins then also count the records that keep the answer away from the ends, so that such an
        answer is refused rather than wrong.
        """
        return (self.low, self.high) != (-FARTHEST, FARTHEST)

    @property
    def diameter(self) -> int:
        """The distance between the ends, in steps: the global sensitivity of a quantile."""
        return self.high - self.low

    def steps(self, values: npt.ArrayLike) -> IntArray:
        """Round values to the lattice: floor(x/spacing + 1/2), with x clipped to the ends."""
        return self.whole(np.asarray(values, np.float64)).astype(np.int64)

    def whole(
        self, values: FloatArray, low: float = -math.inf, high: float = math.inf
    ) -> FloatArray:
        """The same steps as whole doubles, which are faster, of values clipped to bounds first."""
        first, last = self.value(self.low), self.value(self.high)
        low, high = (min(max(end, first), last) for end in (low, high))
        inside = np.clip(values, low, high)
        # By a power of two, and never beyond 2**52: as exact as `ldexp`, and six times as fast.
        steps: FloatArray = inside * math.ldexp(1.0, -self.exponent)
        steps += 0.5
        return np.floor(steps, out=steps if steps.ndim else None)

    def steps_of_proposal(self, propose: float) -> int:
        """Return a sensitivity in whole steps, rounded up.

        Rounding to the nearest point commutes with shifts by whole steps, so two values within
        `propose` of each other stay within this many steps when both are rounded.
        """
        return math.ceil(math.ldexp(_validate.positive(propose=propose), -self.exponent))

    def value(self, steps: int) -> float:
        """Convert steps to a value in the unit of the data."""
        return math.ldexp(float(steps), self.exponent)


def check_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return public bounds as two finite numbers in ascending order, or raise ValueError."""
    try:
        low, high = (float(end) for end in bounds)
    except Exception:  # whatever an object raises that is no pair of numbers
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise _validate.ArgumentError(
            "bounds", "a pair of finite numbers (low, high) with low < high", got=bounds
        )
    return low, high


OCTAVES = -40, 64
"""The powers of two between which half-octaves tell the sizes of values apart."""

LAST_HALF = 2 * (OCTAVES[1] - OCTAVES[0]) + 1
"""The half-octave of the largest values; -LAST_HALF is that of the least."""

HALVES_PER_LOG = 2 / math.log(2.0)
HALF_SHIFT = 1.3 - 2 * OCTAVES[0]
"""Half-octaves begin a little below powers of two and 1.41 times them, which are common values."""


TINY = 1e-300
"""Added to the size of a value before its logarithm is taken: zero has none."""

_RAISED = 2048  # so that the numbers of all sizes are positive before they get a sign
RAISED_SHIFT = HALF_SHIFT + _RAISED


_EXPONENTS = 2**12  # sign and exponent of a double


def exponents(values: FloatArray) -> IntArray:
    """The sign and exponent of a multiple of x |x|, which tell the half-octave of a value x.

    They are `_EXPONENTS` whole numbers from 0 on, whose half-octaves are `PLACES`.
    """
    assert values.dtype == np.float64, "other numbers have other bits"
    with np.errstate(over="ignore"):  # a warning would reveal that some record is huge
        squares = np.abs(values)
        squares *= values
        squares *= 2.0 ** (HALF_SHIFT % 1)
    bits: IntArray = (squares.view(np.uint64) >> np.uint64(52)).view(np.int64)
    return bits


def half_octaves(values: FloatArray) -> IntArray:
    """Number the half-octaves that values are in, outwards from 0 for values below 2**-40.

    It is a monotone map of each value alone.
    """
    return PLACES[exponents(values)]


def lowered(raised: FloatArray) -> IntArray:
    """The half-octaves of raised numbers, which also tell tiny and huge sizes apart."""
    sizes = np.clip(np.abs(raised) - _RAISED, 0, LAST_HALF)
    halves: IntArray = np.copysign(sizes, raised).astype(np.int64)
    return halves


def _places() -> IntArray:
    exponent = np.arange(_EXPONENTS // 2) - 1023.0
    raised = exponent + math.floor(HALF_SHIFT) + _RAISED
    return lowered(np.concatenate([raised, -raised]))


PLACES = _places()
"""The half-octave of each of the `exponents`."""


def exponent_counts(values: FloatArray) -> IntArray:
    """How many values have each of the `exponents`; counts of parts of a column add up."""
    return np.bincount(exponents(values), minlength=_EXPONENTS)


def added_up(places: npt.ArrayLike, records: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    """The places that hold records, ascending, and how many each holds in all."""
    different, where = np.unique(np.array(places, np.int64), return_inverse=True)
    counts = np.zeros(len(different), np.int64)
    np.add.at(counts, where, np.array(records, np.int64))
    return different[counts > 0], counts[counts > 0]


def end_of_half_octave(place: int) -> float:
    """The outer end of a half-octave; 0 of the one around zero."""
    if place == 0:
        return 0.0
    return math.copysign(2.0 ** ((abs(place) + 1 - HALF_SHIFT) / 2), place)


BLOCK = 2**15
"""Numbers that are added up at a time: they stay in a cache, and their sums are exact doubles."""

_BITS_OF_PRODUCT = 38  # 2**38 times a block is 2**53


def ends_in_steps(lattice: Lattice, low: float, high: float) -> tuple[int, int]:
    """Return two values in steps of the lattice.

    Rounding is monotone, so clipping steps to these ends is the same as rounding clipped values.

    Raises:
        ArgumentError: if they are not in order.
    """
    if not low <= high:
        raise ArgumentError("low", "at most high", got=(low, high))
    first, last = lattice.steps([low, high]).tolist()
    return int(first), int(last)


def limbs(span: int, bits: int) -> int:
    """The number of limbs of an integer in 0..span; at least one."""
    return max(1, math.ceil(span.bit_length() / bits))


def _limbs(steps: FloatArray, farthest: int, bits: int) -> list[FloatArray]:
    """Whole numbers of at most this size in limbs, least first; the last has the sign."""
    assert len(steps) <= BLOCK, "a sum of more may be rounded"
    found = []
    for _ in range(limbs(farthest - 1, bits) - 1):
        upper = np.floor(steps * 2.0**-bits)
        found.append(steps - upper * 2.0**bits)
        steps = upper
    return [*found, steps]


def sum_of(steps: FloatArray, farthest: int) -> int:
    """The exact sum of at most `BLOCK` whole numbers of at most this size."""
    bits = _BITS_OF_PRODUCT
    parts = enumerate(_limbs(steps, farthest, bits))
    return sum(int(part.sum()) << (place * bits) for place, part in parts)


def sum_of_products(first: FloatArray, second: FloatArray, *farthest: int) -> int:
    """The exact sum of the products of whole numbers of at most these sizes; see `sum_of`."""
    bits = _BITS_OF_PRODUCT // 2
    given = zip((first, second), farthest, strict=True)
    ones, twos = (_limbs(steps, size, bits) for steps, size in given)
    total = 0
    for i, one in enumerate(ones):
        for j, two in enumerate(twos):
            total += int(np.einsum("i,i->", one, two)) << ((i + j) * bits)
    return total


def clipped_sums(
    values: FloatArray,
    low: float,
    high: float,
    lattice: Lattice,
    *,
    squared: bool = False,
) -> tuple[int, int]:
    """The exact sums of s, and perhaps of its square, over the steps s of clipped values.

    Sums of parts of a column add up to those of the column.

    Args:
        values: Numbers of which none is missing.
        low: The least value to clip to.
        high: The largest value to clip to.
        lattice: The lattice that clipped values are rounded to.
        squared: Whether to add up squares as well; else their sum is 0.
    """
    first, last = ends_in_steps(lattice, low, high)
    centre = (first + last) // 2  # distances from it take the fewest limbs
    farthest = max(centre - first, last - centre, 1)
    total = squares = 0
    for start in range(0, len(values), BLOCK):
        steps = lattice.whole(values[start : start + BLOCK], low, high)
        steps -= centre
        total += sum_of(steps, farthest)
        squares += sum_of_products(steps, steps, farthest, farthest) if squared else 0
    count = len(values)
    squares = about(-centre, count=count, total=total, squares=squares) if squared else 0
    return total + count * centre, squares


def about(origin: int, *, count: int, total: int, squares: int) -> int:
    """The sum of (x - origin)² for `count` integers with this sum and sum of squares."""
    return squares - 2 * origin * total + count * origin * origin
