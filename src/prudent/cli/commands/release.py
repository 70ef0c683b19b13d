"""`prudent release`: private numbers of a column, in a file, a database or a warehouse."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from prudent.cli import options
from prudent.cli.answering import Request, answer, command, listed, read_bounds

app = typer.Typer(
    no_args_is_help=True,
    help="Release private numbers of a column. Exit status: 0 released, 3 refused by the "
    "test, 4 over budget, 2 bad input.",
)

_command = command(app)

Propose = Annotated[
    float | None,
    options.number(
        "τ: how far one record may move the answer, in the unit of the data. It is tested before "
        "it is trusted. Without it the answer is chosen by rank, and never refused."
    ),
]
Certify = Annotated[
    float | None,
    options.number(
        "Also prove, for a fifth of ε, how many records must be added or removed before the "
        "statistic is further than this from the answer."
    ),
]
Confidence = Annotated[
    float,
    options.number(
        "Probability with which the interval or the certificate holds. 0: no interval, and all of "
        "ε for the answer."
    ),
]


@_command
def median(
    request: Request,
    propose: Propose = None,
    certify: Certify = None,
    confidence: Confidence = 0.95,
) -> None:
    r"""Release the lower median.

    Without --propose it is chosen by the exponential mechanism: no bounds, no
    guess, no δ, and always an answer. With --propose the test asks privately
    whether any record could move the median by more than that; if so, nothing
    is released (exit status 3), and it costs the same.

    [b]Examples[/b]

    With the real table that prudent sample salaries writes:
    $ prudent release median salaries.parquet --column salary --epsilon 0.3

    $ prudent release median salaries.parquet --column salary \
        --epsilon 0.3 --ledger budget.db

    $ prudent release median --connect postgres://me@db/hr --table salaries \
        --column salary --unit employee --epsilon 0.3

    $ prudent release median visits.parquet --join patients.parquet \
        --on patient --unit patient --column cost --epsilon 0.3

    $ prudent release median salaries.parquet --column salary --propose 500 \
        --epsilon 0.3 --delta 1e-7 --by education \
        --groups 'high school,college' --json
    """
    answer(request, "median", propose=propose, certify=certify, confidence=confidence)


@_command
def quantile(
    request: Request,
    p: str = typer.Option(
        ..., "--p", metavar="P[,P…]", help="In (0, 1]: 0.9, or exactly 9/10; several: 0.1,0.5,0.9."
    ),
    low: str | None = options.value(
        "VALUE", "Prove how many records must change before it is below this.", default=None
    ),
    high: str | None = options.value(
        "VALUE", "Prove how many records must change before it is above this.", default=None
    ),
    propose: Propose = None,
    certify: Certify = None,
    confidence: Confidence = 0.95,
) -> None:
    r"""Release a quantile: the smallest value with a share P at or below it.

    Several at once cost less than one by one. With --low or --high no value is
    released, but how many records must change before the quantile passes them.

    [b]Examples[/b]

    $ prudent release quantile trips.parquet --column minutes --p 0.9 \
        --epsilon 0.5 --ledger budget.db

    $ prudent release quantile trips.parquet --column minutes \
        --p 0.1,0.5,0.9 --epsilon 1 --ledger budget.db

    $ prudent release quantile salaries.parquet --column salary --p 0.5 \
        --high 60000 --epsilon 0.1 --ledger budget.db
    """
    own: dict[str, Any] = {"propose": propose, "certify": certify}
    if low is not None or high is not None:
        answer(request, "certify_quantile", p=p, low=low, high=high, **own)
        return
    own["confidence"] = confidence
    if "," in p:
        answer(request, "quantiles", ps=listed(p), **own)
    else:
        answer(request, "quantile", p=p, **own)


@_command
def iqr(
    request: Request,
    propose: Propose = None,
    certify: Certify = None,
    confidence: Confidence = 0.95,
) -> None:
    r"""Release the interquartile range, the spread of the middle half.

    [b]Example[/b]

    $ prudent release iqr salaries.parquet --column salary \
        --epsilon 0.5 --ledger budget.db
    """
    answer(request, "iqr", propose=propose, certify=certify, confidence=confidence)


Other = Annotated[str, options.value("NAME", "The second column.")]
OtherBounds = Annotated[
    Any,
    typer.Option(
        metavar="LOW,HIGH", parser=read_bounds, help="Public bounds on the second column, if any."
    ),
]

_PLAIN = {
    "count": (
        "Release the number of rows; of records that have a value, with --column.",
        "trips.parquet --epsilon 0.1",
        "trips.parquet --epsilon 0.1 \\\n    --by started:month --groups 2024-01..2024-12",
    ),
    "count-distinct": (
        "Release how many different values a column has.\n\n"
        "With --unit, --per-unit says how many values of one unit count.",
        "trips.parquet --column station \\\n    --epsilon 0.5 --unit rider --per-unit 3",
    ),
    "proportion": (
        "Release the share of records for which a condition is true.",
        "trips.parquet --column 'minutes > 60' \\\n    --epsilon 0.1",
    ),
    "sum": (
        "Release the sum of a column, clipped to --bounds or to private quantiles.",
        "trips.parquet --column fare --epsilon 0.5",
    ),
    "mean": (
        "Release the mean of a column, clipped to --bounds or to private quantiles.",
        "trips.parquet --column fare --epsilon 0.5",
    ),
    "variance": (
        "Release the variance of a column, clipped to --bounds or to private quantiles.",
        "trips.parquet --column fare --epsilon 0.5",
    ),
    "deviation": (
        "Release the standard deviation of a column, clipped as for a variance.",
        "trips.parquet --column fare --epsilon 0.5",
    ),
    "minimum": (
        "Release a value that few records lie below; the answer says how many.",
        "trips.parquet --column fare --epsilon 0.5",
    ),
    "maximum": (
        "Release a value that few records lie above; the answer says how many.",
        "trips.parquet --column fare --epsilon 0.5",
    ),
}
"""What a statistic without options of its own is, and examples."""

_OF_TWO = {
    "ratio": "Release the sum of --column divided by the sum of --other.",
    "covariance": "Release the covariance of --column and --other.",
    "correlation": "Release the correlation of --column and --other, between -1 and 1.",
}
"""What a statistic of two columns is."""


def _add(name: str, ask: Callable[..., None], what: str, *examples: str) -> None:
    title = "Examples" if len(examples) > 1 else "Example"
    shown = "\n\n".join(f"$ prudent release {name} {each}" for each in examples)
    ask.__name__, ask.__doc__ = name, f"{what}\n\n[b]{title}[/b]\n\n{shown}"
    _command(ask)


def _of_one(statistic: str) -> Callable[..., None]:
    return lambda request: answer(request, statistic)


def _of_two(statistic: str) -> Callable[..., None]:
    def ask(request: Request, other: Other, other_bounds: OtherBounds = None) -> None:
        answer(request, statistic, other=other, other_bounds=other_bounds)

    return ask


for _name, (_what, *_examples) in _PLAIN.items():
    _add(_name, _of_one(_name.replace("-", "_")), _what, *_examples)
for _name, _what in _OF_TWO.items():
    _add(_name, _of_two(_name), _what, "trips.parquet --column fare --other miles --epsilon 1")


@_command
def weighted_mean(
    request: Request,
    weights: str = options.value("NAME", "The column of weights."),
    largest_weight: float | None = options.number(
        "A public bound on the weights, if there is one.", default=None
    ),
) -> None:
    r"""Release the mean of --column, weighted by another column.

    [b]Example[/b]

    $ prudent release weighted-mean trips.parquet --column speed \
        --weights miles --epsilon 1
    """
    answer(request, "weighted_mean", weights=weights, largest_weight=largest_weight)


@_command
def describe(request: Request, confidence: Confidence = 0.95) -> None:
    r"""Release count, mean, deviation, quartiles and tails, at one price.

    Without --column, of every column of the table.

    [b]Example[/b]

    $ prudent release describe trips.parquet --column fare --epsilon 1
    """
    answer(request, "describe", confidence=confidence)


@_command
def table(
    request: Request,
    columns: str | None = options.value(
        "QUESTION,…",
        "What to ask, as in SQL: 'median(fare),avg(miles),count(*)'. Without it, a "
        "description of every column.",
        default=None,
    ),
    confidence: Confidence = 0.95,
) -> None:
    r"""Release several statistics of several columns, in one request at one price.

    [b]Example[/b]

    $ prudent release table trips.parquet \
        --columns 'median(fare),avg(miles),count(*)' --epsilon 1 --ledger budget.db
    """
    questions = None if columns is None else _questions(columns)
    answer(request, "table", questions=questions, confidence=confidence)


def _questions(text: str) -> list[str]:
    """Questions with commas between, of which those in parentheses or quotes separate none."""
    found, depth, quote = [""], 0, ""
    for each in text:
        if each in "'\"" and quote in ("", each):
            quote = "" if quote else each
        elif not quote:
            depth += (each == "(") - (each == ")")
        if each == "," and depth == 0 and not quote:
            found.append("")
        else:
            found[-1] += each
    return [each.strip() for each in found]


Categories = Annotated[
    str | None,
    options.value(
        "A,B,…",
        "Categories, from public knowledge; or 'private': those with enough records, found "
        "privately (needs --delta).",
    ),
]


@_command
def histogram(
    request: Request,
    edges: str | None = options.value(
        "A,B,…",
        "Edges of the bins, from public knowledge. Without them 30 % of ε finds quantiles.",
        default=None,
    ),
    bins: int = options.whole_number("How many bins to aim at, without --edges.", default=20),
) -> None:
    r"""Release how many records are in each bin.

    [b]Example[/b]

    $ prudent release histogram trips.parquet --column fare --epsilon 0.5
    """
    answer(request, "histogram", edges=listed(edges), bins=bins)


@_command
def top_k(
    request: Request,
    k: int = options.whole_number("How many categories.", default=10),
    categories: Categories = None,
) -> None:
    r"""Release the most frequent categories, with how often each occurs.

    [b]Example[/b]

    $ prudent release top-k trips.parquet --column station --k 5 \
        --epsilon 0.5 --delta 1e-7
    """
    chosen = None if categories == "private" else listed(categories)
    answer(request, "top_k", k=k, categories=chosen)


@_command
def trimmed_mean(
    request: Request,
    trim: int = options.whole_number(
        "Records left out at either end; public. Well above 2·ln(1/δ)/ε, or the test refuses."
    ),
    propose: float = options.number(
        "τ: how far one record may move the answer, in the unit of the data."
    ),
    certify: Certify = None,
) -> None:
    r"""Release the mean without the --trim least and largest records.

    [b]Example[/b]

    $ prudent release trimmed-mean salaries.parquet --column salary \
        --trim 100 --propose 30 --epsilon 0.5 --delta 1e-7 --bounds 0,1000000
    """
    answer(request, "trimmed_mean", trim=trim, propose=propose, certify=certify)


@_command
def mode(
    request: Request,
    categories: str | None = options.value(
        "A,B,…", "What can occur, from public knowledge, if known.", default=None
    ),
    certify: Certify = None,
) -> None:
    r"""Release the most frequent value, as it is or not at all.

    [b]Example[/b]

    $ prudent release mode trips.parquet --column payment \
        --epsilon 0.5 --delta 1e-7 --ledger budget.db
    """
    typed = None
    if categories is not None:  # the order of texts is not that of numbers
        from prudent.release.columns.opening import open_column
        from prudent.release.columns.table_columns import TableColumn

        source = request.source_options()
        known: Any = {"kind": "categories", "unit": request.unit, **source}
        column = open_column(known.pop("data"), request.column, **known)
        assert isinstance(column, TableColumn)
        typed = list(column.typed(listed(categories) or []))
    answer(request, "mode", categories=typed, certify=certify)
