"""Every way in which a release can touch a column, and what an onlooker sees of each."""

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import pytest
from ibis.backends.sql import SQLBackend

from prudent import release
from prudent.release import statistics
from prudent.release.columns import dialects
from prudent.release.noise import ReproducibleNoise
from prudent.release.outcome import Refused, Released
from tests import answered_twice
from tests.release.columns.odd_values import Kind, Table

Ask = Callable[[Table, Kind], Any]
PTR: dict[str, Any] = {"epsilon": 20.0, "delta": 1e-6}
PURE: dict[str, Any] = {"epsilon": 20.0}


def _of_c(name: str, **options: Any) -> Ask:
    """A statistic of the odd column itself."""

    def ask(table: Table, kind: Kind) -> Any:
        given = {key: each(kind) if callable(each) else each for key, each in options.items()}
        if kind.read_as is not None and name != "mode":
            given["read_as"] = kind.read_as
        function = getattr(statistics, name)
        return function(**table.of("c"), noise=ReproducibleNoise(1), **given)

    return ask


def _of_x(name: str, **options: Any) -> Ask:
    """A statistic of plain numbers, whose unit, group or condition is the odd column."""

    def ask(table: Table, kind: Kind) -> Any:
        given = {
            key: each(kind) if callable(each) and key != "condition" else each
            for key, each in options.items()
        }
        if (condition := given.pop("condition", None)) is not None:
            given["where"] = lambda t: condition(t.c, kind)
        return getattr(statistics, name)(**table.of("x"), noise=ReproducibleNoise(1), **given)

    return ask


def _table(table: Table, _: Kind) -> Any:
    """Several questions about the odd column, as values and as texts."""
    given = {name: each for name, each in table.of("c").items() if name != "column"}
    questions = [release.Ask("count", "c"), "count(*)", "avg(c IS NULL)"]
    return release.table(**given, questions=questions, noise=ReproducibleNoise(1), **PURE)


def _sql(table: Table, _: Kind) -> Any:
    """The same in SQL."""
    given = table.of("c")
    source = {name: given[name] for name in ("data", "connect") if name in given}
    query = f"SELECT count(c), count(*) FROM {given.get('table', 't')} WHERE c IS NOT NULL"
    return release.sql(query, **source, noise=ReproducibleNoise(1), **PURE)


def _joined(key: str) -> Ask:
    """The table joined with itself: the odd column is the key, or comes along."""

    def ask(table: Table, _: Kind) -> Any:
        given = table.of("c")
        source, connect = given.get("data"), given.get("connect")
        if "table" in given:
            connect = f"duckdb://{source}" if connect is None else connect
            source = given["table"]
        joined = release.join(
            source, source, on=key, unit=key, how="left", most_rows=2, connect=connect
        )
        return statistics.count(joined, epsilon=20.0, noise=ReproducibleNoise(1))

    return ask


def _ends(kind: Kind) -> tuple[Any, Any]:
    return kind.ends


def _edges(kind: Kind) -> list[Any]:
    low, high = kind.ends
    return [low, low + (high - low) / 2, high]


STATISTICS: dict[str, dict[str, Ask]] = {
    "median": {
        "chosen": _of_c("median", **PURE),
        "proposed": _of_c("median", propose=9.0, **PTR),
        "certified": _of_c("median", certify=9.0, **PURE),
        "proposed, certified": _of_c("median", propose=9.0, certify=9.0, **PTR),
        "bounded": _of_c("median", propose=9.0, bounds=_ends, **PTR),
        "fallback": _of_c("median", propose=9.0, bounds=_ends, fallback=True, **PTR),
        "dry run": _of_c("median", dry_run=True, **PURE),
        **{
            f"per unit, {how}": _of_c("median", unit="id", per_unit=how, **PURE)
            for how in ("mean", "median", "min", "max", "sum", "count", 2)
        },
        "unit": _of_x("median", unit="c", **PURE),
        "unit, 2 rows": _of_x("median", unit="c", per_unit=2, **PURE),
        "by": _of_x("median", by="c", groups=lambda kind: [kind.value], **PURE),
        "by, unit": _of_x("median", by="c", unit="id", groups=lambda kind: [kind.value], **PURE),
        "by private": _of_x("median", by="c", groups="private", **PTR),
        "by two": _of_x("median", by=["c", "c IS NULL"], groups="private", **PTR),
        "by day": _of_x("median", by="c:day", groups=["2024-01-01"], **PURE),
        "by month private": _of_x("median", by="c:month", groups="private", **PTR),
        "by year, unit": _of_x("median", by="c:year", groups=["2024"], unit="id", **PURE),
        "by private, unit": _of_x("median", by="c", unit="id", groups="private", **PTR),
        "where present": _of_x("median", condition=lambda c, _: c.notnull(), **PURE),
        "where equal": _of_x("median", condition=lambda c, kind: c == kind.value, **PURE),
        "where other": _of_x("median", condition=lambda c, kind: c != kind.value, **PURE),
        "where less": _of_x("median", condition=lambda c, kind: c <= kind.value, **PURE),
        "where listed": _of_x("median", condition=lambda c, kind: c.isin([kind.value]), **PURE),
        "where year": _of_x("median", condition=lambda c, _: c.year() == 2024, **PURE),
        "where month": _of_x("median", condition=lambda c, _: c.month() == 1, **PURE),
        "where hour": _of_x("median", condition=lambda c, _: c.hour() == 0, **PURE),
        "where lower": _of_x("median", condition=lambda c, _: c.lower() == "a", **PURE),
        "where upper": _of_x("median", condition=lambda c, _: c.upper() == "A", **PURE),
        "where strip": _of_x("median", condition=lambda c, _: c.strip() == "a", **PURE),
        "where length": _of_x("median", condition=lambda c, _: c.length() < 9, **PURE),
        "where like": _of_x("median", condition=lambda c, _: c.like("%a%"), **PURE),
        "where begins": _of_x("median", condition=lambda c, _: c.startswith("a"), **PURE),
        "where contains": _of_x("median", condition=lambda c, _: c.contains("a"), **PURE),
        "where cast": _of_x("median", condition=lambda c, _: c.cast("int64") > 0, **PURE),
        "where try cast": _of_x(
            "median", condition=lambda c, _: c.try_cast("date").notnull(), **PURE
        ),
        "where product": _of_x("median", condition=lambda c, _: c * c > 0, **PURE),
        "where filled": _of_x(
            "median", condition=lambda c, kind: c.fill_null(kind.value) == kind.value, **PURE
        ),
        "where nan": _of_x("median", condition=lambda c, _: ~c.isnan(), **PURE),
        "where text": _of_x("median", where="c IS NOT NULL", **PURE),
    },
    "quantile": {
        "chosen": _of_c("quantile", p="9/10", **PURE),
        "proposed": _of_c("quantile", p="1/4", propose=9.0, **PTR),
    },
    "quantiles": {"chosen": _of_c("quantiles", ps=["1/4", "1/2", "1"], **PURE)},
    "iqr": {
        "chosen": _of_c("iqr", **PURE),
        "proposed": _of_c("iqr", propose=9.0, **PTR),
        "certified": _of_c("iqr", propose=9.0, certify=9.0, **PTR),
    },
    "trimmed_mean": {
        "proposed": _of_c("trimmed_mean", trim=40, propose=9.0, **PTR),
        "certified": _of_c("trimmed_mean", trim=40, propose=9.0, certify=9.0, **PTR),
        "bounded": _of_c("trimmed_mean", trim=40, propose=9.0, bounds=_ends, fallback=True, **PTR),
        "of all": _of_c("trimmed_mean", trim=200, propose=9.0, bounds=_ends, **PTR),
    },
    "mode": {
        "categories": _of_c("mode", **PTR),
        "listed": _of_c("mode", categories=lambda kind: [kind.value], **PTR),
        "certified": _of_c("mode", certify=0.0, **PTR),
        "of units": _of_c("mode", unit="id", **PTR),
        "last of units": _of_c("mode", unit="id", per_unit="max", **PTR),
        "by": _of_x("mode", by="c", groups=lambda kind: [kind.value], **PTR),
    },
    "count": {
        "values": _of_c("count", **PURE),
        "rows": lambda table, _: statistics.count(
            **{**table.of("c"), "column": None}, noise=ReproducibleNoise(1), **PURE
        ),
        "units": lambda table, _: statistics.count(
            **{**table.of("c"), "column": None}, unit="c", noise=ReproducibleNoise(1), **PURE
        ),
        "groups": lambda table, kind: statistics.count(
            **{**table.of("c"), "column": None},
            by="c",
            groups=[kind.value],
            noise=ReproducibleNoise(1),
            **PURE,
        ),
        "private groups": _of_x("count", by="c", groups="private", **PTR),
    },
    "sum": {"clipped": _of_c("sum", **PURE), "bounded": _of_c("sum", bounds=_ends, **PURE)},
    "mean": {"clipped": _of_c("mean", **PURE), "bounded": _of_c("mean", bounds=_ends, **PURE)},
    "variance": {
        "clipped": _of_c("variance", **PURE),
        "bounded": _of_c("variance", bounds=_ends, **PURE),
    },
    "describe": {"chosen": _of_c("describe", **PURE)},
    "histogram": {
        "private edges": _of_c("histogram", **PURE),
        "edges": _of_c("histogram", edges=_edges, **PURE),
    },
    "deviation": {"bounded": _of_c("deviation", bounds=_ends, **PURE)},
    "minimum": {"chosen": _of_c("minimum", **PURE)},
    "maximum": {"bounded": _of_c("maximum", bounds=_ends, **PURE)},
    "proportion": {
        "truth": _of_c("proportion", **PURE),
        "present": lambda table, _: statistics.proportion(
            **{**table.of("c"), "column": "c IS NULL"}, noise=ReproducibleNoise(1), **PURE
        ),
    },
    "ratio": {"bounded": _of_c("ratio", other="x", bounds=_ends, other_bounds=(0, 1), **PURE)},
    "weighted_mean": {
        "bounded": _of_c("weighted_mean", weights="x", bounds=_ends, largest_weight=1, **PURE),
        "weights": _of_x("weighted_mean", weights="c", bounds=(0, 1), largest_weight=1, **PURE),
    },
    "covariance": {
        "bounded": _of_c("covariance", other="x", bounds=_ends, other_bounds=(0, 1), **PURE),
        "units": _of_c(
            "covariance", other="x", bounds=_ends, other_bounds=(0, 1), unit="id", **PURE
        ),
    },
    "correlation": {
        "bounded": _of_c("correlation", other="x", bounds=_ends, other_bounds=(0, 1), **PURE)
    },
    "count_distinct": {
        "values": _of_c("count_distinct", **PURE),
        "of units": _of_c("count_distinct", unit="id", per_unit=2, **PURE),
    },
    "top_k": {
        "private": _of_c("top_k", **PTR),
        "listed": _of_c("top_k", categories=lambda kind: [kind.value], **PURE),
    },
    "table": {"counts": _table},
    "sql": {"counts": _sql},
    "join": {"by odd keys": _joined("c"), "by person": _joined("id")},
    "certify_quantile": {
        "high": _of_c("certify_quantile", high=lambda kind: kind.ends[1], **PURE),
        "low": _of_c("certify_quantile", low=lambda kind: kind.ends[0], **PURE),
    },
}
"""For each public function that reads a table: the ways to call it. A new function needs a line."""

NO_TABLE = {
    "open_column": "returns a column, which every statistic reads",
    "open_groups": "returns columns, which every statistic with groups reads",
    "check_margin": "a check for authors of margins, on data of their own",
    "on_lattice": "a check for authors of margins, on data of their own",
}

REQUESTS: dict[str, Ask] = {
    f"{name}, {way}": ask for name, ways in STATISTICS.items() for way, ask in ways.items()
}

HEAVY = ("sum, clipped", "mean, clipped", "variance, ", "describe", "histogram, private")
"""Requests that take a second each, mostly to write long queries."""


@attrs.frozen
class Seen:
    """What an onlooker sees of a release without paying for it.

    Attributes:
        kind: The type of the outcome, of each group, or of the error.
        words: Messages: of the error, of refusals, notes and previews.
        queries: The queries in order, with all literals removed.
        told: Warnings, log lines and whatever was printed.
    """

    kind: Any
    words: Any
    queries: tuple[str, ...]
    told: tuple[str, ...]


def seen(ask: Callable[[], Any]) -> Seen:
    """Call, and return what is seen."""
    asked: list[str] = []
    told: list[str] = []
    with _queries(asked), _everything_told(told):
        try:
            outcome = ask()
        except Exception as error:
            failure = error
        else:
            failure = None
    if failure is not None:
        try:
            assert failure.__cause__ is None
            assert failure.__context__ is None or failure.__suppress_context__
            return Seen(type(failure), str(failure), tuple(asked), tuple(told))
        finally:
            del failure  # its traceback holds this frame, and so the open file, until it is found
    return Seen(_kind(outcome), _words(outcome), tuple(asked), tuple(told))


def _kind(outcome: Any) -> Any:
    if isinstance(outcome, Mapping):
        return {key: _kind(each) for key, each in outcome.items()}
    value = getattr(outcome, "value", None)
    return type(outcome), type(value), getattr(outcome, "branch", None)


def _words(outcome: Any) -> Any:
    if isinstance(outcome, Mapping):
        return {key: _words(each) for key, each in outcome.items()}
    if isinstance(outcome, Refused):
        return _without_numbers(outcome.reason)
    if isinstance(outcome, Released):
        notes = [_without_numbers(note) for note in outcome.notes]  # they may quote private bounds
        return notes, outcome.value if isinstance(outcome.value, str | bytes) else None
    if isinstance(outcome, list):
        return [(asks, shape(sql)) for asks, sql in outcome]
    return str(outcome) if type(outcome).__name__ == "Preview" else None


def _without_numbers(text: str) -> str:
    return re.sub(r"[-\d.,]*\d[\d.,e+-]*", "N", text)


def shape(sql: str) -> str:
    """A query without made-up names, and without literals, which may depend on the data."""
    sql = re.sub(r"(prudent|odd|ibis)_\w+|t\d+", "T", sql)
    sql = re.sub(r"'(?:[^']|'')*'", "S", sql)
    return re.sub(r"-?\b\d+(\.\d+)?(e[-+]?\d+)?\b", "N", sql, flags=re.IGNORECASE)


@contextlib.contextmanager
def _queries(asked: list[str]) -> Iterator[None]:
    """Write down what engines are asked."""
    compile_, rows = SQLBackend.compile, dialects._rows

    def compiled(backend: Any, *given: Any, **options: Any) -> str:
        sql = compile_(backend, *given, **options)
        asked.append(shape(sql))
        return sql

    def told(expression: Any, sql: str) -> Any:
        asked.append(shape(str(sql)))
        return rows(expression, sql)

    with answered_twice.counted(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(SQLBackend, "compile", compiled)
        patch.setattr(dialects, "_rows", told)
        yield


class _Log(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name}: {shape(record.getMessage())}")


@contextlib.contextmanager
def _everything_told(told: list[str]) -> Iterator[None]:
    """Write down warnings, log lines and what is printed."""
    log, root = _Log(told), logging.getLogger()
    level = root.level
    root.addHandler(log)
    root.setLevel(logging.INFO)
    out, err = io.StringIO(), io.StringIO()
    try:
        with (
            warnings.catch_warnings(record=True) as warned,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            warnings.simplefilter("always")
            yield
    finally:
        root.removeHandler(log)
        root.setLevel(level)
    told.extend(f"{each.category.__name__}: {each.message}" for each in warned)
    told.extend(text for text in (out.getvalue(), err.getvalue()) if text)
