"""Arrow data, from a frame or a Parquet file, in DuckDB, read so that no record makes a scan fail.

A string that is not valid UTF-8, or a time in milliseconds that overflows microseconds, would make
the whole query fail when DuckDB reads it. So these columns are passed in their stored form, as
bytes and integers, and converted to strings and times inside DuckDB, with NULL where that fails.
"""

import uuid
from collections.abc import Sequence
from typing import Any

import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet

from prudent.release.columns.dialects import call, tried
from prudent.release.failures import SourceError

_MICROSECONDS = {"s": 10**6, "ms": 10**3}


def registered(backend: Any, data: pa.Table) -> ir.Table:
    """Register a table in memory with DuckDB."""
    kept = data.schema
    return _as_typed(backend, data.cast(_as_stored(kept)), kept)


def scanned(backend: Any, files: Sequence[str], columns: Sequence[str] | None) -> ir.Table:
    """Open Parquet files as one DuckDB table that is read via Arrow.

    Args:
        files: Paths; a folder name such as `year=2024` adds a column.
        columns: The columns that will be used; None means all.
    """
    schema = _dataset(files).schema
    used = [field for field in schema if columns is None or field.name in columns]
    kept = pa.schema(used or schema)
    stored, repeated = _as_stored(kept), _repeated(files, kept)
    for name in repeated:
        place = stored.get_field_index(name)
        stored = stored.set(place, pa.field(name, pa.dictionary(pa.int32(), pa.binary())))
    return _as_typed(backend, _dataset(files, stored, repeated), kept)


def _repeated(files: Sequence[str], schema: pa.Schema) -> list[str]:
    """The columns of texts that repeat, by the sizes that files have; it affects speed alone.

    A text takes at least four bytes, its place in a short list less; to read it by its place is
    three times as fast, and five times as slow where texts hardly repeat.
    """
    sizes = {field.name: [0, 0] for field in schema if pa.types.is_string(field.type)}
    for metadata in map(pyarrow.parquet.read_metadata, files if sizes else ()):
        names = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for column in (group.column(names.index(name)) for name in sizes if name in names):
                sizes[column.path_in_schema][0] += column.total_uncompressed_size
                sizes[column.path_in_schema][1] += column.num_values
    return [name for name, (size, values) in sizes.items() if 0 < size < 4 * values]


def needs_care(files: Sequence[str], columns: Sequence[str] | None) -> bool:
    """Whether a column has a type whose stored values can make DuckDB fail: texts if they are used.

    Raises:
        SourceError: if two files differ in their columns or types: converting one type into
            another fails on some records and not on others.
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
    if any(_stored(each) != each for each in first.values()):
        return True
    # DuckDB reads the statistics of every column, and fails at those of times.
    every = _used(files[0], None).values()
    return any(pa.types.is_nested(each) or _is_coarse(each) for each in every)


def _is_coarse(dtype: pa.DataType) -> bool:
    return pa.types.is_timestamp(dtype) and dtype.unit in _MICROSECONDS


def _used(file: str, columns: Sequence[str] | None) -> dict[str, pa.DataType]:
    schema = pyarrow.parquet.read_schema(file)
    types = {
        field.name: field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        for field in schema
    }
    return {name: types[name] for name in types if columns is None or name in columns}


def _dataset(
    files: Sequence[str], schema: pa.Schema | None = None, repeated: Sequence[str] = ()
) -> Any:
    import pyarrow.dataset  # imports pandas, which takes longer than a release

    kind = pyarrow.dataset.ParquetFileFormat(dictionary_columns=list(repeated))
    return pyarrow.dataset.dataset(list(files), schema=schema, format=kind, partitioning="hive")


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
    if _is_coarse(dtype):
        return pa.int64()
    if pa.types.is_duration(dtype):  # a Parquet file stores integers, and DuckDB reads them as such
        return pa.int64()
    return pa.float32() if pa.types.is_float16(dtype) else dtype


def _as_typed(backend: Any, data: Any, schema: pa.Schema) -> ir.Table:
    """Register the data with DuckDB and convert stored bytes and integers to strings and times."""
    view = f"prudent_{uuid.uuid4().hex}"
    backend.con.register(view, data)
    table = backend.table(view)
    images = {
        field.name: image
        for field in schema
        if (image := _image(table[field.name], field.type)) is not None
    }
    return table.mutate(**images) if images else table


def _image(column: ir.Column, dtype: pa.DataType) -> ir.Value | None:
    """Convert a stored column to a string or a time; None if no conversion is needed."""
    if pa.types.is_dictionary(dtype):
        return _image(column, dtype.value_type)
    if _stored(dtype) == dtype or pa.types.is_float16(dtype):
        return None
    if pa.types.is_duration(dtype):
        return tried(
            call("to_microseconds", _microseconds(column, dtype.unit), returns=dt.Interval("us"))
        )
    if not pa.types.is_timestamp(dtype):
        return tried(call("decode", column, returns=dt.string))
    microseconds = _microseconds(column, dtype.unit)
    if dtype.tz is None:
        return tried(call("make_timestamp", microseconds, returns=dt.Timestamp()))
    return tried(call("make_timestamptz", microseconds, returns=dt.Timestamp("UTC")))


def _microseconds(column: ir.Column, unit: str) -> ir.Value:
    """Convert stored integers to whole microseconds; nanoseconds are dropped, towards zero."""
    if unit == "ns":
        return call("divide", column, ibis.literal(1000, "int64"), returns=dt.int64)
    return column * ibis.literal(_MICROSECONDS.get(unit, 1), "int64")
