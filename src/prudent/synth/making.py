"""`synthesize`: a synthetic table from one charge, made before anything is read.

**Price.** A unit of at most r rows changes every count and score by at most r times what a record
does (`prudent.synth.engine`). Parts get fixed fractions of μ², and one number, the total μ, is
solved for with the event of all parts together, on the safe side (`prudent.estimators.engine`).
How often each part is used follows from public facts alone: the columns and their declared types.
"""

import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from prudent import _files, _validate
from prudent._rounding import nearest, rounded_up
from prudent._validate import ArgumentError
from prudent._warning import warn_of_delta
from prudent.accounting import ApproximateDpEvent
from prudent.accounting.relations import ADD_REMOVE
from prudent.budget import LedgerLike
from prudent.estimators.engine import (
    LARGEST_EPSILON,
    SMALLEST_EPSILON,
    BudgetPart,
    Prices,
    calibrate,
    gaussian_mu,
)
from prudent.receipts.making import ReceiptTarget
from prudent.release.charging import Preview, charge
from prudent.release.columns.column import redact_errors
from prudent.release.columns.dialects import fetched
from prudent.release.columns.number_rows import NumberTable
from prudent.release.lattice import IntArray
from prudent.release.noise import Noise, source_of
from prudent.synth.columns import CHOICES, Domain, Source, discover
from prudent.synth.engine import TableEngine
from prudent.synth.structure import Marginal, Structure, pairs_repaired, projected

# Fractions of μ². They were chosen on four tables, and are frozen.
SHARES = {"size": 0.01, "forms": 0.02, "keys": 0.10, "spans": 0.04, "cuts": 0.14, "oneway": 0.15}
SHARES |= {"select": 0.08, "tables": 0.46}
KEY_SHARE = 0.1  # of δ, that naming keys may cost
MOST_ROWS = 8  # that are kept of a privacy unit by default
_NO_EPSILON = 1e-9  # of naming keys that are there because of one unit, which is (0, δ)-DP
_ROOM = 3e-4  # of ε, for the bound that `prudent verify` proves, which is a little larger
_NO_NULL = 2.5  # deviations of the noise
_ENOUGH = 15.0  # records, times ε of a quantile, below which it is no better than a guess
_LEAST_CELLS, _MOST_NOISE = 9, 0.25  # of the smallest table: total variation in noise
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
        """How much adding or removing so many records changes the counts, given cells and noise.

        All changes are added up. With `unit` these are units; whatever is changed counts twice.
        """
        return _validate.count(0, records=records) * self.rows_per_unit

    def __str__(self) -> str:
        size = " x ".join(map(str, self.counts.shape))
        return (
            f"{', '.join(self.columns)}: {size} cells, each count ± {rounded_up(self.half_width)} "
            f"(95 %), synthetic ones outside in {nearest(100 * self.beyond_noise, 2)} %; k added "
            f"or removed move all of it by {self.moved_by(1):,} k at most, k changed by twice that"
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
        """What was measured, how exact it is, and what it costs: released numbers only."""
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
        """A figure of each column's counts, measured over synthetic; also written to `path`."""
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


def parts_of(fields: Sequence[Any]) -> dict[str, BudgetPart]:
    """How often each part is used, by public facts of the columns."""
    count, numeric = len(fields), sum(each.numeric for each in fields)
    chosen = count - 1 + pairs_repaired(count)
    forms = sum(each.form_is_private for each in fields)
    keys = sum(not each.boolean for each in fields)
    times = (1, forms, keys, numeric, CHOICES * numeric, count, chosen, chosen)
    return {
        name: BudgetPart(share, many, choice=name in ("cuts", "select"), shown=True)
        for (name, share), many in zip(SHARES.items(), times, strict=True)
    }


def synthesize(
    data: Any = None,
    *,
    epsilon: float,
    delta: float,
    columns: Sequence[str] | None = None,
    constraints: Sequence[str] = (),
    rows: int | None = None,
    unit: str | None = None,
    most_rows: int = MOST_ROWS,
    where: Any = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: LedgerLike | None = None,
    receipt: ReceiptTarget | None = None,
    out: str | os.PathLike[str] | None = None,
    noise: Noise | None = None,
) -> Synthetic:
    """Make a synthetic table from one private release, without a domain or bounds.

    Args:
        data: A frame, an Arrow table, the path of a Parquet, CSV or DuckDB file, an ibis table
            or a Spark data frame.
        epsilon: ε of the whole table, from 0.01 to 50.
        delta: δ of the whole table.
        columns: The columns to make; None means all. One of texts that hardly repeat, by the paid
            count of its frequent texts, is left out.
        constraints: Public conditions on a row, such as "start <= end": rows of the synthetic
            table that violate one are replaced by others of it.
        rows: About how many rows the table has, if that is public. Too few for the columns are
            then refused before anything is charged.
        unit: The column of privacy units. Without it every row is protected by itself.
        most_rows: Of the rows of a unit at most so many are used, evenly spaced in their order;
            noise grows in proportion to it.
        where: Which rows to use, as in `prudent.median`.
        connect: The address of a database, instead of data.
        table: The name of the table in that database.
        ledger: Charged before any record is read.
        receipt: Where to write the receipt.
        out: Where to write the table, as Parquet or CSV; its digest is then in the receipt.
        noise: Source of randomness; None uses the operating system's.

    Returns:
        The table, with a report of what was measured.

    Guarantee:
        The table and its report are (ε, δ)-DP for adding or removing one record, or with `unit` all
        rows of one unit, whatever the data.

    Raises:
        ArgumentError: if an argument is not allowed; nothing has been charged then.
        SourceError: if the records cannot be read; the message quotes none.
    """
    epsilon = _validate.between(SMALLEST_EPSILON, LARGEST_EPSILON, epsilon=epsilon)
    named = ApproximateDpEvent(_NO_EPSILON, KEY_SHARE * _validate.small_delta(1e-18, delta=delta))
    per_unit = 1 if unit is None else _validate.count(1, 10**6, most_rows=most_rows)
    opened = Source(data, columns, unit, per_unit, connect=connect, table=table, where=where)
    names = [each.name for each in opened.fields]
    rules = tuple(_validate.values(constraints=constraints)) if constraints else ()
    for rule in rules:
        opened.check(_validate.instance(str, "conditions such as 'age >= 0'", constraints=rule))
    parts = parts_of(opened.fields)
    less = max(SMALLEST_EPSILON, epsilon * (1 - _ROOM))
    prices = calibrate(less, delta, parts, also=(named,), records=per_unit)
    prices = attrs.evolve(prices, epsilon=epsilon)
    if rows is not None:
        _check_enough(prices, len(names), _validate.count(1, rows=rows))
        warn_of_delta(delta, rows)
    target = None if out is None else _validate.path(out=out)
    if target is not None:
        _validate.one_of((".parquet", ".csv"), out=target.suffix)
        _files.check_writable(target.parent)
    # At most `per_unit` keys of each column are there because of one unit.
    failure = KEY_SHARE * delta / (per_unit * max(parts["keys"].times, 1)) * (1 - 1e-9)
    engine = TableEngine(prices, source_of(noise), failure)
    price = {"epsilon": prices.epsilon, "delta": prices.delta, "event": prices.event}
    preview = Preview(statistic="synthetic table", mechanism="noisy marginals", **price)
    asked = {"columns": names, "constraints": list(rules), "most_rows": per_unit}
    asked["parts"] = list(prices.parts)  # in the order of their events
    given: dict[str, Any] = {"connect": connect, "unit": unit, "receipt": receipt, "more": asked}
    paid = charge(ledger, preview, table if connect else data, None, **given)
    made = redact_errors(_made, opened, engine, rules, unit=unit, **price)
    files: dict[str, str] = {}
    if target is not None:
        try:  # it is paid for, so a full disk is no error
            made.write(target)
            files[target.name] = _files.sha256(target)
        except OSError as error:
            reason = error.strerror or "an error of the file system"
            warnings.warn(f"The table could not be written: {reason}.", stacklevel=2)
    paid.note([made], made.plain() | ({"files": files} if files else {}), files=files)
    return made


def _needed(prices: Prices) -> float:
    """The number of rows below which noise would hide all there is."""
    needed = _ENOUGH / prices.choice_epsilon("cuts") if "cuts" in prices.parts else 0.0
    if "tables" in prices.parts:
        cells = 0.4 * _LEAST_CELLS * prices.multiplier("tables")
        needed = max(needed, cells / _MOST_NOISE)
    return needed


def _check_enough(prices: Prices, columns: int, rows: int) -> None:
    """Refuse a table whose public number of rows is too small."""
    if rows >= (needed := _needed(prices)):
        return
    mu = 1.02 * gaussian_mu(prices.epsilon, prices.delta) * needed / rows  # about that of all parts
    tried = np.geomspace(prices.epsilon, LARGEST_EPSILON, 400).tolist()
    better = next((each for each in tried if gaussian_mu(each, prices.delta) >= mu), None)
    enough = [f"epsilon={rounded_up(better, 2)}"] if better else []
    if fewer := math.floor(columns * (rows / needed) ** 2):
        enough.append(f"{fewer} columns")
    raise ArgumentError(
        "rows",
        f"at least about {math.ceil(needed):,} for {columns} columns at this epsilon",
        shown=f"{rows:,}",
        hint=f"About {' or '.join(enough)} would do." if enough else "No epsilon would do.",
    )


def _made(opened: Source, engine: TableEngine, rules: Sequence[str], **facts: Any) -> Synthetic:
    """Count, measure and make the table; what it returns is released, with these facts."""
    import pyarrow

    prices, generator = engine.prices, engine.generator()
    size = float(engine.counts("size", np.array([opened.read()]))[0])
    forms = opened.forms()
    found = {
        each.name: discover(each, opened, forms.get(each.name), size, engine)
        for each in opened.fields
    }
    domains = [domain for domain in found.values() if domain is not None]
    count, rows, measured = max(0, round(size)), [], []
    if domains:
        opened.assign(domains)
        deviation = engine.deviation("oneway")
        counted = opened.pairs([(place, place) for place in range(len(domains))])
        for (place, _), (cells, _, records) in counted.items():
            counts = np.bincount(cells, records, domains[place].size).astype(np.int64)
            same = np.arange(len(counts))
            noisy = engine.counts("oneway", counts)
            measured.append(Marginal((place,), (same,), noisy, deviation))
        one = [each.counts.astype(float) for each in measured]
        weights = np.array([1 / domain.size for domain in domains])
        count = max(1, round(float(weights @ [each.sum() for each in one] / weights.sum())))
        for each in one:  # no rows are NULL if that count is no more than noise
            if each[0] < _NO_NULL * deviation:
                each[0] = -math.inf if len(each) > 1 else 1.0
        one = [projected(each, float(count)) for each in one]
        structure = Structure(domains, opened.pairs, engine, one)
        rows, measured = structure.fit(), [*measured, *structure.measured]
    values = {
        domain.field.name: domain.decode(cells, generator)
        for domain, cells in zip(domains, rows, strict=True)
    }
    places, replaced = _constrained(pyarrow.table(values), rules, generator)
    codes = {place: each[places] for place, each in enumerate(rows)}
    values = {name: each.take(places) for name, each in values.items()}
    why = dict.fromkeys(opened.left_out, "it has a type without values to count")
    rare = "hardly any of its texts is frequent enough to be named"
    why |= dict.fromkeys((name for name, domain in found.items() if domain is None), rare)
    notes = [f"{name!r} is left out: {reason}." for name, reason in why.items()]
    if count < _needed(prices):
        notes.append(
            f"About {count:,} rows are too few for {len(opened.fields)} columns at this ε: noise "
            "is as large as what was measured. Name fewer columns, or raise epsilon."
        )
    return Synthetic(
        data=pyarrow.table(values),
        marginals=tuple(
            MeasuredMarginal(
                tuple(domains[at].field.name for at in each.columns),
                each.counts,
                each.deviation,
                prices.records,
                each.counted(codes),
            )
            for each in measured
        ),
        **facts,
        notes=(*notes, *replaced),
        domains=tuple(domains),
    )


def _constrained(
    data: Any, rules: Sequence[str], generator: np.random.Generator
) -> tuple[IntArray, list[str]]:
    """Places of rows that meet public conditions, as many as there are rows; and notes."""
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
