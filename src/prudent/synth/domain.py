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

from prudent.release.columns.conversions import text_of
from prudent.release.lattice import FloatArray, IntArray
from prudent.synth.engine import TableEngine
from prudent.synth.reading import FARTHEST, FORMS, MOMENTS, Field, Source

LEVELS = 5
"""Halvings of a span: at most 2**LEVELS bins."""

CHOICES = LEVELS + 2
"""Exponential choices that the bins of a column cost."""

OTHER = "(other)"
"""The text that stands for all rare ones."""

_NUMBERS = FORMS.index("date")  # the forms before it are those of numbers
_MOST_KEYS, _MOST_TEXTS = 512, 1000
_KEY_NOISE = 0.01  # total variation that the noise of rare keys may cost
_NEARLY_ALL = 0.99  # of the numbers have as few decimal places as are shown
_NAMED = 0.25  # of the records have a text that is named, or the column is one of identifiers
_OUTER = 2  # levels at most that halve the outermost bins alone
_RANKS = 6.0  # standard errors of a rank that a bin should be wide, roughly


@attrs.frozen(eq=False)
class Domain:
    """The cells of one column; released, and therefore public."""

    field: Field  # with the type and scale that were found, if none was declared
    keys: tuple[Any, ...] = ()
    edges: FloatArray | None = None  # of the bins of numbers
    digits: int | None = None  # decimal places of numbers; None if they have many
    # The keys as the engine has them: texts as bytes, of which several may look the same.
    stored: tuple[Any, ...] = attrs.field(default=attrs.Factory(lambda self: self.keys, True))

    @property
    def size(self) -> int:
        """The number of cells."""
        rest = 0 if self.field.boolean else 1 if self.edges is None else len(self.edges) - 1
        return 1 + len(self.keys) + rest

    @property
    def order(self) -> IntArray:
        """The cells in the order of their numbers, or of their frequency if they are texts."""
        if self.edges is None:
            return np.arange(self.size)
        middles = (self.edges[1:] + self.edges[:-1]) / 2
        return np.argsort([-math.inf, *self.keys, *middles.tolist()], kind="stable")

    @property
    def labels(self) -> list[str]:
        """A text for each cell, to show."""
        shown = str if self.field.scale is None else self.field.scale.value
        keys = [str(shown(each)) for each in self.keys]
        rest = [OTHER] if self.edges is None else [str(shown(each)) for each in self.edges[:-1]]
        return ["NULL", *keys, *rest][: self.size]

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


def _found(field: Field, noisy: IntArray) -> tuple[Field, int | None]:
    """The type that most records have, and their decimal places, by noisy counts of forms."""
    counts = np.maximum(noisy, 0)
    numbers = counts[:_NUMBERS]
    upto = np.cumsum(numbers) >= _NEARLY_ALL * max(int(numbers.sum()), 1)
    digits = int(np.argmax(upto)) if upto[:-1].any() else None
    if field.dtype is not None:
        return field, digits
    kinds = {"number": int(numbers.sum())}
    kinds |= {name: int(counts[FORMS.index(name)]) for name in (*MOMENTS, "text")}
    most = max(kinds, key=lambda name: kinds[name])
    if most == "number":
        return attrs.evolve(field, dtype=dt.int64 if digits == 0 else dt.float64), digits
    types = {"date": dt.date, "timestamp": dt.Timestamp(scale=6), "text": dt.string}
    return attrs.evolve(field, dtype=types[most], scale=MOMENTS.get(most)), None


def discover(
    field: Field, source: Source, forms: IntArray | None, size: float, engine: TableEngine
) -> Domain | None:
    """Find the cells of a column privately; None if its texts hardly repeat.

    Args:
        field: The column.
        source: Counts its values.
        forms: How many records have each form, if that is private.
        size: The noisy number of records.
        engine: What releases counts.
    """
    if field.boolean:
        return Domain(field, (0.0, 1.0))
    digits: int | None = 0 if field.scale is not None and field.scale.whole else None
    if forms is not None:
        field, digits = _found(field, engine.counts("forms", forms))
    if field.scale is None:
        texts, counts = source.values(field, engine.threshold("keys")[0])
        named = engine.keys("keys", texts.tolist(), counts)
        stored, codec = (*named,)[:_MOST_TEXTS], source.codec()
        if sum(named.values()) < _NAMED * size:
            return None
        return Domain(field, tuple(text_of(each, codec) for each in stored), stored=stored)
    values, counts = source.values(field)
    values = values.astype(np.float64)
    named = engine.keys("keys", values.tolist(), counts)
    # Rare keys as long as the noise of their counts is small; else a bin holds them as well.
    room = _KEY_NOISE * size / (0.4 * engine.deviation("oneway"))
    kept = {
        key: many
        for place, (key, many) in enumerate([*named.items()][:_MOST_KEYS])
        if place < room or many > size / 2 ** (LEVELS + 2)
    }
    keys, rest = np.sort(np.array([*kept])), ~np.isin(values, [*kept])
    # As many bins as the records that are left allow; else one between the keys.
    error = _RANKS / engine.prices.choice_epsilon("cuts")
    left = max(size - sum(kept.values()), 0.0)
    levels = max((each for each in range(LEVELS + 1) if left > error * 2**each), default=None)
    edges = None
    if levels is not None:
        outer = min(_OUTER, LEVELS - levels) if levels else 0  # of the choices that are left over
        edges = engine.edges("spans", "cuts", values[rest], counts[rest], levels, outer)
    if edges is None:
        edges = np.array([keys[0], keys[-1]] if len(keys) else [0.0, 1.0])
    edges = np.unique(edges)
    if field.scale.whole or digits == 0:
        edges = np.floor(edges) + np.array([*np.zeros(len(edges) - 1), 1.0])
    edges = np.unique(edges)
    if len(edges) < 2:
        edges = np.array([edges[0], np.nextafter(edges[0] + 1, math.inf)])
    return Domain(field, tuple(keys.tolist()), edges, digits)


def coarse(domain: Domain, shares: FloatArray, most: int) -> IntArray:
    """A map from cells to at most `most` groups: neighbours of a number, the rare ones of a text.

    NULL is a group of its own if it is not rare. Groups are numbered from 0, none is empty.
    """
    if domain.size <= most:
        return np.arange(domain.size)
    if domain.edges is None:
        found = np.full(domain.size, most - 1)
        found[np.argsort(-shares, kind="stable")[: most - 1]] = np.arange(most - 1)
        return found
    order = domain.order
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
