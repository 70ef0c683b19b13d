"""`prudent sql`: questions in SQL, answered privately."""

import functools
from typing import Any, get_type_hints

import typer

from prudent.cli import options
from prudent.cli.answering import Request, ask_and_print, groups_of, listed, receipt_file, rule_of

_SHARED = get_type_hints(Request, include_extras=True)  # an option is declared once
_NAMES = (
    *("delta", "unit", "per_unit", "groups", "connect", "ledger", "dataset", "receipt", "sign"),
    "dry_run",
)


def sql(
    query: str = typer.Argument(metavar="QUERY", help="SELECT … FROM 'file' …"),
    epsilon: float = options.number("ε of the whole query."),
    delta: Any = None,
    unit: Any = None,
    per_unit: Any = None,
    groups: Any = None,
    connect: Any = None,
    public: str | None = options.value(
        "NAME,…", "Of joined tables, those that are public, by their names there.", default=None
    ),
    ledger: Any = None,
    dataset: Any = "default",
    receipt: Any = None,
    sign: Any = None,
    dry_run: Any = False,
    as_json: options.Json = False,
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

    manner = Request(
        epsilon=epsilon, unit=unit, ledger=ledger, dataset=dataset, dry_run=dry_run, as_json=as_json
    )
    given = {
        "delta": delta,
        "unit": unit,
        "per_unit": rule_of(per_unit),
        "groups": groups_of(groups, answering.keys_of(query)) if groups is not None else None,
        "connect": connect,
        "public": listed(public) or (),
        "receipt": receipt_file(receipt, sign),
    }
    ask_and_print(manner, functools.partial(answering.sql, query, epsilon=epsilon, **given))


sql.__annotations__ |= {name: _SHARED[name] for name in _NAMES}
