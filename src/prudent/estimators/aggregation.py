"""Any statistic or model of a table, by the private median or vote of its values on disjoint parts.

`aggregate` divides the records into parts, calls a function of the caller's on each, and releases
the median of the numbers it returns, chosen by the exponential mechanism without bounds, or the
label that most parts vote for.

**Privacy.** One record is in one part, so adding or removing it replaces the value of one part. A
replaced value is one removed and one added. Each changes the distance of every number from the
median by a range of length 1 (see `release.exponential.quantile`), so together the range is 2: a
median of c per record costs 2c. Of a vote, one count falls by 1 and another rises by 1: the counts
of k votes change by at most 2k in the sum and by sqrt(2k) in length. The key of the division is
drawn independently of the data; for each key this holds, so it holds for all of them.

**Certificate.** Every bad record spoils one part. The median of m values is above an end if more
than half of them are, so with B values up to that end at least ceil((2B - m + 1)/2) parts must be
spoiled; below an end it is ceil((m - 2A)/2), with A values below. A part that is spoiled may also
fall silent or begin to speak, which moves m by 1 and gains less than a changed value. This
distance is a distance in parts; one record changes it by at most 1, so it is released as any other
(`release.certificates`). The gap of a vote closes by at most 2 with each part. Noisy counts are
released, so a lower bound on the exact gap costs nothing.

**Parts.** The part of a record follows from a secret key, from its content, and from how many equal
records came before it. Take a record away: those equal to it that came later move up by one, and
since all of them are equal, the parts hold what they held before but for one record of one part.
Within a part, records are in the order of their digests, so that their order in the table does not
matter either. A digest of the content alone would send all equal records into one part; a part
drawn by position would move every record after the one that is removed.
"""

import datetime
import decimal
import hashlib
import math
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from prudent import _extras, _validate
from prudent.budget import LedgerLike
from prudent.estimators.answers import MOST_PARTS, AggregateRequest, Medians, Votes
from prudent.receipts.making import ReceiptTarget
from prudent.records import Seeds, generators_kept, seed_generators
from prudent.release.charging import charge
from prudent.release.failures import withheld
from prudent.release.noise import Noise, source_of
from prudent.release.outcome import Released
from prudent.release.sums.additive import LARGEST_EPSILON, SMALLEST_EPSILON

_LARGEST_SIZE = 10**6
_PLAIN = {
    *(type(None), bool, int, float, complex, str, bytes),
    *(decimal.Decimal, uuid.UUID),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
}
_PANDAS = {"Timestamp", "Timedelta", "NaTType", "NAType", "Period", "Interval"}

Digests: TypeAlias = list[bytes | None]
"""One entry for each record; None for one that cannot be read, which counts as absent."""


def aggregate(
    fit_one: Callable[[Any], Any],
    data: Any = None,
    epsilon: float | None = None,
    *,
    delta: float | None = None,
    size: int | None = None,
    labels: Sequence[Hashable] | None = None,
    parts: int | None = None,
    certify: float | None = None,
    confidence: float | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: LedgerLike | None = None,
    receipt: ReceiptTarget | None = None,
    noise: Noise | None = None,
    dry_run: bool = False,
) -> Any:
    """Release what a function computes from records: the private median, or vote, over parts.

    Args:
        fit_one: A function of the records of one part, in the container that `data` is: any
            statistic, or any model's coefficients or predictions at public points. It must depend
            on nothing else that depends on the data. Its random numbers are seeded for each part.
            Where it raises an error or returns something else than was asked for, the part counts
            as absent, and nothing says so: try it on public records first.
        data: An array, a list, a frame, a tuple of these such as `(X, y)`, or a path, an ibis
            table or a Spark frame, which are read as a pandas frame.
        epsilon: ε of this release, at least 0.001.
        delta: δ of this release. With it, many numbers or votes cost less than without.
        size: How many numbers, or labels, the function returns, a public fact; None: one, and
            not in a list.
        labels: The public list of labels, if it returns labels: then parts vote.
        parts: The public number of parts; None chooses one by ε. More parts withstand more bad
            records and more noise; fewer leave more records to each.
        certify: A tolerance: a fifth of ε then buys a proof of how many records must be added or
            removed before the exact median of the parts is further than that from a released
            number. A vote comes with its proof at no price.
        confidence: Probability with which intervals and certificates hold. Giving it asks for an
            interval for the exact median of the parts, at two fifths of ε, which needs more parts.
        connect: The address of a database, instead of `data`.
        table: The name of the table in that database.
        ledger: The ledger to charge before any record is read.
        receipt: Where to write the receipt; see `prudent.median`.
        noise: Source of randomness; None uses the operating system's.
        dry_run: Whether to return a `Preview` instead of releasing: nothing is charged or read.

    Guarantee:
        The answer is (ε, δ)-DP for adding or removing one record, whatever the function does on
        each part, if what it does depends on the part alone.

    Returns:
        `Released`, whose value is a number or a label, or with `size` a tuple of them.
    """
    _validate.function(fit_one=fit_one)
    epsilon = _validate.between(SMALLEST_EPSILON, LARGEST_EPSILON, epsilon=epsilon)
    if delta is not None:
        delta = _validate.small_delta(1e-18, ends="[)", delta=delta)
    asked = AggregateRequest(
        epsilon=epsilon,
        delta=delta,
        size=1 if size is None else _validate.count(1, _LARGEST_SIZE, size=size),
        single=size is None,
        parts=None if parts is None else _validate.count(2, MOST_PARTS, parts=parts),
        tolerance=None if certify is None else _validate.non_negative(certify=certify),
        confidence=(
            None
            if confidence is None
            else _validate.between(0.5, 1, ends="[)", confidence=confidence)
        ),
    )
    way = Medians.priced(asked) if labels is None else Votes.priced(asked, labels)
    read = open_records(data, connect, table)
    if dry_run:
        return way.preview
    source = source_of(noise)
    paid = charge(ledger, way.preview, table if connect else data, connect=connect, receipt=receipt)
    answer = withheld(_answer, way, fit_one, read, source)
    paid.note([answer], answer)
    return answer


def _answer(
    way: "Medians | Votes", fit_one: Callable[[Any], Any], read: Any, noise: Noise
) -> Released:
    secret = noise.integer(2**256).to_bytes(32, "little")
    parts, seeds = read().divided(way.parts, secret), Seeds(secret)
    with generators_kept():
        values = [_value_of(way, fit_one, part, seeds.of(j)) for j, part in enumerate(parts)]
    released = way.release([each for each in values if each is not None], noise)
    preview = way.preview
    return attrs.evolve(
        released,
        event=preview.event,
        epsilon=preview.epsilon,
        delta=preview.delta,
        notes=preview.notes,
    )


def _value_of(way: "Medians | Votes", fit_one: Any, part: Any, seed: int) -> Any:
    """What the function returns for a part; None if that is not what was asked for."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they may quote records
            seed_generators(seed)
            return way.read(fit_one(part))
    except KeyboardInterrupt:  # whoever waits for the answer wants to stop
        raise
    except BaseException:  # SystemExit, too
        return None


def _plain(value: Any) -> bytes:
    """The content of a record or a cell that is an object; raises if it is nothing plain.

    Only exact types are read: a subclass may show anything.
    """
    kind = type(value)
    if kind in _PLAIN or (kind.__name__ in _PANDAS and kind.__module__.startswith("pandas.")):
        return f"{kind.__name__} {value!r}".encode("utf-8", "surrogatepass")
    of_numpy = kind is np.ndarray or (isinstance(value, np.generic) and kind.__module__ == "numpy")
    if of_numpy and value.dtype != object:
        content: bytes = value.tobytes()
        return f"{value.dtype.str} {value.shape} ".encode() + content
    if kind in (list, tuple):
        return b"".join([kind.__name__.encode(), *map(_sized, value)])
    if kind is dict:
        return b"".join([b"dict", *(_sized(each) for pair in value.items() for each in pair)])
    raise TypeError


def _sized(value: Any) -> bytes:
    content = _plain(value)
    return len(content).to_bytes(8, "little") + content


def _of_objects(cells: Iterable[Any]) -> Digests:
    found: Digests = []
    for cell in cells:
        try:
            found.append(hashlib.blake2b(_plain(cell), digest_size=16).digest())
        except Exception:  # whatever an odd record raises
            found.append(None)
    return found


def _of_array(array: np.ndarray[Any, Any]) -> Digests:
    rows = array.reshape(len(array), math.prod(array.shape[1:]))  # also of no records
    if array.dtype == object:
        return _combined([_of_objects(column) for column in rows.T], len(array))
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows]


def _combined(columns: Sequence[Digests], count: int) -> Digests:
    if not columns:
        return [b""] * count
    return [
        None if any(each is None for each in cells) else b"".join(filter(None, cells))
        for cells in zip(*columns, strict=True)
    ]


@attrs.frozen(eq=False, repr=False)  # its text would quote records
class Records:
    """Records in one of the containers that can be divided."""

    count: int  # how many there are. Private.
    digests: Callable[[], Digests]  # the content of each
    # Returns the records at some places, in this order, in the same kind of container.
    take: Callable[[list[int]], Any]

    @classmethod
    def of(cls, data: Any) -> "Records":
        """Open an array, a list, a frame, or a tuple of these that have a row for each record.

        Raises:
            ArgumentError: if it is none of them.
        """
        kind = type(data).__module__.partition(".")[0]
        if isinstance(data, tuple):
            return cls._beside([cls.of(each) for each in data])
        if isinstance(data, list):
            return cls(
                len(data), lambda: _of_objects(data), lambda places: [data[each] for each in places]
            )
        if isinstance(data, np.ndarray) and data.ndim:
            return cls(len(data), lambda: _of_array(data), lambda places: data[_places(places)])
        if kind == "pandas" and hasattr(data, "iloc"):
            columns = [data] if data.ndim == 1 else [data.iloc[:, j] for j in range(data.shape[1])]
            return cls(
                len(data),
                lambda: _combined([_of_array(_cells(each)) for each in columns], len(data)),
                lambda places: _of_pandas(data.iloc[_places(places)].reset_index(drop=True)),
            )
        if kind in ("polars", "pyarrow") and hasattr(data, "to_pandas"):
            series = hasattr(data, "to_frame")
            cells = [data] if series else data.columns if kind == "pyarrow" else data.get_columns()
            take = data.take if kind == "pyarrow" else data.__getitem__
            plain = _of_arrow if kind == "pyarrow" else _of_polars
            return cls(
                len(data),
                lambda: _combined([_of_objects(_listed(each)) for each in cells], len(data)),
                lambda places: plain(take(_places(places))),
            )
        raise _validate.ArgumentError(
            "data",
            "an array, a list, a frame, or a tuple of these with one row for each record",
            shown=type(data).__name__,
        )

    @classmethod
    def _beside(cls, parts: "list[Records]") -> "Records":
        """Records whose columns are in several containers, such as features and a target."""
        if not parts or any(each.count != parts[0].count for each in parts):
            raise _validate.ArgumentError(
                "data", "a tuple of containers of equal length", shown="other lengths"
            )
        return cls(
            parts[0].count,
            lambda: _combined([each.digests() for each in parts], parts[0].count),
            lambda places: tuple(each.take(places) for each in parts),
        )

    def divided(self, parts: int, key: bytes) -> list[Any]:
        """The records of each part; a record that cannot be read is in none.

        Args:
            parts: The public number of parts.
            key: At most 64 secret bytes.
        """
        seen = Counter[bytes]()
        places: list[list[tuple[bytes, int]]] = [[] for _ in range(parts)]
        for place, content in enumerate(self.digests()):
            if content is None:
                continue
            name = content + seen[content].to_bytes(8, "little")
            seen[content] += 1
            digest = hashlib.blake2b(name, key=key, digest_size=24).digest()
            part = int.from_bytes(digest[:16], "little") % parts
            places[part].append((digest, place))
        return [self.take([place for _, place in sorted(part)]) for part in places]


def _places(places: list[int]) -> np.ndarray[Any, np.dtype[np.intp]]:
    return np.array(places, np.intp)


# A column of codes carries the list of the categories of all records. A part must not know which
# categories other parts have, so it gets the categories themselves.


def _of_pandas(part: Any) -> Any:
    def coded(dtype: Any) -> bool:
        return type(dtype).__name__ == "CategoricalDtype" or str(dtype).startswith("dictionary<")

    if part.ndim == 1:
        return part.astype(object) if coded(part.dtype) else part
    return part.astype({name: object for name, dtype in part.dtypes.items() if coded(dtype)})


def _of_arrow(part: Any) -> Any:
    import pyarrow

    def plain(dtype: Any) -> Any:
        return dtype.value_type if pyarrow.types.is_dictionary(dtype) else dtype

    if not hasattr(part, "schema"):
        return part.cast(plain(part.type))
    return part.cast(pyarrow.schema([each.with_type(plain(each.type)) for each in part.schema]))


def _of_polars(part: Any) -> Any:
    import polars

    if hasattr(part, "to_frame"):
        return part.cast(polars.String) if part.dtype == polars.Categorical else part
    return part.with_columns(polars.selectors.by_dtype(polars.Categorical).cast(polars.String))


def _cells(column: Any) -> np.ndarray[Any, Any]:
    """The cells of a pandas column; those of an extension type as objects."""
    return np.asarray(column if isinstance(column.dtype, np.dtype) else column.astype(object))


def _listed(column: Any) -> list[Any]:
    found: list[Any] = column.to_list() if hasattr(column, "to_list") else column.to_pylist()
    return found


def open_records(data: Any, connect: str | None, table: str | None) -> Callable[[], Records]:
    """Open what is to be divided, and read no record yet.

    The records of a path, a database, Spark or an ibis table come as a pandas frame. The columns of
    a text file are texts: which type they look like depends on single records.

    Returns:
        A function that reads the records.
    """
    module = type(data).__module__.partition(".")[0]
    held = ("numpy", "pandas", "polars", "pyarrow", "builtins")
    if connect is None and module in held and not isinstance(data, str):
        if module == "polars" and hasattr(data, "collect"):
            return lambda: Records.of(data.collect())
        records = Records.of(data)
        return lambda: records
    with _extras.needed("A release from a table"):
        from prudent.release.columns.joining import open_source

    source = open_source(data, connect=connect, table=table)

    def read() -> Records:
        try:
            return Records.of(source.table.to_pandas())
        finally:
            source.close()

    return read
