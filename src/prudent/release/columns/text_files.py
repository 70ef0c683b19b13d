"""Read CSV and TSV files as one DuckDB table: all columns as strings, each file by its own header.

Nothing is inferred from the records. The dialect is given, never detected, and a malformed line is
a record without a value. DuckDB's strict mode is off because it stops at a stray quote or line end
and loses the lines after it. Parallel reading is off because a thread that starts in the middle of
a file takes a line end inside quotes for the end of a record.
"""

import csv
import glob
from collections.abc import Sequence
from typing import Any

import ibis.expr.types as ir

from prudent.release.failures import SourceArgumentError, SourceError


def joined(backend: Any, files: Sequence[str], delimiter: str) -> ir.Table:
    """Return one table of all records of the files; their columns may be in different orders.

    Args:
        backend: The DuckDB connection.
        files: Paths, at least one.
        delimiter: The field delimiter.

    Raises:
        SourceError: if a header is not one line of distinct names, or two files differ in their
            column names.
    """
    by_header: dict[tuple[str, ...], list[str]] = {}
    for file in files:
        by_header.setdefault(_header(file, delimiter), []).append(file)
    first, *others = by_header
    for header in others:
        if set(header) != set(first):
            raise SourceError(
                f"Expected files with the same column names, got other names in the first line of "
                f"{by_header[header][0]!r} than of {by_header[first][0]!r}."
            )
    parts = [_read(backend, some, header, delimiter) for header, some in by_header.items()]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.union(part.select(*first))
    return whole


def _read(backend: Any, files: list[str], header: tuple[str, ...], delimiter: str) -> ir.Table:
    return backend.read_csv(
        list(map(escaped, files)),
        header=True,
        all_varchar=True,
        auto_detect=False,
        columns=dict.fromkeys(header, "VARCHAR"),
        delim=delimiter,
        quote='"',
        escape='"',
        ignore_errors=True,
        strict_mode=False,
        parallel=False,
    )


def escaped(file: str) -> str:
    """Escape a file name so that DuckDB does not read it as a pattern.

    Raises:
        SourceError: if the name cannot be escaped.
    """
    pattern = glob.escape(file)
    if pattern != file and "\\" in pattern:
        raise SourceArgumentError(
            "source",
            "without a backslash beside *, ? or [ in its name",
            got=file,
            hint="Rename it.",
        )
    return pattern


def _header(path: str, delimiter: str) -> tuple[str, ...]:
    """Return the column names in the first line.

    An unclosed quote in that line is an error: the field would extend into the records, and their
    contents would become part of a column name.
    """
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        line = file.readline()
    names = [] if line.count('"') % 2 else next(csv.reader([line], delimiter=delimiter), [])
    if not names or len(set(names)) < len(names):
        raise SourceError(f"Expected a first line of distinct column names in {path!r}.")
    return tuple(names)
