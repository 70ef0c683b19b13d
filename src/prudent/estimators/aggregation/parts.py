"""Dividing records into disjoint parts such that one record is in one part, and moves no other.

The part of a record follows from a secret key, from its content, and from how many equal records
came before it. Take a record away: those equal to it that came later move up by one, and since all
of them are equal, the parts hold what they held before but for one record of one part. Within a
part, records are in the order of their digests, so that their order in the table does not matter
either. A digest of the content alone would send all equal records into one part; a part drawn by
position would move every record after the one that is removed.
"""

import datetime
import decimal
import hashlib
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from prudent import _extras, _validate

_PLAIN = {
    *(type(None), bool, int, float, complex, str, bytes),
    *(decimal.Decimal, uuid.UUID),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
}
_PANDAS = {"Timestamp", "Timedelta", "NaTType", "NAType", "Period", "Interval"}

Digests: TypeAlias = list[bytes | None]
"""One entry for each record; None for one that cannot be read, which counts as absent."""


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
