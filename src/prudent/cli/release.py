"""`prudent release`: one private number of a column, in a file, a database or a warehouse."""

import functools
import inspect
import json
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from prudent.cli import options
from prudent.cli.display import complain, echo, neutral

if TYPE_CHECKING:
    from prudent.release.outcome import Outcome

REFUSED, OVER_BUDGET = 3, 4

app = typer.Typer(
    no_args_is_help=True,
    help="Release one private number of a column. Exit status: 0 released, 3 refused by the "
    "test, 4 over budget, 2 bad input.",
)


class Request(NamedTuple):
    """What every release is asked with."""

    source: str | None
    column: str
    epsilon: float
    delta: float
    bounds: tuple[float, float] | None
    unit: str | None
    by: str | None
    groups: str | None
    connect: str | None
    table: str | None
    ledger: str | None
    dataset: str
    explain: bool
    as_json: bool


def read_bounds(text: str | tuple[float, float]) -> tuple[float, float]:
    """Parses `low,high`, as typer wants it."""
    if isinstance(text, tuple):
        return text
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise typer.BadParameter(f"expected two numbers low,high, got {text!r}.") from None
    return low, high


def _shared(
    column: Annotated[str, typer.Option(metavar="NAME", help="The column to release from.")],
    epsilon: Annotated[float, options.number("ε of this release, at least 0.001.")],
    delta: Annotated[float, options.number("δ of this release.")],
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="A .parquet, .csv, .tsv or .duckdb file, or a pattern such as 'sales/*.parquet'.",
            show_default=False,
        ),
    ] = None,
    connect: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A database instead: postgres://user@host/database."),
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="NAME", help="The table in the database or .duckdb file.")
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The column that says whose row it is: each unit then counts once, with its "
            "least value. Without it every row is protected by itself.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Release for each group of this column; costs once."),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="The groups, from public knowledge; with --by."),
    ] = None,
    bounds: Annotated[
        Any,
        typer.Option(
            metavar="LOW,HIGH", parser=read_bounds, help="Public bounds on the data, if any."
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(metavar="LEDGER", help="The budget to charge; see `prudent budget`."),
    ] = None,
    dataset: Annotated[str, typer.Option(metavar="NAME", help="Whose budget.")] = "default",
    explain: Annotated[
        bool,
        typer.Option(
            help="Release and charge nothing: show the SQL that would be sent, with made-up "
            "numbers in it, and the engine's plan. The plan is for the owner of the data only.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """The options of every release, for `_command` to hand on as a `Request`."""


def _command(ask: Callable[..., None]) -> Callable[..., None]:
    """Adds a command whose options are those of `ask` beside those of every release."""
    own = [each for each in inspect.signature(ask).parameters.values() if each.name != "request"]
    shared = list(inspect.signature(_shared).parameters.values())

    @functools.wraps(ask)
    def run(**given: Any) -> None:
        request = Request(**{name: given.pop(name) for name in Request._fields})
        ask(request, **given)

    merged = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in sorted([*own, *shared], key=lambda each: each.name != "source")
    ]
    run.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in merged}
    app.command(ask.__name__.replace("_", "-"))(run)
    return ask


Propose = Annotated[
    float,
    options.number("τ: how far one record may move the answer, in the unit of the data."),
]


@_command
def median(request: Request, propose: Propose) -> None:
    r"""Release the lower median, with noise for the proposal only.

    The test asks privately whether any record could move the median by more
    than --propose. If so, nothing is released (exit status 3); it costs the
    same, so propose generously.

    [b]Examples[/b]

    $ prudent release median salaries.parquet --column salary --propose 500 \
        --epsilon 0.3 --delta 1e-7 --ledger budget.db

    $ prudent release median --connect postgres://me@db/hr --table salaries \
        --column salary --unit employee --propose 500 --epsilon 0.3 --delta 1e-7

    $ prudent release median salaries.parquet --column salary --propose 500 \
        --epsilon 0.3 --delta 1e-7 --by city --groups Oslo,Bergen --json
    """
    _answer(request, "median", propose=propose)


@_command
def quantile(
    request: Request,
    p: Annotated[str, typer.Option("--p", metavar="P", help="In (0, 1]: 0.9, or exactly 9/10.")],
    propose: Propose,
) -> None:
    r"""Release a quantile: the smallest value with a share P at or below it.

    [b]Example[/b]

    $ prudent release quantile trips.parquet --column minutes --p 0.9 \
        --propose 2 --epsilon 0.5 --delta 1e-7 --ledger budget.db
    """
    _answer(request, "quantile", p=p, propose=propose)


@_command
def iqr(request: Request, propose: Propose) -> None:
    r"""Release the interquartile range, the spread of the middle half.

    [b]Example[/b]

    $ prudent release iqr salaries.parquet --column salary --propose 500 \
        --epsilon 0.5 --delta 1e-7 --ledger budget.db
    """
    _answer(request, "iqr", propose=propose)


@_command
def trimmed_mean(
    request: Request,
    trim: Annotated[
        int,
        options.whole_number(
            "Records left out at either end; public. Well above 2·ln(1/δ)/ε, or the test refuses."
        ),
    ],
    propose: Propose,
) -> None:
    r"""Release the mean without the --trim least and largest records.

    [b]Example[/b]

    $ prudent release trimmed-mean salaries.parquet --column salary \
        --trim 100 --propose 30 --epsilon 0.5 --delta 1e-7 --bounds 0,1000000
    """
    _answer(request, "trimmed_mean", trim=trim, propose=propose)


@_command
def mode(
    request: Request,
    categories: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="What can occur, from public knowledge, if known."),
    ] = None,
    propose: Annotated[
        float | None,
        options.number(
            "For numbers: τ, how far one record may move the mode. Without it the "
            "most frequent value is released as it is, or not at all."
        ),
    ] = None,
) -> None:
    r"""Release the most frequent value.

    [b]Example[/b]

    $ prudent release mode trips.parquet --column payment \
        --epsilon 0.5 --delta 1e-7 --ledger budget.db
    """
    _answer(request, "mode", categories=_typed_categories(request, categories), propose=propose)


def _answer(request: Request, statistic: str, **own: Any) -> None:
    """Releases, prints what came of it, and ends with the exit status that says so."""
    from prudent.release import statistics
    from prudent.release.budget.ledger import OverBudgetError

    if request.source is None and request.connect is None:
        raise ValueError("FILE: expected a file, or --connect with --table, got nothing.")
    names = ("epsilon", "delta", "connect", "table", "unit", "by", "bounds")
    given = {name: getattr(request, name) for name in names} | own
    given["groups"] = None if request.groups is None else _listed(request.groups)
    given = {name: value for name, value in given.items() if value is not None}
    ask = getattr(statistics, statistic)
    if request.explain:
        _explain(request, ask, given)
        return
    try:
        with _budget(request) as ledger:
            outcome = ask(request.source, request.column, ledger=ledger, **given)
    except OverBudgetError as error:
        if request.as_json:
            _print_json(request, _plain(None, "over budget"))
        complain(error)
        raise typer.Exit(OVER_BUDGET) from None
    outcomes = outcome if isinstance(outcome, dict) else {None: outcome}
    _print(request, outcomes)
    if request.ledger is None:
        complain("No --ledger: nobody keeps count of what releases cost.")
    if not any(_is_released(each) for each in outcomes.values()):
        raise typer.Exit(REFUSED)


def _explain(request: Request, statistic: Callable[..., Any], given: dict[str, Any]) -> None:
    """Prints the questions of a release as one SQL script, the plans as remarks in it."""
    from prudent.release.explanation import explain

    questions = explain(statistic, request.source, request.column, **given)
    if request.as_json:
        plain = [
            {"asks": each.asks, "sql": each.sql, "plan": each.plan.splitlines()}
            for each in questions
        ]
        echo(json.dumps({"questions": plain}, allow_nan=False))
        return
    for number, each in enumerate(questions, start=1):
        remarks = "\n".join(f"--   {line}".rstrip() for line in each.plan.splitlines())
        echo(f"-- {number} of {len(questions)}: {each.asks}\n{each.sql};\n{remarks}\n")
    complain(
        "Nothing was read or charged. Numbers in the SQL are made up; the plans hold statistics "
        "of the table and are for its owner only."
    )


def _budget(request: Request) -> Any:
    """The ledger to charge, if there is one."""
    import contextlib

    from prudent.release.budget.ledger import Ledger

    if request.ledger is None:
        return contextlib.nullcontext()
    return Ledger.open(request.ledger, dataset=request.dataset)


def _listed(text: str) -> list[str]:
    """The values of a comma-separated list; one that holds a comma is put in double quotes."""
    import csv

    return next(iter(csv.reader([text], skipinitialspace=True)), [])


def _typed_categories(request: Request, categories: str | None) -> list[Any] | None:
    """The categories in the type of the column: the order of texts is not that of numbers."""
    from prudent.release.columns.opening import open_column
    from prudent.release.columns.queries import TableColumn

    if categories is None:
        return None
    column = open_column(
        request.source,
        request.column,
        connect=request.connect,
        table=request.table,
        kind="categories",
    )
    assert isinstance(column, TableColumn)
    return list(column.typed(_listed(categories)))


def _is_released(outcome: "Outcome") -> bool:
    from prudent.release.outcome import Released

    return isinstance(outcome, Released)


def _plain(outcome: "Outcome | None", status: str = "refused") -> dict[str, Any]:
    """An outcome as JSON holds it."""
    if outcome is None or not _is_released(outcome):
        return {"status": status, "value": None, "branch": None, "noise_scale": None}
    released: Any = outcome
    return {
        "status": "released",
        "value": released.value,
        "branch": released.branch.value,
        "noise_scale": released.noise_scale,
    }


def _print(request: Request, outcomes: Mapping[Hashable, "Outcome"]) -> None:
    from prudent.accounting import ADD_REMOVE

    if request.as_json and request.by is None:
        _print_json(request, _plain(outcomes[None]))
    elif request.as_json:
        released = any(_is_released(each) for each in outcomes.values())
        each = {str(group): _plain(outcome) for group, outcome in outcomes.items()}
        _print_json(request, {"status": "released" if released else "refused", "groups": each})
    else:
        for group, outcome in outcomes.items():
            name = "" if request.by is None else f"{group}: "
            # On one line: a value with a line end in it could pretend to be another answer.
            echo(neutral(f"{name}{_in_words(outcome)}"), err=not _is_released(outcome))
        unit = "record" if request.unit is None else "unit"
        relation = ADD_REMOVE.sentence(unit)
        echo(f"({request.epsilon:g}, {request.delta:g})-DP for {relation}")


def _print_json(request: Request, plain: dict[str, Any]) -> None:
    from prudent.accounting import ADD_REMOVE

    relation = options.plain(ADD_REMOVE)
    cost = {"epsilon": request.epsilon, "delta": request.delta, "relation": relation}
    echo(json.dumps(options.plain(plain | cost), allow_nan=False, default=str))


def _in_words(outcome: Any) -> str:
    if not _is_released(outcome):
        return f"Refused. {outcome.reason}"
    noise = (
        f", noise of standard deviation {outcome.noise_scale:.4g}" if outcome.noise_scale else ""
    )
    return f"{outcome.value} ({outcome.branch.value} branch{noise})"
