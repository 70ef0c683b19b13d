"""The cells that a column may fall into, found privately, and values for them.

The cells of a column are, in this order: NULL; the frequent exact values ("keys"), found by a
thresholded count; then, of numbers, bins on a span found by private quantiles, and of texts one
cell for all others. A record is in exactly one cell of each column.
"""

import math
from typing import Any

import attrs
import ibis.expr.datatypes as dt
import numpy as np

from prudent.release.lattice import FloatArray, IntArray
from prudent.synth.engine import TableEngine
from prudent.synth.reading import FARTHEST, MOMENTS, Cells, Field

LEVELS = 5
"""Halvings of a span: at most 2**LEVELS bins."""

CHOICES = LEVELS + 2
"""Exponential choices that the bins of a column cost."""

OTHER = "(other)"
"""The text that stands for all rare ones."""

FORMS = ("whole", *(f"decimal({digits})" for digits in range(1, 5)), "number", *MOMENTS, "text")
"""What a value may look like; a record without a value has none."""

_NUMBERS = FORMS.index("date")  # the forms before it are those of numbers
_MOST_KEYS, _MOST_TEXTS = 512, 1000
_KEY_NOISE = 0.01  # total variation that the noise of rare keys may cost
_NEARLY_ALL = 0.99  # of the numbers have as few decimal places as are shown
_NAMED = 0.05  # of the records have a text that is named, or the column is left out
_RANKS = 6.0  # standard errors of a rank that a bin should be wide, roughly


@attrs.frozen(eq=False)
class Domain:
    """The cells of one column; released, and therefore public."""

    field: Field  # with the type and scale that were found, if none was declared
    keys: tuple[Any, ...] = ()
    edges: FloatArray | None = None  # of the bins of numbers
    digits: int | None = None  # decimal places of numbers; None if they have many

    @property
    def name(self) -> str:
        """The name of the column."""
        return self.field.name

    @property
    def number(self) -> bool:
        """Whether it has bins."""
        return self.edges is not None

    @property
    def size(self) -> int:
        """The number of cells."""
        rest = 0 if self.field.boolean else 1 if self.edges is None else len(self.edges) - 1
        return 1 + len(self.keys) + rest

    @property
    def places(self) -> FloatArray:
        """A number for each cell of a column of numbers, to order them by; NULL is first."""
        assert self.edges is not None
        middles = (self.edges[1:] + self.edges[:-1]) / 2
        return np.array([-math.inf, *self.keys, *middles.tolist()])

    def encode(self, cells: Cells) -> IntArray:
        """The cell of each record."""
        if self.field.scale is None:
            assert cells.codes is not None
            known = {key: 1 + place for place, key in enumerate(self.keys)}
            other = 1 + len(self.keys)
            table = np.array([*(known.get(text, other) for text in cells.texts), 0], np.int64)
            return table[cells.codes]
        numbers = numbers_of(self.field, cells)
        code = np.zeros(len(numbers), np.int64)
        there = np.flatnonzero(~np.isnan(numbers))
        values = numbers[there]
        if self.edges is not None:
            place = np.searchsorted(self.edges, values, side="right") - 1
            code[there] = 1 + len(self.keys) + np.clip(place, 0, len(self.edges) - 2)
        if self.keys:
            order = np.argsort(self.keys)
            sorted_keys = np.asarray(self.keys, np.float64)[order]
            at = np.minimum(np.searchsorted(sorted_keys, values), len(order) - 1)
            same = sorted_keys[at] == values
            code[there[same]] = 1 + order[at[same]]
        return code

    def decode(self, code: IntArray, generator: np.random.Generator) -> Any:
        """Values of cells, as an Arrow array of the declared type, or of the one found."""
        import pyarrow

        assert self.field.dtype is not None
        kind = self.field.dtype.to_pyarrow()
        if self.field.scale is None:
            values = np.array([None, *self.keys, OTHER], object)[code]
            return pyarrow.array(values.tolist(), pyarrow.string())
        numbers = np.array([0.0, *self.keys, *np.zeros(self.size)])[code]
        if self.edges is not None:
            inside = np.flatnonzero(code > len(self.keys))
            bins = code[inside] - 1 - len(self.keys)
            drawn = generator.uniform(self.edges[bins], self.edges[bins + 1])
            whole = self.field.scale.whole or self.digits == 0
            numbers[inside] = np.floor(drawn) if whole else drawn
            if not whole and self.digits is not None:
                numbers[inside] = np.round(numbers[inside], self.digits)
        return _typed(numbers, code == 0, self.field, kind)


def _typed(numbers: FloatArray, missing: Any, field: Field, kind: Any) -> Any:
    """Numbers of a scale as an Arrow array of a type that has it; beyond its ends, its ends."""
    import pyarrow
    from pyarrow import types

    assert field.scale is not None
    if field.scale.truth:
        return pyarrow.array(numbers != 0, kind, mask=missing)
    if types.is_integer(kind):
        ends = np.iinfo(kind.to_pandas_dtype())
        low, high = max(float(ends.min), -FARTHEST), min(float(ends.max), FARTHEST)
        return pyarrow.array(np.clip(numbers, low, high).astype(np.int64), mask=missing).cast(kind)
    if types.is_floating(kind):
        return pyarrow.array(numbers, pyarrow.float64(), mask=missing).cast(kind, safe=False)
    shown = {each: field.scale.value(each) for each in np.unique(numbers).tolist()}
    values = [
        None if gone else shown[each]
        for each, gone in zip(numbers.tolist(), missing.tolist(), strict=True)
    ]
    if types.is_decimal(kind):
        kind = pyarrow.decimal128(38, field.scale.digits)
    if types.is_timestamp(kind):
        kind = pyarrow.timestamp("us", kind.tz)
    return pyarrow.array(values, kind)


def numbers_of(field: Field, cells: Cells) -> FloatArray:
    """The numbers of a column, NaN where a record has none of its form."""
    if cells.moments is not None and cells.dates is not None and field.scale in MOMENTS.values():
        if field.scale == MOMENTS["timestamp"]:
            return cells.moments
        days = np.floor(cells.moments / 86_400e6)
        return np.where(cells.dates == 1, days, np.nan)
    assert cells.numbers is not None
    return cells.numbers


def forms_of(field: Field, cells: Cells) -> IntArray:
    """The form of each record, -1 of one without a value: a function of that record alone."""
    assert cells.numbers is not None
    numbers = cells.numbers
    forms = np.full(len(numbers), FORMS.index("number"))
    for digits in range(4, -1, -1):
        forms[np.round(numbers, digits) == numbers] = digits
    forms[np.isnan(numbers)] = -1
    if cells.codes is not None and cells.moments is not None and cells.dates is not None:
        other = np.isnan(numbers) & (cells.codes >= 0)
        time = np.where(cells.dates == 1, FORMS.index("date"), FORMS.index("timestamp"))
        forms[other] = np.where(np.isnan(cells.moments), FORMS.index("text"), time)[other]
    return forms


def _found(field: Field, noisy: IntArray) -> tuple[Field, int | None]:
    """The type that most records have, and their decimal places, by noisy counts of forms."""
    counts = np.maximum(noisy, 0)
    numbers = counts[:_NUMBERS]
    upto = np.cumsum(numbers) >= _NEARLY_ALL * max(int(numbers.sum()), 1)
    digits = int(np.argmax(upto)) if upto[:-1].any() else None
    if not field.untyped:
        return field, digits
    kinds = {"number": int(numbers.sum())}
    kinds |= {name: int(counts[FORMS.index(name)]) for name in (*MOMENTS, "text")}
    most = max(kinds, key=lambda name: kinds[name])
    if most == "number":
        return attrs.evolve(field, dtype=dt.int64 if digits == 0 else dt.float64), digits
    types = {"date": dt.date, "timestamp": dt.Timestamp(scale=6), "text": dt.string}
    return attrs.evolve(field, dtype=types[most], scale=MOMENTS.get(most)), None


def discover(field: Field, cells: Cells, size: float, engine: TableEngine) -> Domain | None:
    """Find the cells of a column privately; None if its texts hardly repeat.

    Args:
        field: The column.
        cells: Its records.
        size: The noisy number of records.
        engine: What asks them.
    """
    if field.boolean:
        return Domain(field, (0.0, 1.0))
    digits: int | None = 0 if field.scale is not None and field.scale.whole else None
    if field.form_is_private:
        forms = forms_of(field, cells)
        counted = np.bincount(forms[forms >= 0], minlength=len(FORMS))
        field, digits = _found(field, engine.counts("forms", counted))
    if field.scale is None:
        assert cells.codes is not None
        found = np.bincount(cells.codes + 1, minlength=len(cells.texts) + 1)[1:]
        texts = engine.keys("keys", cells.texts, found)
        unnamed = sum(texts.values()) < _NAMED * size
        return None if unnamed else Domain(field, (*texts,)[:_MOST_TEXTS])
    numbers = numbers_of(field, cells)
    values, found = np.unique(numbers[~np.isnan(numbers)], return_counts=True)
    named = list(engine.keys("keys", values.tolist(), found).items())[:_MOST_KEYS]
    # Rare keys as long as the noise of their counts is small; else a bin holds them as well.
    room = _KEY_NOISE * size / (0.4 * engine.deviation("oneway"))
    named = [
        (key, many)
        for place, (key, many) in enumerate(named)
        if place < room or many > size / 2 ** (LEVELS + 2)
    ]
    keys = np.sort(np.array([key for key, _ in named]))
    rest = numbers[~np.isnan(numbers) & ~np.isin(numbers, keys)]
    left = max(size - sum(many for _, many in named), 0.0)
    edges = _edges(rest, left, keys, engine)
    if field.scale.whole or digits == 0:
        edges = np.unique(np.floor(edges) + np.array([*np.zeros(len(edges) - 1), 1.0]))
    edges = np.unique(edges)
    if len(edges) < 2:
        edges = np.array([edges[0], np.nextafter(edges[0] + 1, math.inf)])
    return Domain(field, tuple(keys.tolist()), edges, digits)


def _edges(numbers: FloatArray, left: float, keys: FloatArray, engine: TableEngine) -> FloatArray:
    """The edges of as many bins as about `left` records allow; else one bin between the keys."""
    error = _RANKS / engine.prices.choice_epsilon("cuts")
    levels = max((each for each in range(LEVELS + 1) if left > error * 2**each), default=None)
    found = None if levels is None else engine.edges("spans", "cuts", numbers, levels)
    if found is None:
        found = np.array([keys[0], keys[-1]] if len(keys) else [0.0, 1.0])
    return np.unique(found)


def coarse(domain: Domain, shares: FloatArray, most: int) -> IntArray:
    """A map from cells to at most `most` groups: neighbours of a number, the rare ones of a text.

    NULL is a group of its own if it is not rare. Groups are numbered from 0, none is empty.
    """
    if domain.size <= most:
        return np.arange(domain.size)
    if not domain.number:
        found = np.full(domain.size, most - 1)
        found[np.argsort(-shares, kind="stable")[: most - 1]] = np.arange(most - 1)
        return found
    order = np.argsort(domain.places, kind="stable")
    alone = bool(shares[0] > 0.5 / most) and most > 2
    weights = shares[order] + 1e-9
    if alone:
        weights[0] = 0.0
    room = most - alone
    group, mass, left, closed = np.zeros(domain.size, np.int64), 0.0, float(weights.sum()), 0
    for place, weight in enumerate(weights.tolist()):
        if mass > 0 and mass + weight / 2 > left / (room - closed) and closed < room - 1:
            left, mass, closed = left - mass, 0.0, closed + 1
        group[place], mass = closed, mass + weight
    if alone:
        group[0] = closed + 1
    found = np.empty(domain.size, np.int64)
    found[order] = group
    return found
