"""Data in memory and Parquet files as Arrow data in DuckDB, so that no record makes a scan fail.

The type of an array decides how it is read. Of untyped data, a list or an array of objects, each
record is converted alone, so that one odd record does not affect the others. DuckDB is given plain
numbers: of categories their places in the order of all, which no answer depends on otherwise.
"""

import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.release.columns import scales
from prudent.release.columns.column import KINDS, Column, Kind, SourceError, in_order
from prudent.release.columns.dialects import call, present, tried
from prudent.release.columns.scales import INTEGER, NUMBER, OF_TEXT, TRUTH, Scale
from prudent.release.columns.sources import embedded
from prudent.release.columns.table_columns import TableColumn
from prudent.release.lattice import FloatArray

# DuckDB reads a decimal into as few bytes as its digits need, may stop at one that does not fit,
# and may return what its memory holds.
_NARROWED = {"INT32": 4, "INT64": 9}  # the most digits for which it takes fewer than are stored
_HELD = ((2, 4), (4, 9), (8, 18), (16, 38), (32, 76))  # bytes of a decimal, and its most digits
_MICROSECONDS = {"s": 10**6, "ms": 10**3}


def open_values(values: Any, kind: Kind, read_as: str | None = None) -> Column:
    """Open an array, a list or a tuple as a column of numbers or of categories.

    In a list or an array of objects, a record that is not a number (or, for categories, not a
    string, date or other plain category) has no value.
    """
    _validate.one_of(KINDS, kind=kind)
    if isinstance(values, np.ndarray):
        if values.ndim != 1:  # the message omits the shape: the number of records is private
            raise ArgumentError("data", "one-dimensional", shown=f"{values.ndim} dimensions")
        if isinstance(values, np.ma.MaskedArray):
            values = values.compressed()
        values = scales.real(values)
    if kind in ("numbers", "truth"):
        numbers, scale = _numbers(values, kind, read_as)
        return TableColumn(_registered({"value": numbers[~np.isnan(numbers)]}), scale=scale)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        values = values[~np.isnan(values)] if values.dtype.kind == "f" else values
        found, places = np.unique(values, return_inverse=True)
        return _Categories({each: scales.category(each) for each in found}, places)
    return _Categories.of(values)


def _numbers(values: Any, kind: Kind, read_as: str | None) -> tuple[FloatArray, Scale]:
    """The numbers of values, NaN where there is none, and their scale."""
    typed = isinstance(values, np.ndarray) and values.dtype != object
    if typed and values.dtype.kind not in "biuf":
        if read_as is not None:
            raise ArgumentError(
                "read_as", "only with a list or a text column", got=read_as, why="an array is typed"
            )
        if values.dtype.kind not in "mM":
            what = "that are numbers, dates, times or durations"
            raise ArgumentError("values", what, shown="others", hint=OF_TEXT)
        numbers, scale = scales.numbers_of_times(values), scales.scale_of_array(values.dtype)
    else:
        usual = TRUTH if kind == "truth" else NUMBER
        scale = usual if read_as is None else Scale.named(read_as)
        plain = scale in (NUMBER, INTEGER)
        if typed and plain:
            with np.errstate(over="ignore"):  # a warning would reveal that some record is huge
                numbers = values.astype(np.float64)
        else:
            read = scales.number if plain else scale.record
            numbers = np.fromiter(map(read, values), np.float64)
    if kind == "truth" and not scale.truth:
        raise ArgumentError("values", "that are true or false", shown="others")
    return numbers, scale


class _Categories(TableColumn):
    """Categories of any types, each stored as its place in their order."""

    def __init__(self, shown: Mapping[Hashable, Any], places: npt.NDArray[Any]) -> None:
        """Take the displayed categories, by their keys, in order, and the place of each record."""
        super().__init__(_registered({"value": places.astype(np.int64)}))
        self._shown = list(shown.values())
        self._places = {key: place for place, key in enumerate(shown)}
        self._key: Callable[[Any], Hashable] = lambda category: category

    @classmethod
    def of(cls, values: Any) -> "_Categories":
        """Read untyped values, or texts or times: 1 and 1.0 are two categories here."""
        if isinstance(values, np.ndarray) and values.dtype.kind not in "mM":
            values = values.tolist()  # nanoseconds would become integers
        named = [each for each in map(scales.category, values) if each is not None]
        found = {(type(each), each): in_order(each) for each in named}
        keys = dict(sorted(found.items(), key=lambda pair: pair[1]))
        place = {pair: place for place, pair in enumerate(keys)}
        places = np.fromiter((place[type(each), each] for each in named), np.int64, len(named))
        column = cls({key: each for (_, each), key in keys.items()}, places)
        column._key = in_order
        return column

    @override
    def most_frequent(self) -> Any:
        found = super().most_frequent()
        return None if found is None else self._shown[found]

    @override
    def listed(self, categories: Sequence[Hashable]) -> list[Any]:
        return [self._places.get(self._key(each), -1) for each in categories]


def open_matrix(matrix: FloatArray) -> Callable[[int], Column]:
    """Open the columns of a matrix, registered once; NaN, in a column with gaps, is no value."""
    names = [f"x{place}" for place in range(matrix.shape[1])]
    table = _registered({name: matrix[:, place] for place, name in enumerate(names)})

    def column(place: int) -> Column:
        rows = table.select(value=names[place])
        return TableColumn(rows.filter(present(rows.value)), scale=NUMBER)

    return column


def _registered(columns: Mapping[str, npt.NDArray[Any]]) -> ir.Table:
    """A table in memory, in a connection of its own, which closes when nothing refers to it."""
    backend, name = embedded(), f"prudent_{uuid.uuid4().hex}"
    backend.con.register(name, pa.table(dict(columns)))
    schema = ibis.schema({each: str(of.dtype) for each, of in columns.items()})
    # Its schema is known: `backend.table` would ask for it.
    return ibis.expr.operations.DatabaseTable(name=name, schema=schema, source=backend).to_expr()


def registered(backend: Any, data: pa.Table) -> ir.Table:
    """Register a table in memory with DuckDB."""
    names = [name or f"column{place}" for place, name in enumerate(data.column_names)]
    data = data.rename_columns(names)
    for place, field in enumerate(data.schema):
        if pa.types.is_run_end_encoded(field.type):
            import pyarrow.compute

            decoded = map(pyarrow.compute.run_end_decode, data.column(place).chunks)
            plain = pa.chunked_array(decoded, field.type.value_type)
            data = data.set_column(place, field.name, plain)
    kept = data.schema
    data = data.cast(_as_stored(kept))
    for place, field in enumerate(data.schema):
        if pa.types.is_decimal(field.type) and field.type.bit_width <= 128:
            parts = [_with_digits(part, field.type) for part in data.column(place).chunks]
            data = data.set_column(place, field, pa.chunked_array(parts, field.type))
    return _as_typed(backend, data, kept)


def _with_digits(decimals: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Decimals without those that have more digits than their type.

    At some of them DuckDB stops, and for others it returns what its memory holds, of other records.
    """
    words = np.frombuffer(decimals.buffers()[1] or b"", f"i{min(dtype.bit_width // 8, 8)}")
    words = words.reshape(-1, max(dtype.bit_width // 64, 1))[decimals.offset :][: len(decimals)]
    low = words[:, 0].astype(np.int64)
    high = words[:, 1] if words.shape[1] > 1 else low >> 63
    low, least, most = low.view(np.uint64), -(10**dtype.precision), 10**dtype.precision
    fits = (high > least >> 64) | ((high == least >> 64) & (low > least % 2**64))
    fits &= (high < most >> 64) | ((high == most >> 64) & (low < most % 2**64))
    if fits.all():
        return decimals
    fits &= decimals.is_valid().to_numpy(zero_copy_only=False)
    bits = np.packbits(fits, bitorder="little")
    return pa.Array.from_buffers(dtype, len(fits), [pa.py_buffer(bits), pa.py_buffer(words)])


def scanned(backend: Any, files: Sequence[str], columns: Sequence[str] | None) -> ir.Table:
    """Open Parquet files as one DuckDB table that is read via Arrow."""
    schema = _dataset(files).schema
    used = [field for field in schema if columns is None or field.name in columns]
    kept = pa.schema([field for field in used or schema if field.name] or schema)
    stored, repeated = _as_stored(kept), _repeated(files, kept)
    for place, field in enumerate(stored):
        if pa.types.is_decimal(field.type) and field.type.precision <= _NARROWED["INT64"]:
            every = pa.decimal128(20, field.type.scale)  # of 64 bits
            stored = stored.set(place, field.with_type(every))
    for name in repeated:
        place = stored.get_field_index(name)
        stored = stored.set(place, pa.field(name, pa.dictionary(pa.int32(), pa.binary())))
    return _as_typed(backend, _dataset(files, stored, repeated), kept)


def _repeated(files: Sequence[str], schema: pa.Schema) -> list[str]:
    """The columns of texts that repeat, by the sizes that files have; it affects speed alone.

    A text takes at least four bytes, its place in a short list less; to read it by its place is
    three times as fast, and five times as slow where texts hardly repeat.
    """
    import pyarrow.parquet

    sizes = {field.name: [0, 0] for field in schema if pa.types.is_string(field.type)}
    for metadata in map(pyarrow.parquet.read_metadata, files if sizes else ()):
        names = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for column in (group.column(names.index(name)) for name in sizes if name in names):
                sizes[column.path_in_schema][0] += column.total_uncompressed_size
                sizes[column.path_in_schema][1] += column.num_values
    return [name for name, (size, values) in sizes.items() if 0 < size < 4 * values]


def needs_care(files: Sequence[str], columns: Sequence[str] | None) -> bool:
    """Whether a column has a type whose stored values can make DuckDB fail.

    Files that differ in their columns or types are an error: converting one type into another fails
    on some records and not on others.
    """
    first, *others = (_used(file, columns) for file in files)
    for file, types in zip(files[1:], others, strict=True):
        differ = sorted(name for name in first if types.get(name, first[name]) != first[name])
        if differ or (columns is not None and first.keys() != types.keys()):
            what = f"another type of {differ[0]!r}" if differ else "other columns"
            raise SourceError(
                f"Expected files with the same columns and types, got {what} in {file!r} than in "
                f"{files[0]!r}."
            )
    loose, narrowed = {}, False
    for file in files:
        for column in _decimals(file):
            narrowed |= column.precision <= _NARROWED.get(column.physical_type, 0)
            held = next(size for size, most in _HELD if column.precision <= most)
            if column.physical_type.endswith("BYTE_ARRAY") and not 0 < column.length <= held:
                loose[column.path] = file
    if unread := sorted(loose.keys() & first.keys()):
        raise SourceError(
            f"Expected decimals in as many bytes as their digits need, got more in {unread[0]!r} "
            f"of {loose[unread[0]]!r}. Write that file again, with DuckDB."
        )
    if loose or narrowed or any(_stored(each) != each for each in first.values()):
        return True
    # DuckDB reads the statistics of every column, and fails at those of times.
    every = _used(files[0], None).values()
    return any(pa.types.is_nested(each) or _is_coarse(each) for each in every)


def _is_coarse(dtype: pa.DataType) -> bool:
    return pa.types.is_timestamp(dtype) and dtype.unit in _MICROSECONDS


def _used(file: str, columns: Sequence[str] | None) -> dict[str, pa.DataType]:
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(file)
    types = {
        field.name: field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        for field in schema
    }
    return {name: types[name] for name in types if columns is None or name in columns}


def _decimals(file: str) -> list[Any]:
    """How the decimals of a file are stored."""
    import pyarrow.parquet

    schema = pyarrow.parquet.read_metadata(file).schema
    columns = [schema.column(place) for place in range(len(schema))]
    return [each for each in columns if each.logical_type.type == "DECIMAL"]


def _dataset(
    files: Sequence[str], schema: pa.Schema | None = None, repeated: Sequence[str] = ()
) -> Any:
    import pyarrow.dataset  # imports pandas, which takes longer than a release

    kind = pyarrow.dataset.ParquetFileFormat(dictionary_columns=list(repeated))
    return pyarrow.dataset.dataset(list(files), schema=schema, format=kind, partitioning="hive")


# A text that is not valid UTF-8, or a time that overflows microseconds, would make a whole query
# fail when DuckDB reads it. So these columns are passed as bytes and integers, and converted inside
# DuckDB, with NULL where that fails.


def _as_stored(schema: pa.Schema) -> pa.Schema:
    # All fields are nullable: a column that is declared non-nullable may still hold NULL.
    return pa.schema([pa.field(field.name, _stored(field.type)) for field in schema])


def _stored(dtype: pa.DataType) -> pa.DataType:
    """The type in which every stored value of `dtype` can be passed to DuckDB."""
    if pa.types.is_dictionary(dtype):
        return _stored(dtype.value_type)
    if pa.types.is_large_string(dtype):
        return pa.large_binary()
    if pa.types.is_string(dtype) or pa.types.is_string_view(dtype):
        return pa.binary()
    # A Parquet file stores durations as integers, and DuckDB reads them as such.
    if _is_coarse(dtype) or pa.types.is_duration(dtype):
        return pa.int64()
    return pa.float32() if pa.types.is_float16(dtype) else dtype


def _as_typed(backend: Any, data: Any, schema: pa.Schema) -> ir.Table:
    """Register the data with DuckDB and convert stored bytes and integers to strings and times."""
    view = f"prudent_{uuid.uuid4().hex}"
    backend.con.register(view, data)
    table = backend.table(view)
    # Of names that differ in capitals alone, and of none, DuckDB makes others.
    fields = zip(table.columns, schema, strict=False)
    images = {name: _image(table[name], field.type) for name, field in fields}
    return table.mutate(**{name: image for name, image in images.items() if image is not None})


def _image(column: ir.Column, dtype: pa.DataType) -> ir.Value | None:
    """Convert a stored column to a string or a time; None if no conversion is needed."""
    if pa.types.is_dictionary(dtype):
        return _image(column, dtype.value_type)
    if pa.types.is_decimal(dtype):
        declared = dt.Decimal(dtype.precision, dtype.scale)
        return None if column.type() == declared else tried(column.cast(declared))
    if _stored(dtype) == dtype or pa.types.is_float16(dtype):
        return None
    if not (pa.types.is_duration(dtype) or pa.types.is_timestamp(dtype)):
        return tried(call("decode", column, returns=dt.string))
    microseconds = _microseconds(column, dtype.unit)
    if pa.types.is_duration(dtype):
        return tried(call("to_microseconds", microseconds, returns=dt.Interval("us")))
    if dtype.tz is None:
        return tried(call("make_timestamp", microseconds, returns=dt.Timestamp()))
    return tried(call("make_timestamptz", microseconds, returns=dt.Timestamp("UTC")))


def _microseconds(column: ir.Column, unit: str) -> ir.Value:
    """Convert stored integers to whole microseconds; nanoseconds are dropped, towards zero."""
    if unit == "ns":
        return call("divide", column, ibis.literal(1000, "int64"), returns=dt.int64)
    return column * ibis.literal(_MICROSECONDS.get(unit, 1), "int64")
