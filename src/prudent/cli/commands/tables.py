"""`prudent sql`, `regress`, `synth` and `sample`: questions, models and tables of whole tables."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import typer

from prudent._validate import Choice
from prudent.cli import options
from prudent.cli.answering import (
    REFUSED,
    Request,
    ask_and_print,
    budget,
    groups_of,
    listed,
    print_json,
    receipt_file,
    rule_of,
)
from prudent.cli.display import echo, echo_json, neutral, note, only_elapsed, remark
from prudent.cli.errors import Fault, print_error

if TYPE_CHECKING:
    from prudent.estimators.classifiers import LogisticRegression
    from prudent.estimators.linear import LinearModel

    Fitted = LinearModel | LogisticRegression

_FORECASTS = (1_000, 10_000, 100_000, 1_000_000)


_OF_SQL = (
    *("delta", "unit", "per_unit", "groups_per_unit", "groups", "connect", "ledger", "dataset"),
    *("receipt", "sign", "dry_run", "as_json", "as_csv", "parquet"),
)
_OF_REGRESS = (
    *("where", "connect", "table", "ledger", "dataset", "receipt", "sign", "dry_run", "as_json"),
)
_OF_SYNTH = ("where", "unit", "connect", "table", "ledger", "dataset", "receipt", "sign", "as_json")


@options.spread(Request, _OF_SQL)
def sql(
    query: str = typer.Argument(metavar="QUERY", help="SELECT … FROM 'file' …"),
    epsilon: float = options.number("ε of the whole query."),
    public: str | None = options.value(
        "NAME,…", "Of joined tables, those that are public, by their names there.", default=None
    ),
    **shared: Any,
) -> None:
    r"""Answer a question in SQL privately.

    The query is parsed and becomes a private request; it is never executed as
    it is given. What has no private answer is refused, free of charge, with
    the nearest question that has one.

    [b]Examples[/b]

    $ prudent sql "SELECT education, MEDIAN(salary), COUNT(*) \
        FROM 'salaries.parquet' WHERE age < 40 \
        AND education IN ('high school', 'college') \
        GROUP BY education" --epsilon 1 --ledger budget.db

    $ prudent sql "SELECT AVG(CLIP(salary, 0, 30000)), CORR(age, salary) \
        FROM 'salaries.parquet'" --epsilon 1 --dry-run

    $ prudent sql "SELECT AVG(v.cost) FROM 'visits.parquet' v JOIN \
        'patients.parquet' p ON v.patient = p.patient WHERE p.age > 60" \
        --unit patient --epsilon 1
    """
    from prudent.release.questions import sql as answering

    asked = Request(epsilon=epsilon, **shared)
    by = None if asked.groups is None else answering.keys_of(query)
    given = {
        "delta": asked.delta,
        "unit": asked.unit,
        "per_unit": rule_of(asked.per_unit),
        "groups_per_unit": asked.groups_per_unit,
        "groups": groups_of(asked.groups, by),
        "connect": asked.connect,
        "public": listed(public) or (),
        "receipt": receipt_file(asked.receipt, asked.sign),
    }
    ask_and_print(asked, functools.partial(answering.sql, query, epsilon=epsilon, **given))


class Model(Choice):
    """What is fitted."""

    LINEAR = "linear"
    RIDGE = "ridge"
    MEDIAN = "median"
    LOGISTIC = "logistic"


@options.spread(Request, _OF_REGRESS)
def regress(
    formula: str = typer.Argument(
        metavar="FORMULA",
        help="TARGET ~ COLUMN + …; C(column) for categories, C(column, a, b) if their levels "
        "are public, missing(column) to keep rows in which it is missing; a * b, a:b, log(a), "
        "I(a ** 2), ., - a.",
        show_default=False,
    ),
    source: options.Source = None,
    *,
    epsilon: float = options.number("ε of the whole model, at least 0.01."),
    delta: float = options.number("δ of the whole model.", default=1e-6),
    model: Model = options.value(
        "NAME",
        "linear: least squares; ridge: with a penalty; median: median regression, which "
        "wild targets hardly move and which often withstands more bad records in large tables; "
        "logistic: of labels, which are found privately.",
        default=Model.LINEAR,
    ),
    alpha: float = options.number("The penalty of ridge.", default=1.0),
    certify: float | None = options.number(
        "Also prove how many records may be bad: without them the slopes would be within this "
        "of the answer, in deviations of the target per deviation of a column.",
        default=None,
    ),
    r2: bool = typer.Option(
        False, "--r2", help="Also release R², from the same budget; of least squares."
    ),
    unit: str | None = options.value(
        "COLUMN", "Whose row it is: protect all rows of a unit, and keep one of them.", default=None
    ),
    per_unit: int = options.whole_number("Keep so many rows of each unit.", default=1),
    records: int | None = options.whole_number(
        "With --dry-run: about how many records the table has, if known.", default=None
    ),
    **shared: Any,
) -> None:
    r"""Fit a private regression, without bounds on any column.

    Each coefficient comes with an interval that accounts for the noise and for
    the sampling of records, and the whole model costs (ε, δ) once. Dates count
    in days, booleans as 0 and 1. Rows with a gap count as absent. If the
    table has too few records for this ε, the answer is a refusal that says how
    many are needed (exit status 3); --dry-run says so before anything is paid.

    [b]Examples[/b]

    With the real table that prudent sample salaries writes:
    $ prudent regress 'salary ~ age + C(education)' salaries.parquet --epsilon 1

    $ prudent regress 'salary ~ age + C(sex, female, male)' salaries.parquet \
        --epsilon 1 --ledger budget.db --json

    How good will it be, and how many bad records does it withstand?
    $ prudent regress 'salary ~ age' --epsilon 1 --dry-run --records 20000

    $ prudent regress 'salary ~ age' salaries.parquet --epsilon 1 --certify 0.1
    """
    wanted: Any = {"epsilon": epsilon, "delta": delta, "certify": certify}
    asked = Request(source=source, epsilon=epsilon, **shared)
    if asked.dry_run:
        _forecast(_estimator(model, alpha, r2=r2, **wanted), formula, records, asked.as_json)
        return
    if records is not None:
        raise ValueError("--records: expected only with --dry-run, got both without it.")
    asked.check_source()
    from prudent.estimators import TooFewRecordsError

    with budget(asked) as keeper, only_elapsed():
        fitted = _estimator(model, alpha, r2=r2, ledger=keeper, **wanted)
        if "~" not in formula:
            raise ValueError("FORMULA: expected such as 'salary ~ age + hours', got no '~'.")
        refused = None
        try:
            rows: dict[str, Any] = {"connect": asked.connect, "table": asked.table}
            rows |= {"where": asked.where, "unit": unit, "per_unit": per_unit}
            fitted.fit(source, formula, **rows, receipt=receipt_file(asked.receipt, asked.sign))
        except TooFewRecordsError as error:
            refused = str(error)
    found = {"model": model.value, "epsilon": fitted.epsilon_, "delta": fitted.delta_}
    if refused is not None:
        if asked.as_json:
            print_json({"status": "refused", "notes": [refused], **found})
        print_error(Fault(f"Refused. {refused}", status=REFUSED))
    elif asked.as_json:
        print_json({"status": "released", **_plain(fitted), **found})
    else:
        for line in fitted.summary().split("\n"):
            echo(neutral(line))
    if asked.ledger is None:
        note("No --ledger: not charged to any budget.")
    if refused is not None:
        raise typer.Exit(REFUSED)


def _estimator(model: Model, alpha: float, *, r2: bool, **asked: Any) -> "Fitted":
    from prudent import estimators

    if r2 and model in (Model.MEDIAN, Model.LOGISTIC):
        raise ValueError(f"--r2: expected with --model linear or ridge, got {model.value}.")
    match model:
        case Model.LOGISTIC:
            if asked.pop("certify") is not None:
                raise ValueError("--certify: expected with another model, got logistic.")
            return estimators.LogisticRegression(**asked)
        case Model.MEDIAN:
            return estimators.QuantileRegressor(0.5, **asked)
        case Model.RIDGE:
            return estimators.Ridge(alpha, r2=r2, **asked)
    return estimators.LinearRegression(r2=r2, **asked)


def _forecast(fitted: "Fitted", formula: str, records: int | None, as_json: bool) -> None:
    from prudent.estimators.formula import Formula

    features = len(Formula.parse(formula).factors)
    previews = [
        fitted.dry_run(count, features) for count in (_FORECASTS if records is None else (records,))
    ]
    if as_json:
        first = previews[0]
        notes = list(dict.fromkeys(line for each in previews for line in each.notes))
        facts = {"epsilon": first.epsilon, "delta": first.delta, "notes": notes}
        print_json({"status": "preview", "statistic": first.statistic, **facts})
        return
    lines = dict.fromkeys(line for each in previews for line in each.lines())
    for line in lines:
        echo(neutral(line))
    note("Nothing was read or charged.")


def _plain(fitted: "Fitted") -> dict[str, Any]:
    """The model as JSON holds it."""
    rows = [
        {"term": term, "value": value, "interval": _ends(ends)}
        for term, value, ends in fitted.coefficients()
    ]
    whole: dict[str, Any] = {"records": fitted.n_records_, "no_interval": fitted.no_interval_}
    if hasattr(fitted, "classes_"):
        return {"classes": fitted.classes_.tolist(), "coefficients": rows} | whole
    whole = {
        "intercept": fitted.intercept_,
        "intercept_interval": _ends(fitted.intercept_interval_),
        "coefficients": [row for row in rows if row["term"] != "(intercept)"],
        "records": fitted.n_records_,
        "clipped": fitted.n_clipped_,
        "no_interval": fitted.no_interval_,
    }
    if fitted.r2:
        whole["r2"] = fitted.r2_
    if fitted.certify is not None:
        without_basis = attrs.filters.exclude("basis")
        whole["certificate"] = attrs.asdict(fitted.certificate_, filter=without_basis)
    return whole


def _ends(interval: Any) -> list[float] | None:
    """The ends of an interval; None if there is none."""
    low, high = map(float, interval)
    return None if low != low else [low, high]


@options.spread(Request, _OF_SYNTH)
def synth(
    source: options.Source = None,
    *,
    out: Path = options.value("FILE", "Where to write the table: a .parquet or .csv file."),
    epsilon: float = options.number("ε of the whole table, at least 0.01."),
    delta: float = options.number("δ of the whole table."),
    columns: str | None = options.value("NAME,…", "The columns to make. \\[all]", default=None),
    constraint: list[str] = typer.Option(
        [], metavar="CONDITION", help="A public condition on a row: 'start <= end'. Repeatable."
    ),
    rows: int | None = options.whole_number(
        "About how many rows the table has, if that is public: too few are refused for free.",
        default=None,
    ),
    most_rows: int = options.whole_number("With --unit: rows to use of each unit.", default=8),
    **shared: Any,
) -> None:
    r"""Make a synthetic table with the columns of a private one.

    No domain and no bounds are needed: frequent values, ranges and the columns
    that belong together are found privately, and the whole table costs (ε, δ)
    once. The report says what was measured, and how exact it is.

    [b]Examples[/b]

    With the real table that prudent sample salaries writes:
    $ prudent synth salaries.parquet --epsilon 1 --delta 1e-6 \
        --out synthetic.parquet --ledger budget.db --receipt synth.json

    $ prudent synth visits.csv --unit patient --most-rows 4 --epsilon 2 \
        --delta 1e-6 --constraint 'age >= 0' --out synthetic.csv
    """
    from prudent.synth import synthesize

    asked = Request(source=source, epsilon=epsilon, **shared)
    asked.check_source()
    with budget(asked) as keeper, only_elapsed():
        made = synthesize(
            source,
            epsilon=epsilon,
            delta=delta,
            columns=listed(columns),
            constraints=constraint,
            rows=rows,
            unit=asked.unit,
            most_rows=most_rows,
            where=asked.where,
            connect=asked.connect,
            table=asked.table,
            ledger=keeper,
            receipt=receipt_file(asked.receipt, asked.sign),
            out=out,
        )
    if asked.as_json:
        price = {"epsilon": made.epsilon, "delta": made.delta}
        print_json({"status": "released", "out": str(out), **made.plain(), **price})
    else:
        for line in made.report.splitlines():
            echo(neutral(line))
    if asked.ledger is None:
        note("No --ledger: not charged to any budget.")


def sample(
    name: str = typer.Argument(
        metavar="NAME",
        help="Which table: salaries.",
        autocompletion=options.among("salaries"),
    ),
    out: Path | None = options.value(
        "FILE", "Where to write it; by default NAME.parquet, here.", default=None
    ),
    force: bool = typer.Option(False, "--force", help="Replace a file that is there."),
    as_json: options.Json = False,
) -> None:
    """Write a small real table to try things on.

    It ships with the package and its records are public, so that you can
    compare private answers with exact ones.

    [b]Example[/b]

    $ prudent sample salaries

    $ prudent release median salaries.parquet --column salary --epsilon 0.3
    """
    from prudent.samples import SAMPLES, write

    path = write(name, out, force=force)
    known = SAMPLES[name]
    if as_json:
        echo_json({"file": str(path), "about": known.about, "source": known.source})
        return
    echo(neutral(f"Wrote {path}."))
    remark(known.about)
    remark(f"Source: {known.source}")
