"""`synthesize`: a synthetic table from one charge, made before anything is read.

**Price.** A unit of at most r rows changes every count and score by at most r times what a record
does (`prudent.synth.engine`). Parts get fixed fractions of μ², and one number, the total μ, is
solved for with the event of all parts together, on the safe side (`prudent.estimators.shares`).
How often each part is used follows from public facts alone: the columns and their declared types.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from prudent import _extras, _files, _validate
from prudent._rounding import rounded_up
from prudent._validate import ArgumentError
from prudent.accounting import ApproximateDpEvent
from prudent.budget import LedgerLike
from prudent.estimators.shares import (
    LARGEST_EPSILON,
    BudgetPart,
    Prices,
    calibrate,
    gaussian_mu,
)
from prudent.receipts.making import ReceiptTarget
from prudent.release.charging import Preview, charge
from prudent.release.failures import redact_errors
from prudent.release.noise import Noise, source_of
from prudent.synth.domain import CHOICES, discover
from prudent.synth.engine import TableEngine
from prudent.synth.result import MeasuredMarginal, Synthetic, constrained, written
from prudent.synth.structure import Marginal, Structure, pairs_repaired, projected

SHARES = {
    "size": 0.01,
    "forms": 0.02,
    "keys": 0.10,
    "spans": 0.04,
    "cuts": 0.14,
    "oneway": 0.15,
    "select": 0.08,
    "tables": 0.46,
}
"""Fractions of μ². They were chosen on two tables, and are frozen."""

KEY_SHARE = 0.1
"""The fraction of δ that naming keys may cost."""

MOST_ROWS = 8
"""Rows that are kept of a privacy unit by default."""

_NO_EPSILON = 1e-9  # of naming keys that are there because of one unit, which is (0, δ)-DP
_ROOM = 3e-4  # of ε, for the bound that `prudent verify` proves, which is a little larger
_NO_NULL = 2.5  # deviations of the noise
_ENOUGH = 15.0  # records, times ε of a quantile, below which it is no better than a guess
_LEAST_CELLS, _MOST_NOISE = 9, 0.25  # of the smallest table: total variation in noise


def parts_of(fields: Sequence[Any]) -> dict[str, BudgetPart]:
    """How often each part is used, by public facts of the columns."""
    count, numeric = len(fields), sum(each.numeric for each in fields)
    chosen = count - 1 + pairs_repaired(count)
    times = {
        "size": 1,
        "forms": sum(each.form_is_private for each in fields),
        "keys": sum(not each.boolean for each in fields),
        "spans": numeric,
        "cuts": CHOICES * numeric,
        "oneway": count,
        "select": chosen,
        "tables": chosen,
    }
    return {
        name: BudgetPart(SHARES[name], many, choice=name in ("cuts", "select"), shown=True)
        for name, many in times.items()
    }


def synthesize(
    data: Any = None,
    *,
    epsilon: float,
    delta: float,
    columns: Sequence[str] | Mapping[str, str | None] | None = None,
    constraints: Sequence[str] = (),
    rows: int | None = None,
    identifiers: bool = False,
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
        columns: The columns to make; None means all. A mapping also declares the types of columns
            without one, as in a CSV file: {"age": "integer", "name": "text", "joined": None}. A
            column of any type may be declared an "identifier": its values are not counted, and made
            anew, from "id-000001" on.
        constraints: Public conditions on a row, such as "start <= end": rows of the synthetic
            table that violate one are replaced by others of it.
        rows: About how many rows the table has, if that is public. Too few for the columns are
            then refused before anything is charged.
        identifiers: Whether a column of texts that hardly repeat, by the paid count of its frequent
            texts, is made anew like a declared identifier. Else it is left out.
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
    with _extras.needed("A synthetic table"):
        from prudent.synth.reading import Source

    per_unit = 1 if unit is None else _validate.count(1, 10**6, most_rows=most_rows)
    opened = Source(data, columns, unit, per_unit, connect=connect, table=table, where=where)
    names = [each.name for each in opened.fields]
    rules = tuple(_validate.values(constraints=constraints)) if constraints else ()
    for rule in rules:
        opened.check(_validate.instance(str, "conditions such as 'age >= 0'", constraints=rule))
    named = ApproximateDpEvent(_NO_EPSILON, KEY_SHARE * _validate.small_delta(1e-18, delta=delta))
    parts = parts_of(opened.counted)
    prices = calibrate(epsilon * (1 - _ROOM), delta, parts, also=(named,), records=per_unit)
    prices = attrs.evolve(prices, epsilon=float(epsilon))
    if rows is not None:
        _check_enough(prices, len(names), _validate.count(1, rows=rows))
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
    asked["identifiers"] = _validate.flag(identifiers=identifiers)
    asked["parts"] = list(prices.parts)  # in the order of their events
    given: dict[str, Any] = {"connect": connect, "unit": unit, "receipt": receipt, "more": asked}
    paid = charge(ledger, preview, table if connect else data, None, **given)
    made = redact_errors(_made, opened, engine, price, rules, unit, identifiers)
    files = {} if target is None else written(made, target)
    paid.note([made], made.plain() | ({"files": files} if files else {}), files=files)
    return made


def _needed(prices: Prices) -> float:
    """The number of rows below which noise would hide all there is."""
    found = [0.0]
    if "cuts" in prices.parts:
        found.append(_ENOUGH / prices.choice_epsilon("cuts"))
    if "tables" in prices.parts:
        found.append(0.4 * _LEAST_CELLS * prices.multiplier("tables") / _MOST_NOISE)
    return max(found)


def _check_enough(prices: Prices, columns: int, rows: int) -> None:
    """Refuse a table whose public number of rows is too small."""
    needed = _needed(prices)
    if rows >= needed:
        return
    fewer = math.floor(columns * (rows / needed) ** 2)
    better = prices.epsilon
    mu = 1.02 * gaussian_mu(better, prices.delta) * needed / rows  # about that of all parts
    while better <= LARGEST_EPSILON and gaussian_mu(better, prices.delta) < mu:
        better *= 1.02
    enough = [f"epsilon={rounded_up(better, 2)}"] if better < LARGEST_EPSILON else []
    enough += [f"{fewer} columns"] if fewer else []
    raise ArgumentError(
        "rows",
        f"at least about {math.ceil(needed):,} for {columns} columns at this epsilon",
        shown=f"{rows:,}",
        hint=f"About {' or '.join(enough)} would do." if enough else "No epsilon would do.",
    )


def _made(
    opened: Any,
    engine: TableEngine,
    price: Mapping[str, Any],
    rules: Sequence[str],
    unit: str | None,
    identifiers: bool,
) -> Synthetic:
    """Count, measure and make the table; what it returns is released."""
    import pyarrow

    prices, generator = engine.prices, engine.generator()
    size = float(engine.counts("size", np.array([opened.read()]))[0])
    forms = opened.forms()
    found = {
        each.name: discover(each, opened, forms.get(each.name), size, engine)
        for each in opened.counted
    }
    domains = [domain for domain in found.values() if domain is not None]
    count, rows, measured = max(0, round(size)), [], []
    if domains:
        opened.assign(domains)
        one, counted = [], opened.pairs([(place, place) for place in range(len(domains))])
        for place, domain in enumerate(domains):
            cells, _, records = counted[place, place]
            counts = np.bincount(cells, records, domain.size).astype(np.int64)
            released, deviation = engine.counts("oneway", counts), engine.deviation("oneway")
            measured.append(Marginal((place,), (np.arange(domain.size),), released, deviation))
            one.append(released.astype(float))
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
    places, replaced = constrained(pyarrow.table(values), rules, generator)
    codes = {place: each[places] for place, each in enumerate(rows)}
    values = {name: each.take(places) for name, each in values.items()}
    unnamed = [each for each in opened.fields if found.get(each.name) is None]
    anew = {each.name for each in unnamed if each.identifier or identifiers}
    fresh = pyarrow.array(f"id-{number:06}" for number in range(1, count + 1))
    notes = [
        f"{name!r} is left out: it has a type without values to count." for name in opened.left_out
    ]
    for each in unnamed:
        why = "hardly any of its texts is frequent enough to be named"
        why = "it is declared to hold identifiers" if each.identifier else why
        what = "made anew, from 'id-000001' on" if each.name in anew else "left out"
        notes.append(f"{each.name!r} is {what}: {why}.")
    if count < _needed(prices):
        notes.append(
            f"About {count:,} rows are too few for {len(opened.fields)} columns at this ε: noise "
            "is as large as what was measured. Name fewer columns, or raise epsilon."
        )
    return Synthetic(
        data=pyarrow.table(
            {
                each.name: fresh if each.name in anew else values[each.name]
                for each in opened.fields
                if each.name in anew or each.name in values
            }
        ),
        marginals=tuple(
            MeasuredMarginal(
                tuple(domains[at].field.name for at in each.columns),
                each.counts,
                each.deviation,
                prices.records,
                each.counted(codes).reshape(each.counts.shape),
            )
            for each in measured
        ),
        unit=unit,
        **price,
        notes=(*notes, *replaced),
        domains=tuple(domains),
    )
