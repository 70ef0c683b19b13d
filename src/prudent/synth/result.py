"""A synthetic table, and what is known of it: everything here was released."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from prudent import _files, _validate
from prudent._rounding import nearest, rounded_up
from prudent.accounting.relations import ADD_REMOVE
from prudent.release.lattice import IntArray
from prudent.synth.domain import Domain

_ROW = "prudent row"  # a column that tells rows apart while constraints are checked


@attrs.frozen(eq=False)
class MeasuredMarginal:
    """A table of counts that was measured.

    Attributes:
        columns: The columns that were counted together.
        counts: The counts with their noise, one axis for each column.
        noise_scale: The standard deviation of the noise of each count.
        rows_per_unit: The largest number of rows of a privacy unit.
        made: The same counts of the synthetic rows.
    """

    columns: tuple[str, ...]
    counts: IntArray = attrs.field(repr=False)
    noise_scale: float
    rows_per_unit: int
    made: IntArray = attrs.field(repr=False)

    @property
    def half_width(self) -> float:
        """Each count of the records, in these cells, is within this of the noisy one with 95 %."""
        return 1.96 * self.noise_scale + 0.5  # the noise is rounded to whole numbers

    @property
    def beyond_noise(self) -> float:
        """The share of cells whose synthetic count is not within `half_width` of the noisy one."""
        return float((np.abs(self.made - self.counts) > self.half_width).mean())

    def moved_by(self, records: int) -> int:
        """By how much so many bad records, or units, can change the counts, all changes added up.

        A record is in one cell, so k records that are added or removed change the counts by k in
        total at most, given the cells that were released; the noise does not depend on them.
        """
        return _validate.count(0, records=records) * self.rows_per_unit

    def __str__(self) -> str:
        size = " x ".join(map(str, self.counts.shape))
        return (
            f"{', '.join(self.columns)}: {size} cells, each count ± {rounded_up(self.half_width)} "
            f"(95 %), synthetic ones outside in {nearest(100 * self.beyond_noise, 2)} %; k bad "
            f"records move all of it by {self.moved_by(1):,} k at most"
        )


@attrs.frozen(eq=False, kw_only=True)
class Synthetic:
    """A synthetic table.

    Attributes:
        data: The rows, as an Arrow table.
        marginals: What was measured: the one-way counts of each column, then tables of several.
            Everything else about the rows follows from the model, without a bound on its error.
        epsilon: ε of the table and of all that is here.
        delta: δ beside it.
        event: The privacy event, for any accountant.
        unit: The column of privacy units; None if rows are protected by themselves.
        notes: What to know about it, one sentence each.
        domains: The cells of each column.
    """

    data: Any = attrs.field(repr=False)
    marginals: tuple[MeasuredMarginal, ...] = attrs.field(repr=False)
    epsilon: float
    delta: float
    event: Any = attrs.field(repr=False)
    unit: str | None = None
    notes: tuple[str, ...] = ()
    domains: tuple[Domain, ...] = attrs.field(repr=False, default=())

    def to_arrow(self) -> Any:
        """The rows as an Arrow table."""
        return self.data

    def to_pandas(self) -> Any:
        """The rows as a pandas frame."""
        return self.data.to_pandas()

    def write(self, path: str | Path) -> None:
        """Write the rows to a Parquet file, or to a CSV file, by its name."""
        import pyarrow.csv
        import pyarrow.parquet

        suffix = _validate.one_of((".parquet", ".csv"), path=Path(path).suffix)
        save = pyarrow.csv.write_csv if suffix == ".csv" else pyarrow.parquet.write_table
        with _files.replacing(Path(path), "wb") as file:
            save(self.data, file)

    @property
    def report(self) -> str:
        """What was measured, how exact it is, and what it costs; released numbers only."""
        price = f"({rounded_up(self.epsilon, 6)}, {rounded_up(self.delta, 6)})-DP"
        lines = [
            f"{self.data.num_rows:,} synthetic rows of {self.data.num_columns} columns: {price} "
            f"for {ADD_REMOVE.sentence(self.unit or 'record')}",
            *self.notes,
            "Measured, with noise:",
            *(f"  {each}" for each in self.marginals),
            "Other tables follow from these by the model; their errors are not bounded.",
        ]
        linked = f"Rows of the same {self.unit} are not linked to each other."
        return "\n".join(lines if self.unit is None else [*lines, linked])

    def __str__(self) -> str:
        return self.report

    def plain(self) -> dict[str, Any]:
        """The public facts as JSON holds them, without the rows."""
        marginals = [
            {"columns": list(each.columns), "cells": list(each.counts.shape)}
            | {"noise_scale": each.noise_scale, "half_width": each.half_width}
            for each in self.marginals
        ]
        types = {field.name: str(field.type) for field in self.data.schema}
        facts = {"rows": self.data.num_rows, "columns": types, "marginals": marginals}
        return facts | {"notes": list(self.notes)}

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the one-way counts of each column: as measured, with noise, over the synthetic ones.

        Args:
            path: A file to write, SVG or PNG by its name; None writes none.

        Returns:
            The matplotlib figure.
        """
        from matplotlib.figure import Figure  # a heavy import, for pictures only

        across = min(3, max(1, len(self.domains)))
        down = max(1, math.ceil(len(self.domains) / across))
        figure = Figure(figsize=(5 * across, 3 * down), layout="constrained")
        for place, (domain, one) in enumerate(zip(self.domains, self.marginals, strict=False)):
            axes = figure.add_subplot(down, across, place + 1)
            order, at, names = domain.order, np.arange(domain.size), domain.labels
            axes.bar(at, one.made[order], color="#d8d8d8")
            axes.errorbar(at, one.counts[order], one.half_width, fmt=".", color="#1f6f8b")
            ticks = np.unique(np.linspace(0, domain.size - 1, 6).round().astype(int))
            axes.set_xticks(ticks, [names[order[each]][:12] for each in ticks], rotation=30)
            axes.set(title=domain.field.name, ylabel="synthetic rows, and measured (95 %)")
            axes.set_ylim(bottom=0)
        if path is not None:
            figure.savefig(path)
        return figure


def constrained(
    data: Any, rules: Sequence[str], generator: np.random.Generator
) -> tuple[IntArray, list[str]]:
    """Places of rows that meet public conditions, as many as there are rows; and notes."""
    from prudent.release.columns.dialects import fetched
    from prudent.release.columns.number_rows import NumberTable

    places, notes = np.arange(data.num_rows), []
    for rule in rules:
        try:
            rows = data.take(places).append_column(_ROW, [np.arange(data.num_rows)])
            opened = NumberTable(rows, where=rule)
            kept = places[sorted(fetched(opened.table.select(_ROW))[_ROW])]
            more = generator.choice(kept, len(places) - len(kept))
            places = generator.permutation(np.concatenate([kept, more]))
            notes.append(f"{len(more):,} synthetic rows without {rule!r} were replaced.")
        except Exception:  # it is paid for, and cannot be refused any more
            notes.append(f"No synthetic row is known to have {rule!r}, so none was replaced.")
    return places, notes


def written(made: Synthetic, path: Path) -> dict[str, str]:
    """Write the table, which is paid for: if that fails, warn. Returns its SHA-256."""
    try:
        made.write(path)
    except OSError as error:
        reason = error.strerror or "an error of the file system"
        warnings.warn(f"The table could not be written: {reason}.", stacklevel=3)
        return {}
    return {path.name: _files.sha256(path)}
