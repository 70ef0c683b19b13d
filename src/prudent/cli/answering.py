"""How `prudent release` asks for a statistic and prints what came of it."""

import contextlib
import datetime
import functools
import inspect
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from prudent._files import check_writable
from prudent._validate import ArgumentError
from prudent.cli import options
from prudent.cli.display import echo, echo_json, neutral, note, only_elapsed
from prudent.cli.errors import Fault, print_error

if TYPE_CHECKING:
    from prudent.release.charging import Preview

REFUSED, OVER_BUDGET = 3, 4

_LONGEST_NUMBER = 18  # digits of a number of rows


def read_bounds(text: str | tuple[Any, Any]) -> tuple[Any, Any]:
    """Parses `low,high`, two numbers or two dates, as typer wants it."""
    if isinstance(text, tuple):
        return text

    def number_or_date(end: str) -> float | str:
        with contextlib.suppress(ValueError):
            return float(end)
        datetime.datetime.fromisoformat(end.strip())  # raises if it is none
        return end.strip()  # which the type of the column parses

    try:
        low, high = map(number_or_date, text.split(","))
    except ValueError:
        raise typer.BadParameter(f"expected two numbers low,high, got {text!r}.") from None
    return low, high


@attrs.frozen(kw_only=True)
class Request:
    """The options of every release; each field is declared once and becomes an option."""

    source: options.Source = None
    column: Annotated[
        str | None,
        options.value(
            "NAME", "The column to release from, or an expression of one row: 'price * quantity'."
        ),
    ] = None
    epsilon: Annotated[float, options.number("ε of this release, between 0.001 and 50.")]
    delta: Annotated[
        float | None,
        options.number("δ of this release; needed for a test and for private groups only."),
    ] = None
    bounds: Annotated[
        Any,
        typer.Option(
            metavar="LOW,HIGH", parser=read_bounds, help="Public bounds on the data, if any."
        ),
    ] = None
    where: options.Where = None
    unit: Annotated[
        str | None,
        options.value(
            "NAME",
            "The privacy unit (user ID column): each unit then counts once. Without it "
            "every row is protected by itself.",
        ),
    ] = None
    per_unit: Annotated[
        str | None,
        options.value(
            "RULE",
            "The value of a unit with several rows: mean, median, min, max, sum, count, or a "
            "number of rows to keep of each. \\[mean]",
            ("mean", "median", "min", "max", "sum", "count"),
        ),
    ] = None
    groups_per_unit: Annotated[
        int | None,
        options.whole_number(
            "With --unit and --by: in how many groups a unit may count, chosen at random among its "
            "own. Each group then has that part of ε. Without it a unit counts in one group.",
        ),
    ] = None
    read_as: Annotated[
        str | None,
        options.value(
            "TYPE",
            "The type of a column of text, as in a CSV file: number, integer, decimal(2), "
            "boolean, date, timestamp or duration; or an example of 1234.56 or 2024-12-31 as the "
            "file writes it: 'number($1,234.56)', 'date(31.12.2024)'. \\[number]",
            ("number", "integer", "decimal(", "date", "timestamp", "duration"),
        ),
    ] = None
    by: Annotated[
        str | None,
        options.value(
            "NAME,…",
            "Release for each group of this column, or of several; costs once. A date counts "
            "by its period: joined:month.",
        ),
    ] = None
    groups: Annotated[
        str | None,
        options.value(
            "A,B,…",
            "The groups, from public knowledge, periods as 2024-01..2024-12, those of several "
            "columns as 'a,b;c,d'; or 'private': those with enough records, found privately (needs "
            "--delta).",
        ),
    ] = None
    delimiter: Annotated[
        str | None, options.value("CHARACTER", "Of a text file: what is between two fields.")
    ] = None
    encoding: Annotated[
        str | None, options.value("NAME", "Of a text file: utf-8, latin-1 or utf-16. \\[utf-8]")
    ] = None
    connect: options.Connect = None
    table: options.Table = None
    join: Annotated[
        str | None,
        options.value(
            "FILE",
            "A second table, joined on --on: a file, or with --connect a table. It is private "
            "and joined on --unit, unless it is declared with --public.",
        ),
    ] = None
    on: Annotated[
        str | None,
        options.value(
            "NAME,…",
            "The column that is equal in joined rows, or several; patient=id where the second "
            "table has another name for it.",
        ),
    ] = None
    public: Annotated[
        bool, typer.Option("--public", help="The second table is public, one row for each key.")
    ] = False
    how: Annotated[str, options.value("KIND", "inner, or left: keep rows that match none.")] = (
        "inner"
    )
    ledger: options.Ledger = None
    dataset: options.Dataset = "default"
    receipt: options.Receipt = None
    sign: options.Sign = None
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Release and charge nothing: show the price and the noise to expect."
        ),
    ] = False
    as_json: options.Json = False
    as_csv: options.Csv = False
    parquet: options.Parquet = None

    def options(self) -> dict[str, Any]:
        """The options of the library's functions, without those that were not given."""
        names = ("epsilon", "delta", "unit", "groups_per_unit", "bounds", "where", "read_as")
        given = {name: getattr(self, name) for name in names} | self.source_options()
        given["per_unit"] = rule_of(self.per_unit)
        by = listed(self.by)
        given["by"] = by[0] if by is not None and len(by) == 1 else by
        given["groups"] = groups_of(self.groups, by)
        given["receipt"] = receipt_file(self.receipt, self.sign)
        return {name: value for name, value in given.items() if value is not None}

    def check_source(self) -> None:
        """Raise an error if there is nothing to read."""
        if self.source is None and self.connect is None:
            raise ValueError("FILE: expected a file, or --connect with --table, got nothing.")

    def source_options(self) -> dict[str, Any]:
        """The table, or the join of two, as the library's functions take it."""
        source: Any = self.source
        if source is not None and (self.delimiter is not None or self.encoding is not None):
            from prudent.release.columns.sources import TextFile

            source = TextFile(source, self.delimiter, self.encoding or "utf-8")
        if self.join is None:
            for name in ("on", "public"):
                if getattr(self, name):
                    raise ArgumentError(name, "only with --join", got=getattr(self, name))
            return {"data": source, "connect": self.connect, "table": self.table}
        from prudent.release.joins import join

        pairs = [each.partition("=") for each in listed(self.on) or []]
        if len({one for one, _, _ in pairs}) < len(pairs):  # one of the equalities would be lost
            raise ArgumentError("on", "different columns of the first table", got=self.on)
        joined = join(
            source if self.connect is None else self.table,
            self.join,
            on={one: other or one for one, _, other in pairs},
            unit=self.unit,
            public=self.public,
            how=self.how,  # type: ignore[arg-type]
            connect=self.connect,
        )
        return {"data": joined}


def receipt_file(path: Path | None, sign: str | None) -> Any:
    """Where the receipt goes, and who signs it; None if none is wanted."""
    if path is None:
        if sign is not None:
            raise ArgumentError("sign", "with --receipt, which it signs", got=sign)
        return None
    from prudent.receipts.making import ReceiptFile

    return ReceiptFile(path, sign)


def command(app: typer.Typer) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command whose options are its own and those of every `Request`."""

    def add(ask: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(ask).parameters.values()  # after the request
        source, *shared = options.fields_of(Request)

        @functools.wraps(ask)
        def run(**given: Any) -> None:
            asked = Request(**{each.name: given.pop(each.name) for each in (source, *shared)})
            ask(asked, **given)

        options.declare(run, [source, *own, *shared])
        app.command(ask.__name__.strip("_").replace("_", "-"))(run)
        return ask

    return add


def answer(request: Request, statistic: str, **own: Any) -> None:
    """Release, print what came of it, and end with the exit status that says so."""
    from prudent import release

    request.check_source()
    given = request.options() | {name: value for name, value in own.items() if value is not None}
    ask = getattr(release, statistic)
    if request.column is not None:
        given["column"] = request.column
    for name in given.keys() - inspect.signature(ask).parameters:  # such as bounds for a count
        title = ask.__name__.replace("_", " ")
        raise ArgumentError(name, f"none for a {title}", got=given[name])
    ask_and_print(request, functools.partial(ask, **given))


def ask_and_print(request: Request, ask: Callable[..., Any]) -> None:
    """Ask, print what came of it, and end with the exit status that says so."""
    if request.as_json and request.as_csv:
        raise ArgumentError("csv", "without --json", shown="both")
    if request.parquet is not None:
        if request.parquet.exists() and not request.parquet.is_file():
            raise ArgumentError("parquet", "a file to write", got=str(request.parquet))
        check_writable(request.parquet.parent)  # before anything is paid for
    if request.dry_run:
        preview: Preview = ask(dry_run=True)
        if request.as_json:
            facts = attrs.asdict(preview, filter=lambda field, _: field.name != "event")
            print_json({"status": "preview"} | facts)
        else:
            echo(str(preview))
            note("Nothing was read or charged.")
        return
    with budget(request) as ledger, only_elapsed():
        outcome = ask(ledger=ledger)
    _print(request, outcome)
    if request.parquet is not None:
        import pyarrow.parquet

        pyarrow.parquet.write_table(outcome.to_arrow(), request.parquet)
    if request.ledger is None:
        note("No --ledger: not charged to any budget.")
    outcomes = outcome.values() if isinstance(outcome, dict) else [outcome]
    if not any(_is_released(each) for each in outcomes):
        raise typer.Exit(REFUSED)


def listed(text: str | None) -> list[str] | None:
    """The values of a comma-separated list; one that holds a comma is put in double quotes."""
    import csv

    if text is None:
        return None
    try:
        return next(iter(csv.reader([text], skipinitialspace=True)), [])
    except csv.Error:
        raise typer.BadParameter(f"expected values with commas between, got {text!r}.") from None


def groups_of(text: str | None, by: list[str] | None) -> Any:
    """The groups of one column, or of each of several, with semicolons between."""
    if text is None or text == "private":
        return text
    if by is None or len(by) < 2:
        return listed(text)
    lists = [listed(each) for each in text.split(";")]
    if len(lists) != len(by):
        allowed = f"a list for each of {', '.join(by)}, as in 'a,b;c,d'"
        raise ArgumentError("groups", allowed, got=text)
    return dict(zip(by, lists, strict=True))


def rule_of(text: str | None) -> Any:
    """What a unit with several rows becomes: a rule, or a number of rows."""
    if text is not None and text.isdecimal() and len(text) <= _LONGEST_NUMBER:
        return int(text)
    return text


def budget(request: Request) -> AbstractContextManager[Any]:
    """The ledger of a request; see `ledger_at`."""
    if request.ledger is None and request.dataset != "default":
        raise ArgumentError("dataset", "only with a ledger", got=request.dataset)
    over = {"status": "over budget", "value": None, "epsilon": request.epsilon}
    return ledger_at(request.ledger, dataset=request.dataset, over=over if request.as_json else {})


@contextlib.contextmanager
def ledger_at(
    location: str | None, *, dataset: str = "default", over: Mapping[str, Any] | None = None
) -> Iterator[Any]:
    """The ledger to charge, if there is one; a charge that overdraws it ends the command.

    Before it does, it prints `over`, a document, with the error.
    """
    if location is None:
        yield None
        return
    from prudent.budget.ledger import Ledger, OverBudgetError

    try:
        with Ledger.open(location, dataset=dataset) as ledger:
            yield ledger
    except OverBudgetError as error:
        if over:
            print_json({**over, "error": str(error)})
        print_error(Fault(str(error), status=OVER_BUDGET))
        raise typer.Exit(OVER_BUDGET) from None


def _is_released(outcome: Any) -> bool:
    from prudent.release.outcome import Refused

    return not isinstance(outcome, Refused) and getattr(outcome, "status", "") != "refused"


def _print(request: Request, outcome: Any) -> None:
    if request.as_json:
        print_json(_plain_answer(outcome))
        return
    from prudent.release.outcome import NO_GROUPS, TOO_FEW, group_title, price_lines

    if request.as_csv:
        _print_csv(outcome)
        return
    if hasattr(outcome, "table") and sys.stdout.isatty():
        for line in outcome.table():
            echo(neutral(line))
        echo(*price_lines(outcome))
        return
    outcomes: Mapping[Any, Any] = outcome if isinstance(outcome, dict) else {None: outcome}
    if not outcomes:
        echo(NO_GROUPS, err=True)
    for group, each in outcomes.items():
        name = "" if group is None else f"{group_title(group)}: "
        # One line each: a value with a line end in it could pretend to be another answer.
        for line in each.lines():
            echo(neutral(f"{name}{line}"), err=not _is_released(each))
            untyped = request.read_as is None and str(request.source).endswith((".csv", ".tsv"))
            if TOO_FEW in line and untyped:
                note("Non-numeric text is treated as NULL: --read-as names another type.")
    echo(*price_lines(outcome))


def _print_csv(outcome: Any) -> None:
    """Print one row for each number; a value with a line end in it stays in its line."""
    import csv

    rows = [
        {name: "" if each is None else neutral(_plain_value(each)) for name, each in row.items()}
        for row in outcome.records()
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    echo(text.getvalue().rstrip("\n"))


def _plain_answer(outcome: Any) -> dict[str, Any]:
    """An answer as JSON holds it: one outcome, or one per group."""
    from prudent.release.outcome import Groups, group_title

    protected = {"protected": outcome.protected}
    if not isinstance(outcome, Groups):
        return dict(outcome.plain()) | protected
    groups = {group_title(group): each.plain() for group, each in outcome.items()}
    released = any(_is_released(each) for each in outcome.values())
    price = {"epsilon": outcome.epsilon, "delta": outcome.delta}
    return {"status": "released" if released else "refused", "groups": groups} | price | protected


def print_json(plain: dict[str, Any]) -> None:
    """Print an answer, with the relation between neighbouring tables, as one line of JSON."""
    from prudent.accounting import ADD_REMOVE

    whole = plain | {"relation": options.plain(ADD_REMOVE)}
    echo_json(_plain_value(whole))


def _plain_value(value: Any) -> Any:
    """A value of a column as JSON holds it: dates as ISO 8601, durations in seconds."""
    if isinstance(value, dict):
        return {str(name): _plain_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(each) for each in value]
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, datetime.date):
        return value.isoformat()
    plain = options.plain(value)
    return plain if plain is None or isinstance(plain, str | int | float) else str(plain)
