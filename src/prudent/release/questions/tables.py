"""Several statistics of a table in one request, at one charge, as one table of answers."""

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from prudent import _validate
from prudent.budget import LedgerLike
from prudent.receipts.making import ReceiptTarget
from prudent.release.charging import Preview
from prudent.release.columns.column import PerUnit
from prudent.release.joins import Join
from prudent.release.noise import Distribution, Noise
from prudent.release.outcome import (
    NO_GROUPS,
    Groups,
    group_title,
    html_table,
    price_line,
    rows_of,
)
from prudent.release.questions.asks import Ask
from prudent.release.request import (
    By,
    Condition,
    GroupNames,
    Request,
    answers,
    release,
    release_all,
)
from prudent.release.statistics.summaries import PROBABILITIES, Description, Summary

Questions: TypeAlias = Mapping[str, str | Sequence[str]] | Sequence[Ask | str]


def _by_group(answer: Any) -> Mapping[Hashable, Any]:
    """The outcomes of an answer by group; by None without groups."""
    return answer if isinstance(answer, Groups) else {None: answer}


@attrs.frozen(kw_only=True)
class Table:
    """The answers to several questions of one table; it may be published.

    Attributes:
        answers: The answer to each question, by its name; with groups, one for each group.
        columns: The column of each answer.
        event: The privacy event of all of it, for any accountant.
        epsilon: ε that all of it cost.
        delta: δ that it cost.
    """

    answers: Mapping[str, Any]
    columns: Mapping[str, tuple[str | None, str]]
    event: Any = attrs.field(repr=False)
    epsilon: float
    delta: float

    def __getitem__(self, name: str) -> Any:
        """The answer of this name: an alias, or the text of the question."""
        if name not in self.answers:
            from prudent.release.questions.text import name_of  # needs sqlglot

            name = name_of(name)
        return self.answers[name]

    def groups(self) -> list[Hashable]:
        """The groups, in order; None alone without groups."""
        return list(_by_group(next(iter(self.answers.values()))))

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row for each number: its group, column, statistic, value, interval and status."""
        for name, answer in self.answers.items():
            column, statistic = self.columns[name]
            for group, outcome in _by_group(answer).items():
                labels = {} if group is None else answer.labels(group)
                for part, row in rows_of(outcome):
                    what = statistic if part is None else part
                    yield labels | {"column": column, "statistic": what} | row

    def to_frame(self, *, wide: bool = False) -> Any:
        """Return a pandas frame with one row for each number.

        Args:
            wide: Instead, one row for each group, and the value of each question in a column.
        """
        import pandas as pd

        if not wide:
            return pd.DataFrame(list(self.rows()))
        first = next(iter(self.answers.values()))
        found = []
        for group in self.groups():
            labels = first.labels(group) if isinstance(first, Groups) else {}
            values = {
                name: getattr(_by_group(answer)[group], "value", None)
                for name, answer in self.answers.items()
            }
            found.append(labels | values)
        return pd.DataFrame(found)

    def values(self) -> Iterator[Any]:
        """All outcomes."""
        for answer in self.answers.values():
            yield from _by_group(answer).values()

    def lines(self) -> list[str]:
        """The answers in words."""
        found = []
        for name, answer in self.answers.items():
            if not _by_group(answer):
                found.append(f"{name}: {NO_GROUPS}")
            for group, outcome in _by_group(answer).items():
                where = "" if group is None else f", {group_title(group)}"
                first, *rest = outcome.lines()
                found += [f"{name}{where}: {first}", *(f"  {line}" for line in rest)]
        return found

    def __str__(self) -> str:
        return "\n".join([*self.lines(), price_line(self.epsilon, self.delta)])

    def plain(self) -> dict[str, Any]:
        """The answers as JSON holds them."""
        answers = {
            name: {"groups": {group_title(group): each.plain() for group, each in answer.items()}}
            if isinstance(answer, Groups)
            else answer.plain()
            for name, answer in self.answers.items()
        }
        price = {"epsilon": self.epsilon, "delta": self.delta}
        return {"status": "released", "answers": answers, **price}

    def _repr_html_(self) -> str:
        """The answers for a notebook."""
        price = price_line(self.epsilon, self.delta)
        return f"{html_table(list(self.rows()))}<small>{price}</small>"


def table(
    data: Any = None,
    questions: Questions | None = None,
    *,
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    confidence: float = 0.95,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    by: By | None = None,
    groups: GroupNames | None = None,
    where: Condition | None = None,
    read_as: str | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: LedgerLike | None = None,
    receipt: ReceiptTarget | None = None,
    noise: Noise | None = None,
    dry_run: bool = False,
) -> Table | Preview:
    """Release several statistics of several columns, in one request and at one charge.

    ε is divided between the questions by what each needs: the shares make the sum of the expected
    relative errors least, and follow from the statistics alone, so that a count gets less than a
    mean, and a median less than a variance. With groups, every question is answered in every group;
    private groups are chosen once.

    Args:
        questions: Statistics by column, {"salary": ["median", "mean"], "age": "mean"}; or a list of
            `Ask`, or of texts such as "median(salary)" and "count(*)", in the syntax of SQL. None:
            a description of every column.
        epsilon: ε of all of it.

    The other arguments are those of `median`.
    """
    request = Request.of(locals())
    asks = _described(request) if questions is None else asked(questions)
    return answered(asks, request)


@answers
def describe(
    data: Any = None,
    column: str | None = None,
    *,
    ps: Sequence[Any] = PROBABILITIES,
    epsilon: float,
    delta: float | None = None,
    distribution: Distribution = Distribution.LAPLACE,
    confidence: float = 0.95,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    by: By | None = None,
    groups: GroupNames | None = None,
    where: Condition | None = None,
    read_as: str | None = None,
    connect: str | None = None,
    table: str | None = None,
    ledger: LedgerLike | None = None,
    receipt: ReceiptTarget | None = None,
    noise: Noise | None = None,
    dry_run: bool = False,
) -> Description:
    """Release a summary of a column: count, mean, deviation, quartiles and tails, without bounds.

    First comes an interval that few records lie outside of, for 14 % of ε; then the quantiles, for
    35 %, by halving among some ten thousand points of that interval, and theirs, for 15 %; then a
    part of it to which values are clipped, for 6 %, and the share of those outside, for 3 %; and
    the sums of the clipped values, for 27 %, from which count, mean and deviation follow.

    Args:
        column: The column; None describes every column of a table, at one charge: a
            `prudent.release.Table`.
        ps: The probabilities of the quantiles, in ascending order; the median is always released.
        epsilon: ε of all of it, at least 0.01.
        distribution: Of the noise of the sums; see `median`.
        confidence: Of the intervals of the quantiles, at least 0.95; 0: they have none, and are
            more accurate.

    The other arguments are those of `median`.

    Returns:
        `Description`; with `by`, one for each group.
    """
    request = Request.of(locals())
    if column is None and _is_table(data, connect):
        return answered(_described(request), request)  # type: ignore[return-value]
    return release(Summary(ps), request)  # type: ignore[no-any-return]


def _is_table(data: Any, connect: str | None) -> bool:
    """Whether data have columns with names, and are not one column by itself."""
    if connect is not None or isinstance(data, str | os.PathLike | Join):
        return True
    return any(hasattr(data, name) for name in ("columns", "column_names", "schema"))


def answered(asks: Sequence[Ask], request: Request) -> Table | Preview:
    """Answer questions of one table at one charge."""
    titles = [ask.title for ask in asks]
    if not asks or len(set(titles)) < len(titles):
        raise _validate.ArgumentError("questions", "one or more different ones", got=titles)
    parts = [ask.part(request) for ask in asks]
    preview, found = release_all(parts, request)
    if request.dry_run:
        from prudent.release.explanation import with_queries  # it needs ibis

        return with_queries(preview, parts, request)
    return Table(
        answers=dict(zip(titles, found, strict=True)),
        columns={ask.title: (ask.column, ask.statistic) for ask in asks},
        event=preview.event,
        epsilon=preview.epsilon,
        delta=preview.delta,
    )


def asked(questions: Any) -> list[Ask]:
    """Questions in any form, each as an `Ask`."""
    if isinstance(questions, Mapping):
        return [
            Ask(each, column)
            for column, names in questions.items()
            for each in ([names] if isinstance(names, str) else _validate.values(questions=names))
        ]
    found = []
    for each in _validate.values(questions=questions):
        if isinstance(each, str):
            from prudent.release.questions.text import parse_question  # needs sqlglot

            each = parse_question(each)
        found.append(_validate.instance(Ask, "an Ask, or a text such as median(x)", questions=each))
    return found


def _described(request: Request) -> list[Ask]:
    """A description of every column, as its public type allows."""
    from prudent.release.columns.joining import open_source

    opened = open_source(
        request.data, connect=request.connect, table=request.table, unit=request.unit
    )
    try:
        schema = dict(opened.table.schema().items())
    finally:
        if opened is not request.data:
            opened.close()
    found = []
    for name, dtype in schema.items():
        if name in (request.unit, *request.group_columns):
            continue
        if dtype.is_boolean():
            found.append(Ask("proportion", name))
        elif (dtype.is_numeric() or dtype.is_temporal()) and not dtype.is_time():
            found.append(Ask("describe", name))
        elif dtype.is_string() and name not in opened.text:
            found.append(Ask("count", name))
            if request.unit is None:
                found.append(Ask("count_distinct", name))
        elif name in opened.text:
            found.append(Ask("count", name))
    return found
