"""CSV and TSV files as one table of DuckDB: every column a text, and every file by its own header.

Nothing is guessed from the records. The dialect is stated, never sniffed, and a broken line is a
record without a value. In its strict mode DuckDB gives up on the lines after a stray quote or line
end; and threads that begin in the middle of a file take a line end inside of quotes for the end of
a record.
"""

import csv
import glob
from collections.abc import Sequence
from typing import Any

import ibis.expr.types as ir

from prudent.release.failures import SourceArgumentError, SourceError


def joined(backend: Any, files: Sequence[str], delimiter: str) -> ir.Table:
    """All records of some files, whose columns may be in any order.

    Args:
        backend: DuckDB.
        files: Paths, at least one.
        delimiter: Between fields.

    Raises:
        SourceError: if a header is not one line of distinct names, or two files have other names.
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
    """The name of one file, as DuckDB takes it for no pattern.

    Raises:
        SourceError: if it cannot be written so.
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
    """The names in the first line.

    An open quote there would run on into the records, and make names of them.
    """
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        line = file.readline()
    names = [] if line.count('"') % 2 else next(csv.reader([line], delimiter=delimiter), [])
    if not names or len(set(names)) < len(names):
        raise SourceError(f"Expected a first line of distinct column names in {path!r}.")
    return tuple(names)
