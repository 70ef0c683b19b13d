"""Several statistics of a table in one request, at one charge: the questions, and the answers."""

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
from typing_extensions import override

from prudent import _validate
from prudent.release.charging import Preview
from prudent.release.functions import STATISTICS
from prudent.release.outcome import (
    NO_GROUPS,
    Answer,
    Groups,
    LabelledRow,
    Refused,
    aligned,
    beside,
    group_title,
    least_confidence,
    notes_of,
    rows_of,
)
from prudent.release.request import Condition, Part, Request, Statistic, release_all
from prudent.release.statistics.summaries import Description

_OWN = ("per_unit", "where", "read_as")
"""The options of the table that a question may have of its own: one of another unit, or of a unit
in more groups, would not be protected as the price says.
"""

_OF_THE_WHOLE = {"epsilon", "delta", "receipt", "dry_run"}


@attrs.frozen(init=False)
class Ask:
    """One statistic of a table: `Ask("mean", "salary", bounds=(0, 100_000))`.

    Attributes:
        statistic: Its name, as of a function of `prudent`.
        column: The column, or an expression of one row; None for a count of rows.
        name: The name of its answer; None: its statistic and column.
        options: Further options of that function.
    """

    statistic: str
    column: str | None
    name: str | None
    options: Mapping[str, Any]

    def __init__(
        self, statistic: str, column: str | None = None, *, name: str | None = None, **options: Any
    ) -> None:
        """Store what is asked; it is checked where it is asked of a table."""
        names = [name for name, each in STATISTICS.items() if each.need is not None]
        _validate.one_of(names, statistic=statistic)
        self.__attrs_init__(statistic, column, name, options)

    @property
    def title(self) -> str:
        """The name of its answer."""
        if self.name is not None:
            return self.name
        return self.statistic if self.column is None else f"{self.statistic}({self.column})"

    def part(self, request: Request) -> Part:
        """The part of a request that asks this."""
        declared = STATISTICS[self.statistic]
        given = declared.named(self.options)
        taken = {*declared.options, *_OWN} - _OF_THE_WHOLE
        if len(declared.columns) > 1:
            taken |= {"other", "other_bounds"}
        own = {name: value for name, value in given.items() if name in declared.own}
        shared = {name: value for name, value in given.items() if name in taken}
        asked, weight, need = None, None, declared.need
        with contextlib.suppress(TypeError):  # it needs another argument of its own
            asked, weight = declared.make(**own), need(**own) if callable(need) else need
        unknown = [name for name in given if name not in own and name not in shared]
        statistic, more = asked if isinstance(asked, tuple) else (asked, {})
        if unknown or weight is None or not isinstance(statistic, Statistic):
            shown = ", ".join(unknown or own) or "fewer than it needs"
            raise _validate.ArgumentError("options", f"of a {self.statistic}", shown=shown)
        if "where" in shared:
            shared["where"] = conjunction(request.where, shared["where"])
        asks = attrs.evolve(request, column=self.column, **shared, **more)
        return Part(statistic, asks, weight)


def conjunction(whole: Condition | None, own: Condition | None) -> Condition | None:
    """The condition of a table, together with that of one of its questions."""
    if whole is None or own is None:
        return whole if own is None else own
    from prudent.release.columns.row_values.expressions import both, parse_condition  # needs ibis

    if isinstance(whole, str) and isinstance(own, str):
        return both(whole, own)
    one, other = (parse_condition(each) if isinstance(each, str) else each for each in (whole, own))
    return lambda rows: one(rows) & other(rows)


Questions: TypeAlias = Mapping[str, str | Sequence[str]] | Sequence[Ask | str]


def by_group(answer: Any) -> Mapping[Hashable, Any]:
    """The outcomes of an answer by group; by None without groups."""
    return answer if isinstance(answer, Groups) else {None: answer}


@attrs.frozen(kw_only=True)
class ReleasedTable(Answer):
    """The answers to several questions of one table; it may be published.

    Attributes:
        answers: The answer to each question, by its name; with groups, one for each group.
        columns: The column of each answer.
        event: The privacy event of all of it, for any accountant.
        epsilon: ε that all of it cost.
        delta: δ that it cost.
        protected: As for `Released`.
        notes: What must be said of all of it, one sentence each.
    """

    answers: Mapping[str, Any]
    columns: Mapping[str, tuple[str | None, str]]
    event: Any = attrs.field(repr=False)
    epsilon: float
    delta: float
    protected: str = "record"
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        """The answer of this name: an alias, or the text of the question."""
        if name not in self.answers:
            from prudent.release.questions.text import name_of  # needs sqlglot

            name = name_of(name)
        return self.answers[name]

    def groups(self) -> list[Hashable]:
        """The groups, in order; None alone without groups."""
        return list(by_group(next(iter(self.answers.values()))))

    def rows(self) -> Iterator[LabelledRow]:
        """For each number its group, and its column, statistic, value, interval and status."""
        for name, answer in self.answers.items():
            column, statistic = self.columns[name]
            for group, outcome in by_group(answer).items():
                labels = {} if group is None else answer.labels(group)
                for part, row in rows_of(outcome):
                    what = statistic if part is None else part
                    yield labels, {"column": column, "statistic": what} | row

    @override
    def to_frame(self, *, wide: bool = False) -> Any:
        """Return a pandas frame with one row for each number.

        Args:
            wide: Instead, one row for each group, and of each question columns with its value, the
                ends of its interval, and its notes: `n`, `n low`, `n high`, `n notes`.
        """
        import pandas as pd

        if not wide:
            return super().to_frame()
        first = next(iter(self.answers.values()))
        found = []
        for group in self.groups():
            labels = first.labels(group) if isinstance(first, Groups) else {}
            facts: dict[str, Any] = {}
            for name, answer in self.answers.items():
                outcome = by_group(answer)[group]
                for part, row in rows_of(outcome):
                    title = name if part is None else f"{name} {part}"
                    ends = {f"{title} {end}": row[end] for end in ("low", "high")}
                    facts |= {title: row["value"]} | ends
                facts[f"{name} notes"] = " ".join(outcome.plain()["notes"])
            found.append(beside(labels, facts))
        return pd.DataFrame(found)

    @override
    def records(self) -> list[dict[str, Any]]:
        return [beside(*row) for row in self.rows()]

    def table(self) -> list[str]:
        """The answers as aligned columns, one line for each number; then what is to be known."""
        known: dict[Hashable, Any] = {
            name if group is None else (name, group_title(group)): outcome
            for name, answer in self.answers.items()
            for group, outcome in by_group(answer).items()
        }
        if not known or any(hasattr(each, "edges") for each in known.values()):
            return self.lines()
        rows = aligned(list(self.rows()), least_confidence(known.values()))
        return [*rows, *notes_of(known), *self.notes]

    @property
    def status(self) -> str:
        """Whether anything was released."""
        outcomes = list(self.values())
        refused = outcomes and all(isinstance(each, Refused) for each in outcomes)
        return "refused" if refused else "released"

    def values(self) -> Iterator[Any]:
        """All outcomes."""
        for answer in self.answers.values():
            yield from by_group(answer).values()

    @override
    def lines(self) -> list[str]:
        found = []
        for name, answer in self.answers.items():
            if not by_group(answer):
                found.append(f"{name}: {NO_GROUPS}")
            for group, outcome in by_group(answer).items():
                where = "" if group is None else f", {group_title(group)}"
                lines = outcome.lines()
                first = "" if isinstance(outcome, Description) else f" {lines.pop(0)}"
                found += [f"{name}{where}:{first}", *(f"  {line}" for line in lines)]
        return [*found, *self.notes]

    def plain(self) -> dict[str, Any]:
        """The answers as JSON holds them."""
        answers = {
            name: {"groups": {group_title(group): each.plain() for group, each in answer.items()}}
            if isinstance(answer, Groups)
            else answer.plain()
            for name, answer in self.answers.items()
        }
        price = {"epsilon": self.epsilon, "delta": self.delta}
        notes = {"notes": list(self.notes)} if self.notes else {}
        return {"status": self.status, "answers": answers, **price, **notes}


def answered(asks: Sequence[Ask], request: Request) -> ReleasedTable | Preview:
    """Answer questions of one table at one charge."""
    titles = [ask.title for ask in asks]
    if not asks or len(set(titles)) < len(titles):
        raise _validate.ArgumentError("questions", "one or more different ones", got=titles)
    parts = [ask.part(request) for ask in asks]
    preview, found = release_all(parts, request)
    if request.dry_run:
        from prudent.release.questions.rehearsal import with_queries  # it needs ibis

        return with_queries(preview, parts, request)
    return ReleasedTable(
        answers=dict(zip(titles, found, strict=True)),
        columns={ask.title: (ask.column, ask.statistic) for ask in asks},
        event=preview.event,
        epsilon=preview.epsilon,
        delta=preview.delta,
        protected=request.protected,
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


UNDECLARED = (
    "Columns of a CSV file, and of a pandas frame without nullable dtypes, have no declared type: "
    "they are only counted. Describe one by its name, with read_as, or give a Parquet file."
)


def described(request: Request) -> ReleasedTable | Preview:
    """Describe every column, as its public type allows."""
    from prudent.release.columns.joining import open_source

    opened = open_source(
        request.data, connect=request.connect, table=request.table, unit=request.unit
    )
    found = []
    for name, dtype in opened.table.schema().items():
        if name in (request.unit, *request.group_columns):
            continue
        number = dtype.is_boolean() or dtype.is_numeric() or dtype.is_temporal()
        dates = dtype.is_date() or dtype.is_timestamp()
        # A rule that a type does not have; the answer says by which one it counts.
        lacking = {"sum"} if dates else set() if number else {"mean", "median", "sum", "count"}
        own: dict[str, Any] = {"per_unit": None} if {request.per_unit} & lacking else {}
        if dtype.is_boolean() and request.per_unit not in ("count", "sum"):
            found.append(Ask("proportion", name))
        elif number and not dtype.is_time():
            found.append(Ask("describe", name, **own))
        elif dtype.is_string() or name in opened.text:
            found.append(Ask("count", name, **own))
            if request.unit is None and name not in opened.text:
                found.append(Ask("count_distinct", name))
    answer = answered(found, request)
    return attrs.evolve(answer, notes=(*answer.notes, UNDECLARED)) if opened.text else answer
